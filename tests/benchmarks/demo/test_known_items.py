"""Queries made of a corpus that has no judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.demo.known_items import hold_out_sentences
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from trainers.data.unlabelled_questions import split

REST = "Then it goes on for a good while with many other words that make up the rest of it."


def write(folder: Path, texts: list[str]) -> str:
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return str(path)


def test_a_query_is_nowhere_in_the_document_it_is_to_find(tmp_path: Path) -> None:
    corpus = write(tmp_path, [f"Number {n} begins in its own way. {REST}" for n in range(20)])
    assert hold_out_sentences(corpus, tmp_path / "out", queries=5) == 5
    data = BeirData.load(tmp_path / "out", "test")
    documents = {document.id: document for document in read_corpus(tmp_path / "out")}
    assert len(documents) == 20
    for query, judged in data.qrels.items():
        (id,) = judged
        assert data.queries[query] == f"Number {id[1:]} begins in its own way."
        assert data.queries[query] not in documents[id].contents
        assert documents[id].text == REST


def test_a_sentence_that_several_documents_begin_with_is_no_query(tmp_path: Path) -> None:
    corpus = write(tmp_path, [f"All begin with this sentence. {REST}", f"All begin with this sentence. {REST}"])
    with pytest.raises(InputError, match="no queries can be made"):
        hold_out_sentences(corpus, tmp_path / "out")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No end",
        "Too short. And no rest.",
        f"One two. {REST}",
        f"It says it twice here. It says it twice here. {REST}",
    ],
)
def test_what_is_no_query(text: str) -> None:
    assert split(text) is None
