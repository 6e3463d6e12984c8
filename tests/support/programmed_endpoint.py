"""An HTTP endpoint whose behaviour is known, to hold the load generator against: service times, stalls, refusals.

It runs in a process of its own and answers `_search` requests in the form of OpenSearch. It stands for no cluster: what is
tested with it is the instrument.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ANSWER = {"took": 1, "timed_out": False, "_shards": {"total": 1, "successful": 1, "failed": 0}, "hits": {"hits": []}}


@dataclass(frozen=True)
class Behaviour:
    """service_ms: times that requests take, one after the other, again and again; every request has its own, whatever else
    is being served. stalls: (seconds after the first request, seconds): nothing is answered meanwhile. statuses: of the
    answers, in turn. close_every: close the connection after so many answers. chunked: send answers in chunks. silent:
    never answer. answer: the body."""

    service_ms: tuple[float, ...] = (1.0,)
    stalls: tuple[tuple[float, float], ...] = ()
    statuses: tuple[int, ...] = (200,)
    close_every: int = 0
    chunked: bool = False
    silent: bool = False
    answer: str = json.dumps(ANSWER)


class _Server:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.served = 0
        self.first: float | None = None

    def answer_at(self, now: float) -> float:
        if self.first is None:
            self.first = now
        times = self.behaviour.service_ms
        due = now + times[self.served % len(times)] / 1000
        for begins, seconds in self.behaviour.stalls:
            if begins <= due - self.first < begins + seconds:
                due = self.first + begins + seconds
        return due


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self.server = server
        self.received = b""
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = int(self.received[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self.received) < end + 4 + length:
            return
        self.received = self.received[end + 4 + length :]
        behaviour = self.server.behaviour
        due = self.server.answer_at(time.monotonic())
        status = behaviour.statuses[self.server.served % len(behaviour.statuses)]
        self.server.served += 1
        if not behaviour.silent:
            asyncio.get_running_loop().call_at(due, self.answer, status)

    def answer(self, status: int) -> None:
        behaviour = self.server.behaviour
        body = behaviour.answer.encode()
        self.answered += 1
        last = behaviour.close_every and self.answered % behaviour.close_every == 0
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{'connection: close' if last else 'x: y'}\r\n"
        if behaviour.chunked:
            half = len(body) // 2
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
            self.transport.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks)
        else:
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if last:
            self.transport.close()


def _run(behaviour: Behaviour, pipe: Any) -> None:
    async def serve() -> None:
        server = _Server(behaviour)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1000)
        pipe.send(listening.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, _until_closed, pipe)

    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # exact to the microsecond
    loop.run_until_complete(serve())


def _until_closed(pipe: Any) -> None:
    try:
        pipe.recv()
    except EOFError:
        return


@contextmanager
def programmed(**behaviour: Any) -> Iterator[str]:
    """URL of an endpoint that behaves so."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(Behaviour(**behaviour), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        ours.close()
        process.join(1.0)
        if process.is_alive():
            process.kill()
            process.join()
