"""The processes of nodes, identified by pid and mark, and the client of the guard that starts them (guard.py)."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import guard


def command_line(pid: int) -> str:
    """The command line of a running process; empty if no such process runs, or if it is a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    # macOS and the BSDs have no /proc.
    listed = subprocess.run(
        ["ps", "-ww", "-o", "state=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = listed.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else command


def is_running(pid: int | None, mark: str) -> bool:
    """Whether `pid` runs and has `mark` on its command line.

    The system reuses pids, soon after a reboot. The mark is unique to one cluster, so it proves the identity.
    """
    return pid is not None and mark in command_line(pid)


def send(pid: int, mark: str, number: int) -> bool:
    """Send a signal to the process if it still has the mark. Returns whether the signal was sent."""
    if not is_running(pid, mark):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def wait_until_gone(processes: list[tuple[int, str]], seconds: float) -> list[tuple[int, str]]:
    """Wait until processes, each a (pid, mark), end. Returns the processes that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    left = [(pid, mark) for pid, mark in processes if is_running(pid, mark)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [(pid, mark) for pid, mark in left if is_running(pid, mark)]
    return left


def end(processes: list[tuple[int, str]], *, grace: float = 20.0) -> list[int]:
    """End processes, each a (pid, mark): SIGTERM to all, then SIGKILL to those still running after `grace` seconds.

    Returns the pids that had to be killed.
    """
    for pid, mark in processes:
        send(pid, mark, signal.SIGTERM)
    stubborn = wait_until_gone(processes, grace)
    for pid, mark in stubborn:
        send(pid, mark, signal.SIGKILL)
    wait_until_gone(stubborn, 10.0)
    return [pid for pid, _ in stubborn]


CREDENTIALS = re.compile(r"(OSN|AWS)_.*|HF_TOKEN|HUGGING_?FACE_.*TOKEN|OPENSEARCH_.*PASSWORD")
"""Environment variables with secrets that only `osn` and its libraries may see."""


def environment() -> dict[str, str]:
    """The environment for a node, Java and Maven: this process's environment without credentials."""
    return {name: value for name, value in os.environ.items() if not CREDENTIALS.fullmatch(name)}


class Guard:
    """Starts nodes that end with this process unless they are released. guard.py describes the protocol."""

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
        """Start a process that writes to `log` and has `folder` as its working directory. Returns its pid."""
        self._say({"start": command, "log": str(log), "folder": str(folder), "environment": environment()})
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], 30.0)
        answer = json.loads(self._process.stdout.readline() or "{}") if answered else {}
        if "pid" not in answer:
            raise ClusterError(f"{command[0]} could not be started: {answer.get('error', 'no answer')}")
        pid = int(answer["pid"])
        # The kernel sets the command line, which identifies the process, a moment after the start has succeeded.
        deadline = time.monotonic() + 1.0
        while not command_line(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        return pid

    def remove_when_ended(self, paths: list[Path]) -> None:
        """Let the guard remove these folders after it has ended the nodes."""
        self._say({"remove": [str(path) for path in paths]})

    def release(self) -> None:
        """Let the nodes run on without this process."""
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
