"""Questions for a corpus that has none: titles, first sentences, or what a query generator wrote.

`inference-free-sparse` pre-trains on such pairs, section 4.2 and table 1: (Title, Abstract), (Summary, Text), …
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint
from trainers.data.examples import TrainingData, training_pairs
from trainers.data.loading import load_training, read_documents
from trainers.data.texts import TextStore

_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=\S)", re.DOTALL)
QUERY_WORDS = range(4, 41)
REST_WORDS = 15
FIT = {
    "title": "they need a title, and a text beside it",
    "first-sentence": f"a first sentence needs {QUERY_WORDS[0]} to {QUERY_WORDS[-1]} words, and {REST_WORDS} words after it",
}


def unlabelled(
    corpus: Path, questions: str, *, name: str, limit: int | None = None, folder: Path | None = None
) -> TrainingData:
    """Training data of a corpus without judgements: one question a document, which that document answers.

    questions: "title" (the document is its text without it), "first-sentence" (the document is the rest), or a
    sequence-to-sequence model as `osn train doc2query` makes, whose queries are kept in `folder`, under a name that
    tells generator and documents. limit: only the first N documents. Raises InputError for a corpus none of whose
    documents gives a question.
    """
    if questions in ("title", "first-sentence"):
        return _of_documents(corpus, by_title if questions == "title" else by_first_sentence, questions, name, limit)
    from trainers.common.processes import main_process_first
    from trainers.doc2query.generate import generate_queries
    from trainers.doc2query.settings import GenerationSettings

    if folder is None:
        raise ValueError("generated queries need a folder")
    try:
        generator = locate(questions)
    except ModelError as error:
        raise InputError(
            f"questions: {questions!r} is neither title nor first-sentence, and no query generator: {error.message}",
            "title, first-sentence, or a model directory of osn train doc2query",
        ) from None
    documents = TextStore((document.id, document.contents) for document in read_documents(corpus, limit=limit))
    if not len(documents):
        raise InputError(f"{corpus} holds no document with text")
    sampling = GenerationSettings(questions).sampling()
    made_by = fingerprint(hash_files(generator), sampling, documents.hash)
    file = folder / f"{name}.{made_by}.queries.jsonl"
    with main_process_first():
        folder.mkdir(parents=True, exist_ok=True)
        generate_queries(questions, documents, output=file, sampling=sampling)
    return load_training(file, corpus=corpus, format="generated", name=name)


def by_title(document: Document) -> tuple[str, Document] | None:
    """(title, the document without it) where there are both."""
    title = " ".join(document.title.split())
    if not title or not document.text.strip():
        return None
    return title, replace(document, title="")


def by_first_sentence(document: Document) -> tuple[str, Document] | None:
    """(first sentence, the document without it) where it is fit for a question."""
    held = split(document.text)
    return None if held is None else (held[0], replace(document, text=held[1]))


def split(text: str) -> tuple[str, str] | None:
    """(first sentence, the rest) where the first is a fit query and enough is left; None elsewhere."""
    match = _SENTENCE.match(text.strip())
    if match is None:
        return None
    sentence = " ".join(match[1].split())
    rest = text.strip()[match.end() :]
    if len(sentence.split()) not in QUERY_WORDS or len(rest.split()) < REST_WORDS or sentence in " ".join(rest.split()):
        return None
    return sentence, rest


def _of_documents(
    corpus: Path,
    question_of: Callable[[Document], tuple[str, Document] | None],
    kind: str,
    name: str,
    limit: int | None,
) -> TrainingData:
    queries, documents = TextStore(what="query"), TextStore()
    read = 0

    def pairs() -> Iterator[tuple[int, int]]:
        nonlocal read
        for document in islice(read_documents(corpus), limit):
            read += 1
            made = question_of(document)
            text = (document if made is None else made[1]).contents
            if text:
                row = documents.add(document.id, text)
                if made is not None:
                    yield queries.add(f"{kind}:{document.id}", made[0]), row

    asked = list(pairs())
    if not read:
        raise InputError(f"{corpus} holds no document with text")
    if not asked:
        raise InputError(f"{corpus}: none of {read} documents gives a question: {FIT[kind]}", "name other questions")
    data = training_pairs(name, queries, documents, asked)
    if len(asked) < read:
        data.notes.append(f"{read - len(asked)} of {read} documents give no question: {FIT[kind]}")
    return data
