"""The index's record: what it keeps, which index's it is, and which models it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opensearch_neural.errors import ClusterError, ModelError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import (
    DenseMeta,
    IndexMeta,
    SparseMeta,
    check_counted,
    check_same_model,
    check_unchanged_models,
    existing_record,
    read_record,
    write_record,
)

SPARSE = SparseMeta("my-sparse", "aaaa", "bbbb")
META = IndexMeta(sparse=SPARSE, dense=DenseMeta("my-dense", "cccc", 4, "byte", True, 42.0), analyzer="standard")


def test_the_record_survives_the_mapping() -> None:
    mapping = index_body(META)["mappings"]
    assert IndexMeta.from_mapping(mapping, "docs") == META


def test_an_index_of_someone_else_is_named() -> None:
    with pytest.raises(ModelError, match="'docs' was not written by osn"):
        IndexMeta.from_mapping({"properties": {}}, "docs")


@pytest.mark.parametrize(
    "record",
    [
        {"sparse": "a string"},
        {"sparse": {"name": 5, "hash": 7, "query_hash": []}},
        {"sparse": {"name": "m", "hash": None, "query_hash": "q"}},
        {"dense": {"name": "a"}},
        {"dense": {"name": "a", "hash": "b", "dimension": "x", "type": "float", "normalized": True}},
        {"dense": {"name": "a", "hash": "b", "dimension": 3, "type": "float", "normalized": True, "else": 1}},
        *(
            {
                "dense": {
                    "name": "a",
                    "hash": "b",
                    "dimension": 3,
                    "type": "float",
                    "normalized": True,
                    "vectors": several,
                }
            }
            for several in ("2", None, 0, [2])
        ),
        {"quantized": [1]},
        {"passages": {"tokens": 0, "stride": -1}},
        {"passages": {"tokens": 10, "stride": 11}},
        {"analyzer": {"a": 1}},
        {"format": "x"},
        {"loading": "x"},
        {"loading": {"corpus": "d"}},
        {"loading": {"restore": {}, "corpus": 1}},
        {"adding": "x"},
        {"adding": [1]},
        {"build": "y"},
        {"sparse_scale": "x"},
        {"sparse_scale": -2},
        {"sparse_scale": float("nan")},
        {"sparse_scale_documents": 1.5},
        {"shard_documents": "many"},
        {"largest_weights": {}},
        {"names": "title"},
        {"names": {"text": 1}},
        {"prune_postings": 3, "forward_index": True},
        {"prune_postings": "top_k:3"},
        {"build": {"alias": "docs", "replaced": ["a"]}},
    ],
    ids=str,
)
def test_29_a_record_that_holds_anything_else_is_named_as_damaged(record: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="the record of the index 'docs' is damaged"):
        IndexMeta.from_mapping({"_meta": {"osn": record}}, "docs")


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ModelError, match="later version"):
        IndexMeta.from_mapping({"_meta": {"osn": {"format": 99}}}, "docs")


def test_an_index_whose_table_is_being_counted_says_so_with_its_corpus() -> None:
    loading = {"loading": {"restore": {}, "corpus": "docs.jsonl"}}
    meta = IndexMeta(sparse=replace(SPARSE, query_hash="")).with_extra(**loading)
    read = IndexMeta.from_mapping({"_meta": {"osn": meta.to_dict()}}, "docs")
    assert read == meta and read.counting
    with pytest.raises(ModelError, match=r"'docs' has no IDF table yet: docs\.jsonl is being written"):
        check_counted("docs", read)
    for counted in (IndexMeta(sparse=SPARSE).with_extra(**loading), IndexMeta().with_extra(**loading)):
        assert not counted.counting
        check_counted("docs", counted)


def test_another_model_is_refused_with_both_names() -> None:
    check_same_model("docs", "sparse", ("my-sparse", "bbbb"), ("anything", "bbbb"), "")
    with pytest.raises(ModelError, match=r"my-sparse \(bbbb\).*other \(dddd\)"):
        check_same_model("docs", "sparse", ("my-sparse", "bbbb"), ("other", "dddd"), "")
    with pytest.raises(ModelError, match=r"\(dddd\); under one name, their files differ"):
        check_same_model("docs", "sparse", ("my-sparse", "bbbb"), ("my-sparse", "dddd"), "")


def test_an_ingest_with_other_models_is_refused_with_what_differs() -> None:
    check_unchanged_models("docs", META, META)
    with pytest.raises(ModelError, match="holds dense vectors, and this ingest brings none"):
        check_unchanged_models("docs", META, replace(META, dense=None))
    with pytest.raises(ModelError, match=r"my-sparse \(aaaa\).*my-sparse \(eeee\)"):
        check_unchanged_models("docs", META, replace(META, sparse=replace(SPARSE, hash="eeee")))
    with pytest.raises(ModelError, match="stores its dense vectors as byte, not as sq"):
        check_unchanged_models("docs", META, replace(META, dense=replace(META.dense, type="sq")))
    rebuilt = replace(META, dense=replace(META.dense, reconstructed=True))
    with pytest.raises(
        ModelError, match=r"are reconstructed from codes; this ingest encodes texts\n  leave out --dense to"
    ):
        check_unchanged_models("docs", rebuilt, META)
    with pytest.raises(ModelError, match=r"are encoded from texts; .* from codes\n  leave out --dense-from-codes to"):
        check_unchanged_models("docs", META, rebuilt)


def test_an_entry_that_is_none_leaves_the_record() -> None:
    meta = META.with_extra(cascade={"window": 3}, build={"alias": "docs"})
    assert meta.with_extra(build=None).extra == {"cascade": {"window": 3}}


@pytest.mark.cluster
def test_the_record_is_read_by_the_alias_too_and_rewritten(client: Any, index_name: str) -> None:
    assert read_record(client, index_name) is None
    with pytest.raises(ClusterError, match=f"there is no index '{index_name}'"):
        existing_record(client, index_name)
    client.indices.create(index=index_name, body={**index_body(META, replicas=0), "aliases": {f"{index_name}-a": {}}})
    write_record(client, index_name, META.with_extra(cascade={"window": 3}))
    assert read_record(client, f"{index_name}-a") == META.with_extra(cascade={"window": 3})


@pytest.mark.cluster
def test_what_others_keep_in_the_meta_of_an_index_stays_when_the_record_is_written(
    client: Any, index_name: str
) -> None:
    """Before, `_meta` held nothing but the record afterwards."""
    body = index_body(META, replicas=0)
    body["mappings"]["_meta"]["owner"] = "team-search"
    client.indices.create(index=index_name, body=body)
    write_record(client, index_name, META.with_extra(cascade={"window": 3}))
    write_record(client, index_name, META)  # an entry that leaves the record leaves the index, too
    (mapping,) = client.indices.get_mapping(index=index_name).values()
    assert mapping["mappings"]["_meta"] == {"owner": "team-search", "osn": META.to_dict()}


@pytest.mark.cluster
def test_a_name_of_several_indexes_is_refused(client: Any, index_name: str) -> None:
    for number in (1, 2):
        client.indices.create(index=f"{index_name}-{number}", body={"aliases": {index_name: {}}})
    with pytest.raises(ClusterError, match=f"names 2 indexes: {index_name}-1, {index_name}-2"):
        read_record(client, index_name)
    with pytest.raises(ClusterError, match="is a pattern"):
        read_record(client, f"{index_name}-1*")
