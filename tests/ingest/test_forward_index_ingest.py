"""Whether an index gets a forward index, and what searches do with and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from corpora import job, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest.documents import Documents
from ingest.job import run_job
from ingest.versions.builds import rollback, serve
from opensearch_neural import connect
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import PassageMeta, existing_record

TEXT = "rain over the sea"


def second_phase(client: Any, index: str, **settings: Any) -> dict[str, Any]:
    return open_engines(client, index, **settings).body("bm25-sparse", TEXT)["rescore"]["query"]["rescore_query"]


def by_script(request: Request) -> bool:
    return request.path.startswith("/osn-test") and "_search" in request.path and b"script_score" in request.body


def scores(client: Any, index: str, **settings: Any) -> dict[str, float]:
    body = open_engines(client, index, **settings).body("bm25-sparse", TEXT, size=20)
    return {hit["_id"]: hit["_score"] for hit in client.search(index=index, body=body)["hits"]["hits"]}


def test_it_is_there_unless_it_is_declined_and_scores_are_the_same(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))
    other = f"{index_name}-b"
    run_job(client, job(corpus, index_name), show_progress=False)
    run_job(client, job(corpus, other, forward_index=False), show_progress=False)
    assert "script_score" in second_phase(client, index_name) and "script_score" not in second_phase(client, other)
    assert scores(client, index_name) == pytest.approx(scores(client, other), rel=1e-6) and scores(client, other)
    assert not any("sparse_forward" in source for source in snapshot(client, other).values())
    assert scores(client, index_name, clauses=True) == scores(client, index_name)
    assert "script_score" not in second_phase(client, index_name, clauses=True)
    # It stays as it was, whoever adds to it.
    more = write_jsonl(tmp_path / "more.jsonl", [{"_id": "new", "text": TEXT}])
    run_job(client, job(more, other), show_progress=False)
    assert "sparse_forward" not in snapshot(client, other)["new"]
    with pytest.raises(InputError, match="with a forward index"):
        run_job(client, job(more, index_name, forward_index=False), show_progress=False)
    run_job(client, job(more, index_name), show_progress=False)
    assert snapshot(client, index_name)["new"]["sparse_forward"]


def test_a_cluster_that_refuses_scripts_gets_none_and_is_searched_by_clauses(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(30))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 400) if by_script(request) else None
        run_job(connect(proxy.url), job(corpus, index_name), show_progress=False)
        assert proxy.faults
    assert "gets no forward index, because this cluster refuses scripts" in caplog.text
    assert existing_record(client, index_name).forward_index is False
    assert "script_score" not in second_phase(client, index_name)
    assert not any("sparse_forward" in source for source in snapshot(client, index_name).values())


@pytest.mark.parametrize("status", [401, 403])
def test_a_user_who_may_not_search_gets_one(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, status: int
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(10))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", status) if by_script(request) else None
        run_job(connect(proxy.url), job(corpus, index_name), show_progress=False)
        assert proxy.faults
    assert existing_record(client, index_name).forward_index
    assert scores(client, index_name)


def test_the_command_takes_the_option(client: Any, cluster_url: str, index_name: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from opensearch_neural.cli import osn

    corpus = write_jsonl(tmp_path / "d.jsonl", records(5))
    command = ["ingest", str(corpus), "--url", cluster_url, "--index", index_name, "--sparse", "lexical"]
    done = CliRunner().invoke(osn, [*command, "--replicas", "0", "--no-forward-index"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    record = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["_meta"]["osn"]
    assert record["forward_index"] is False, json.dumps(record)


def test_passages_have_none_because_nothing_that_is_collapsed_is_rescored(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, job(corpus, index_name, passages=PassageMeta(10, 5)), show_progress=False)
    assert existing_record(client, index_name).forward_index is False


def test_documents_are_written_as_the_build_that_serves_now_needs_them(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that holds an alias goes on writing after a swap from a build without rows to one with them, and back."""
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    builds = (f"{index_name}-20260314-150926", f"{index_name}-20260321-150926")
    for build, rows in zip(builds, (False, True), strict=True):
        run_job(client, job(corpus, build, forward_index=rows), show_progress=False)
    client.indices.put_alias(index=builds[0], name=index_name)
    documents = Documents(client, index_name)
    for at, build in enumerate(builds):
        serve(client, index_name, build, patience=0)
        documents.add([{"_id": "new", "text": TEXT}])
        assert ("sparse_forward" in snapshot(client, build)["new"]) is bool(at)
        documents.update("new", {"lang": "de"})
        assert ("sparse_forward" in snapshot(client, build)["new"]) is bool(at)
    with caplog.at_level("WARNING"):
        rollback(client, index_name, to=builds[0])
    assert "must open their engines again" in caplog.text
    assert "sparse_forward" not in client.indices.get_mapping(index=builds[0])[builds[0]]["mappings"]["properties"]
