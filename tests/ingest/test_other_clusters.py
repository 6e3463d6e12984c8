"""Ingest and search on clusters of other people: narrow roles, and zones that are balanced."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import cluster_servers
import pytest
from cluster_servers import Answer, forbidden, forbidding_proxy
from corpora import WORDS, job, records, snapshot, write_jsonl
from osn_command import osn_command

from ingest.error_limit import TooManyErrors
from ingest.inspection import inspect_index
from ingest.job import run_job
from ingest.versions.builds import prune, versions
from ingest.versions.unfinished import abort
from opensearch_neural import QueryEncoder, node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.probe import probe
from opensearch_neural.engines import open_engines
from opensearch_neural.search.filters import parse_filter
from opensearch_neural.search.request import Request, find

LEAST_ROLE = Path(__file__).parents[2] / "docs" / "clusters.md"
NAMED = re.compile(r"INDEX|\\\{[a-z]+\\\}")
"""What stands for a name in a path of the table, after `re.escape`: INDEX, or {id}, {field}, {alias}, {task}."""


def documented() -> list[tuple[re.Pattern[str], str, bool]]:
    """(pattern of "METHOD /path", permission, whether osn does without) of the table of permissions."""
    table = re.findall(r"^\| `([A-Z]+ /\S*)` \| `([^|]+)` \| (.*) \|$", LEAST_ROLE.read_text(), re.MULTILINE)
    assert len(table) > 10
    return [
        (re.compile(NAMED.sub("[^/_][^/]*", re.escape(request))), permission, "optional" in purpose)
        for request, permission, purpose in table
    ]


def permissions(role: dict[str, Any]) -> set[str]:
    """All permissions of a role of the security plugin."""
    return {
        *role["cluster_permissions"],
        *(each for part in role["index_permissions"] for each in part["allowed_actions"]),
    }


def test_the_roles_to_paste_have_the_permissions_of_the_table() -> None:
    blocks = re.findall(r"^```json\n(.*?)^```", LEAST_ROLE.read_text(), re.DOTALL | re.MULTILINE)
    searching, ingesting = (permissions(json.loads(block)) for block in blocks)
    table = {each for _, named, _ in documented() for each in named.split(", ")}
    lacking = {each for each in table if not any(fnmatch(each, pattern) for pattern in ingesting)}
    of_other_commands = {
        "indices:data/read/tv",
        "cluster:admin/search/pipeline/get",
        "indices:admin/mappings/fields/get*",
        "cluster:monitor/nodes/stats",
        "cluster:admin/knn_stats_action",
    }
    assert lacking == of_other_commands
    sent = ("GET /", "GET /docs/_mapping", "POST /docs/_search", "POST /docs/_msearch", "GET /docs/_doc/1")
    for request in (*sent, "GET /_alias/docs"):  # by an application
        (named,) = (named for pattern, named, _ in documented() if pattern.fullmatch(request))
        assert any(fnmatch(named, pattern) for pattern in searching), request
    for role in map(json.loads, blocks):
        assert not [
            each
            for part in role["index_permissions"]
            for each in part["allowed_actions"]
            if each.startswith("cluster:")
        ]
    for each in searching | ingesting:
        assert any(fnmatch(each, named) or fnmatch(named, each) for named in table), each


def work(url: str, index_name: str, tmp_path: Path) -> None:
    """An ingest with an alias, another one behind it, a search, a look at the index, an ingest out of another index; the
    earlier build is deleted, and an interrupted index."""
    client = connect(url)
    corpus = write_jsonl(tmp_path / "corpus.jsonl", records(100))
    for _ in range(2):
        run_job(client, job(corpus, "", alias=index_name), show_progress=False)
        corpus = write_jsonl(tmp_path / "corpus.jsonl", records(120))
    engines = open_engines(client, index_name)
    for engine in ("bm25", "sparse", "high-idf-first"):
        assert client.search(index=index_name, body=engines.body(engine, "rain word7", size=3))["hits"]["hits"]
    asked = Request.make(engines, "bm25", "rain", clauses=[parse_filter("language=x")], size=3)
    assert find(client, asked).hits == []
    assert inspect_index(client, index_name).documents == 120
    assert len(versions(client, index_name)) == 2
    run_job(client, job(f"opensearch:{index_name}-theirs", f"{index_name}-copy"), show_progress=False)
    assert inspect_index(client, f"{index_name}-copy").documents == 1
    assert len(prune(client, index_name, keep=0)) == 1
    broken = job(write_jsonl(tmp_path / "broken.jsonl", [*records(50), "broken"]), f"{index_name}-broken")
    with pytest.raises(TooManyErrors):
        run_job(client, replace(broken, writing=replace(broken.writing, max_errors=0)), show_progress=False)
    assert abort(client, f"{index_name}-broken") == f"{index_name}-broken"


def named(request: cluster_servers.Request) -> str:
    return f"{request.method} {request.path.partition('?')[0]}"


def undocumented(seen: list[cluster_servers.Request]) -> set[str]:
    patterns = [pattern for pattern, _, _ in documented()]
    return {named(request) for request in seen if not any(p.fullmatch(named(request)) for p in patterns)}


@pytest.mark.parametrize("may_all", [False, True], ids=["without what is optional", "with all"])
def test_every_request_is_one_of_the_documented_role_and_no_optional_one_is_needed(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, may_all: bool
) -> None:
    """Before, a user without cluster:monitor/health could ingest nothing."""
    role = documented()

    def refused_if_optional(request: cluster_servers.Request) -> Answer | None:
        for pattern, permission, optional in role:
            if optional and not may_all and pattern.fullmatch(named(request)):
                return forbidden(permission)
        return None

    seen: list[cluster_servers.Request] = []
    client.index(index=f"{index_name}-theirs", body={"text": "rain word7"}, refresh=True)
    with forbidding_proxy(cluster_url, refused_if_optional, seen) as url:
        work(url, index_name, tmp_path)
    assert undocumented(seen) == set()
    assert len(snapshot(client, index_name)) == 120
    if may_all:
        assert any(re.fullmatch(r"DELETE /osn-query-encoders/_doc/\S+", named(request)) for request in seen)


def test_every_request_of_the_doctor_is_documented(cluster_url: str) -> None:
    seen: list[cluster_servers.Request] = []
    with forbidding_proxy(cluster_url, lambda request: None, seen) as url:
        assert osn_command("doctor", "--url", url).returncode == 0
    assert {"GET /_cluster/health", "GET /_nodes/stats/jvm,fs"} <= {named(request) for request in seen}
    assert undocumented(seen) == set()


@pytest.fixture(scope="module")
def zoned() -> Iterator[Any]:
    """One node of a cluster that has two zones and balances them."""
    awareness = "cluster.routing.allocation.awareness"
    settings = {
        "node.attr.zone": "a",
        f"{awareness}.attributes": "zone",
        f"{awareness}.force.zone.values": "a,b",
        f"{awareness}.balance": True,
    }
    name = f"osn-test-zones-{os.getpid()}"
    running = node.start(port=0, heap="512m", name=name, attached=True, settings=settings)
    connected = connect(running.url)
    yield connected
    connected.close()
    node.stop(name, purge=True)


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("replicas", "has"), [(None, 1), (0, 1), (2, 3)])
def test_an_index_has_a_copy_in_each_zone_of_a_cluster_that_balances_them(
    zoned: Any, tmp_path: Path, replicas: int | None, has: int
) -> None:
    """Before: `expected total copies needs to be a multiple of total awareness attributes [2]`, at creation."""
    index = f"docs-{has}-{replicas or 0}"
    settings = job(write_jsonl(tmp_path / "corpus.jsonl", records(50)), index, replicas=replicas)
    assert run_job(zoned, settings, show_progress=False).documents == 50
    (settings,) = zoned.indices.get_settings(index=index).values()
    assert settings["settings"]["index"]["number_of_replicas"] == str(has)
    assert len(snapshot(zoned, index)) == 50


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_load_that_goes_on_with_other_replicas_has_a_copy_in_each_zone_too(zoned: Any, tmp_path: Path) -> None:
    wanted = job(write_jsonl(tmp_path / "corpus.jsonl", [*records(50), "broken"]), "resumed", replicas=1)
    with pytest.raises(TooManyErrors):
        run_job(zoned, replace(wanted, writing=replace(wanted.writing, max_errors=0)), show_progress=False)
    more = replace(wanted.new_index, replicas=2)
    assert run_job(zoned, replace(wanted, new_index=more), show_progress=False).documents == 50
    (settings,) = zoned.indices.get_settings(index="resumed").values()
    assert settings["settings"]["index"]["number_of_replicas"] == "3"


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_indexes_of_osns_own_are_made_on_a_cluster_of_three_zones_too(zoned: Any, tmp_path: Path) -> None:
    """Before, `expected max cap on auto expand to be a multiple of total awareness attributes [3]` was taken for a sign that
    another process had made them: nothing prevented a second ingest, and searches needed the model's files."""
    own = ["osn-leases", "osn-query-encoders"]
    zones = "cluster.routing.allocation.awareness.force.zone.values"
    for name in own:
        zoned.indices.delete(index=name, params={"ignore_unavailable": "true"})
    zoned.cluster.put_settings(body={"persistent": {zones: "a,b,c"}})
    try:
        wanted = job(write_jsonl(tmp_path / "corpus.jsonl", records(50)), "of-three-zones", replicas=0)
        assert run_job(zoned, wanted, show_progress=False).documents == 50
        for settings in zoned.indices.get_settings(index=own).values():
            index = settings["settings"]["index"]
            assert index["auto_expand_replicas"] == "0-2" and index["hidden"] == "true"
        assert QueryEncoder.of_index(zoned, "of-three-zones").encode(WORDS[0])
    finally:
        zoned.cluster.put_settings(body={"persistent": {zones: None}})


@pytest.mark.cluster
def test_a_cluster_that_balances_zones_is_probed_like_any_other(zoned: Any) -> None:
    assert probe(zoned).usable
    assert not [name for name in zoned.indices.get(index="*", expand_wildcards="all") if name.startswith("osn-probe")]
