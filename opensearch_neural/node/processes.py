"""The processes of nodes: identified by pid and mark, and started by a guard, which ends them if its owner dies first.

Nodes must outlive `osn node start`. But a start or test run that is interrupted or killed must leave nothing behind. No
handler in the asking process can ensure that, since SIGKILL runs no handler. So a `Guard` runs this file as a script, which
starts the nodes and reads a pipe. The pipe closes however the other side ends; nodes that were not released by then are
ended.

Requests, one JSON object per line on the script's stdin:
    {"start": [ARGUMENT, ...], "log": PATH, "folder": PATH, "environment": {NAME: VALUE}}
                                  the answer is {"pid": N} or {"error": TEXT}
    {"status": N}                 the answer is {"status": exit status}, of a process that was started; null if it runs
    {"remove": [PATH, ...]}       folders to remove after a closing pipe has ended the nodes
    {"release": true}             leave the nodes running and exit

The script runs by file name and needs only the standard library, so it does not depend on how the package was installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CREDENTIALS = re.compile(r"(OSN|AWS)_.*|HF_TOKEN|HUGGING_?FACE_.*TOKEN|OPENSEARCH_.*PASSWORD")
"""Environment variables with secrets that only `osn` and its libraries may see."""
GRACE = 10.0
"""Seconds that a node may take to close after SIGTERM, if its owner died."""


def environment() -> dict[str, str]:
    """The environment for a node, Java and Maven: this process's environment without credentials."""
    return {name: value for name, value in os.environ.items() if not CREDENTIALS.fullmatch(name)}


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


def send(pid: int, mark: str, number: int) -> None:
    """Send a signal to the process if it still has the mark."""
    if is_running(pid, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until_gone(pids: list[int], mark: str, seconds: float) -> list[int]:
    """Wait until the processes with the mark end. Returns those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_running(pid, mark)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def end(pids: list[int], mark: str, *, grace: float = 20.0) -> list[int]:
    """End the processes with the mark: SIGTERM to all, then SIGKILL to those still running after `grace` seconds.

    Returns the pids that had to be killed.
    """
    for pid in pids:
        send(pid, mark, signal.SIGTERM)
    stubborn = wait_until_gone(pids, mark, grace)
    for pid in stubborn:
        send(pid, mark, signal.SIGKILL)
    wait_until_gone(stubborn, mark, 10.0)
    return stubborn


# ------------------------------------------------------------------------------------------------------------- guard


class Guard:
    """Starts nodes that end with this process unless they are released."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _say(self, request: dict[str, Any]) -> None:
        from opensearch_neural.errors import ClusterError  # here, because the script must not need it

        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClusterError("the process that guards the nodes ended by itself", "start it again") from None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; {} if none comes."""
        self._say(request)
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], 30.0)
        return json.loads(self._process.stdout.readline() or "{}") if answered else {}

    def start(self, command: list[str], log: Path, folder: Path) -> int:
        """Start a process that writes to `log` and has `folder` as its working directory. Returns its pid."""
        from opensearch_neural.errors import ClusterError

        request = {"start": command, "log": str(log), "folder": str(folder), "environment": environment()}
        answer = self._ask(request)
        if "pid" not in answer:
            raise ClusterError(f"{command[0]} could not be started: {answer.get('error', 'no answer')}")
        pid = int(answer["pid"])
        # The kernel sets the command line, which identifies the process, a moment after the start has succeeded.
        deadline = time.monotonic() + 1.0
        while not command_line(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        return pid

    def wait(self, pid: int, seconds: float) -> int | None:
        """Wait for a process that this guard started. Returns its exit status, or None if it runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while (status := self._ask({"status": pid}).get("status")) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return status

    def remove_when_ended(self, folder: Path) -> None:
        """Let the guard remove this folder after it has ended the nodes."""
        self._say({"remove": [str(folder)]})

    def release(self) -> None:
        """Let the nodes run on without this process."""
        self._say({"release": True})
        self._process.communicate(timeout=10.0)

    def end_nodes(self) -> None:
        """Close the pipe, which ends the nodes, and wait until they are gone."""
        self._process.communicate()


def guard_nodes() -> None:
    """What the script does: serve the requests until the pipe closes, then end the nodes."""
    nodes: list[subprocess.Popen[bytes]] = []
    remove: list[str] = []
    for request in _requests(nodes):
        if "release" in request:
            return
        if "remove" in request:
            remove += request["remove"]
            continue
        answer: dict[str, Any]
        if "status" in request:
            answer = {"status": next(node.poll() for node in nodes if node.pid == request["status"])}
        else:
            try:
                nodes.append(_start(request))
                answer = {"pid": nodes[-1].pid}
            except OSError as error:
                answer = {"error": str(error)}
        # The asking process may be gone already; the next read then finds the closed pipe.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(answer).encode() + b"\n")
    _end_all(nodes)
    for path in remove:
        shutil.rmtree(path, ignore_errors=True)


def _requests(nodes: list[subprocess.Popen[bytes]]) -> Iterator[dict[str, Any]]:
    """Requests until the pipe closes; half a request, whose writer died, is none. Ended nodes are reaped meanwhile, so that
    no zombie remains."""
    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.5)
        for node in nodes:
            node.poll()
        if not readable:
            continue
        if not (received := os.read(0, 65536)):
            return
        *lines, unread = (unread + received).split(b"\n")
        yield from map(json.loads, lines)


def _start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(request["log"]).open("ab") as log:
        return subprocess.Popen(
            request["start"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=request["folder"],
            env=request["environment"],
            # Ctrl-C in the terminal reaches the whole process group, but a node needs time to close.
            start_new_session=True,
        )


def _end_all(nodes: list[subprocess.Popen[bytes]]) -> None:
    running = [node for node in nodes if node.poll() is None]
    for node in running:
        node.terminate()
    deadline = time.monotonic() + GRACE
    for node in running:
        try:
            node.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


if __name__ == "__main__":
    guard_nodes()
