"""An `osn` for the PATH of tests' shells: a process of its own, but forked from a server that has imported everything, so
that it costs milliseconds and not the import of torch. `osn` as it is installed is run by tests/cluster/test_security.py and
tests/test_plain_install.py."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fork_server import METHOD

context = multiprocessing.get_context(METHOD)

CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [b" "], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    status = int(server.recv(16))
sys.exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def forked_osn() -> Iterator[Path]:
    """The folder with the executable `osn`."""
    with tempfile.TemporaryDirectory(prefix="osn-") as name, socket.socket(socket.AF_UNIX) as listening:
        folder, address = Path(name), f"{name}/socket"  # short: such addresses have at most 107 characters
        (folder / "client.py").write_text(CLIENT)
        (folder / "osn").write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{folder}/client.py" "{address}" "$@"\n')
        (folder / "osn").chmod(0o755)
        listening.bind(address)
        listening.listen()
        threading.Thread(target=_serve, args=(listening,), daemon=True).start()
        yield folder
        with suppress(OSError):  # some systems know it for connections alone
            listening.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket) -> None:
    """Run one command after another, until nobody listens any more."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            # Connections, since multiprocessing passes them to a process.
            streams = [Connection(each) for each in descriptors]
            asked = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # noqa: B023 (called at once)
            process = context.Process(target=_run, args=(asked, streams))
            process.start()
            process.join()
            for stream in streams:
                stream.close()
            connection.sendall(str(process.exitcode).encode())


def _run(asked: bytes, streams: list[Connection]) -> None:
    gc.freeze()  # what the server imported stays: a training's `gc.collect()` would go through all of it
    arguments, folder, environment = json.loads(asked)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    # Those of the server were made for files of another kind.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 (the process has them)
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["osn", *arguments]
    from opensearch_neural.cli import main

    main()
