"""What models may give, and what of it an index takes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from corpora import letters, snapshot
from forward_rows import unpacked

from ingest.index_content import Content
from ingest.settings import NewIndex, Writing
from ingest.vectorizers import Vectors
from ingest.writing import pipeline
from ingest.writing.bulk_actions import prepare
from ingest.writing.target import open_target
from opensearch_neural import queries
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import ModelError
from opensearch_neural.index.mapping import NO_TOKEN
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, SparseMeta
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.queries import DOT_ALIAS
from opensearch_neural.queries.forward_index import FIELD, token_hash
from opensearch_neural.search.oracle import stored as kept

VOCABULARY = ["rain", "sun", "", "x" * 33_000, ".", "u.s", " ", "é"]
TINY = float(np.finfo(np.float32).tiny)


def rows(*rows: dict[str, float]) -> SparseVectors:
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    ids = np.array([VOCABULARY.index(token) for row in rows for token in row], np.int32)
    with np.errstate(over="ignore"):
        weights = np.array([weight for row in rows for weight in row.values()], np.float64).astype(np.float32)
    return SparseVectors(indptr, ids, weights, VOCABULARY)


class Given:
    """Vectors as a test wants them, by the documents' texts; an exception is raised."""

    def __init__(self, sparse: dict[str, Any], dense: dict[str, Sequence[float]] | None = None) -> None:
        self.sparse = sparse
        self.dense = dense

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        chosen = [self.sparse[document.text] for document in documents]
        for each in chosen:
            if isinstance(each, Exception):
                raise each
        dense = None if self.dense is None else np.array([self.dense[d.text] for d in documents], np.float32)
        return Vectors(rows(*chosen), dense)


ODD = {
    "fine": {"rain": 1.5, "sun": 0.25},
    "zero": {"rain": 0.0, "sun": 0.5},
    "negative zero": {"rain": -0.0, "sun": 0.5},
    "subnormal": {"rain": 1e-40, "sun": 0.5},
    "smallest": {"rain": TINY, "sun": 0.5},
    "largest": {"rain": 3e38},
    "empty token": {"": 1.0, "rain": 1.0},
    "blank token": {" ": 1.0},
    "dots": {".": 1.0, "u.s": 2.0},
    "no token": {},
    "only zeros": {"rain": 0.0},
    # The following cannot be taken:
    "negative": {"rain": -1.0, "sun": 0.5},
    "nan": {"sun": 0.5, "rain": float("nan")},
    "infinite": {"rain": float("inf")},
    "too large for a float": {"rain": 1e39},
    "very long token": {"x" * 33_000: 1.0},
    "error": ModelError("the model gave vectors that are not finite"),
}
TAKEN = 11


def test_every_kind_of_weight_has_its_outcome_and_costs_no_other_document(
    client, index_name: str, tmp_path: Path
) -> None:
    meta = IndexMeta(sparse=SparseMeta("m", "h", "q"))
    target = open_target(client, index_name, meta, NewIndex(replicas=0, store_vectors=True), corpus_name="c")
    report = pipeline.ingest(
        client,
        target,
        Content(target.meta, lambda on_reject: iter([Document(text, text) for text in ODD]), Given(ODD), len(ODD)),
        pipeline.CorpusOfRun("c", "", tmp_path / "dead.jsonl"),
        writing=Writing(),
        show_progress=False,
    )
    written = snapshot(client, index_name)
    assert list(ODD)[:TAKEN] == sorted(written, key=list(ODD).index)
    assert report.documents == TAKEN and report.letters == len(ODD) - TAKEN
    assert target.meta.forward_index
    for text, source in written.items():
        # The row beside a document holds its weights, each token once.
        rows = {token: weight for token, weight in source["sparse"].items() if DOT_ALIAS not in token}
        rows.pop(NO_TOKEN, None)
        held = {token_hash(token): float(kept([weight])[0]) for token, weight in rows.items()}
        assert unpacked(b64decode(source.get(FIELD, ""))) == held, text
    # A weight of nothing is left out, the rest of the document is as it was.
    for text in ("zero", "negative zero", "subnormal"):
        assert written[text]["sparse"] == {"sun": 0.5}
    assert written["smallest"]["sparse"].keys() == {"rain", "sun"}
    assert written["no token"]["sparse"] == written["only zeros"]["sparse"] == {NO_TOKEN: 1.0}
    assert report.without_tokens == 2
    told = {letter["document"]["_id"]: letter["reason"] for letter in letters(tmp_path / "dead.jsonl")}
    assert (
        told["negative"]
        == "the sparse model gave the token 'rain' the weight -1.0; weights must be finite and positive"
    )
    assert "the token 'rain' the weight nan" in told["nan"] and "the weight inf" in told["infinite"]
    assert "immense term" in told["very long token"]
    assert told["error"] == "cannot be encoded: the model gave vectors that are not finite"


