"""The cluster as an engine, on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from opensearch_neural import queries
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from opensearch_neural.retrievers.opensearch import Latencies, OpenSearchRetriever, search, time_queries

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

VOCABULARY = [f"t{at}" for at in range(40)]


def create(client: OpenSearch, index: str, documents: dict[str, dict[str, Any]], shards: int = 1) -> None:
    client.indices.create(
        index=index,
        body={
            "settings": {"number_of_shards": shards, "number_of_replicas": 0},
            "mappings": {"properties": {"contents": {"type": "text"}, "sparse": {"type": "rank_features"}}},
        },
    )
    lines = [line for id, document in documents.items() for line in ({"index": {"_id": id}}, document)]
    answer = client.bulk(index=index, body=lines, refresh=True)
    assert not answer["errors"], answer


def bm25(text: str, k: int) -> dict[str, Any]:
    return queries.bm25(text, size=k)


def plugin_free(text: str, k: int) -> dict[str, Any]:
    return queries.neural_sparse(dict.fromkeys(text.split(), 1.0), plugin=False, size=k)


def test_the_cluster_and_the_exact_engine_agree(client: OpenSearch, index_name: str) -> None:
    # Powers of two lose nothing in the 9 bits that OpenSearch keeps of a weight, and ties are frequent.
    rng = np.random.default_rng(0)
    documents = [
        {VOCABULARY[token]: float(2.0 ** rng.integers(-3, 3)) for token in rng.choice(40, size=6, replace=False)}
        for _ in range(150)
    ]
    ids = [f"d{at}" for at in range(len(documents))]
    create(client, index_name, {id: {"sparse": tokens} for id, tokens in zip(ids, documents, strict=True)}, shards=2)
    vectors = SparseVectors(
        np.arange(0, 6 * 150 + 1, 6),
        np.array([VOCABULARY.index(token) for document in documents for token in document], np.int32),
        np.array([weight for document in documents for weight in document.values()], np.float32),
        VOCABULARY,
    )
    asked = {str(at): " ".join(rng.choice(VOCABULARY, size=5, replace=False)) for at in range(70)} | {"none": "other"}
    exact = ExactSparseRetriever(ids, vectors, lambda text: dict.fromkeys(text.split(), 1.0)).retrieve(asked, k=1000)
    cluster = OpenSearchRetriever(client, index_name, "sparse", plugin_free).retrieve(asked, k=1000)
    assert list(cluster) == list(asked)
    assert cluster["none"] == {}
    for query in asked:
        assert list(cluster[query].items()) == list(exact[query].items())


def test_only_ids_and_scores_are_asked_for(client: OpenSearch, index_name: str) -> None:
    create(client, index_name, {"a": {"contents": "rain bow"}, "b": {"contents": "rain"}})
    bodies = []

    def body(text: str, k: int) -> dict[str, Any]:
        bodies.append(queries.bm25(text, size=k, highlight=text))
        return bodies[-1]

    retriever = OpenSearchRetriever(client, index_name, "bm25", body)
    assert list(retriever.retrieve({"q": "bow"}, k=7)["q"]) == ["a"]
    # The body that the caller made is left as it was.
    assert bodies == [queries.bm25("bow", size=7, highlight="bow")]
    assert retriever.name == "bm25"


def test_k_cuts_and_may_exceed_the_index(client: OpenSearch, index_name: str) -> None:
    create(client, index_name, {str(at): {"contents": "rain " * (at + 1) + "x " * (30 - at)} for at in range(30)})
    retriever = OpenSearchRetriever(client, index_name, "bm25", bm25)
    full = retriever.retrieve({"q": "rain"}, k=10_000)["q"]
    assert len(full) == 30
    assert list(full)[:3] == ["29", "28", "27"]
    assert list(retriever.retrieve({"q": "rain"}, k=3)["q"]) == ["29", "28", "27"]


def test_progress_counts_every_query(client: OpenSearch, index_name: str) -> None:
    create(client, index_name, {"a": {"contents": "rain"}})
    done: list[int] = []
    asked = {str(at): "rain" for at in range(150)}
    run = OpenSearchRetriever(client, index_name, "bm25", bm25, progress=done.append).retrieve(asked, k=1)
    assert sum(done) == 150 == len(run)
    assert all(list(hits) == ["a"] for hits in run.values())


def test_an_answer_that_a_shard_is_missing_from_is_refused(client: OpenSearch, index_name: str) -> None:
    create(client, index_name, {str(at): {"contents": "rain", "n": at} for at in range(20)}, shards=2)
    # The script fails on one document, hence on one shard; OpenSearch then answers 200 with the other shard's hits.
    source = "if (doc['n'].value == 7) { throw new IllegalArgumentException('seven'); } return 1;"
    body = {"query": {"script_score": {"query": {"match_all": {}}, "script": {"source": source}}}}
    assert client.search(index=index_name, body=body)["_shards"]["failed"] == 1
    with pytest.raises(ClusterError, match="only a part of the index"):
        OpenSearchRetriever(client, index_name, "script", lambda text, k: body).retrieve({"q": "x"}, k=5)
    with pytest.raises(ClusterError, match="1 of 2 shards failed"):
        search(client, index_name, body)


def test_what_the_cluster_refuses_becomes_a_message(client: OpenSearch, index_name: str) -> None:
    with pytest.raises(ClusterError, match=index_name):
        OpenSearchRetriever(client, index_name, "bm25", bm25).retrieve({"q": "x"}, k=5)
    create(client, index_name, {"a": {"contents": "rain"}})
    with pytest.raises(ClusterError, match="no_such_query"):
        OpenSearchRetriever(client, index_name, "x", lambda text, k: {"query": {"no_such_query": {}}}).retrieve(
            {"q": ""}, 1
        )
    with pytest.raises(InputError, match="10,000"):
        OpenSearchRetriever(client, index_name, "bm25", bm25).retrieve({"q": "x"}, k=10_001)
    with pytest.raises(InputError, match="sorts by something"):
        OpenSearchRetriever(
            client, index_name, "sorted", lambda text, k: {"query": {"match_all": {}}, "sort": [{"_id": "asc"}]}
        ).retrieve({"q": "x"}, k=1)


def test_a_script_that_fails_on_every_shard_or_on_one_is_told_with_what_it_failed_on(
    client: OpenSearch, index_name: str
) -> None:
    create(client, index_name, {str(at): {"contents": "rain", "n": at} for at in range(20)}, shards=2)
    for divisor in ("0", "(int) doc['n'].value"):
        script = {"source": f"int by = {divisor}; return 1 / by;"}
        body = {"query": {"script_score": {"query": {"match_all": {}}, "script": script}}}
        with pytest.raises(ClusterError, match="runtime error: / by zero"):
            search(client, index_name, body)


def test_each_timed_request_gives_one_time(client: OpenSearch, index_name: str) -> None:
    create(client, index_name, {"a": {"contents": "rain"}})
    latencies = time_queries(client, index_name, (bm25("rain", 10) for _ in range(5)), warmup=2)
    assert len(latencies.ms) == 5
    assert all(0 < ms < 60_000 for ms in latencies.ms)
    assert min(latencies.ms) <= latencies.p50 <= latencies.p99 <= max(latencies.ms)
    with pytest.raises(InputError, match="no query"):
        time_queries(client, index_name, [])


def test_percentiles_are_interpolated() -> None:
    assert Latencies([4.0, 1.0, 2.0, 3.0]).p50 == 2.5
    assert Latencies([float(at) for at in range(101)]).p99 == 99.0
