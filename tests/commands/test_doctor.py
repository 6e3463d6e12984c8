from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner, Result
from cluster_servers import Answer, Request, closed_port, forbidden, forbidding_proxy, http_server, silent, tcp_server
from osn_command import osn_command

from opensearch_neural.cluster.capabilities import Capabilities, NodeResources
from opensearch_neural.cluster.watermarks import Watermarks
from opensearch_neural.commands.doctor import FEATURES, doctor, report

LOCAL = ("http://127.0.0.1:9200",)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments)


def osn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return osn_command("doctor", *arguments)


def test_the_doctor_shows_every_capability_and_is_content_with_a_cluster_that_can_search(cluster_url: str) -> None:
    result = osn("--url", cluster_url)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    for feature in FEATURES:
        assert len([line for line in lines if line.startswith(f"{feature.name} ")]) == 1
    assert lines[-1].startswith("usable: ")


def test_the_doctor_answers_in_json(cluster_url: str) -> None:
    result = run("--url", cluster_url, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["usable"] is True and answer["tried"] is True
    assert {feature.name for feature in FEATURES} <= set(answer)
    assert answer["max_clause_count"] >= 1
    assert answer["nodes"][0]["heap_max"] > 0


def test_without_writing_the_doctor_only_reads(cluster_url: str) -> None:
    seen: list[Request] = []
    with forbidding_proxy(cluster_url, lambda _: None, seen) as url:
        result = run("--url", url, "--no-write", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tried"] is False
    assert {request.method for request in seen} == {"GET"}


def test_a_cluster_where_nothing_may_be_tried_is_unknown_and_the_exit_status_says_so(cluster_url: str) -> None:
    def forbid(request: Request) -> Answer | None:
        return forbidden("indices:admin/create") if request.method == "PUT" else None

    with forbidding_proxy(cluster_url, forbid) as url:
        result = run("--url", url)
    assert result.exit_code == 1
    assert "rank_features  unknown" in result.stdout
    assert "indices:admin/create" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("not known to be usable")


def test_a_cluster_that_is_not_there_is_one_message_with_a_remedy_and_no_traceback() -> None:
    url = closed_port()
    result = osn("--url", url)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[0] == f"error: nothing listens at {url}: the connection was refused"
    assert "osn node start" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cluster_that_is_not_there_is_json_too_where_json_is_asked_for() -> None:
    result = run("--url", closed_port(), "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["usable"] is False
    assert "nothing listens" in answer["error"]
    assert "osn node start" in answer["remedy"]


def test_a_server_that_never_answers_does_not_hang_the_doctor() -> None:
    with tcp_server(silent) as server:
        result = osn("--url", server.url, "--timeout", "1")
    assert result.returncode == 1
    assert "did not answer to GET / within 1 s" in result.stderr


def test_a_password_in_the_url_is_in_no_output() -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        result = osn("--url", server.url.replace("://", "://reader:s3cret@"))
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert result.returncode == 1
    assert "s3cret" not in result.stdout + result.stderr
    assert "OSN_PASSWORD" in result.stderr  # the warning
    assert "rejected the user and password (401)" in result.stderr


def test_writing_and_not_writing_exclude_each_other() -> None:
    result = run("--no-write", "--try-faiss")
    assert result.exit_code == 2
    assert "exclude each other" in result.output


# ---------------------------------------------------------------------------------------------------------- the report


def test_a_missing_capability_is_shown_with_its_fallback_and_the_reason() -> None:
    capabilities = Capabilities(
        version="3.5.0",
        distribution="opensearch",
        plugins={},
        bm25=True,
        rank_features=True,
        neural_sparse=False,
        max_clause_count=1024,
        notes={"neural_sparse": "unknown query [neural_sparse]"},
    )
    lines = report(capabilities, LOCAL).splitlines()
    assert "plugins  none" in lines
    (row,) = [line for line in lines if line.startswith("neural_sparse  no ")]
    assert row.endswith("without: rank_feature clauses, with the same scores")
    assert "neural_sparse: unknown query [neural_sparse]" in lines
    assert lines[-1] == "usable: BM25 and sparse retrieval work here, without the neural-search plugin"


def test_what_the_cluster_did_not_tell_in_time_is_said() -> None:
    capabilities = Capabilities(notes={"plugins": "no answer in time", "nodes": "no answer in time"})
    lines = report(capabilities, LOCAL).splitlines()
    assert {"plugins  unknown", "plugins: no answer in time", "nodes: no answer in time"} <= set(lines)
    assert lines[-1].endswith("is a node hung, or the cluster manager missing?"), "and not that a permission is"


def test_a_cluster_without_rank_features_is_not_usable() -> None:
    capabilities = Capabilities(bm25=True, rank_features=False)
    assert not capabilities.usable
    assert report(capabilities, LOCAL).splitlines()[-1] == "not usable: osn needs BM25 and rank_features"


@pytest.mark.parametrize(
    ("available", "warning"), [(50, ""), (11, ""), (10, "nearly full"), (6, "nearly full"), (5, "FULL"), (0, "FULL")]
)
def test_a_disk_that_fills_up_is_pointed_out(available: int, warning: str) -> None:
    gibibyte = 2**30
    disk = NodeResources("one", ("data",), gibibyte // 2, gibibyte, available * gibibyte, 100 * gibibyte)
    (line,) = [line for line in report(Capabilities(nodes=[disk]), LOCAL).splitlines() if line.startswith("node ")]
    assert "one: heap 0.5 of 1.0 GiB" in line
    assert f"disk {available} of 100 GiB free" in line
    assert (warning in line) if warning else line.endswith("free")


@pytest.mark.parametrize(
    ("high", "flood_stage", "available", "warning"),
    [
        ("1gb", "500mb", 4, ""),
        ("5gb", "500mb", 4, "nearly full, this cluster puts no new shards here with less than 5gb free"),
        ("5gb", "4gb", 4, "FULL, this cluster stops writes with less than 4gb free"),
        ("0.97", "0.99", 4, ""),
        ("97%", "98%", 2, "FULL, this cluster stops writes from 98% on"),
    ],
)
def test_a_disk_is_as_full_as_the_cluster_says(high: str, flood_stage: str, available: int, warning: str) -> None:
    """Before, OpenSearch's defaults counted, whatever the cluster was set to."""
    disk = NodeResources("one", ("data",), 2**29, 2**30, available * 2**30, 100 * 2**30)
    for enabled in (True, False):
        watermarks = Watermarks(high, flood_stage, enabled)
        lines = report(Capabilities(nodes=[disk]), LOCAL, watermarks=watermarks).splitlines()
        (line,) = [line for line in lines if line.startswith("node ")]
        assert line.endswith(warning if enabled and warning else "free")


def test_the_watermarks_of_a_cluster_are_read_and_unknown_where_they_may_not_be(client, cluster_url: str) -> None:
    setting = "cluster.routing.allocation.disk.watermark"
    client.cluster.put_settings(
        body={"transient": {f"{setting}.low": "3mb", f"{setting}.high": "2mb", f"{setting}.flood_stage": "1mb"}}
    )
    try:
        watermarks = json.loads(run("--url", cluster_url, "--no-write", "--json").stdout)["watermarks"]
    finally:
        names = ("low", "high", "flood_stage")
        client.cluster.put_settings(body={"transient": {f"{setting}.{name}": None for name in names}})
    assert watermarks == {"high": "2mb", "flood_stage": "1mb", "enabled": True}

    def forbid(request: Request) -> Answer | None:
        return forbidden("cluster:monitor/settings/get") if "_cluster/settings" in request.path else None

    with forbidding_proxy(cluster_url, forbid) as url:
        assert json.loads(run("--url", url, "--no-write", "--json").stdout)["watermarks"]["high"] == "90%"
