"""The local clusters: their files, recorded state, health, ports and logs.

$OSN_HOME                        default ~/.cache/osn
  node/full-2.19.1-HASH/lib/     the parts of a profile, shared by every cluster
  node/full-2.19.1-HASH/classes-HASH.jsa
                                 an archive of their classes for one Java, of 80 to 90 MB: the second start records it,
                                 which takes some seconds, and nodes start faster by it; it is safe to delete
  node/clusters/NAME/            one cluster
    state.json  lock
    node-1/{conf,logs,tmp}/      configuration, log and temporary files of a node
    data/node-1/                 its data, unless --store names another folder
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.files import write_json
from opensearch_neural.home import home
from opensearch_neural.locks import acquire
from opensearch_neural.node.processes import is_running

LOOPBACK = "127.0.0.1"
DEFAULT_NAME = "osn"

Say = Callable[[str], object]
"""A function that takes one plain line of progress."""


def node_home() -> Path:
    """`$OSN_HOME/node`, by default `~/.cache/osn/node`."""
    return (home() / "node").resolve()


# ------------------------------------------------------------------------------------------------------------- state


@dataclass
class NodeState:
    """One node of a cluster: its ports, and its process if it was started."""

    index: int
    """Counted from 1."""
    http_port: int
    """The port for requests, on this machine only."""
    transport_port: int
    """The port on which nodes of the cluster talk to each other."""
    pid: int | None = None
    """None if it was not started, or was stopped."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.http_port}"


@dataclass
class ClusterState:
    """Everything that later commands need to know about a cluster; stored in its `state.json`."""

    name: str
    """The name of its folder, too."""
    mark: str
    """A text on the command line of every process of this cluster, and of no other process."""
    profile: str
    """The name of its `Profile`."""
    version: str
    """OpenSearch's version."""
    heap: str
    """The Java heap of each node, such as 1g."""
    data: str
    """The folder of the nodes' data."""
    nodes: list[NodeState]
    """The first one answers for the cluster (`url`)."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Additional lines of `opensearch.yml`."""
    attached: bool = False
    """Whether nodes and folder are removed when the process that started them, `owner`, ends."""
    owner: int | None = None
    """A pid; None if not attached."""

    @property
    def folder(self) -> Path:
        return cluster_folder(self.name)

    @property
    def url(self) -> str:
        return self.nodes[0].url

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def pids(self) -> list[int]:
        """Of every node that was started; `running` lists the nodes that still run."""
        return [node.pid for node in self.nodes if node.pid is not None]

    def node_name(self, node: NodeState) -> str:
        return f"{self.name}-{node.index}"

    def node_folder(self, node: NodeState) -> Path:
        return self.folder / f"node-{node.index}"

    def log(self, node: NodeState) -> Path:
        return self.node_folder(node) / "logs" / "node.log"

    def data_folder(self, node: NodeState) -> Path:
        return Path(self.data) / f"node-{node.index}"

    def is_up(self, node: NodeState) -> bool:
        return is_running(node.pid, self.mark)

    @property
    def running(self) -> list[NodeState]:
        return [node for node in self.nodes if self.is_up(node)]

    def member(self, index: int) -> NodeState:
        """The node with this number, counted from 1. Raises InputError if there is none."""
        for node in self.nodes:
            if node.index == index:
                return node
        raise InputError(f"{self.name!r} has no node {index}", f"1 to {len(self.nodes)}")

    def write(self) -> None:
        write_json(self.folder / "state.json", asdict(self))


