"""A small process that starts nodes and ends them again should whoever asked for them die first.

Nodes have to outlive `osn node start`, yet a start that is interrupted, killed or closed with its terminal must leave
nothing behind, and neither may a test run that is killed. No handler in the asking process can promise that: SIGKILL
runs none. So the nodes are started here, in a process that reads a pipe. The pipe closes whatever way the other side
ends; what was not released by then is ended.

Requests, one JSON object a line on stdin:
    {"start": [ARGUMENT, ...], "log": PATH, "folder": PATH, "environment": {NAME: VALUE}}
                                  answered by {"pid": N} or {"error": TEXT}
    {"remove": [PATH, ...]}       folders to remove after the nodes were ended by a closing pipe
    {"release": true}             leave the nodes running and exit

It is run by file name with the standard library alone, so that it does not depend on how the package was installed.
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
"""Seconds that a node has to close after SIGTERM."""


def start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(request["log"], "ab") as log:  # noqa: PTH123
        return subprocess.Popen(
            request["start"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=request["folder"],
            env=request["environment"],
            # Ctrl-C in the terminal goes to its whole process group, and a node has to close in its own time.
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
    """Requests until the pipe closes. Nodes that ended are reaped meanwhile, so that none is left as a zombie."""
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
        # Whoever asked may be gone already; the closed pipe is then seen next.
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
