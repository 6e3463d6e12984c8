"""What `osn tune` stored in the index that serves stays with the alias, as long as the next build is made alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import job, records, write_jsonl

from ingest.job import run_job
from ingest.versions.builds import serving_index
from ingest.versions.swap import Gate, serve_build
from ingest.versions.tunings import carry_tunings
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import IndexMeta, QuantizedMeta, SparseMeta, existing_record, write_record
from opensearch_neural.queries import Rare

SUM = {"weight": 1.6, "window": 60, "tokens": None, "shard_documents": 20}
ALL = {
    "bm25_sparse": SUM,
    "high_idf_first": {"rare": "ratio:0.4", "window": 50, "exact": True, "tokens": None},
    "cascade": {"rare": "ratio:0.5", "window": 40, "dense_window": 20, "weight": 0.2, "first": "bm25-sparse"},
}


def tuned(client: Any, index: str, **settings: Any) -> None:
    write_record(client, index, existing_record(client, index).with_extra(**settings))


def test_a_build_with_the_same_models_searches_as_tuned_and_another_one_says_that_it_does_not(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that was tuned was searched with default settings from its next build on, without a word."""
    path = write_jsonl(tmp_path / "d.jsonl", records(20))
    build = replace(job(path, ""), alias=index_name)
    run_job(client, build, show_progress=False)
    tuned(client, index_name, **ALL)
    run_job(client, build, show_progress=False)
    assert existing_record(client, index_name).extra.items() >= ALL.items()
    assert Bm25SparseSetting.of(open_engines(client, index_name)) == Bm25SparseSetting(1.6, 60)
    assert "osn tune" not in caplog.text

    write_jsonl(path, records(60))  # its lexical model has another table
    run_job(client, build, show_progress=False)
    assert not existing_record(client, index_name).extra.keys() & ALL.keys()
    (told,) = [line for line in caplog.messages if "osn tune" in line]
    assert "for bm25-sparse, high-idf-first, cascade is not carried over: run `osn tune` again" in told


def test_what_was_tuned_with_bm25_asks_for_the_same_analyzers(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, replace(job(path, ""), alias=index_name), show_progress=False)
    tuned(client, index_name, **ALL)
    build = replace(job(path, "", search_analyzer="whitespace"), alias=index_name)
    run_job(client, build, show_progress=False)
    assert existing_record(client, index_name).extra.keys() & ALL.keys() == {"high_idf_first"}
    assert "for bm25-sparse, cascade is not carried over" in caplog.text


def test_a_build_that_waits_gets_what_is_tuned_by_the_time_of_its_swap(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It kept what the serving index had when it was finished, though that was tuned again since."""
    path = write_jsonl(tmp_path / "d.jsonl", records(20))
    build = replace(job(path, ""), alias=index_name)
    run_job(client, build, show_progress=False)
    tuned(client, index_name, **ALL)
    run_job(client, replace(build, swap=False), show_progress=False)
    tuned(client, index_name, bm25_sparse={**SUM, "weight": 0.4})
    serve_build(client, index_name, None, Gate(), dry_run=True)
    index = serve_build(client, index_name, None, Gate()).index
    assert existing_record(client, index).extra["bm25_sparse"] == {**SUM, "weight": 0.4}
    assert "osn tune" not in caplog.text
    write_jsonl(path, records(60))  # its lexical model has another table
    run_job(client, replace(build, swap=False), show_progress=False)
    assert "is not carried over" in caplog.text, "in time to tune the build before it serves"


def test_what_was_tuned_in_the_build_itself_stays_and_the_cascade_asks_for_its_own_models(
    client: Any, index_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    meta = IndexMeta(SparseMeta("m", "a", "b"))
    serving, build = f"{index_name}-1", f"{index_name}-2"
    client.indices.create(index=serving, body=index_body(meta.with_extra(**ALL), replicas=0))
    client.indices.put_alias(index=serving, name=index_name)
    of_codes = replace(meta, quantized=QuantizedMeta("q", "c", 8)).with_extra(high_idf_first={"rare": str(Rare())})
    client.indices.create(index=build, body=index_body(of_codes, replicas=0))
    carry_tunings(client, index_name, build)
    assert existing_record(client, build).extra == {"high_idf_first": {"rare": str(Rare())}, "bm25_sparse": SUM}
    assert "for cascade is not carried over" in caplog.text
    assert serving_index(client, index_name) == serving
