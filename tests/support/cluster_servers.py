"""Local servers that fail in the ways networks and clusters fail. None of them stands in for OpenSearch: the tests of
what OpenSearch does use the cluster of `conftest.py`, at most through `forbidding_proxy`, which passes requests on to it.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import trustme

LOOPBACK = "127.0.0.1"

SECRET = "s3cret/pa:ss@wörd"
"""A password that needs every kind of quoting."""
OPENSEARCH = {
    "name": "node",
    "version": {"distribution": "opensearch", "number": "2.19.1"},
    "tagline": "The OpenSearch Project: https://opensearch.org/",
}
"""What OpenSearch answers to `GET /`."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, content: Any, status: int = 200) -> Answer:
        return cls(status, json.dumps(content).encode(), {"Content-Type": "application/json; charset=UTF-8"})


@dataclass
class Server:
    url: str
    requests: list[Request] = field(default_factory=list)


def says_opensearch(_: Request) -> Answer:
    return Answer.of_json(OPENSEARCH)


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@contextmanager
def http_server(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """An HTTP server that records what it is asked."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            server.requests.append(request)
            given = answer(request)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    class QuietServer(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass  # a client that breaks off a handshake is what some tests are about

        def finish_request(self, request: Any, client_address: Any) -> None:
            if tls is not None:
                request = tls.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)

    listener = QuietServer((LOOPBACK, 0), Handler)
    scheme = "http" if tls is None else "https"
    server = Server(f"{scheme}://{LOOPBACK}:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextmanager
def tcp_server(serve: Callable[[socket.socket], None]) -> Iterator[Server]:
    """A listener that hands each connection to `serve` and then closes it. `requests` counts connections."""
    with socket.create_server((LOOPBACK, 0)) as listener, ExitStack() as stack:
        server = Server(f"http://{LOOPBACK}:{listener.getsockname()[1]}")

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                server.requests.append(Request("", "", {}, b""))
                stack.callback(connection.close)
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def silent(_: socket.socket) -> None:
    """Accept, and never answer."""


def hang_up(connection: socket.socket) -> None:
    connection.recv(1)
    connection.close()


def speak_ssh(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    connection.close()


@contextmanager
def unreachable() -> Iterator[str]:
    """A port whose queue of waiting connections is full: the system drops further attempts, as a firewall does."""
    with socket.create_server((LOOPBACK, 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def closed_port() -> str:
    """A URL where nothing listens."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


@contextmanager
def forbidding_proxy(
    cluster_url: str, forbid: Callable[[Request], Answer | None], seen: list[Request] | None = None
) -> Iterator[str]:
    """A proxy in front of the real cluster that answers some requests itself, as a security layer does."""
    parts = urlsplit(cluster_url)
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE

    def answer(request: Request) -> Answer:
        if seen is not None:
            seen.append(request)
        refused = forbid(request)
        if refused is not None:
            return refused
        host = parts.hostname or ""
        connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=60, context=unchecked)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=60)
        )
        try:
            headers = {name: value for name, value in request.headers.items() if name not in ("host", "connection")}
            connection.request(request.method, request.path, request.body or None, headers)
            real = connection.getresponse()
            kind = {"Content-Type": real.headers.get("Content-Type", "application/json")}
            return Answer(real.status, real.read(), kind)
        finally:
            connection.close()

    with http_server(answer) as server:
        yield server.url


def forbidden(action: str) -> Answer:
    """The form in which the security plugin refuses an action."""
    reason = f"no permissions for [{action}] and User [name=reader, backend_roles=[], requestedTenant=null]"
    cause = {"type": "security_exception", "reason": reason}
    return Answer.of_json({"error": {"root_cause": [cause], **cause}, "status": 403}, 403)
