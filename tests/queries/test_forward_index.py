"""Rows of sparse weights beside each document, and the script that scores by them, on a real node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from forward_rows import BYTES, packed, row_field, unpacked

from opensearch_neural import queries
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import IndexMeta, SparseMeta
from opensearch_neural.lint import lint
from opensearch_neural.queries import forward_index
from opensearch_neural.search.explanation import shares
from opensearch_neural.search.oracle import StoredWeights, predict, stored

META = IndexMeta(sparse=SparseMeta("m", "h", "q"), forward_index=True)
VOCABULARY = [*(f"t{number}" for number in range(60)), "u.s", ".", "é", "日本", "𝔘", "##ing", "a\u2024b", "\ud800"]
DOCUMENTS = 80


def drawn(seed: int) -> list[dict[str, float]]:
    """Documents of one token, of none and of all among others of some."""
    chosen = random.Random(seed)
    rows = [
        {token: chosen.uniform(0.001, 60) for token in VOCABULARY[:-1] if chosen.random() < 0.3}
        for _ in range(DOCUMENTS - 3)
    ]
    return [{"t1": 1.0}, {}, dict.fromkeys(VOCABULARY[:-1], 0.5), *rows]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, float]]:
    return drawn(1)


@pytest.fixture(scope="module")
def index(client: Any, rows: list[dict[str, float]]) -> Iterator[str]:
    name = "osn-test-forward-index"
    client.indices.delete(index=name, ignore=404)
    client.indices.create(index=name, body=index_body(META, shards=2, replicas=0))
    lines: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        source: dict[str, Any] = {"text": "rain " + "bow " * (number % 7), "sparse": rank_features(row) or {"-": 1.0}}
        source |= row_field(row)
        lines += [{"index": {"_id": str(number)}}, source]
    assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield name
    client.indices.delete(index=name)


def scores(client: Any, index: str, body: dict[str, Any]) -> dict[str, float]:
    return {hit["_id"]: hit["_score"] for hit in client.search(index=index, body=body)["hits"]["hits"]}


def test_a_row_holds_the_weights_that_the_index_stores() -> None:
    row = dict(zip(VOCABULARY, np.linspace(0.001, 3, len(VOCABULARY)).tolist(), strict=True))
    data = packed(row)
    assert len(data) == BYTES * len(row)
    held = unpacked(data)
    assert list(held) == sorted(held)
    for token, weight in row.items():
        assert held[forward_index.token_hash(token)] == float(stored([weight])[0])
    with pytest.raises(ValueError, match="6 bytes a token"):
        unpacked(data[:-1])
    assert packed({}) == b"" and unpacked(b"") == {}


@pytest.mark.cluster
def test_rows_score_as_clauses_do(client: Any, index: str, rows: list[dict[str, float]]) -> None:
    chosen = random.Random(2)
    for size in (1, 2, 7, len(VOCABULARY) - 1):
        tokens = {token: chosen.uniform(0.01, 9) for token in chosen.sample(VOCABULARY[:-1], size)}
        answers = []
        for forward in (False, True):
            body = queries.bm25_sparse(
                "rain bow", tokens, weight=0.7, window=100, plugin=False, forward=forward, size=DOCUMENTS
            )
            assert lint(body, meta=META) == []
            answers.append(scores(client, index, body))
        assert answers[0] == answers[1] and len(answers[0]) == DOCUMENTS
        bm25 = scores(client, index, queries.bm25("rain bow", size=DOCUMENTS))
        known = np.array([bm25[str(number)] for number in range(DOCUMENTS)], np.float32)
        predicted = predict(body, StoredWeights.of(rows), known=lambda _, known=known: known)
        assert {id: np.float32(score) for id, score in answers[1].items()} == {
            str(number): np.float32(score) for number, score in predicted.items()
        }


@pytest.mark.cluster
def test_weights_may_be_whole_numbers_as_other_clients_write_them(client: Any, index: str) -> None:
    body = queries.bm25_sparse("rain", {"t1": 2.0, "t5": 3.0}, forward=True)
    params = body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"]
    expected = scores(client, index, body)
    params["weights"] = [int(weight) for weight in params["weights"]]
    assert scores(client, index, body) == expected and lint(body, meta=META) == []


@pytest.mark.cluster
@pytest.mark.parametrize("exact", [True, False])
def test_rare_tokens_first_rescores_by_rows_too(client: Any, index: str, exact: bool) -> None:
    tokens = {f"t{number}": 0.2 + number for number in range(20)}
    how: dict[str, Any] = {"exact": exact, "window": 100, "size": 50, "plugin": False}
    answers = [
        scores(client, index, queries.high_idf_first(tokens, forward=forward, **how)) for forward in (False, True)
    ]
    assert answers[0] == answers[1] and len(answers[0]) == 50


@pytest.mark.cluster
def test_an_explained_body_tells_the_tokens_apart_and_scores_the_same(
    client: Any, index: str, rows: list[dict[str, float]]
) -> None:
    tokens = {"t1": 2.0, "u.s": 1.5, "日本": 1.0}
    body = queries.bm25_sparse("rain bow", tokens, weight=0.5, forward=True, window=100)
    plain = client.search(index=index, body={**body, "explain": True})["hits"]["hits"]
    told = client.search(index=index, body=queries.explained(body))["hits"]["hits"]
    assert [hit["_id"] for hit in plain] == [hit["_id"] for hit in told]
    for plain_hit, explained_hit in zip(plain, told, strict=True):
        assert plain_hit["_score"] == pytest.approx(explained_hit["_score"], rel=1e-6)
        named = {share.token for share in shares(explained_hit["_explanation"]) if share.source == "sparse"}
        assert named == tokens.keys() & rows[int(plain_hit["_id"])].keys()
        together = [share.score for share in shares(plain_hit["_explanation"]) if share.source == "sparse"]
        each = [share.score for share in shares(explained_hit["_explanation"]) if share.source == "sparse"]
        assert sum(together) == pytest.approx(sum(each), rel=1e-5) and len(together) <= 1


@pytest.mark.parametrize(
    "damage",
    [
        {"hashes": [1, 2]},
        {"hashes": [2, 1, 3]},
        {"tokens": ["t1", "t2"]},
        {"weights": [1.0]},
        {"weights": ["1", "2", "3"]},
        {"tokens": None},
        {"hashes": "123"},
    ],
)
def test_what_does_not_fit_together_is_no_set_of_tokens(damage: dict[str, Any]) -> None:
    tokens = {"t1": 1.0, "t2": 2.0, "t3": 3.0}
    given = forward_index.script_params(tokens, forward_index.FIELD)
    assert forward_index.tokens_of(given) == tokens
    with pytest.raises(ValueError):
        forward_index.tokens_of({**given, **damage})
    body = queries.bm25_sparse("rain", tokens, forward=True)
    body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"].update(damage)
    assert [finding.rule for finding in lint(body, meta=META)] == ["forward-index"]
    with pytest.raises((InputError, ValueError)):
        predict(body, StoredWeights.of([tokens]), known=lambda _: np.zeros(1, np.float32))


def test_the_linter_knows_an_index_without_rows() -> None:
    body = queries.bm25_sparse("rain", {"t1": 1.0}, forward=True)
    (finding,) = lint(body, meta=IndexMeta(sparse=META.sparse))
    assert finding.rule == "field" or "sparse_forward" in str(finding)


def test_the_published_vocabulary_has_no_two_tokens_of_one_hash() -> None:
    from opensearch_neural.models.directory import published_splade_directory
    from opensearch_neural.models.tokenizer import load_tokenizer, vocabulary_of

    folder = published_splade_directory()
    if folder is None:
        pytest.skip("the published model is not installed")
    vocabulary = vocabulary_of(load_tokenizer(folder))
    assert len(set(forward_index.hashes_of(vocabulary).tolist())) == len(vocabulary)


@pytest.mark.parametrize(
    "clause",
    [
        {"script_score": "text"},
        {"script_score": {"script": []}},
        {"script_score": {"script": {"source": forward_index.SCRIPT}}},
        {"script_score": {"script": {"source": forward_index.SCRIPT, "params": {"field": "rows", "tokens": []}}}},
        {"script_score": {"script": {"source": "1", "params": {"field": "sparse_forward"}}}},
    ],
)
def test_another_script_is_no_sparse_clause(clause: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        queries.sparse_tokens(clause)
    body = {"query": {"match_all": {}}, "rescore": {"window_size": 5, "query": {"rescore_query": clause}}}
    assert queries.explained(body) == {**body, "explain": True}
    with pytest.raises(ValueError):
        queries.window_end(body)


def test_a_body_without_codes_has_no_offset() -> None:
    body = queries.bm25_sparse("rain", {"t1": 1.0}, forward=True)
    with pytest.raises(ValueError, match="no quantized scores"):
        queries.quantized_offset({**body, "rescore": [body["rescore"]]})
