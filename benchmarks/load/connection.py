"""HTTP/1.1 with keep-alive, as little of it as a load generator needs.

A client library needs several times the processor time of sending a request, and on a machine that runs both, takes it
from the server. Here a request is one write, and an answer is timed when its last byte arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from typing import NamedTuple

from benchmarks.load.workload import Address, LoadTarget

SWEEP_SECONDS = 0.05  # between two checks for requests that take too long


class Answer(NamedTuple):
    status: int
    """The HTTP status."""
    body: bytes
    """As received, not parsed."""
    received_ns: int
    """When the last byte had arrived, by the monotonic clock."""


class Broken(Exception):
    """A request got no answer. kind: "timeout" or "connection"."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Connection(asyncio.Protocol):
    """One connection to one node, with one request at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.usable = True
        self.sent_ns = 0
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = bytearray()
        self._body_at = -1  # where the body begins, once the head is there
        self._body_length = 0  # -1 for a chunked body
        self._status = 0
        self._last = False  # the server closes after this answer

    @property
    def waits(self) -> bool:
        """Whether a request waits for its answer."""
        return self._waiting is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.usable = False
        self._fail("connection")

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send the request; the future gives its answer, or raises Broken if no answer comes."""
        assert self._waiting is None and self._transport is not None
        self._received.clear()
        self._body_at = -1
        self._waiting = asyncio.get_running_loop().create_future()
        self.sent_ns = time.monotonic_ns()
        self._transport.write(request)
        return self._waiting

    def give_up(self, kind: str) -> None:
        """End the waiting request as failed; an answer that still comes is not read."""
        self.usable = False
        self._fail(kind)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            # No request is waiting, so these bytes belong to none.
            self.give_up("connection")
            return
        self._received += data
        if self._body_at < 0 and not self._read_head():
            return
        if self._body_length >= 0:
            if len(self._received) - self._body_at < self._body_length:
                return
            body = bytes(self._received[self._body_at : self._body_at + self._body_length])
        else:
            try:
                chunks = _chunks(self._received, self._body_at)
            except ValueError:
                self.give_up("connection")
                return
            if chunks is None:
                return
            body = chunks
        waiting, self._waiting = self._waiting, None
        if self._last:
            self.usable = False
        if not waiting.done():
            waiting.set_result(Answer(self._status, body, time.monotonic_ns()))

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(self._received[:end]).split(b"\r\n")
        self._body_at, self._body_length, self._last = end + 4, 0, False
        try:
            self._status = int(lines[0].split(b" ", 2)[1])
            for line in lines[1:]:
                name, _, value = line.partition(b":")
                name = name.strip().lower()
                if name == b"content-length":
                    self._body_length = int(value)
                elif name == b"transfer-encoding" and b"chunked" in value.lower():
                    self._body_length = -1
                elif name == b"connection" and value.strip().lower() == b"close":
                    self._last = True
        except (ValueError, IndexError):
            self.give_up("connection")
            return False
        return True

    def _fail(self, kind: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(Broken(kind))


def _chunks(received: bytearray, at: int) -> bytes | None:
    """The body of a chunked answer, or None if its end has not arrived. Raises ValueError for malformed chunks."""
    parts: list[bytes] = []
    while True:
        end = received.find(b"\r\n", at)
        if end < 0:
            return None
        length = int(bytes(received[at:end]).partition(b";")[0], 16)
        at = end + 2
        if len(received) < at + length + 2:
            return None
        if length == 0:
            return b"".join(parts)
        parts.append(bytes(received[at : at + length]))
        at += length + 2


class Pool:
    """At most `limit` kept-alive connections, spread over the nodes.

    If all are in use, callers wait in line. Requests that take longer than the target's timeout are ended.
    first: number of the node that the first connection goes to.
    """

    def __init__(self, target: LoadTarget, limit: int, first: int = 0) -> None:
        self._addresses = target.addresses
        self._tls: ssl.SSLContext | None = target.tls()
        self._timeout_ns = int(target.timeout * 1e9)
        self._timeout = target.timeout
        self._limit = limit
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._opening = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._next = first
        self._sweeper: asyncio.TimerHandle | None = None

    async def acquire(self) -> Connection:
        """A connection to send on; give it back with `release`. Raises Broken if none can be opened."""
        enter = self._line.append
        while True:
            while self._idle:
                connection = self._idle.popleft()  # the longest idle one, so that all nodes get requests
                if connection.usable:
                    self._busy.add(connection)
                    return connection
            if len(self._busy) + self._opening < self._limit:
                return await self._open()
            place = asyncio.get_running_loop().create_future()
            enter(place)
            await place
            enter = self._line.appendleft  # another caller took the free connection first

    def release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.usable:
            self._idle.append(connection)
        self._call_next()

    def _call_next(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return

    async def _open(self) -> Connection:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        self._opening += 1
        loop = asyncio.get_running_loop()
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: Connection(address), address.host, address.port, ssl=self._tls if address.tls else None
                ),
                self._timeout,
            )
        except asyncio.TimeoutError:
            self._call_next()
            raise Broken("timeout") from None
        except (OSError, ssl.SSLError):
            self._call_next()
            raise Broken("connection") from None
        finally:
            self._opening -= 1
        self._busy.add(connection)
        if self._sweeper is None:
            self._sweep()
        return connection

    def _sweep(self) -> None:
        oldest = time.monotonic_ns() - self._timeout_ns
        for connection in [busy for busy in self._busy if busy.waits and busy.sent_ns < oldest]:
            connection.give_up("timeout")
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in [*self._idle, *self._busy]:
            connection.give_up("connection")
        self._idle.clear()
        self._busy.clear()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
