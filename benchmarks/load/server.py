"""What the cluster reports: processor time, garbage collection, and the facts of an index."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.writing.stored_documents import count
from opensearch_neural.cluster.addresses import is_loopback
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.segments import refresh

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexStatistics:
    """The index under test."""

    documents: int
    """Documents that are not deleted."""
    bytes: int
    """Of primary shards."""
    segments: int
    """Of primary shards."""
    shards: int
    """Primary shards."""
    uuid: str = ""
    """Of the index; a new build behind the same alias has another."""


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster under test."""

    version: str
    """OpenSearch's version."""
    nodes: int
    """How many nodes of any role it has."""
    heap_max: int
    """Bytes of the Java heaps of all nodes."""
    cpu_from: str
    """The source of processor times: /proc or node statistics."""
    uuid: str = ""
    """Of the cluster; it stays the same when nodes are started again."""


class ServerProbe:
    """Asks the cluster for times; they are None if unknown.

    Processor times of nodes on this machine come from /proc, exact to 10 ms; of other nodes from node statistics, which
    OpenSearch renews once a second.
    """

    def __init__(self, client: OpenSearch, urls: Sequence[str]) -> None:
        self.client = client
        self.pids = _local_pids(client) if all(is_loopback(url) for url in urls) else []
        self.cpu_from = "/proc" if self.pids else "node statistics"

    def cpu_seconds(self) -> float | None:
        """Seconds of processor time so far, of all nodes."""
        if self.pids:
            times = [_proc_cpu_seconds(pid) for pid in self.pids]
            return None if None in times else sum(time for time in times if time is not None)
        nodes = self._nodes("process", "nodes.*.process.cpu.total_in_millis")
        return sum(node["process"]["cpu"]["total_in_millis"] for node in nodes) / 1000 if nodes else None

    def busy_seconds(self) -> float | None:
        """Seconds of processor time so far of all processes of this machine, with those that other virtual machines took;
        None unless the nodes' own times are known from /proc."""
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal: interrupts are the load's own network, mostly.
            ticks = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
        except (OSError, ValueError):
            return None
        return (sum(ticks[:3]) + ticks[7]) / os.sysconf("SC_CLK_TCK") if self.pids else None

    def gc_ms(self) -> float | None:
        """Milliseconds of garbage collection so far, of all nodes."""
        nodes = self._nodes("jvm", "nodes.*.jvm.gc")
        collectors = [collector for node in nodes for collector in node["jvm"]["gc"]["collectors"].values()]
        return float(sum(collector["collection_time_in_millis"] for collector in collectors)) if nodes else None

    def answers(self) -> bool:
        """Whether the cluster answers at all."""
        from opensearchpy.exceptions import OpenSearchException

        try:
            self.client.transport.perform_request("GET", "/", params={"request_timeout": 5})
        except OpenSearchException:
            return False
        return True

    def _nodes(self, metrics: str, only: str) -> list[dict[str, Any]]:
        from opensearchpy.exceptions import OpenSearchException

        params = {"request_timeout": 5, "filter_path": only}
        try:
            answer = self.client.transport.perform_request("GET", f"/_nodes/stats/{metrics}", params=params)
        except OpenSearchException as error:
            log.debug("node statistics: %s", error)
            return []
        return list(answer.get("nodes", {}).values())


def cluster_facts(probe: ServerProbe) -> ClusterFacts:
    """Raises ClusterError if the cluster does not answer."""
    with translate_errors():
        info = probe.client.info()
        nodes = list(probe.client.nodes.info(metric="jvm")["nodes"].values())
    return ClusterFacts(
        version=f"{info['version'].get('distribution', 'opensearch')} {info['version']['number']}",
        nodes=len(nodes),
        heap_max=sum(node["jvm"]["mem"]["heap_max_in_bytes"] for node in nodes),
        cpu_from=probe.cpu_from,
        uuid=str(info.get("cluster_uuid", "")),
    )


def index_facts(client: OpenSearch, index: str) -> IndexStatistics:
    """Raises ClusterError if the index is absent or does not answer."""
    with translate_errors():
        ((name, segments_of),) = client.indices.segments(index=index)["indices"].items()
        settings = client.indices.get_settings(index=name)[name]["settings"]["index"]
        documents = count(client, index)  # statistics count nested documents, too
    shards = segments_of["shards"]
    copies = [copy for of_shard in shards.values() for copy in of_shard if copy["routing"]["primary"]]
    segments = [segment for copy in copies for segment in copy["segments"].values()]
    return IndexStatistics(
        documents=documents,
        # From the segments, because the reported size of the store is up to ten seconds old.
        bytes=sum(int(segment["size_in_bytes"]) for segment in segments),
        segments=sum(segment["search"] for segment in segments),
        shards=len(shards),
        uuid=settings["uuid"],
    )


def settle_index(client: OpenSearch, index: str) -> None:
    """Refresh the index and wait for its shards, so that nothing is refreshed while searches are measured.

    Raises ClusterError if the index does not answer.
    """
    with translate_errors():
        refresh(client, index)
        health = client.cluster.health(index=index, params={"wait_for_no_initializing_shards": "true"})
    if health.get("status") == "red":
        raise ClusterError(f"shards of {index!r} are missing", "see `osn doctor` and the node's log")


def _local_pids(client: OpenSearch) -> list[int]:
    """Process ids of the nodes, if /proc of this machine shows all of them under these ids; else empty.

    A node in a container has other ids; so the processor time in /proc must agree with what the node reports.
    """
    from opensearchpy.exceptions import OpenSearchException

    try:
        nodes = client.nodes.info(metric="process")["nodes"]
        stats = client.nodes.stats(metric="process")["nodes"]
    except OpenSearchException:
        return []
    pids = []
    for id_, node in nodes.items():
        if id_ not in stats:  # it has just left
            return []
        pid = int(node["process"]["id"])
        from_proc = _proc_cpu_seconds(pid)
        from_node = stats[id_]["process"]["cpu"]["total_in_millis"] / 1000
        if from_proc is None or not -1.0 <= from_proc - from_node <= max(5.0, 0.1 * from_proc):
            return []
        pids.append(pid)
    return pids


def _proc_cpu_seconds(pid: int) -> float | None:
    """User and system time of a process in seconds, from /proc/PID/stat; None if there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may hold blanks and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
