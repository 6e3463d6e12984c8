"""A small process that starts nodes, and ends them if the process that asked for them dies first.

Nodes must outlive `osn node start`. But a start or test run that is interrupted or killed must leave nothing behind. No
handler in the asking process can ensure that, since SIGKILL runs no handler. So this process starts the nodes and reads a
pipe. The pipe closes however the other side ends; nodes that were not released by then are ended.

Requests, one JSON object per line on stdin:
    {"start": [ARGUMENT, ...], "log": PATH, "folder": PATH, "environment": {NAME: VALUE}}
                                  the answer is {"pid": N} or {"error": TEXT}
    {"remove": [PATH, ...]}       folders to remove after a closing pipe has ended the nodes
    {"release": true}             leave the nodes running and exit

It runs by file name and needs only the standard library, so it does not depend on how the package was installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

GRACE = 10.0
"""Seconds that a node may take to close after SIGTERM."""


def start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(request["log"], "ab") as log:  # noqa: PTH123
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


def end_all(nodes: list[subprocess.Popen[bytes]]) -> None:
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


def requests(nodes: list[subprocess.Popen[bytes]]) -> Iterator[dict[str, Any]]:
    """Yield requests until the pipe closes. Ended nodes are reaped meanwhile, so that no zombie remains."""
    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.5)
        for node in nodes:
            node.poll()
        if not readable:
            continue
        received = os.read(0, 65536)
        if not received:
            return
        *lines, unread = (unread + received).split(b"\n")
        yield from (json.loads(line) for line in lines)


def main() -> None:
    nodes: list[subprocess.Popen[bytes]] = []
    remove: list[str] = []
    for request in requests(nodes):
        if "release" in request:
            return
        if "remove" in request:
            remove += request["remove"]
            continue
        try:
            nodes.append(start(request))
            answer: dict[str, Any] = {"pid": nodes[-1].pid}
        except OSError as error:
            answer = {"error": str(error)}
        # The asking process may be gone already; the next read then finds the closed pipe.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(answer).encode() + b"\n")
    end_all(nodes)
    for path in remove:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        sys.exit(1)
