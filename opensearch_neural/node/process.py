"""Processes by pid, told apart from others that were given the same pid later."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path


def command_line(pid: int) -> str:
    """The command line of a running process; empty when there is none (a zombie has none either)."""
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
    """Whether `pid` runs and is the process that was started with `mark` on its command line.

    Pids are given out again, after a reboot even soon: the mark, which is unique to one start, is what proves identity.
    """
    return pid is not None and mark in command_line(pid)


def send(pid: int, mark: str, number: int) -> bool:
    """Send a signal to the process, if it still is the one with the mark. Returns whether it was sent."""
    if not is_running(pid, mark):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def wait_until_gone(processes: list[tuple[int, str]], seconds: float) -> list[tuple[int, str]]:
    """Wait for processes, given as (pid, mark), to end. Returns those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    left = [(pid, mark) for pid, mark in processes if is_running(pid, mark)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [(pid, mark) for pid, mark in left if is_running(pid, mark)]
    return left


def end(processes: list[tuple[int, str]], *, grace: float = 20.0) -> list[int]:
    """End processes, given as (pid, mark): SIGTERM to all, SIGKILL to those still there after `grace` seconds.

    Returns the pids that had to be killed.
    """
    for pid, mark in processes:
        send(pid, mark, signal.SIGTERM)
    stubborn = wait_until_gone(processes, grace)
    for pid, mark in stubborn:
        send(pid, mark, signal.SIGKILL)
    wait_until_gone(stubborn, 10.0)
    return [pid for pid, _ in stubborn]
