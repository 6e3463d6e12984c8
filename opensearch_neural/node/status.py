"""Which local clusters there are, and how they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from opensearch_neural.node import rest
from opensearch_neural.node.state import ClusterState, known_clusters, read_state


@dataclass(frozen=True)
class NodeStatus:
    index: int
    url: str
    pid: int | None
    running: bool
    log: str


@dataclass(frozen=True)
class ClusterStatus:
    """What `osn node status` tells. `health` is OpenSearch's colour, or None where no node answers."""

    name: str
    url: str
    profile: str
    version: str
    heap: str
    data: str
    health: str | None
    nodes: list[NodeStatus]

    @property
    def running(self) -> int:
        return sum(node.running for node in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def status(name: str | None = None) -> list[ClusterStatus]:
    """The state of one cluster, or of all that are known. Nothing is started or changed."""
    found = known_clusters() if name is None else [state for state in [read_state(name)] if state]
    return [_status(cluster) for cluster in found]


def _status(cluster: ClusterState) -> ClusterStatus:
    answers = (rest.get(node.http_port, "/_cluster/health") for node in cluster.running)
    health = next((answer["status"] for answer in answers if answer), None)
    return ClusterStatus(
        name=cluster.name,
        url=cluster.url,
        profile=cluster.profile,
        version=cluster.version,
        heap=cluster.heap,
        data=cluster.data,
        health=health,
        nodes=[
            NodeStatus(node.index, node.url, node.pid, cluster.is_up(node), str(cluster.log(node)))
            for node in cluster.nodes
        ],
    )
