"""Start, find, restart and stop the nodes of a local cluster."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.files import expanded
from opensearch_neural.node import configuration, processes
from opensearch_neural.node.clusters import (
    DEFAULT_NAME,
    ClusterState,
    NodeState,
    Say,
    ask,
    check_ports,
    cluster_folder,
    count,
    free_ports,
    is_free,
    known_clusters,
    locked,
    node_home,
    port_taken,
    read_state,
)
from opensearch_neural.node.java_and_jars import Profile, find_java, prepare, profile_named

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9200

WORK_ON_SHARDS = ("initializing_shards", "number_of_in_flight_fetch", "number_of_pending_tasks")
"""What a cluster's health counts while shards may still come."""
STAYS_RED_SECONDS = 3.0
"""Seconds without such work after which a red index is taken to stay red: OpenSearch tries a broken shard several times."""

# Kept for the lifetime of this process: nodes started with attached=True end with it.
_attached: list[processes.Guard] = []


@dataclass(frozen=True)
class StartRequest:
    """The arguments of one start; None for options that the caller did not give. Raises InputError for an invalid value."""

    profile: str | None
    """The name of a `Profile`."""
    nodes: int | None
    """The number of nodes."""
    port: int | None
    """The HTTP port of the first node; 0: any free port."""
    data: str | None
    """The folder of the nodes' data."""
    heap: str | None
    """The Java heap of each node, such as 1g."""
    settings: Mapping[str, Any] | None
    """Additional lines of `opensearch.yml`."""

    def __post_init__(self) -> None:
        if self.profile is not None:
            profile_named(self.profile)
        if self.nodes is not None and not 1 <= self.nodes <= 9:
            raise InputError(f"a local cluster cannot have {self.nodes} nodes", "1 to 9")
        if self.port is not None and not (self.port == 0 or 1024 <= self.port <= 65000):
            raise InputError(f"port {self.port} cannot be used", "1024 to 65000, or 0 for any free one")
        configuration.check_settings(self.settings or {})

    def differs_from(self, cluster: ClusterState) -> list[str]:
        """The given options that differ from the cluster's, each as '--heap is 1g, not 2g'."""
        options = [
            ("--profile", self.profile, cluster.profile),
            ("--nodes", self.nodes, len(cluster.nodes)),
            ("--port", self.port or None, cluster.nodes[0].http_port),
            ("--store", self.data, cluster.data),
            ("--heap", self.heap, cluster.heap),
            ("--setting", dict(self.settings) if self.settings else None, cluster.settings),
        ]
        return [
            f"{option} is {has}, not {wanted}"
            for option, wanted, has in options
            if wanted is not None and wanted != has
        ]

    def continuing(self, known: ClusterState) -> StartRequest:
        """The request, its open options filled in from the stopped cluster whose data it reuses."""
        has_data = (Path(known.data) / configuration.DATA_NOTE).exists()
        if known.attached or not has_data or (self.data and self.data != known.data):
            return self
        port = known.nodes[0].http_port
        return replace(
            self,
            profile=self.profile or known.profile,
            nodes=self.nodes or len(known.nodes),
            port=port if self.port is None and is_free(port) else self.port,
            data=known.data,
            heap=self.heap or known.heap,
            settings=known.settings if self.settings is None else self.settings,
        )

    def new_cluster(self, name: str, profile: Profile) -> ClusterState:
        """The requested cluster, on free ports. Raises ClusterError if the requested port is taken."""
        nodes = self.nodes or 1
        # Other running clusters keep the ports of nodes that are down at the moment.
        reserved = {
            port
            for other in known_clusters()
            if other.name != name and other.running
            for node in other.nodes
            for port in (node.http_port, node.transport_port)
        }
        port = DEFAULT_PORT if self.port is None else self.port
        if port == 0:
            port = free_ports(1, DEFAULT_PORT + 1, reserved)[0]
        elif not is_free(port):
            raise port_taken(port, name)
        http_ports = [port, *free_ports(nodes - 1, port + 1, {*reserved, port})]
        transport_ports = free_ports(nodes, max(port + 100, 9300), {*reserved, *http_ports})
        return ClusterState(
            name=name,
            mark=secrets.token_hex(8),
            profile=profile.name,
            version=profile.version,
            heap=self.heap or "1g",
            data=self.data or str(cluster_folder(name) / "data"),
            nodes=[
                NodeState(index, http, transport)
                for index, (http, transport) in enumerate(zip(http_ports, transport_ports, strict=True), start=1)
            ],
            settings=dict(self.settings or {}),
        )


