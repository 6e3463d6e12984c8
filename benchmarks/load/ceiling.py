"""The generator's own limit, measured against an endpoint that does nothing.

The endpoint answers at once with an answer of the engine's true size, so only the generator is measured: its encoding, its
sockets, its event loop. A measurement of the cluster that comes near this limit measures the generator too, and is
refused (`Strain`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block, Level
from benchmarks.load.generator import Generators, received
from benchmarks.load.workload import OPAQUE_ID, LoadTarget, Workload
from opensearch_neural.cluster.settings import ConnectionSettings

MOST_OF_CEILING = 0.7  # the highest share of its ceiling that the generator may need in a measurement
MOST_OF_A_CORE = 0.85  # the highest share of a core that a worker may need: beyond it requests wait for the generator
MOST_OF_OTHERS = 0.1  # a higher share of the machine's cores that other processes use is noted
MOST_WAIT = 0.1  # a higher share of the mean latency that is spent waiting for a worker is noted, if encoding is cheap
CHEAP_MS = 1.0  # a mean encoding below this keeps no other query waiting for long
MOST_LATENESS = 0.25  # the highest share of an open loop's P99 that may be the generator's own lateness
NAMED = f"x-opaque-id: {OPAQUE_ID}".encode()


def _header(head: bytes, name: bytes) -> bytes:
    return head[head.index(name) + len(name) :].split(b"\r\n", 1)[0]


class _Endpoint(asyncio.Protocol):
    """Answers each request of an engine with the same bytes."""

    def __init__(self, answers: Mapping[bytes, bytes]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        while True:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._received[:end]
            length = int(_header(head, b"content-length: "))
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            self._transport.write(self._answers[_header(head, NAMED)])


def _endpoint(answers: Mapping[bytes, bytes], pipe: Any) -> None:
    """The main function of the endpoint's process; it ends when the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches it too, and the parent reports it

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Endpoint(answers), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, received, pipe)  # nothing is sent: until it is closed

    asyncio.run(serve())


@contextmanager
def endpoint(answers: Mapping[str, bytes]) -> Iterator[str]:
    """The URL of an endpoint in its own process. answers: {variant's name: body of the answer to its requests}."""
    responses = {name.encode("latin-1"): _http(body) for name, body in answers.items()}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_endpoint, args=(responses, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        ours.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=UTF-8\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def measure_ceilings(
    workload: Workload, answers: Mapping[str, bytes], *, clients: int, processes: int, seconds: float
) -> dict[str, float]:
    """{variant: the most of its requests that the generator can make a second}, each measured for `seconds`.

    answers: {variant: body of a genuine answer}.
    """
    ceilings = {}
    with endpoint(answers) as url:
        timeout = workload.target.timeout
        here = replace(workload, target=LoadTarget(ConnectionSettings(urls=(url,), timeout=timeout)))
        with Generators(here, processes) as generators:
            for variant in workload.variants:
                parts = generators.run(
                    variant.name, "closed", clients=clients, settle=min(0.5, seconds), length=seconds, seed=0
                )
                ceilings[variant.name] = sum(part.completed for part in parts) / seconds
    return ceilings


@dataclass(frozen=True)
class Strain:
    """How near a measurement brought the generator to its limits."""

    ceiling_share: float | None = None
    """Requests a second, as a share of its ceiling; None if the ceiling was not measured."""
    core_share: float = 0.0
    """Processor time of its busiest worker, as a share of one core."""
    late_share: float | None = None
    """The P99 of its own lateness, as a share of the P99; None for a closed loop."""
    others_share: float | None = None
    """Processor time of other processes, as a share of the machine's cores; None if unknown."""
    wait_share: float | None = None
    """The mean wait of a request for a worker, as a share of the mean latency, if encoding is cheap; else None."""

    def refusal(self) -> str | None:
        """Why the measurement is refused: the generator was too near its limit. None if it was not."""
        if self.ceiling_share is not None and self.ceiling_share > MOST_OF_CEILING:
            if self.ceiling_share == float("inf"):
                return "the endpoint that does nothing answered nothing, so the generator's limit is not known"
            return f"{self.ceiling_share:.0%} of what the generator can do"
        if self.core_share > MOST_OF_A_CORE:
            return f"a generator process needed {self.core_share:.0%} of a core"
        if self.late_share is not None and self.late_share > MOST_LATENESS:
            return f"the generator was late by {self.late_share:.0%} of the P99"
        return None

    def disturbances(self) -> list[str]:
        """What shows that the machine had other work, so that P50 and P99 may not compare."""
        shown = []
        if self.others_share is not None and self.others_share > MOST_OF_OTHERS:
            shown.append(f"other processes used {self.others_share:.0%} of the cores")
        if self.wait_share is not None and self.wait_share > MOST_WAIT:
            shown.append(f"requests waited {self.wait_share:.0%} of their mean latency for the generator")
        return shown


def strain_of(level: Level, blocks: Sequence[Block], ceiling: float | None) -> Strain:
    """The strain of these blocks on the generator. ceiling: requests a second; None if it was not measured."""
    seconds = sum(block.seconds for block in blocks)
    speed = sum(block.completed for block in blocks) / seconds
    late = None
    if level.mode == "open" and all(block.late for block in blocks):
        counted = {
            part: [hdr.counts(hdr.decode(getattr(block, part))) for block in blocks] for part in ("late", "latency")
        }
        p99_late, p99 = (float(hdr.quantile(np.sum(of_blocks, axis=0), 0.0, 0.99)) for of_blocks in counted.values())
        late = p99_late / p99 if 0 < p99 < float("inf") else None
    share = None
    if ceiling is not None:
        share = speed / ceiling if ceiling else float("inf")
    return Strain(
        ceiling_share=share,
        core_share=sum(block.core_share * block.seconds for block in blocks) / seconds,
        late_share=late,
        others_share=_mean([(block.others, block.seconds) for block in blocks]),
        wait_share=_wait_share(blocks),
    )


def _wait_share(blocks: Sequence[Block]) -> float | None:
    counted = [(block, block.requests - block.failed) for block in blocks]
    wait, encode, network, took = (
        _mean([(getattr(block, part), answered) for block, answered in counted])
        for part in ("wait", "encode", "network", "took")
    )
    if wait is None or encode is None or network is None or took is None or encode >= CHEAP_MS:
        return None
    return wait / max(1e-9, wait + encode + network + took)


def _mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of values with weights; None without any. Unknown values are left out."""
    known = [(value, weight) for value, weight in values if value is not None]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None
