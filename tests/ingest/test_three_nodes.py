"""What needs three nodes, in one file, so that one process starts them: a node that is lost, replicas that come late, and
which copy answers a query."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import WORDS, job, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy
from opensearchpy import OpenSearch
from osn_node import kill_node

from ingest.job import run_job
from ingest.versions import builds as versions
from ingest.versions.swap import Gate
from opensearch_neural import node, queries
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.search.request import Request, find, find_by_body

pytestmark = pytest.mark.faults


def test_a_node_can_be_lost_and_started_again_and_nothing_is_lost(three_nodes: node.ClusterState) -> None:
    client = OpenSearch(three_nodes.urls, timeout=30, max_retries=3, retry_on_timeout=True)
    members = {row["name"] for row in client.cat.nodes(format="json")}
    assert members == {f"{three_nodes.name}-{i}" for i in (1, 2, 3)}
    assert len(set(three_nodes.pids)) == 3
    client.indices.create(index="kept", body={"settings": {"number_of_shards": 3, "number_of_replicas": 1}})
    client.cluster.health(index="kept", params={"wait_for_status": "green"})
    for i in range(20):
        client.index(index="kept", id=str(i), body={"n": i})

    kill_node(2, three_nodes.name)
    client = OpenSearch([three_nodes.urls[0], three_nodes.urls[2]], timeout=30, max_retries=3)
    client.index(index="kept", id="while it was away", body={"n": 20})
    client.indices.refresh(index="kept")
    assert client.count(index="kept")["count"] == 21
    ((known, _),) = node.status(three_nodes.name)
    assert [known.is_up(member) for member in known.nodes] == [True, False, True]

    again = node.start(name=three_nodes.name, attached=True)
    assert again.urls == three_nodes.urls
    assert [a == b for a, b in zip(again.pids, three_nodes.pids, strict=True)] == [True, False, True]
    client.cluster.health(index="kept", params={"wait_for_status": "green"})
    returned = OpenSearch(again.urls[1], timeout=30)
    assert returned.count(index="kept")["count"] == 21
    assert returned.cluster.health(index="kept")["status"] == "green"
    client.indices.delete(index="kept")


@pytest.mark.parametrize("keep_replicas", [True, False], ids=["with a replica", "loading without replicas"])
def test_a_node_killed_under_way_loses_and_doubles_nothing(
    three_nodes: node.ClusterState, tmp_path: Path, keep_replicas: bool
) -> None:
    client, index_name = connect(three_nodes.urls), "osn-test-killed"
    settings = job(
        write_jsonl(tmp_path / "corpus.jsonl", records(3000)),
        index_name,
        shards=3,
        replicas=1,
        keep_replicas=keep_replicas,
        writing={"retry": RetryPolicy(patience=240, base=0.2, cap=2)},
    )
    done: list[Any] = []
    with FaultProxy(three_nodes.urls[0]) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.05)

        def write() -> None:
            try:
                done.append(run_job(connect(proxy.url), settings, show_progress=False))
            except BaseException as error:
                done.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while len(proxy.bulks) < 20 and not done:
                time.sleep(0.01)
            assert not done
            # Not the first, which the proxy speaks to: that the connection fails is tested in test_faults.py.
            kill_node(2 if keep_replicas else 3, three_nodes.name)
            at_kill = len(proxy.bulks)
            node.start(name=three_nodes.name, attached=True)
        finally:
            writer.join()
    assert not isinstance(done[0], BaseException), done[0]
    assert len(proxy.bulks) > at_kill, "the ingest was over before the node was killed"
    health = client.cluster.health(
        index=index_name, params={"wait_for_status": "green", "timeout": "120s", "request_timeout": 130}
    )
    assert health["status"] == "green"
    # A copy that was just recovered shows what it holds after its next refresh.
    client.indices.refresh(index=index_name)
    found = snapshot(client, index_name)
    expected = {record.pop("_id"): record for record in records(3000)}
    for source in found.values():
        assert source.pop("sparse") and source.pop("sparse_forward")
    assert found == expected
    counts = client.indices.stats(index=index_name)["_all"]
    # Each document once, in primaries and in replicas.
    assert (counts["primaries"]["docs"]["count"], counts["total"]["docs"]["count"]) == (3000, 6000)
    client.indices.delete(index=index_name)


def test_a_swap_waits_for_replicas_that_busy_nodes_will_copy_later(
    three_nodes: node.ClusterState, tmp_path: Path
) -> None:
    """At a moment when no copy of the build was under way, the swap did not wait."""
    client, alias = connect(three_nodes.url), "osn-test-busy"

    def copying(most: int | None) -> None:
        setting = "cluster.routing.allocation.node_concurrent_incoming_recoveries"
        client.cluster.put_settings(body={"persistent": {setting: most}})

    path = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, replace(job(path, "", sparse="none"), alias=alias), show_progress=False)
    copying(0)
    later = threading.Timer(4, copying, [None])
    later.start()
    try:
        wanted = job(path, "", sparse="none", replicas=2)
        built = run_job(client, replace(wanted, alias=alias, gate=Gate(replica_patience=60)), show_progress=False)
        assert client.cluster.health(index=built.index)["status"] == "green"
        copying(0)
        client.indices.put_settings(index=built.index, body={"index": {"number_of_replicas": 0}})
        client.indices.put_settings(index=built.index, body={"index": {"number_of_replicas": 1}})
        copying(None)
        while client.cluster.health(index=built.index)["status"] != "green":
            told = versions._replicas_to_come(client, built.index)
            assert told or client.cluster.health(index=built.index)["status"] == "green"
        begun = time.monotonic()
        client.indices.put_settings(index=built.index, body={"index": {"number_of_replicas": 3}})
        versions.serve(client, alias, built.index, patience=60)
        assert time.monotonic() - begun < 30, "no node may hold a fourth copy"
    finally:
        later.join()
        for index in client.indices.get(index=f"{alias}-*"):
            client.indices.delete(index=index)


# ---------------------------------------------------------------- which copy answers

INDEX = "osn-test-replicas"


class Asked:
    """A client's searches, and the nodes whose copies have answered them since it was last looked."""

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.nodes = client, set[str]()
        send = client.transport.perform_request

        def noting(method: str, url: str, *arguments: Any, **more: Any) -> Any:
            answer = send(method, url, *arguments, **more)
            if url.endswith("search"):
                for each in answer.get("responses", [answer]):
                    self.nodes |= {hit["_node"] for hit in each["hits"]["hits"] if "_node" in hit}
            return answer

        monkeypatch.setattr(client.transport, "perform_request", noting)

    def looked(self) -> set[str]:
        seen, self.nodes = self.nodes, set()
        return seen


