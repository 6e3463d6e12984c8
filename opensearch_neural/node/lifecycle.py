"""Start, find, restart and stop the nodes of a local cluster."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import launch, process
from opensearch_neural.node.health import wait_for_health
from opensearch_neural.node.java import find_java
from opensearch_neural.node.parts import prepare
from opensearch_neural.node.plan import DEFAULT_PROFILE, Asked, check_ports, claim_data, remove_data
from opensearch_neural.node.profiles import profile_named
from opensearch_neural.node.spawn import Guard
from opensearch_neural.node.state import (
    DEFAULT_NAME,
    ClusterState,
    NodeState,
    Report,
    cluster_folder,
    count,
    existing,
    home,
    known_clusters,
    locked,
    read_state,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningNode:
    """A local cluster that answers."""

    url: str
    pids: list[int]
    data: Path
    name: str
    profile: str
    urls: list[str]


# Held for as long as this process lives: nodes started with attached=True end when it does.
_attached: list[Guard] = []


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
    report: Report = logger.info,
) -> RunningNode:
    """Start a local cluster and wait until it answers; find it where it runs; restart members of it that died.

    What is None is what the cluster runs with already, else the default: profile "full", one node, port 9200, 1g of
    heap a node, data under `$OSN_HOME`. Port 0 takes any free one. Node `i` of several listens on the next free port.

    `settings` are added to every node's `opensearch.yml`. With `attached`, the nodes end with this process, however it
    ends, and data in the default place is removed with them.

    Raises InputError for a value that cannot be used, ClusterError where the cluster cannot be started: no Java or
    Maven, one that is too old, a taken port, a failed download, a node that died, no health within `timeout` seconds.
    Whatever was started by this call is ended then.
    """
    asked = Asked(profile, nodes, port, Path(data).expanduser().resolve() if data else None, heap, settings)
    asked.check()
    _remove_abandoned()
    with _locked(name, report):
        known = read_state(name)
        running = known.running if known else []
        if known and running:
            asked.refuse_if_different(known)
            cluster = known
        elif known and any(node.pid for node in known.nodes) and not asked.differs_from(known):
            # It was not stopped but died (a reboot, a kill): the same cluster again, on the same ports.
            cluster = known
        else:
            cluster = None
        if cluster and len(running) == len(cluster.nodes):
            report(f"{name!r} runs already (profile {cluster.profile}, {count(running)})")
            wait_for_health(cluster, timeout, report)
            return _running(cluster)

        parts = profile_named(cluster.profile if cluster else asked.profile or DEFAULT_PROFILE)
        java = find_java(parts.java, f"OpenSearch {parts.version} (profile {parts.name})")
        lib = prepare(parts, java, report)
        guard = Guard()
        started: list[NodeState] = []
        fresh = False
        try:
            # A port is free until its node listens, seconds later: what is chosen has to be written down before anyone
            # else chooses.
            with locked(home() / "ports.lock", "another local cluster is choosing its ports; waiting", report):
                if cluster is None:
                    cluster = asked.new_cluster(name, parts)
                if not running:
                    cluster.attached, cluster.owner = attached, os.getpid() if attached else None
                fresh = claim_data(cluster)
                for member in cluster.nodes:
                    if member in running:
                        continue
                    check_ports(cluster, member)
                    launch.write_configuration(cluster, member)
                    launch.rotate_log(cluster.log(member))
                    cluster.write()
                    command = launch.command(cluster, member, parts, java, lib)
                    member.pid = guard.start(command, cluster.log(member), cluster.node_folder(member))
                    started.append(member)
                    cluster.write()
                    report(f"node {member.index} of {name!r} starts at {member.url} (pid {member.pid})")
            wait_for_health(cluster, timeout, report)
        except BaseException:
            guard.end_nodes()
            for member in started:
                member.pid = None
            if cluster is not None and started:
                cluster.write()
            if cluster is not None and fresh:
                remove_data(cluster)
            raise
        if attached:
            guard.remove_when_ended([cluster.folder])
            _attached.append(guard)
        else:
            guard.release()
    return _running(cluster)


def stop(name: str = DEFAULT_NAME, *, purge: bool = False, report: Report = logger.info) -> bool:
    """Stop a cluster: SIGTERM to its processes, SIGKILL after a while. With `purge` its data is removed too.

    Returns whether anything ran.
    """
    if not cluster_folder(name).exists():
        return False
    with _locked(name, report):
        cluster = read_state(name)
        if cluster is None:
            return False
        running = cluster.running
        killed = process.end(cluster.processes())
        if killed:
            report(f"{count(killed)} did not close in time and had to be killed")
        for node in cluster.nodes:
            node.pid = None
        cluster.write()
        if purge:
            remove_data(cluster)
            shutil.rmtree(cluster.folder)
    return bool(running)


def kill_node(index: int, name: str = DEFAULT_NAME, *, number: int = signal.SIGKILL) -> None:
    """Send a signal, by default SIGKILL, to one node (counted from 1) and wait until it is gone.

    `start(name=name)` restarts it. For tests of what a lost node does.
    """
    cluster = existing(name)
    node = cluster.member(index)
    if node.pid is None or not process.send(node.pid, cluster.mark, number):
        raise ClusterError(f"node {index} of {name!r} does not run")
    if number in (signal.SIGKILL, signal.SIGTERM) and process.wait_until_gone([(node.pid, cluster.mark)], 30.0):
        raise ClusterError(f"node {index} of {name!r} did not end")


def _running(cluster: ClusterState) -> RunningNode:
    return RunningNode(
        url=cluster.url,
        pids=[node.pid for node in cluster.nodes if node.pid is not None],
        data=Path(cluster.data),
        name=cluster.name,
        profile=cluster.profile,
        urls=[node.url for node in cluster.nodes],
    )


@contextmanager
def _locked(name: str, report: Report) -> Iterator[None]:
    """One start or stop of a cluster at a time; a second start then finds what the first one started."""
    folder = cluster_folder(name)
    with locked(folder / "lock", f"another process is starting or stopping {name!r}; waiting", report):
        try:
            yield
        except OSError as error:
            raise ClusterError(
                f"{error.filename or home()}: {error.strerror or error}",
                f"the local node keeps its files in {home()}: let OSN_HOME name a folder with space that is yours",
            ) from error
        finally:
            # A start that was refused leaves no trace of the name.
            if folder.exists() and {path.name for path in folder.iterdir()} == {"lock"}:
                shutil.rmtree(folder)


def _remove_abandoned() -> None:
    """Clear away attached clusters whose owner is gone and whose guard could not (the machine went down)."""
    for cluster in known_clusters():
        if cluster.attached and cluster.owner is not None and not process.command_line(cluster.owner):
            process.end(cluster.processes())
            shutil.rmtree(cluster.folder, ignore_errors=True)
