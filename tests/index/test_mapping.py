"""The index's mapping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.index.mapping import byte_scale, index_body, rank_features, to_bytes
from opensearch_neural.index.record import DenseMeta, IndexMeta, SparseMeta

SPARSE = SparseMeta("my-sparse", "aaaa", "bbbb")
META = IndexMeta(sparse=SPARSE, dense=DenseMeta("my-dense", "cccc", 4, "byte", True, 42.0), analyzer="standard")


def test_vectors_stay_out_of_the_source_unless_asked_for() -> None:
    assert index_body(META)["mappings"]["_source"] == {"excludes": ["sparse", "dense", "pq"]}
    assert "_source" not in index_body(META, store_vectors=True)["mappings"]


def test_without_dense_vectors_the_index_needs_no_knn_plugin() -> None:
    body = index_body(IndexMeta(sparse=SPARSE))
    assert "knn" not in body["settings"]["index"]
    assert "dense" not in body["mappings"]["properties"]


@pytest.mark.parametrize(
    ("row", "features"),
    [
        ({"a": 1.0}, {"a": 1.0}),
        ({".": 1.0}, {".": 1.0, "\u2024": 1.0}),
        ({"u.s": 2.0, "b": 1.0}, {"u.s": 2.0, "b": 1.0, "u\u2024s": 2.0}),
    ],
)
def test_tokens_with_dots_are_written_under_a_second_name(row: dict[str, float], features: dict[str, float]) -> None:
    assert rank_features(row) == features


@given(st.lists(st.floats(-1, 1, width=32), min_size=8, max_size=8).filter(lambda v: np.linalg.norm(v) > 0.1))
def test_bytes_keep_a_vector_within_half_a_step(values: list[float]) -> None:
    vector = np.array(values, np.float32) / np.float32(np.linalg.norm(values))
    scale = byte_scale(vector[None], normalized=False)
    stored = to_bytes(vector, scale)
    assert stored.dtype == np.int8
    assert np.abs(stored / scale - vector).max() <= 0.5 / scale + 1e-6


def test_the_scale_of_normalized_vectors_depends_on_the_dimension_alone() -> None:
    assert byte_scale(np.zeros((1, 384)), normalized=True) == byte_scale(np.ones((5, 384)), normalized=True)


def test_vectors_of_zeros_have_a_scale() -> None:
    assert byte_scale(np.zeros((3, 4)), normalized=False) == 1.0


@pytest.mark.cluster
@pytest.mark.parametrize("type", ["float", "byte", "sq"])
@pytest.mark.parametrize("normalized", [True, False])
def test_the_cluster_takes_the_mapping_and_answers_by_the_right_similarity(
    client, index_name: str, type: str, normalized: bool
) -> None:
    """Cosine for normalized vectors, the inner product (which a longer vector wins) for others."""
    dense = DenseMeta("m", "h", 2, type, normalized)  # type: ignore[arg-type]
    client.indices.create(index=index_name, body=index_body(IndexMeta(dense=dense), replicas=0))
    for id, vector in {"aligned": [4, 0], "longer": [100, 100]}.items():
        client.index(index=index_name, id=id, body={"text": "x", "dense": vector}, refresh=True)
    body = {"query": {"knn": {"dense": {"vector": [1, 0], "k": 2}}}}
    hits = [hit["_id"] for hit in client.search(index=index_name, body=body)["hits"]["hits"]]
    assert hits == (["aligned", "longer"] if normalized else ["longer", "aligned"])


@pytest.mark.cluster
@pytest.mark.parametrize("type", ["float", "byte", "sq"])
def test_vectors_without_doc_values_are_scored_by_the_script_of_the_plugin_and_found_to_exist(
    client, index_name: str, type: str
) -> None:
    dense = DenseMeta("m", "h", 2, type, True)  # type: ignore[arg-type]
    body = index_body(IndexMeta(dense=dense), replicas=0)
    assert body["mappings"]["properties"]["dense"]["doc_values"] is False
    client.indices.create(index=index_name, body=body)
    for id, vector in {"aligned": [4, 0], "across": [0, 4], "between": [3, 3]}.items():
        client.index(index=index_name, id=id, body={"text": "x", "dense": vector})
    client.index(index=index_name, id="none", body={"text": "x"}, refresh=True)
    there = {"exists": {"field": "dense"}}
    assert client.count(index=index_name, body={"query": there})["count"] == 3
    parameters = {"field": "dense", "query_value": [1, 0], "space_type": "cosinesimil"}
    script = {"lang": "knn", "source": "knn_score", "params": parameters}
    hits = client.search(index=index_name, body={"query": {"script_score": {"query": there, "script": script}}})
    assert [hit["_id"] for hit in hits["hits"]["hits"]] == ["aligned", "between", "across"]
