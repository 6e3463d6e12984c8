"""What a start asks for, held against what there is: another cluster, its ports, its data."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.node import launch, rest
from opensearch_neural.node.profiles import Profile, profile_named
from opensearch_neural.node.state import ClusterState, NodeState, cluster_folder, known_clusters

DEFAULT_PROFILE = "full"
DEFAULT_PORT = 9200
DEFAULT_HEAP = "1g"

DATA_NOTE = "osn-node.json"
"""Beside the data: which profile and how many nodes wrote it."""


@dataclass(frozen=True)
class Asked:
    """The arguments of one start; None where nothing was said."""

    profile: str | None
    nodes: int | None
    port: int | None
    data: Path | None
    heap: str | None
    settings: Mapping[str, Any] | None

    def check(self) -> None:
        if self.profile is not None:
            profile_named(self.profile)
        if self.heap is not None:
            launch.checked_heap(self.heap)
        if self.nodes is not None and not 1 <= self.nodes <= 9:
            raise InputError(f"a local cluster cannot have {self.nodes} nodes", "1 to 9")
        if self.port is not None and not (self.port == 0 or 1024 <= self.port <= 65000):
            raise InputError(f"port {self.port} cannot be used", "1024 to 65000, or 0 for any free one")
        launch.checked_settings(dict(self.settings or {}))

    def differs_from(self, cluster: ClusterState) -> list[str]:
        """Options that were given and are not what the cluster has, as 'option has, not asked'."""
        pairs = [
            ("--profile", self.profile, cluster.profile),
            ("--nodes", self.nodes, len(cluster.nodes)),
            ("--port", self.port or None, cluster.nodes[0].http_port),
            ("--data", str(self.data) if self.data else None, cluster.data),
            ("--heap", self.heap.lower() if self.heap else None, cluster.heap),
            ("--setting", dict(self.settings) if self.settings else None, cluster.settings),
        ]
        return [f"{option} is {has}, not {asked}" for option, asked, has in pairs if asked is not None and asked != has]

    def refuse_if_different(self, cluster: ClusterState) -> None:
        if differences := self.differs_from(cluster):
            raise ClusterError(
                f"{cluster.name!r} runs already at {cluster.url}, and otherwise than asked: {'; '.join(differences)}",
                f"use it as it is, or stop it first (osn node stop --name {cluster.name}), or give another --name",
            )

    def new_cluster(self, name: str, profile: Profile) -> ClusterState:
        count = self.nodes or 1
        # Ports of clusters that have nodes down at the moment are theirs still.
        theirs = {
            port
            for other in known_clusters()
            if other.name != name and other.running
            for node in other.nodes
            for port in (node.http_port, node.transport_port)
        }
        port = DEFAULT_PORT if self.port is None else self.port
        if port == 0:
            port = launch.free_ports(1, DEFAULT_PORT + 1, theirs)[0]
        elif not launch.is_free(port):
            raise _port_taken(port, name, _another_port(port))
        http_ports = [port, *launch.free_ports(count - 1, port + 1, {*theirs, port})]
        transport_ports = launch.free_ports(count, max(port + 100, 9300), {*theirs, *http_ports})
        return ClusterState(
            name=name,
            mark=secrets.token_hex(8),
            profile=profile.name,
            version=profile.version,
            heap=launch.checked_heap(self.heap or DEFAULT_HEAP),
            data=str(self.data or cluster_folder(name) / "data"),
            nodes=[
                NodeState(index, http, transport)
                for index, (http, transport) in enumerate(zip(http_ports, transport_ports, strict=True), start=1)
            ],
            settings=dict(self.settings or {}),
        )


def _another_port(port: int) -> str:
    return f"give another port (--port {launch.free_ports(1, port + 1, set())[0]} is free, --port 0 takes any)"


def check_ports(cluster: ClusterState, node: NodeState) -> None:
    """A cluster that is started again keeps its ports, which its other members know."""
    for port in (node.http_port, node.transport_port):
        if not launch.is_free(port):
            stop_first = f"stop the cluster and start it with another --port (osn node stop --name {cluster.name})"
            raise _port_taken(port, cluster.name, stop_first if cluster.running else _another_port(port))


def _port_taken(port: int, name: str, another: str) -> ClusterError:
    other = next((state for state in known_clusters() if any(n.http_port == port for n in state.running)), None)
    if other is not None and other.name != name:
        return ClusterError(
            f"port {port} is that of the local cluster {other.name!r}",
            f"use it (--name {other.name}), stop it (osn node stop --name {other.name}), or {another}",
        )
    answer = rest.get(port, "/", timeout=2.0)
    if answer and "cluster_name" in answer:
        number = answer.get("version", {}).get("number", "?")
        return ClusterError(
            f"port {port} is taken by a cluster that `osn node` did not start: {answer['cluster_name']!r}, {number}",
            f"use it (export OSN_URL=http://127.0.0.1:{port}), or {another}",
        )
    return ClusterError(f"port {port} is taken by another program", another)


def claim_data(cluster: ClusterState) -> bool:
    """Note beside the data who writes it. Returns whether there was none before.

    Refuses data of another version or number of nodes: it would not open, or never elect a leader.
    """
    path = Path(cluster.data) / DATA_NOTE
    written = {"profile": cluster.profile, "version": cluster.version, "nodes": len(cluster.nodes)}
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = None
    if known is not None and known != written:
        raise ClusterError(
            f"the data in {cluster.data} is that of profile {known.get('profile')} ({known.get('version')}) with "
            f"{known.get('nodes')} node(s), not {cluster.profile} ({cluster.version}) with {len(cluster.nodes)}",
            f"start it as it was (--profile {known.get('profile')} --nodes {known.get('nodes')}), give another --data "
            f"or --name, or remove it (osn node stop --name {cluster.name} --purge)",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written) + "\n")
    except OSError as error:
        raise InputError(f"{cluster.data} cannot hold data: {error.strerror}", "give another --data") from None
    return known is None and not any(cluster.data_folder(node).exists() for node in cluster.nodes)


def remove_data(cluster: ClusterState) -> None:
    """Remove what the nodes stored, and nothing else that may lie in a --data folder."""
    for node in cluster.nodes:
        shutil.rmtree(cluster.data_folder(node), ignore_errors=True)
    (Path(cluster.data) / DATA_NOTE).unlink(missing_ok=True)
    with suppress(OSError):
        Path(cluster.data).rmdir()
