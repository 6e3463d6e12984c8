"""An index that returns fewer hits than others (index.max_result_window): what asks for many asks for as many as it may."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import job, records, write_jsonl

from ingest.corpus_from_index import copy_index
from ingest.documents import read_document
from ingest.inspection import inspect_index
from ingest.job import run_job
from ingest.writing.stored_documents import all_ids
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.index.sparse_scale import SAMPLE, SCALE, drawn_ids, known_items
from opensearch_neural.retrievers.template import absent_count
from trainers.data.clicks.logs import index_records

pytestmark = pytest.mark.cluster

FEW = 100
"""Fewer than any request asks for that reads many documents."""


@pytest.fixture
def few(client: Any, index_name: str) -> Iterator[str]:
    """The beginning of names of indexes that return at most FEW hits."""
    template = {"settings": {"index.max_result_window": FEW, "number_of_shards": 1}}
    body = {"index_patterns": [f"{index_name}*"], "template": template, "priority": 500}
    client.indices.put_index_template(name=index_name, body=body)
    yield index_name
    client.indices.delete_index_template(name=index_name)


def test_an_index_that_returns_few_hits_is_written_searched_and_read(client: Any, few: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(300))
    assert run_job(client, job(corpus, few), show_progress=False).documents == 300
    assert most_hits(client, few, 5000) == FEW and most_hits(client, few, 7) == 7
    engines = open_engines(client, few)
    assert engines.meta.extra[SCALE] > 0, "the scale is measured when the index is written"
    assert len(engines.search("bm25-sparse", "rain bow sky", size=FEW)["hits"]["hits"]) == FEW
    ids = sorted(record["_id"] for record in records(300))
    drawn = drawn_ids(ids)
    assert sorted(hit["_id"] for hit, _ in known_items(client, few, SAMPLE, 0, drawn)) == sorted(drawn)
    assert len(list(known_items(client, few, SAMPLE, 0))) == FEW
    assert sorted(all_ids(client, few)) == ids
    assert copy_index(client, f"opensearch:{few}", io.BytesIO()) == 300
    assert inspect_index(client, few).documents == 300
    assert absent_count(client, few, [*ids, "none"]) == 1
    assert len(list(index_records(lambda: client, few))) == 300
    others = write_jsonl(tmp_path / "d.jsonl", records(50, seed=1))
    report = run_job(client, job(others, few, writing={"remove_others": True}), show_progress=False)
    assert report.documents == client.count(index=few)["count"] == 50


def test_a_document_of_many_passages_is_read_whole(client: Any, few: str, tmp_path: Path) -> None:
    text = " ".join(record["text"] for record in records(100))
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "long", "text": text}])
    run_job(client, job(corpus, few, passages=PassageMeta(10, 10)), show_progress=False)
    assert client.count(index=few)["count"] > FEW
    document = read_document(client, few, "long")
    assert document is not None and document.text == text


@pytest.mark.parametrize(
    ("page", "settings", "named"),
    [
        ({"size": FEW + 1}, {}, "index.max_result_window"),
        ({"from_": FEW, "size": 1}, {}, "index.max_result_window"),
        ({}, {"window": FEW + 1}, "index.max_rescore_window"),
    ],
)
def test_a_search_for_more_than_the_index_returns_names_the_setting(
    client: Any, few: str, tmp_path: Path, page: dict[str, int], settings: dict[str, int], named: str
) -> None:
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", records(60)), few), show_progress=False)
    with pytest.raises(ClusterError, match="too large") as refused, translate_errors():
        open_engines(client, few, **settings).search("bm25-sparse", "rain bow sky", **page)
    assert f"raise {named} in the index's settings" in (refused.value.remedy or "")
