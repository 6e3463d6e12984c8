"""The score oracle against a real cluster: every document, every query, both forms."""

from __future__ import annotations

import ast
import json
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural import queries
from opensearch_neural.corpus.judgements import read_queries
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import rank_features
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.queries import Rare
from opensearch_neural.search.oracle import StoredWeights, predict, rescored, stored

CRANFIELD = Path(__file__).parents[2] / "shared" / "data" / "cranfield"


# -------------------------------------------------------------------------------------------------- worked out by hand


def test_nine_significant_bits_are_kept_and_the_rest_cut_off() -> None:
    # 1 + 2⁻⁸ is the next value after 1 that 9 bits hold; everything between falls back to 1.
    assert stored([1.0, 1 + 2**-9, 1 + 2**-8 - 2**-20, 1 + 2**-8, 3.0]).tolist() == [1.0, 1.0, 1.0, 1 + 2**-8, 3.0]
    # 0.1 is 1.6 · 2⁻⁴, and 1.6 cut off after 8 binary places is 1 + 153/256.
    assert stored([0.1]).tolist() == [(1 + 153 / 256) / 16]


@given(st.floats(2.0**-126, 3.4e38))
def test_what_is_stored_is_never_more_and_at_most_one_part_in_256_less(weight: float) -> None:
    (kept,) = stored([weight]).tolist()
    given_ = np.float32(weight)
    assert kept <= given_
    assert kept >= given_ * (1 - 2**-8)
    # The lower 15 of its 32 bits are 0.
    assert struct.unpack("I", struct.pack("f", kept))[0] & 0x7FFF == 0
    assert stored([kept]).tolist() == [kept]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-39, 1e39])
def test_a_weight_that_opensearch_refuses_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="OpenSearch refuses"):
        stored([1.0, weight])


def test_scores_are_sums_of_products_over_stored_weights() -> None:
    documents = StoredWeights.of([{"a": 1 + 2**-9, "b": 2.0}, {}, {"b": 0.5}])
    assert documents.scores({"a": 3.0, "b": 0.25, "c": 9.0}).tolist() == [3.5, 0.0, 0.125]
    assert documents.scores({"b": 1.0}, boosts=[2.0, 0.5, 3.0]).tolist() == [6.0, 0.0, 1.5]
    first, second = np.array([4, 2], np.float32), np.array([1, 0], np.float32)
    assert rescored(first, second, query_weight=0.5, rescore_query_weight=10).tolist() == [12.0, 1.0]


def test_a_body_that_holds_anything_but_sparse_queries_is_not_predicted() -> None:
    documents = StoredWeights.of([{"a": 1.0}])
    for body in (queries.bm25("x"), queries.knn([1.0]), {"query": {"rank_feature": {"field": "sparse.a"}}}, {}):
        with pytest.raises(InputError, match="not predicted"):
            predict(body, documents)


def test_boosts_count_where_every_document_matches() -> None:
    documents = StoredWeights.of([{"a": 1.0}, {}])
    assert predict({"query": {"match_all": {"boost": 3.0}}}, documents) == {0: 3.0, 1: 3.0}
    around = {"bool": {"must": [{"match_all": {}}], "should": [{"match_all": {"boost": 0.5}}], "boost": 2.0}}
    assert predict({"query": around}, documents) == {0: 3.0, 1: 3.0}


@pytest.mark.parametrize("least", ["100%", "-1", -1, "2<75%"])
def test_a_share_of_clauses_that_must_match_is_not_predicted(least: Any) -> None:
    clauses = [{"rank_feature": {"field": f"sparse.{token}", "linear": {}}} for token in "ab"]
    documents = StoredWeights.of([{"a": 1.0}, {"a": 1.0, "b": 2.0}])
    with pytest.raises(InputError, match="minimum_should_match"):
        predict({"query": {"bool": {"should": clauses, "minimum_should_match": least}}}, documents)
    assert predict({"query": {"bool": {"should": clauses, "minimum_should_match": "2"}}}, documents) == {1: 3.0}


def test_a_query_whose_tokens_a_model_on_the_cluster_makes_is_not_predicted() -> None:
    body = {"query": {"neural_sparse": {"sparse": {"query_text": "rain", "model_id": "m"}}}}
    with pytest.raises(InputError, match="by query_text is not predicted"):
        predict(body, StoredWeights.of([{"rain": 1.0}]))


# ------------------------------------------------------------------------------------------- against a real set of data


