"""Questions for a corpus without questions: titles or first sentences.

`inference-free-sparse` pre-trains on such pairs, section 4.2 and table 1: (Title, Abstract), (Summary, Text), …
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from trainers.data.examples import TrainingData, training_pairs
from trainers.data.loading import read_documents
from trainers.data.texts import TextStore

_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=\S)", re.DOTALL)
QUERY_WORDS = range(4, 41)
REST_WORDS = 15
FIT = {
    "title": "they need a title and a text",
    "first-sentence": f"a first sentence needs {QUERY_WORDS[0]} to {QUERY_WORDS[-1]} words, and {REST_WORDS} words after it",
}


def by_title(document: Document) -> tuple[str, Document] | None:
    """(title, the document without it); None if title or text is missing."""
    title = " ".join(document.title.split())
    if not title or not document.text.strip():
        return None
    return title, replace(document, title="")


def by_first_sentence(document: Document) -> tuple[str, Document] | None:
    """(first sentence, the document without it); None if the sentence does not serve as a question."""
    parts = split(document.text)
    return None if parts is None else (parts[0], replace(document, text=parts[1]))


def split(text: str) -> tuple[str, str] | None:
    """(first sentence, the rest); None if the sentence does not serve as a query or too little text is left."""
    match = _SENTENCE.match(text.strip())
    if match is None:
        return None
    sentence = " ".join(match[1].split())
    rest = text.strip()[match.end() :]
    if len(sentence.split()) not in QUERY_WORDS or len(rest.split()) < REST_WORDS or sentence in " ".join(rest.split()):
        return None
    return sentence, rest


QUESTIONS = {"title": by_title, "first-sentence": by_first_sentence}


def unlabelled(corpus: Path, kind: str, *, name: str, limit: int | None = None) -> TrainingData:
    """Training data from a corpus without judgements: one question per document, which the document answers.

    kind: "title" or "first-sentence", which becomes the question; the rest remains as the document. limit: only the first N
    documents. Raises InputError if no document gives a question.
    """
    queries, documents = TextStore(what="query"), TextStore()
    read = 0

    def pairs() -> Iterator[tuple[int, int]]:
        nonlocal read
        for document in islice(read_documents(corpus), limit):
            read += 1
            made = QUESTIONS[kind](document)
            text = (document if made is None else made[1]).contents
            if text:
                row = documents.add(document.id, text)
                if made is not None:
                    yield queries.add(f"{kind}:{document.id}", made[0]), row

    questions = list(pairs())
    if not read:
        raise InputError(f"{corpus} holds no document with text")
    if not questions:
        raise InputError(
            f"{corpus}: none of {read} documents gives a question: {FIT[kind]}",
            "leave this train set out, or choose another kind of questions",
        )
    data = training_pairs(name, queries, documents, questions)
    if len(questions) < read:
        data.notes.append(f"{read - len(questions)} of {read} documents give no question: {FIT[kind]}")
    return data