def test_short_weights_score_as_the_full_ones_do(client, index_name: str, tmp_path: Path) -> None:
    """The claim of weights.py, asked of a real index: every document scores exactly what its full weights would."""
    weights = np.random.default_rng(5).lognormal(-1, 1.5, 400).astype(np.float32)
    client.indices.create(index=index_name, body={"mappings": {"properties": {"sparse": {"type": "rank_features"}}}})
    lines = bytearray()
    documents = [Document(str(n), str(n)) for n in range(len(weights))]
    short = prepare(documents, Given({str(n): {"rain": float(weights[n])} for n in range(len(weights))}), IndexMeta())
    for number, action in enumerate(short.actions):
        full = orjson.dumps({"sparse": {"rain": float(weights[number])}})
        assert len(orjson.dumps(orjson.loads(action.source)["sparse"])) < len(full)
        for kind, source in (("short", action.source), ("full", full)):
            lines += b'{"index":{"_id":"%s-%d"}}\n' % (kind.encode(), number) + source + b"\n"
    assert not client.bulk(index=index_name, body=bytes(lines), refresh=True)["errors"]
    body = queries.neural_sparse({"rain": 1.7}, plugin=False, size=1000)
    scores = {hit["_id"]: hit["_score"] for hit in client.search(index=index_name, body=body)["hits"]["hits"]}
    assert len(scores) == 800
    assert all(scores[f"short-{n}"] == scores[f"full-{n}"] for n in range(400))


@pytest.mark.parametrize(
    ("vector", "normalized", "reason"),
    [
        ([1.0, float("nan")], False, "NaN or infinite"),
        ([float("inf"), 0.0], True, "NaN or infinite"),
        ([0.0, 0.0], True, "a vector of zeros"),
        ([0.0, 0.0], False, None),
    ],
)
def test_dense_vectors_that_cannot_be_indexed(vector: list[float], normalized: bool, reason: str | None) -> None:
    meta = DenseMeta("m", "h", 2, "float", normalized)
    given = Given({"a": {}, "b": {}}, {"a": [0.6, 0.8], "b": vector})
    prepared = prepare([Document("1", "a"), Document("2", "b"), Document("3", "a")], given, IndexMeta(dense=meta))
    if reason is None:
        assert prepared.positions == [0, 1, 2] and not prepared.unfit
    else:
        assert prepared.positions == [0, 2]
        assert [*prepared.unfit] == [1] and reason in prepared.unfit[1]


def test_what_json_cannot_hold_is_set_aside() -> None:
    documents = [Document("1", "a", fields={"n": 2**64}), Document("2", "a\ud800"), Document("3", "a")]
    given = Given({"a": {"rain": 1.0}, "a\ud800": {"rain": 1.0}})
    prepared = prepare(documents, given, IndexMeta())
    assert prepared.positions == [2]
    assert all("cannot be written as JSON" in reason for reason in prepared.unfit.values())


def test_a_passage_names_its_document() -> None:
    passage = Passage("p#0002", "a", "title", parent="p", number=2, start=7, end=8)
    (action,) = prepare([passage], Given({"a": {}}), IndexMeta(passages=PassageMeta(5, 5))).actions
    assert orjson.loads(action.source) == {
        "title": "title",
        "text": "a",
        "parent": "p",
        "passage": {"number": 2, "start": 7, "end": 8},
        "sparse": {"(no token)": 1.0},
    }


def test_a_passage_is_not_written_among_whole_documents() -> None:
    passage, document = Passage("p#0002", "a", parent="p", number=2), Document("q", "b")
    prepared = prepare([passage, document], Given({"a": {}, "b": {}}), IndexMeta())
    assert prepared.positions == [1]
    assert prepared.unfit == {0: "it is a passage of 'p', and the index holds whole documents"}


def test_an_id_that_utf8_cannot_hold_costs_no_other_document() -> None:
    prepared = prepare([Document("\ud800", "a"), Document("q", "b")], Given({"a": {}, "b": {}}), IndexMeta())
    assert prepared.unfit == {0: "the id holds half a surrogate pair"} and prepared.positions == [1]
