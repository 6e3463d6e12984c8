"""Our end of the pipe to the process that starts nodes (see guard.py)."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import guard, launch, process


class Guard:
    """Starts nodes that end with us unless they are released."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _say(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClusterError("the process that guards the nodes ended by itself", "start it again") from None

    def start(self, command: list[str], log: Path, folder: Path) -> int:
        """Start a process with its output in `log` and its working directory at `folder`. Returns its pid."""
        request = {"start": command, "log": str(log), "folder": str(folder), "environment": launch.environment()}
        self._say(request)
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], 30.0)
        answer = json.loads(self._process.stdout.readline() or "{}") if answered else {}
        if "pid" not in answer:
            raise ClusterError(f"{command[0]} could not be started: {answer.get('error', 'no answer')}")
        pid = int(answer["pid"])
        # The kernel sets the command line a moment after the start has succeeded, and identity is read from it.
        deadline = time.monotonic() + 1.0
        while not process.command_line(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        return pid

    def remove_when_ended(self, paths: list[Path]) -> None:
        self._say({"remove": [str(path) for path in paths]})

    def release(self) -> None:
        """Leave the nodes running without us."""
        self._say({"release": True})
        self._process.wait(10.0)
        self._close()

    def end_nodes(self) -> None:
        """Close the pipe, which ends the nodes, and wait until they are gone."""
        self._close()
        self._process.wait()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