@dataclass(frozen=True)
class Indexed:
    """Documents in an index, their ids in order, and their weights as the encoder gave them and as they are kept."""

    index: str
    ids: list[str]
    rows: list[dict[str, float]]
    weights: StoredWeights
    queries: list[dict[str, float]]

    def predicted(self, body: dict[str, Any]) -> dict[str, float]:
        return {self.ids[number]: score for number, score in predict(body, self.weights).items()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cranfield where it lies beside the project, else docstrings of the standard library."""
    if CRANFIELD.exists():
        return CRANFIELD
    folder = tmp_path_factory.mktemp("docstrings")
    texts = [text for file in sorted(Path(ast.__file__).parent.glob("*.py")) for text in _docstrings(file)][:2000]
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"_id": str(number), "text": text.split("\n")[0]}) for number, text in enumerate(texts[::20])]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _docstrings(file: Path) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


@pytest.fixture(scope="module")
def real(client, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexed]:
    """The set, written by `osn ingest` with its lexical model."""
    documents = list(read_corpus(corpus, on_reject=lambda _: None))
    folder = tmp_path_factory.mktemp("oracle")
    encoder = build_lexical(document.contents for document in documents)
    encoder.save(folder / "model")
    name = f"osn-test-oracle-{uuid.uuid4().hex[:12]}"
    source = CorpusSource(str(corpus))
    job = Job(
        source,
        index=name,
        models=Models(sparse=str(folder / "model")),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    kept = {hit["_id"] for hit in _every_hit(client, name, {"query": {"match_all": {}}, "_source": False})}
    documents = [document for document in documents if document.id in kept]
    assert len(documents) > 1000
    rows = list(encoder.encode_documents([document.contents for document in documents]).rows())
    encoded = [encoder.query.encode(text) for text in list(read_queries(corpus).values())[:40]]
    yield Indexed(name, [document.id for document in documents], rows, StoredWeights.of(rows), encoded)
    client.indices.delete(index=name)


def _every_hit(client, index: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.search(index=index, body={**body, "size": 10_000})
    assert not answer["_shards"].get("failures")
    return answer["hits"]["hits"]


def compare(client, indexed: Indexed, body: dict[str, Any]) -> tuple[int, float]:
    """(hits, largest relative difference of a score), after asserting that hits are the documents predicted."""
    found = {hit["_id"]: hit["_score"] for hit in _every_hit(client, indexed.index, {**body, "_source": False})}
    expected = indexed.predicted(body)
    assert found.keys() == expected.keys()
    return len(found), max((abs(found[id] / score - 1) for id, score in expected.items()), default=0.0)


@pytest.mark.cluster
@pytest.mark.parametrize("plugin", [True, False])
def test_scores_of_all_documents_of_a_real_set_are_predicted_within_one_in_100_000(
    client, real: Indexed, plugin: bool
) -> None:
    pairs = [compare(client, real, queries.neural_sparse(tokens, plugin=plugin)) for tokens in real.queries]
    assert sum(hits for hits, _ in pairs) > 20_000
    assert max(difference for _, difference in pairs) < 1e-5


@pytest.mark.cluster
@pytest.mark.parametrize("plugin", [True, False])
def test_scores_after_the_second_phase_are_predicted(client, real: Indexed, plugin: bool) -> None:
    for tokens in real.queries[:20]:
        body = queries.high_idf_first(tokens, rare=Rare("ratio", 0.5), window=10_000, plugin=plugin)
        assert compare(client, real, body)[1] < 1e-5


@pytest.mark.cluster
def test_the_cut_to_nine_bits_is_what_makes_the_prediction(client, real: Indexed) -> None:
    """From the encoder's own weights, scores would be off by some tenths of a percent."""
    tokens, rows = real.queries[0], dict(zip(real.ids, real.rows, strict=True))
    off = []
    for hit in _every_hit(client, real.index, {**queries.neural_sparse(tokens), "_source": False}):
        row = rows[hit["_id"]]
        exact = sum(weight * row[token] for token, weight in tokens.items() if token in row)
        off.append(abs(exact / hit["_score"] - 1))
    assert 1e-4 < max(off) < 2**-8


# --------------------------------------------------------------------------------------------------- odd weights, boosts

TOKENS = ["a", "b", "##c", "u.s", ".", "é", "d", "e"]


@pytest.fixture(scope="module")
def odd(client) -> Iterator[Indexed]:
    """Weights over 48 orders of magnitude, in three shards; products stay within what float32 keeps at full precision."""
    random = np.random.default_rng(5)
    rows = []
    for _ in range(300):
        weights = np.exp(random.uniform(np.log(1e-24), np.log(1e24), len(TOKENS)))
        weights[:5] = random.uniform(0.001, 20, 5)
        rows.append({t: float(w) for t, w in zip(TOKENS, weights, strict=True) if random.random() < 0.4} or {"a": 1.0})
    name = f"osn-test-oracle-odd-{uuid.uuid4().hex[:12]}"
    mapping = {"properties": {"sparse": {"type": "rank_features"}}}
    client.indices.create(
        index=name, body={"settings": {"number_of_shards": 3, "number_of_replicas": 0}, "mappings": mapping}
    )
    lines: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        lines += [{"index": {"_id": str(number)}}, {"sparse": rank_features(row)}]
    assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield Indexed(name, [str(number) for number in range(300)], rows, StoredWeights.of(rows), [])
    client.indices.delete(index=name)


boosts = st.floats(0.01, 50)
token_maps = st.dictionaries(st.sampled_from(TOKENS), st.floats(1e-6, 64), min_size=1)


@pytest.mark.cluster
@given(tokens=token_maps, more=token_maps, boosts=st.tuples(boosts, boosts, boosts), plugin=st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_boosts_nesting_and_every_magnitude_are_predicted(
    client,
    odd: Indexed,
    tokens: dict[str, float],
    more: dict[str, float],
    boosts: tuple[float, float, float],
    plugin: bool,
) -> None:
    first = queries.neural_sparse(tokens, plugin=plugin)["query"]
    second = {"neural_sparse": {"sparse": {"query_tokens": more, "boost": boosts[1]}}}
    optional = {"bool": {"must": [first], "should": [second], "boost": boosts[0]}}
    for query in (first, second, optional, {"bool": {"should": [optional, second], "boost": boosts[2]}}):
        assert compare(client, odd, {"query": query})[1] < 1e-5
    how = {"rescore_query": second, "query_weight": boosts[0], "rescore_query_weight": boosts[2]}
    body = {"query": first, "rescore": {"window_size": 10_000, "query": how}}
    assert compare(client, odd, body)[1] < 1e-5
