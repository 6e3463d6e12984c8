"""Which generated queries are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from doc2query_setup import read

from opensearch_neural.errors import InputError
from trainers.data.texts import TextStore
from trainers.doc2query.consistency import filter_generated


class Finds:
    """A retriever that knows which document each text is about."""

    name = "finds"

    def __init__(self, hits: Mapping[str, list[str]]) -> None:
        self.hits = hits

    def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        return {
            query: {document: 9.0 - at for at, document in enumerate(self.hits.get(text, [])[:k])}
            for query, text in queries.items()
        }


def test_only_queries_that_find_their_own_passage_are_kept(tmp_path: Path) -> None:
    documents = TextStore([("a", "cats"), ("b", "dogs"), ("c", "Cats!"), ("e", "emus")])
    path = tmp_path / "q.jsonl"
    header = {"osn": "generated-queries", "format": 1, "documents": documents.hash, "counts": {}}
    rows = {"a": ["purr", "Purr?", "bark", ""], "b": ["bark", "late"], "c": ["purr"], "e": ["run"]}
    lines = [
        {"_id": key, "queries": [{"text": text, "log_probability": -1} for text in texts]}
        for key, texts in rows.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    retriever = Finds({"purr": ["a"], "Purr?": ["b", "a"], "bark": ["b"], "late": ["a", "c", "b"], "run": ["a"]})

    counts = filter_generated(path, documents, retriever, top=2, output=tmp_path / "kept.jsonl", chunk=2)
    header, *kept = read(tmp_path / "kept.jsonl")
    assert [[query["text"] for query in line["queries"]] for line in kept] == [["purr"], ["bark"], ["purr"], []]
    assert kept[0]["queries"][0]["log_probability"] == -1
    assert counts == {"passages": 4, "queries": 3, "left_out": 5, "without": 1}
    assert (header["consistency"], header["retriever"]) == (2, "finds")
    with pytest.raises(InputError, match="queries for other documents"):
        filter_generated(path, TextStore([("a", "x")]), retriever, top=2, output=tmp_path / "o.jsonl")