def start(
    profile: str | None = None,
    nodes: int | None = None,
    port: int | None = None,
    data: str | Path | None = None,
    heap: str | None = None,
    *,
    name: str = DEFAULT_NAME,
    settings: Mapping[str, Any] | None = None,
    attached: bool = False,
    timeout: float = 180.0,
    report: Say = logger.info,
) -> ClusterState:
    """Start a local cluster and wait until it is healthy. A running cluster is used; nodes of it that died are restarted.

    An argument that is None keeps the cluster's own value, even after it was stopped; the port only if it is still free. A
    new cluster, or a cluster with other data, gets the defaults: profile "full", one node, port 9200, 1g of heap per node,
    data under `$OSN_HOME`. Port 0 takes any free port. Further nodes listen on the next free ports.

    Indexes with a broken shard (red) stay so; the others can be used, so the cluster counts as started, with a warning.

    `settings` are added to every node's `opensearch.yml`. With `attached`, the nodes that this call starts end with this
    process, however it ends. Data in the default folder is removed with them, unless it existed before.

    Raises InputError for an invalid value, and ClusterError if the cluster cannot be started: no Java or Maven or a version
    that is too old, a taken port, a failed download, a node that died, no health within `timeout` seconds. All nodes that
    this call started are then ended.
    """
    folder = str(expanded(data).resolve()) if data else None
    heap = None if heap is None else configuration.checked_heap(heap)
    request = StartRequest(profile, nodes, port, folder, heap, settings)
    _remove_abandoned()
    with _locked(name, report):
        known = read_state(name)
        cluster = _cluster_to_join(known, request)
        if cluster and len(cluster.running) == len(cluster.nodes):
            report(f"{name!r} runs already (profile {cluster.profile}, {count(cluster.nodes)})")
            _wait_for_health(cluster, timeout, report)
            return cluster
        if known and cluster is None:
            request = request.continuing(known)
        attempts = 1 if cluster else 3  # a known cluster keeps its ports
        while True:
            attempts -= 1
            try:
                return _start_missing(cluster, request, name, attached, timeout, report)
            except _PortLost:
                if not attempts:
                    raise
                report(f"another program took a port of {name!r} before its node listened there; choosing again")


def _cluster_to_join(known: ClusterState | None, request: StartRequest) -> ClusterState | None:
    """The known cluster, if some of its nodes run or all of them died; None if a new cluster must be started.

    Raises ClusterError if the cluster runs with other options than requested.
    """
    if known is None:
        return None
    differences = request.differs_from(known)
    if known.running and differences:
        raise ClusterError(
            f"{known.name!r} runs already at {known.url}, with other options: {'; '.join(differences)}",
            f"use it as it is, or stop it first (osn node stop --name {known.name}), or give another --name",
        )
    # A cluster that died (a reboot, a kill) instead of being stopped restarts on the same ports.
    return known if known.pids and not differences else None


class _PortLost(ClusterError):
    """A node died because another program took one of its ports after the port was chosen."""


def _start_missing(
    cluster: ClusterState | None, request: StartRequest, name: str, attached: bool, timeout: float, report: Say
) -> ClusterState:
    """Start the nodes of `cluster` that do not run, or all nodes of a new cluster.

    If that fails, they are ended again, and the recorded state of a known cluster is restored.
    """
    before = None if cluster else read_state(name)
    profile = profile_named(cluster.profile if cluster else request.profile or "full")
    java = find_java(profile.java, f"OpenSearch {profile.version} (profile {profile.name})")
    lib = prepare(profile, java, report)
    classes = configuration.class_archive(profile, java, lib, report)
    guard = processes.Guard()
    started: list[NodeState] = []
    fresh = False
    try:
        # A node listens on its port only seconds later, so the chosen ports are recorded before another cluster
        # chooses.
        with locked(node_home() / "ports.lock", "another local cluster is choosing its ports; waiting", report):
            cluster = cluster or request.new_cluster(name, profile)
            running = cluster.running
            if not running:
                # The folder of an attached cluster is removed with its owner, so it must not hold earlier data.
                cluster.attached = attached and (cluster.attached or not (cluster.folder / "data").exists())
                cluster.owner = os.getpid() if cluster.attached else None
            fresh = configuration.claim_data(cluster)
            for node in cluster.nodes:
                if node in running:
                    continue
                check_ports(cluster, node)
                configuration.write_configuration(cluster, node)
                configuration.rotate_log(cluster.log(node))
                cluster.write()
                command = configuration.command(cluster, node, profile, java, lib, classes)
                node.pid = guard.start(command, cluster.log(node), cluster.node_folder(node))
                started.append(node)
                cluster.write()
                report(f"node {node.index} of {name!r} starts at {node.url} (pid {node.pid})")
        _wait_for_health(cluster, timeout, report)
    except BaseException:
        guard.end_nodes()
        for node in started:
            node.pid = None
        if cluster is not None and started:
            (before or cluster).write()
        if cluster is not None and fresh:
            configuration.remove_data(cluster)
        raise
    if attached:
        if cluster.attached and cluster.owner == os.getpid():
            guard.remove_when_ended(cluster.folder)
        _attached.append(guard)
    else:
        guard.release()
    return cluster


