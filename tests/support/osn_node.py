"""`osn node` as a user runs it, and what its tests wait for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from osn_command import osn_command

from opensearch_neural.node import processes
from opensearch_neural.node.clusters import existing

OSN_NODE = [sys.executable, "-m", "opensearch_neural.cli", "node"]


def osn_node(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `osn node …` as a user does."""
    return osn_command("node", *arguments, environment=environment)


def kill_node(index: int, name: str) -> None:
    """SIGKILL one node (counted from 1) and wait until it is gone. `node.start(name=name)` restarts it."""
    cluster = existing(name)
    member = cluster.member(index)
    assert member.pid is not None and cluster.is_up(member)
    processes.send(member.pid, cluster.mark, signal.SIGKILL)
    assert processes.wait_until_gone([member.pid], cluster.mark, 30.0) == []


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)
    return outcome
