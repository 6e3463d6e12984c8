"""Where the local node keeps things, and what is known of each cluster: one JSON file per cluster name.

$OSN_HOME                        default ~/.cache/osn
  node/full-2.19.1-HASH/lib/     the parts of a profile, shared by every cluster
  node/clusters/NAME/            one cluster
    state.json  lock
    node-1/{conf,logs,tmp}/      what each node is started with, and what it said
    data/node-1/                 what it stores, unless --data says elsewhere
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.home import home as osn_home
from opensearch_neural.node.process import is_running

if sys.platform != "win32":
    import fcntl

DEFAULT_NAME = "osn"

Report = Callable[[str], None]
"""Takes one plain line of progress."""


def home() -> Path:
    """`$OSN_HOME/node`, by default `~/.cache/osn/node`."""
    return osn_home().resolve() / "node"


@dataclass
class NodeState:
    """One node of a cluster: where it listens, and its process while it has one."""

    index: int
    http_port: int
    transport_port: int
    pid: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


@dataclass
class ClusterState:
    """All that a later command has to know about a cluster."""

    name: str
    mark: str
    """Stands on the command line of every process of this cluster, and of no other."""
    profile: str
    version: str
    heap: str
    data: str
    nodes: list[NodeState]
    settings: dict[str, Any] = field(default_factory=dict)
    attached: bool = False
    """Whether the nodes end with the process that started them, `owner`."""
    owner: int | None = None

    @property
    def folder(self) -> Path:
        return cluster_folder(self.name)

    @property
    def url(self) -> str:
        return self.nodes[0].url

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
        """The node with that number, counted from 1. Raises InputError."""
        for node in self.nodes:
            if node.index == index:
                return node
        raise InputError(f"{self.name!r} has no node {index}", f"1 to {len(self.nodes)}")

    def processes(self) -> list[tuple[int, str]]:
        return [(node.pid, self.mark) for node in self.nodes if node.pid is not None]

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / "state.json.new"
        beside.write_text(json.dumps(asdict(self), indent=2) + "\n")
        beside.replace(self.folder / "state.json")


def count(nodes: Sized) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def cluster_folder(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise InputError(f"{name!r} cannot be the name of a cluster", "letters, digits, '-', '_' and '.', 64 at most")
    return home() / "clusters" / name


def read_state(name: str) -> ClusterState | None:
    """What is known of a cluster, or None. A file that cannot be read names itself in the error."""
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
    """What is known of a cluster. Raises ClusterError where that is nothing."""
    cluster = read_state(name)
    if cluster is None:
        names = ", ".join(state.name for state in known_clusters()) or "none"
        raise ClusterError(f"there is no local cluster {name!r}", f"known: {names}; start it with osn node start")
    return cluster


def known_clusters() -> list[ClusterState]:
    names = sorted(path.parent.name for path in (home() / "clusters").glob("*/state.json"))
    return [state for state in map(read_state, names) if state is not None]


@contextmanager
def locked(path: Path, busy: str, report: Report) -> Iterator[None]:
    """Hold a lock file; the kernel lets it go however this process ends. Reports `busy` when it has to wait."""
    held = _lock(path, busy, report)
    with held:
        yield


def _lock(path: Path, busy: str, report: Report) -> TextIO:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held = path.open("w")
        except FileNotFoundError:
            # Removed between the two lines.
            continue
        except OSError as error:
            raise ClusterError(
                f"{path.parent} cannot be written: {error.strerror}", "let OSN_HOME name a folder that is yours"
            ) from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(busy)
            fcntl.flock(held, fcntl.LOCK_EX)
        # Whoever held it may have removed the folder (--purge): a lock on a file that is gone keeps nobody out.
        with suppress(FileNotFoundError):
            if os.fstat(held.fileno()).st_ino == path.stat().st_ino:
                return held
        held.close()
