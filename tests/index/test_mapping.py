"""The index's mapping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import byte_scale, index_body, rank_features, read_field_mappings, to_bytes
from opensearch_neural.index.record import DenseMeta, IndexMeta, SparseMeta

SPARSE = SparseMeta("my-sparse", "aaaa", "bbbb")
META = IndexMeta(sparse=SPARSE, dense=DenseMeta("my-dense", "cccc", 4, "byte", True, 42.0), analyzer="standard")


def test_vectors_stay_out_of_the_source_unless_asked_for() -> None:
    assert index_body(META)["mappings"]["_source"] == {"excludes": ["sparse", "sparse_forward", "dense", "pq"]}
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


@pytest.mark.cluster
@pytest.mark.parametrize("fraction", ["1", "123", "123456", "123456789"])
def test_a_time_without_a_zone_is_a_date_with_any_fraction(client, index_name: str, fraction: str) -> None:
    """As Python's isoformat() writes it: it was a keyword, whose ranges compare characters."""
    client.indices.create(index=index_name, body=index_body(IndexMeta(), replicas=0))
    body = {"at": f"2026-03-14T15:09:26.{fraction}"}
    client.index(index=index_name, id="1", body=body, params={"refresh": "true"})
    query = {"range": {"at": {"gt": "2026-03-14T16:09:25+01:00", "lt": "2026-03-14T16:09:27+01:00"}}}
    assert client.count(index=index_name, body={"query": query})["count"] == 1


@pytest.mark.cluster
def test_numbers_are_doubles_and_iso_dates_are_dates(client, index_name: str) -> None:
    """A price of 10 comes before one of 10.99; a filter above 10.5 is to find the second."""
    client.indices.create(index=index_name, body=index_body(IndexMeta(), replicas=0))
    documents = [
        {"price": 10, "day": "2026-03-14", "at": "2026-03-14T15:09:26Z", "year": "1999"},
        {"price": 10.99, "day": "2026-03-15", "at": "2026-03-14T15:09:27.5Z", "year": "2000"},
        {"price": "11.5", "day": "soon", "at": "2026-03-14", "year": "later"},
    ]
    for number, document in enumerate(documents):
        client.index(index=index_name, id=str(number), body=document, params={"refresh": "true"})

    def ids(query: dict[str, Any]) -> list[str]:
        answer = client.search(index=index_name, body={"query": query, "sort": ["_id"]})
        return [hit["_id"] for hit in answer["hits"]["hits"]]

    assert ids({"range": {"price": {"gt": 10.5}}}) == ["1", "2"]
    assert ids({"term": {"price": 10.99}}) == ["1"]
    assert ids({"range": {"day": {"gte": "2026-03-15"}}}) == ["1"]
    assert ids({"term": {"day.keyword": "soon"}}) == ["2"]
    assert ids({"range": {"at": {"gt": "2026-03-14T15:09:26Z"}}}) == ["1"]
    assert ids({"term": {"year": "1999"}}) == ["0"] and ids({"term": {"year": "later"}}) == ["2"]


WRAPPED = pytest.mark.parametrize("wrapped", ["{}", '{{"properties": {}}}', '{{"mappings": {{"properties": {}}}}}'])


@WRAPPED
def test_mappings_of_own_fields_are_read(tmp_path: Path, wrapped: str) -> None:
    path = tmp_path / "mapping.json"
    path.write_text(wrapped.format('{"price": {"type": "scaled_float", "scaling_factor": 100}}'))
    fields = read_field_mappings(path)
    properties = index_body(IndexMeta(), fields=fields)["mappings"]["properties"]
    assert properties["price"] == {"type": "scaled_float", "scaling_factor": 100} and "contents" in properties


@WRAPPED
@pytest.mark.parametrize("name", ["type", "properties", "mappings"])
def test_a_field_of_ones_own_may_be_called_as_a_word_of_mappings(tmp_path: Path, wrapped: str, name: str) -> None:
    """Before, a whole mapping with a field "type" was read as one field "properties", which OpenSearch refuses."""
    path = tmp_path / "mapping.json"
    path.write_text(wrapped.format(f'{{"{name}": {{"type": "keyword"}}}}'))
    assert read_field_mappings(path) == {name: {"type": "keyword"}}


def test_a_mapping_is_read_as_opensearch_answers_it(tmp_path: Path) -> None:
    path = tmp_path / "mapping.json"
    price = {"price": {"type": "float"}}
    path.write_text(json.dumps({"articles": {"mappings": {"dynamic": "strict", "properties": price}}}))
    assert read_field_mappings(path) == price
    path.write_text(json.dumps({name: {"mappings": {"properties": price}} for name in ("a", "b")}))
    with pytest.raises(InputError, match="the mappings of 2 indexes"):
        read_field_mappings(path)


def test_what_is_not_taken_of_a_whole_mapping_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`"dynamic": "strict"` was left out without a word, and every field was taken."""
    path = tmp_path / "mapping.json"
    price = {"price": {"type": "float"}}
    for whole in (price, {"properties": price}, {"mappings": {"properties": price}}):
        path.write_text(json.dumps(whole))
        assert read_field_mappings(path) == price and not caplog.messages
    index = {"settings": {}, "mappings": {"properties": price, "dynamic": "strict", "_routing": {"required": True}}}
    path.write_text(json.dumps(index))
    assert read_field_mappings(path) == price
    assert [line.partition("taken, and not ")[2] for line in caplog.messages] == ["settings", "_routing, dynamic"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": {"type": "keyword"}}', "the field 'text' is mapped by osn itself"),
        ('{"kind": {"type": "join", "relations": {"question": "answer"}}}', "the field 'kind' is a join"),
        ('{"a": {"properties": {"b": {"type": "join"}}}}', "the field 'a.b' is a join"),
        ('{"price": "double"}', "expected the mappings of fields"),
        ("[]", "expected the mappings of fields"),
        ("{", "line 1: not valid JSON"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mapping.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_field_mappings(path)