@pytest.fixture
def asked(three_nodes: node.ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    client = connect(three_nodes.urls)
    run_job(client, job(write_jsonl(tmp_path / "c.jsonl", records(200)), INDEX, replicas=2), show_progress=False)
    client.cluster.health(index=INDEX, params={"wait_for_status": "green"})
    yield Asked(client, monkeypatch)
    client.indices.delete(index=INDEX)


def test_pages_of_one_query_are_of_one_copy_and_other_queries_of_others(asked: Asked) -> None:
    client = asked.client
    engines = open_engines(client, INDEX, window=3)
    of_queries = []
    for word in WORDS[:12]:
        text = f"{word} {WORDS[-1]}"
        for name in ("bm25", "bm25-sparse", "high-idf-first"):
            for from_ in (0, 5, 10):
                find(client, Request.make(engines, name, text, size=5, from_=from_), explain=True)
            if isinstance(engine := engines.engine(name), Windowed):
                engine.certified(client, text, engines.page(size=5))
        of_queries.append(asked.looked())
        for from_ in (0, 5, 10):
            find_by_body(client, INDEX, {**queries.bm25(text, size=5), "from": from_}, explain=True)
        of_queries.append(asked.looked())
    assert {len(nodes) for nodes in of_queries} == {1}
    assert len(set.union(*of_queries)) == 3
