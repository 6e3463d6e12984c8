"""How long a request that fails for a temporary reason is retried: one policy for all clients that `connect` returns.

opensearch-py repeats a failed request three times at once. That is too short for a node that restarts, and too often for an
overloaded node. Here each node is tried once, then again after growing random waits, until the patience ends.

    client = connect(settings=ConnectionSettings(patience=5))     # seconds; the default
    with patience(300):                                           # in this thread or task
        client.indices.create(index="docs", body=body)

Code with its own retry policy, such as the bulk writer, sends its requests under `patience(0)`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
"""Seconds to establish a connection, at most, however long the answer may take."""

_patience: ContextVar[float | None] = ContextVar("patience", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Use this patience for requests of this thread or task, instead of the client's setting."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def may_pass_later(status: int) -> bool:
    """Whether the status of a request, or of an item in it, is temporary.

    All of 5xx count as temporary: a full disk or a closing shard answers 500, and proxies have their own numbers. A document
    that OpenSearch will never accept gets a 400.
    """
    return status in (408, 429) or status >= 500


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter: attempt n waits a random time up to base · 2ⁿ seconds, at most `cap`."""

    patience: float = 300.0
    """Seconds after which a failing request is given up; long enough to restart a node."""
    base: float = 0.5
    """Seconds."""
    cap: float = 30.0
    """Seconds."""
    item_patience: float = 30.0
    """Seconds after which a single document is given up if it fails while others in its request succeed."""

    def wait(self, attempt: int) -> float:
        return random.uniform(0, min(self.cap, self.base * 2 ** min(attempt, 16)))


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all exceptions that it wraps, in any attribute where urllib3 or aiohttp store a cause."""
    queue: list[BaseException] = [error]
    seen: set[int] = set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = [*current.args, current.__cause__]
        wrapped += [getattr(current, name, None) for name in ("reason", "os_error", "certificate_error")]
        queue += [cause for cause in wrapped if isinstance(cause, BaseException)]


def _passes(error: Any) -> bool:
    """Whether a request that failed with this error may be sent again.

    Not after a timeout, because it may still be running, nor after a wrong certificate or host name, which stay wrong.
    """
    from opensearchpy import exceptions

    if isinstance(error, exceptions.ConnectionTimeout):
        return False
    if isinstance(error, exceptions.ConnectionError):
        every = list(exception_chain(error))
        # The server closed the connection before TLS had begun: it, or what is behind a proxy, may be starting.
        if any(isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError) for cause in every):
            return True
        # Of a wrong certificate only the synchronous connection makes an SSLError.
        wrong = any(isinstance(cause, socket.gaierror | ssl.SSLError) for cause in every)
        return not wrong and not isinstance(error, exceptions.SSLError)
    return error.status_code in (429, 502, 503, 504)


class Attempts:
    """The attempts at one request, within the `patience` around it, or `seconds` outside of any."""

    def __init__(self, seconds: float) -> None:
        seconds = seconds if (own := _patience.get()) is None else own
        self.policy = RetryPolicy(seconds)
        self.deadline = time.monotonic() + seconds
        self.number = 0

    def next_wait(self) -> float | None:
        """Seconds to wait before the next attempt; None if the patience ends before it."""
        self.number += 1
        wait = self.policy.wait(self.number)
        return None if time.monotonic() + wait > self.deadline else wait

    def wait_after(self, error: Any, request: str) -> float | None:
        """Seconds to wait before the next attempt; None if there is none."""
        wait = self.next_wait()
        if wait is None or not _passes(error):
            return None
        logger.info("trying %s again in %.1f s (%s)", request, wait, error.status_code)
        return wait


class _Patient:
    """What both transports share.

    opensearch-py asks a node whose request timed out again in its turn, so that of two nodes every other request hangs. Here
    it is left out as one that is down is: for a minute, then for longer; with a single node nothing changes."""

    def __init__(self, *args: Any, osn_patience: float, **kwargs: Any) -> None:
        self.osn_patience = osn_patience
        super().__init__(*args, **kwargs)

    def get_connection(self: Any) -> Any:
        self.osn_asked = super().get_connection()  # type: ignore[misc]
        return self.osn_asked

    def leave_out(self: Any, error: Any) -> None:
        """Take the node of a request that timed out out of rotation."""
        from opensearchpy.exceptions import ConnectionTimeout

        connection = getattr(error, "osn_connection", None)
        if isinstance(error, ConnectionTimeout) and connection is not None:
            self.mark_dead(connection)


@functools.cache
def transport_class(*, asynchronous: bool) -> type:
    """opensearch-py's transport with `osn_patience`, the seconds for which a request is retried.

    `osn_asked` is the connection of the last request, for whoever sends one request alone."""
    from opensearchpy import Transport
    from opensearchpy.exceptions import TransportError

    if not asynchronous:

        class PatientTransport(_Patient, Transport):
            def perform_request(self, method: str, url: str, params: Any = None, *args: Any, **kwargs: Any) -> Any:
                attempts = Attempts(self.osn_patience)
                while True:
                    try:
                        # A copy, because opensearch-py removes its own parameters.
                        return super().perform_request(method, url, dict(params or {}), *args, **kwargs)
                    except TransportError as error:
                        self.leave_out(error)
                        wait = attempts.wait_after(error, f"{method} {url}")
                        if wait is None:
                            raise
                    time.sleep(wait)

        return PatientTransport

    from opensearchpy import AsyncTransport

    class PatientAsyncTransport(_Patient, AsyncTransport):
        async def perform_request(self, method: str, url: str, params: Any = None, *args: Any, **kwargs: Any) -> Any:
            attempts = Attempts(self.osn_patience)
            while True:
                try:
                    return await super().perform_request(method, url, dict(params or {}), *args, **kwargs)
                except TransportError as error:
                    self.leave_out(error)
                    wait = attempts.wait_after(error, f"{method} {url}")
                    if wait is None:
                        raise
                await asyncio.sleep(wait)

        async def close(self) -> None:
            await super().close()
            for connection, _ in self.connection_pool.connection_opts:  # those that are left out, too
                await connection.close()

    return PatientAsyncTransport
