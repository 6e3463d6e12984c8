"""A proxy before the real cluster that does to requests what networks and busy clusters do.

    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("drop_after") if request.number == 3 else None
        client = connect(proxy.url)

Nothing is imitated: a request that is forwarded is answered by OpenSearch, and a fault decides what becomes of the
answer, or that there is none.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import urllib3

Kind = Literal[
    "status",  # answered with `status` and not forwarded
    "status_after",  # forwarded; the answer is replaced by `status`
    "drop",  # the connection is closed, nothing is forwarded
    "drop_after",  # forwarded; the connection is closed instead of answering
    "cut",  # forwarded; half of the answer arrives
    "garbage",  # forwarded; something that is not JSON arrives, with status 200
    "delay",  # forwarded after `seconds`, or when the proxy ends
]


@dataclass(frozen=True)
class Fault:
    kind: Kind
    status: int = 503
    seconds: float = 0.0


@dataclass(frozen=True)
class Request:
    """number: counts the requests of this method and kind of path from 1."""

    method: str
    path: str
    number: int
    body: bytes


class FaultProxy:
    """Forwards to `upstream`; `fault(request)` says what goes wrong, for requests to `_bulk` only unless `everything`."""

    def __init__(self, upstream: str, *, everything: bool = False) -> None:
        self.fault: Callable[[Request], Fault | None] = lambda request: None
        self.everything = everything
        self.bulks: list[bytes] = []
        self.faults: Counter[str] = Counter()
        self.most_bytes = 0
        self._upstream = upstream.rstrip("/")
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._answered = threading.Condition()
        self._under_way = 0
        self._count = 0
        self._pool = urllib3.PoolManager(
            maxsize=32,
            retries=False,
            ca_certs=os.environ.get("OSN_CA"),
            cert_reqs="CERT_NONE" if os.environ.get("OSN_VERIFY") in ("0", "false") else "CERT_REQUIRED",
        )
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                with proxy._answered:
                    proxy._under_way += 1
                try:
                    proxy._handle(self)
                finally:
                    with proxy._answered:
                        proxy._under_way -= 1
                        proxy._answered.notify_all()

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

            def log_message(self, *arguments: Any) -> None:
                """Nothing: the tests look at what arrives."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """What has come in is forwarded yet, so that the cluster is then as the faults leave it."""
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        with self._answered:
            self._answered.wait_for(lambda: not self._under_way, timeout=120)
        self._thread.join()
        self._pool.clear()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        path = handler.path.partition("?")[0]
        is_bulk = path.endswith("/_bulk")
        fault = None
        if is_bulk or self.everything:
            with self._lock:
                self._count += 1
                number = self._count
                if is_bulk:
                    self.most_bytes = max(self.most_bytes, len(body))
            fault = self.fault(Request(handler.command, path, number, body))
        if fault is not None:
            with self._lock:
                self.faults[fault.kind] += 1
        kind = fault.kind if fault else None
        if fault and kind == "status":
            self._answer(handler, fault.status, b'{"error":{"type":"injected","reason":"injected"},"status":0}')
            return
        if kind == "drop":
            self._close(handler)
            return
        if fault and kind == "delay":
            self._ending.wait(fault.seconds)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in ("host", "connection")}
        answer = self._pool.request(
            handler.command, self._upstream + handler.path, body=body or None, headers=headers, timeout=120.0
        )
        if is_bulk:
            with self._lock:
                self.bulks.append(body)
        data = answer.data
        if kind == "drop_after":
            self._close(handler)
        elif fault and kind == "status_after":
            self._answer(handler, fault.status, b"<html>Bad Gateway</html>", "text/html")
        elif kind == "garbage":
            self._answer(handler, 200, b'{"took": 3, "items": [', "application/json")
        elif kind == "cut":
            self._answer(handler, answer.status, data[: len(data) // 2], length=len(data))
            self._close(handler)
        else:
            self._answer(handler, answer.status, data, answer.headers.get("content-type", "application/json"))

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        type: str = "application/json",
        length: int | None = None,
    ) -> None:
        try:
            handler.send_response(status)
            handler.send_header("content-type", type)
            handler.send_header("content-length", str(len(data) if length is None else length))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(data)
            handler.wfile.flush()
        except OSError:  # the client is gone: it was killed
            handler.close_connection = True

    def _close(self, handler: BaseHTTPRequestHandler) -> None:
        import socket

        handler.close_connection = True
        try:
            handler.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def written(self) -> list[str]:
        """The ids in all `_bulk` requests that reached OpenSearch, repeats included."""
        import json

        return [json.loads(line)["index"]["_id"] for body in self.bulks for line in body.split(b"\n")[:-1][::2]]