def count(nodes: Sized) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def cluster_folder(name: str) -> Path:
    """The folder of a cluster. Raises InputError for a name that cannot be used as a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise InputError(f"{name!r} cannot be the name of a cluster", "letters, digits, '-', '_' and '.', 64 at most")
    return node_home() / "clusters" / name


def read_state(name: str) -> ClusterState | None:
    """The recorded state of a cluster, or None. Raises ClusterError, naming the file, if it cannot be read."""
    path = cluster_folder(name) / "state.json"
    try:
        known = json.loads(path.read_text())
        return ClusterState(**{**known, "nodes": [NodeState(**node) for node in known["nodes"]]})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ClusterError(
            f"{path} is not a cluster state of this version: {error}",
            f"end its java processes, if any, and remove the folder {path.parent}",
        ) from None


def existing(name: str) -> ClusterState:
    """The recorded state of a cluster. Raises ClusterError if there is none."""
    cluster = read_state(name)
    if cluster is None:
        names = ", ".join(state.name for state in known_clusters()) or "none"
        raise ClusterError(f"there is no local cluster {name!r}", f"known: {names}; start it with osn node start")
    return cluster


def known_clusters() -> list[ClusterState]:
    names = sorted(path.parent.name for path in (node_home() / "clusters").glob("*/state.json"))
    return [state for state in map(read_state, names) if state is not None]


@contextmanager
def locked(path: Path, busy: str, report: Say) -> Iterator[None]:
    """Hold a lock file; the kernel releases it, however this process ends. Reports `busy` if it has to wait."""
    try:
        lock = acquire(path, lambda: report(busy))
    except OSError as error:
        raise ClusterError(
            f"{path.parent} cannot be written: {error.strerror}", "set OSN_HOME to a folder that you can write to"
        ) from None
    assert lock is not None
    with lock:
        yield


# ------------------------------------------------------------------------------------------------------------ status


def status(name: str | None = None) -> list[tuple[ClusterState, str | None]]:
    """(state, health) of one cluster, or of all known clusters. Nothing is started or changed.

    The health is OpenSearch's colour, or None if no node answers.
    """
    clusters = known_clusters() if name is None else [state for state in [read_state(name)] if state]
    return [(cluster, _health(cluster)) for cluster in clusters]


def _health(cluster: ClusterState) -> str | None:
    answers = (ask(node.http_port, "/_cluster/health") for node in cluster.running)
    return next((answer["status"] for answer in answers if answer), None)


def ask(port: int, path: str, timeout: float = 5.0) -> dict[str, Any] | None:
    """The JSON object of a node's answer to GET `path`; None without an answer, or for any other answer.

    It uses plain `http.client`, because urllib would send requests for 127.0.0.1 to a configured proxy.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        return body if answer.status == 200 and isinstance(body, dict) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------------------- ports


def is_free(port: int) -> bool:
    """Whether no program listens on the port, and this user may listen there."""
    # Some systems allow binding 127.0.0.1 even if a program listens on all addresses.
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket() as probe:
        # Like the node's own socket, this ignores connections that are closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int, first: int, reserved: set[int]) -> list[int]:
    """The next `count` free ports from `first` on that are not in `reserved`."""
    ports: list[int] = []
    for port in range(first, 65536):
        if len(ports) == count:
            break
        if port not in reserved and is_free(port):
            ports.append(port)
    return ports


def check_ports(cluster: ClusterState, node: NodeState) -> None:
    """Raises ClusterError if a port of the node is taken.

    A restarted cluster keeps its ports, because its other nodes know them.
    """
    for port in (node.http_port, node.transport_port):
        if not is_free(port):
            stop_first = f"stop the cluster and start it with another --port (osn node stop --name {cluster.name})"
            raise port_taken(port, cluster.name, stop_first if cluster.running else None)


def port_taken(port: int, name: str, remedy: str | None = None) -> ClusterError:
    """The error that says who has the port that the cluster `name` needs. remedy: None: name a free port."""
    another = remedy or f"give another port (--port {free_ports(1, port + 1, set())[0]} is free, --port 0 takes any)"
    other = next((state for state in known_clusters() if any(n.http_port == port for n in state.running)), None)
    if other is not None and other.name != name:
        return ClusterError(
            f"port {port} is used by the local cluster {other.name!r}",
            f"use it (--name {other.name}), stop it (osn node stop --name {other.name}), or {another}",
        )
    answer = ask(port, "/", timeout=2.0)
    if answer and "cluster_name" in answer:
        number = answer.get("version", {}).get("number", "?")
        return ClusterError(
            f"port {port} is taken by a cluster that `osn node` did not start: {answer['cluster_name']!r}, {number}",
            f"use it (export OSN_URL=http://127.0.0.1:{port}), or {another}",
        )
    return ClusterError(f"port {port} is taken by another program", another)


# -------------------------------------------------------------------------------------------------------------- logs


def logs(name: str = DEFAULT_NAME, *, node: int = 1, lines: int = 100, follow: bool = False) -> Iterator[str]:
    """The last lines of a node's log; with `follow` also each new line, until the caller stops iterating.

    Raises ClusterError or InputError at once if there is no such cluster, node or log.
    """
    cluster = existing(name)
    path = cluster.log(cluster.member(node))
    if not path.exists():
        raise ClusterError(f"node {node} of {name!r} has no log yet ({path})")
    # Read now: lines added between this call and the caller's first iteration count as new.
    log = path.open(errors="replace")
    last = [line.rstrip("\n") for line in deque(log, maxlen=lines)]
    if not follow:
        log.close()
        return iter(last)
    return _followed(log, path, last)


def _followed(log: TextIO, path: Path, last: list[str]) -> Iterator[str]:
    try:
        yield from last
        part = ""
        while True:
            part += log.readline()
            if part.endswith("\n"):
                yield part.rstrip("\n")
                part = ""
            elif _replaced(log, path):
                log.close()
                log = path.open(errors="replace")
            else:
                time.sleep(0.2)
    finally:
        log.close()


def _replaced(log: TextIO, path: Path) -> bool:
    """Whether the node was started again, and so has a new log."""
    try:
        return os.fstat(log.fileno()).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
