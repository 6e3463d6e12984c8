"""`osn node` as a user runs it, and what its tests wait for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from osn_command import osn_command

OSN_NODE = [sys.executable, "-m", "opensearch_neural.cli", "node"]


def osn_node(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `osn node …` as a user does."""
    return osn_command("node", *arguments, environment=environment)


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)
    return outcome
