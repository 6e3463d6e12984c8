"""What the nodes of a local cluster wrote."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from opensearch_neural.errors import ClusterError
from opensearch_neural.node.state import DEFAULT_NAME, existing


def logs(name: str = DEFAULT_NAME, *, node: int = 1, lines: int = 100, follow: bool = False) -> Iterator[str]:
    """The last lines of a node's log; with `follow` also each one that is added, until the caller stops asking.

    Raises ClusterError or InputError at once where there is no such cluster, node or log.
    """
    cluster = existing(name)
    path = cluster.log(cluster.member(node))
    if not path.exists():
        raise ClusterError(f"node {node} of {name!r} has no log yet ({path})")
    # Read now: what is added between this call and the first line that is asked for is new.
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
    """Whether the node was started again, which begins a new log."""
    try:
        return os.fstat(log.fileno()).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