def stop(name: str = DEFAULT_NAME, *, purge: bool = False, report: Say = logger.info) -> bool:
    """Stop a cluster: SIGTERM to its processes, SIGKILL after a while. With `purge`, also remove its data.

    Returns whether a node ran.
    """
    if not cluster_folder(name).exists():
        return False
    with _locked(name, report):
        cluster = read_state(name)
        if cluster is None:
            return False
        running = cluster.running
        killed = processes.end(cluster.pids, cluster.mark)
        if killed:
            report(f"{count(killed)} did not close in time and had to be killed")
        if purge:
            configuration.remove_data(cluster)
            shutil.rmtree(cluster.folder)
            return bool(running)
        for node in cluster.nodes:
            node.pid = None
        try:
            cluster.write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The recorded pids are those of no node any more, which the next command sees.
    return bool(running)


@contextmanager
def _locked(name: str, report: Say) -> Iterator[None]:
    """Allow one start or stop of a cluster at a time; a second start then finds the first one's cluster."""
    folder = cluster_folder(name)
    with locked(folder / "lock", f"another process is starting or stopping {name!r}; waiting", report):
        try:
            yield
        except OSError as error:
            raise ClusterError(
                f"{error.filename or node_home()}: {error.strerror or error}",
                f"the local node stores its files in {node_home()}: set OSN_HOME to a folder of yours with enough space",
            ) from error
        finally:
            # A refused start leaves no folder with that name.
            if folder.exists() and {path.name for path in folder.iterdir()} == {"lock"}:
                shutil.rmtree(folder)


def _remove_abandoned() -> None:
    """Remove attached clusters whose owner is gone and whose guard could not remove them (the machine went down)."""
    for cluster in known_clusters():
        if cluster.attached and cluster.owner is not None and not processes.command_line(cluster.owner):
            processes.end(cluster.pids, cluster.mark)
            shutil.rmtree(cluster.folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ health


def _wait_for_health(cluster: ClusterState, timeout: float, report: Say) -> None:
    """Wait until all nodes have joined one cluster, and no shard is on its way. Names the indexes that are still red.

    Raises ClusterError if a node dies or does not join, or the cluster does not read its state.
    """
    began = shown = working = time.monotonic()
    pending = list(cluster.nodes)
    while True:
        for node in cluster.nodes:
            if not cluster.is_up(node):
                log = _read(cluster.log(node))
                # The log alone can tell: whoever took the port may have left it again.
                raise (_PortLost if "java.net.BindException" in log else ClusterError)(
                    f"node {node.index} of {cluster.name!r} died while starting; the end of its log:\n{_tail(log)}",
                    f"the whole log: {cluster.log(node)}",
                )
        pending = [node for node in pending if not _has_joined(cluster, node)]
        health = None if pending else _answered_health(cluster.nodes[0])
        if health and health["status"] != "red":
            return
        now = time.monotonic()
        late = now - began > timeout
        # Until a cluster has read its state, it is red without an index.
        red = [name for name, index in health["indices"].items() if index["status"] == "red"] if health else []
        if not (health and red) or any(health[work] for work in WORK_ON_SHARDS):
            working = now
        if red and (late or now - working > STAYS_RED_SECONDS):
            report(
                f"warning: shards of these indexes are missing: {', '.join(sorted(red))}; the others can be used "
                f"({cluster.url}/_cluster/allocation/explain says why)"
            )
            return
        if late:
            node = (pending or cluster.nodes)[0]
            raise ClusterError(
                f"{cluster.name!r} is not healthy after {timeout:.0f} s (node {node.index}); the end of its log:\n"
                + _tail(_read(cluster.log(node))),
                f"a slow machine may need more (--wait); the whole log: {cluster.log(node)}",
            )
        if now - shown >= 5:
            shown = now
            report(f"  waiting for {count(pending or cluster.nodes)}, {now - began:.0f} s")
        time.sleep(0.1)


def _has_joined(cluster: ClusterState, node: NodeState) -> bool:
    """Whether the node's own process answers at its port, as a member of a cluster with all nodes and a manager."""
    health = _answered_health(node)
    if not health or health["cluster_name"] != cluster.name or health["number_of_nodes"] != len(cluster.nodes):
        return False
    local = ask(node.http_port, "/_nodes/_local/process") or {}
    return any(member.get("process", {}).get("id") == node.pid for member in local.get("nodes", {}).values())


def _answered_health(node: NodeState) -> dict[str, Any] | None:
    """The health of the node's cluster, also of each index; None without an answer, or without a manager."""
    return ask(node.http_port, "/_cluster/health?level=indices&cluster_manager_timeout=1s")


def _read(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except OSError:
        return "(there is none)"


def _tail(log: str) -> str:
    return "\n".join(f"  | {line}" for line in log.splitlines()[-20:])
