"""The load: worker processes that send requests and measure them, and the parent process that controls them.

Closed loop: N clients, each sends its next request when the last one is answered. Open loop: requests begin at the
moments of a Poisson process, whatever the server does. A latency counts from the moment the request was due: a stall in
an open loop then costs every request that was due during it, as it costs users (Schroeder, Wierman & Harchol-Balter,
"Open Versus Closed: A Cautionary Tale", NSDI 2006). In a closed loop a request is due when its client's last one was
answered, so the wait while the worker encodes other clients' queries counts, and clients ÷ throughput is the mean latency.

For every request that was due within the measured window, in microseconds:

    latency   from the moment it was due to the answer's last byte
    late      how much later than due the worker began it
    encode    query text → request body
    service   request written → the answer's last byte
    took      the part of `service` that OpenSearch itself reports

A worker is a process with one event loop. All workers begin at the same moment.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import random
import selectors
import signal
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import orjson

from benchmarks.load.connection import Broken, Pool
from benchmarks.load.workload import Workload, encoders, poisson, request_heads
from opensearch_neural.errors import OsnError, Unanswerable
from opensearch_neural.queries import partial_answer

Mode = Literal["closed", "open"]

CONNECTIONS = 400  # most connections of one worker: what an event loop on select() can serve
PAUSE_SECONDS = 0.05  # pause of a client whose connection failed, so that a dead node is not asked in a tight loop
PATIENCE_SECONDS = 5.0  # a block is given up after so long without any answer while connections fail
GRACE_SECONDS = 10.0  # a worker that is silent for so long beyond window and timeouts counts as lost
START_SECONDS = 300.0  # the longest time to load the encoders


@dataclass(frozen=True)
class Order:
    """A block's parameters for one worker. Times are in nanoseconds, of the machine's monotonic clock."""

    variant: str
    """Name of the variant whose requests are sent."""
    mode: Mode
    """ "closed" or "open" loop; decides which of `clients` and `rate` counts."""
    clients: int
    """This worker's clients (closed loop)."""
    rate: float
    """This worker's requests a second (open loop)."""
    begin_ns: int
    """When the load begins."""
    settle_ns: int
    """Length of the load before the window, which is not measured."""
    length_ns: int
    """Length of the measured window."""
    seed: int
    """Seed of this worker's order of queries and of its Poisson process."""


@dataclass
class WorkerMeasurement:
    """What one worker measured in a block. The arrays are aligned: (answered requests of the window,), in microseconds; the
    module's docstring explains these times."""

    latency: array[int] = field(default_factory=lambda: array("q"))
    """From when a request was due to the last byte of its answer."""
    late: array[int] = field(default_factory=lambda: array("q"))
    """From when it was due to when the worker began it."""
    encode: array[int] = field(default_factory=lambda: array("q"))
    """From a query's text to the body of its request."""
    service: array[int] = field(default_factory=lambda: array("q"))
    """From the sent request to the last byte of its answer."""
    took: array[int] = field(default_factory=lambda: array("q"))
    """Whole milliseconds, because OpenSearch rounds."""
    failures: Counter[str] = field(default_factory=Counter)
    """{error: requests that were due within the window}"""
    completed: int = 0
    """Requests answered without error within the window, whenever they began; throughput counts these."""
    cpu_ns: int = 0
    """Processor time of the worker during the window."""
    gave_up: bool = False
    """Whether no answer came for some seconds while connections failed."""
    example: str = ""
    """The message of one failure."""


class GeneratorLost(Exception):
    """A worker process ended or is silent; its block is lost."""


# ------------------------------------------------------------------------------------------------------------ worker


def checked(status: int, body: bytes) -> tuple[str | None, int, str]:
    """(why the answer does not count, else None; took in µs; the error's text).

    Only a complete answer counts: of all shards, and not timed out.
    """
    if status != 200:
        return ("rejected (429)" if status == 429 else f"HTTP {status}"), 0, body[:500].decode("utf-8", "replace")
    try:
        answer = orjson.loads(body)
        if partial_answer(answer):
            return "incomplete answer", 0, body[:500].decode("utf-8", "replace")
        return None, answer["took"] * 1000, ""
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return "no search answer", 0, body[:500].decode("utf-8", "replace")


class _WorkerBlock:
    """One block in one worker."""

    def __init__(
        self,
        order: Order,
        pool: Pool,
        encode: Callable[[int], bytes],
        heads: dict[str, bytes],
        queries: int,
        timeout: float,
    ) -> None:
        self.order = order
        self.pool = pool
        self.encode = encode
        self.heads = heads
        self.timeout_ns = int(timeout * 1e9)
        self.opens_ns = order.begin_ns + order.settle_ns
        self.closes_ns = self.opens_ns + order.length_ns
        self.part = WorkerMeasurement()
        self.unfinished = 0  # requests of the window that are not answered yet
        self.answered_ns = time.monotonic_ns()
        self.positions = self._shuffled(queries)
        self.random = random.Random(order.seed)

    def _shuffled(self, queries: int) -> Iterator[int]:
        """All queries in random order, again and again; the same order for every engine of a round."""
        random_ = random.Random(self.order.seed + 1)
        positions = list(range(queries))
        while True:
            random_.shuffle(positions)
            yield from positions

    async def run(self) -> WorkerMeasurement:
        loop = asyncio.get_running_loop()
        cpu: list[int] = []
        for moment in (self.opens_ns, self.closes_ns):
            loop.call_at(moment / 1e9, lambda: cpu.append(time.process_time_ns()))
        await self._until(self.order.begin_ns)
        if self.order.mode == "closed":
            await asyncio.gather(*(self._client() for _ in range(self.order.clients)))
        else:
            await self._arrivals()
        await self._until(self.closes_ns if not self.part.gave_up else 0)
        while len(cpu) < 2:
            if self.part.gave_up:
                break
            await asyncio.sleep(0.001)
        self.part.cpu_ns = cpu[1] - cpu[0] if len(cpu) > 1 else 0
        return self.part

    async def _until(self, moment_ns: int) -> None:
        wait = (moment_ns - time.monotonic_ns()) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)

    async def _client(self) -> None:
        # Clients continue until every request of the window is answered, so that the last ones meet the same load.
        due_ns = self.order.begin_ns
        while not self.part.gave_up and (due_ns < self.closes_ns or self.unfinished):
            ended_ns = await self._request(next(self.positions), due_ns)
            if ended_ns is None:
                await asyncio.sleep(PAUSE_SECONDS)
            due_ns = ended_ns or time.monotonic_ns()

    async def _arrivals(self) -> None:
        seconds = (self.order.settle_ns + self.order.length_ns) / 1e9
        running: set[asyncio.Task[int | None]] = set()
        for due in poisson(self.order.rate, seconds, self.random):
            due_ns = self.order.begin_ns + due
            await self._until(due_ns)
            if self.part.gave_up:
                break
            task = asyncio.create_task(self._request(next(self.positions), due_ns))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)

    async def _request(self, position: int, due_ns: int) -> int | None:
        """Send one query and measure it. Returns when it was answered or given up; None if it got no connection."""
        counts = self.opens_ns <= due_ns < self.closes_ns
        if counts:
            self.unfinished += 1
        try:
            begun_ns = time.monotonic_ns()
            try:
                body = self.encode(position)
            except Exception as error:  # whatever a model may raise: the request counts as failed, and the load goes on
                self.part.example = self.part.example or f"{type(error).__name__}: {error}"
                self._failed("encoding", counts)
                await asyncio.sleep(0)  # else a client that can encode nothing would let no other one run
                return time.monotonic_ns()
            encoded_ns = time.monotonic_ns()
            try:
                connection = await self.pool.acquire()
            except Broken as broken:
                self._failed(broken.kind, counts)
                return None
            try:
                if time.monotonic_ns() - due_ns > self.timeout_ns:
                    # A user would have left by now; the request would only lengthen the queue.
                    self._failed("timeout", counts)
                    return time.monotonic_ns()
                head = self.heads[connection.address.authority]
                answer = await connection.send(b"%b%d\r\n\r\n%b" % (head, len(body), body))
                sent_ns = connection.sent_ns
                failure, took, said = checked(answer.status, answer.body)
            except Broken as broken:
                self._failed(broken.kind, counts)
                return None if broken.kind == "connection" else time.monotonic_ns()
            finally:
                self.pool.release(connection)
            if failure is None and answer.received_ns - due_ns > self.timeout_ns:
                failure = "timeout"  # part of the time was spent waiting for a connection
            self.answered_ns = answer.received_ns
            if failure is not None:
                self.part.example = self.part.example or said
                self._failed(failure, counts)
                return answer.received_ns
            if self.opens_ns <= answer.received_ns < self.closes_ns:
                self.part.completed += 1
            if counts:
                self.part.latency.append((answer.received_ns - due_ns) // 1000)
                self.part.late.append((begun_ns - due_ns) // 1000)
                self.part.encode.append((encoded_ns - begun_ns) // 1000)
                self.part.service.append((answer.received_ns - sent_ns) // 1000)
                self.part.took.append(took)
            return answer.received_ns
        finally:
            if counts:
                self.unfinished -= 1

    def _failed(self, kind: str, counts: bool) -> None:
        if counts:
            self.part.failures[kind] += 1
        silent = time.monotonic_ns() - max(self.answered_ns, self.order.begin_ns)
        if kind == "connection" and silent > PATIENCE_SECONDS * 1e9:
            self.part.gave_up = True


async def _serve(workload: Workload, pipe: Any) -> None:
    """Run blocks as the parent orders them, until it closes the pipe."""
    encode = encoders(workload)
    heads = {variant.name: request_heads(workload, variant) for variant in workload.variants}
    for position in range(min(20, len(workload.texts))):  # the first calls are slow
        for name in encode:
            with suppress(Unanswerable):
                encode[name](position)
    pool = Pool(workload.target, CONNECTIONS, first=os.getpid())
    gc.collect()
    gc.freeze()
    pipe.send("ready")
    loop = asyncio.get_running_loop()
    try:
        while True:
            order = await loop.run_in_executor(None, received, pipe)
            if order is None:
                return
            block = _WorkerBlock(
                order,
                pool,
                encode[order.variant],
                heads[order.variant],
                len(workload.texts),
                workload.target.timeout,
            )
            # A garbage collection in the middle of a block would be measured as the server's time.
            gc.disable()
            part = await block.run()
            gc.enable()
            pipe.send(part)
    finally:
        await pool.close()


def received(pipe: Any) -> Any:
    """What the parent sends; None when it has closed the pipe."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _worker(workload: Workload, pipe: Any) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    # select() waits to the microsecond, where epoll rounds up to the next millisecond; arrivals would be late by that.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(workload, pipe))
    except OsnError as error:
        pipe.send(error)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        loop.close()


# ------------------------------------------------------------------------------------------------------------ parent


def shares(whole: int, parts: int) -> list[int]:
    """The clients of each of `parts` workers: `whole` divided as evenly as possible."""
    return [whole // parts + (at < whole % parts) for at in range(parts)]


def default_processes() -> int:
    """Half the cores, since the server may run on the same machine; at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, cores // 2)


class Generators:
    """The worker processes of one workload.

        with Generators(workload, processes=2) as generators:
            parts = generators.run("bm25", "closed", clients=20, settle=0.5, length=5.0, seed=1)

    Entering raises OsnError if a worker cannot encode the queries (a model is missing), GeneratorLost if one dies.
    """

    def __init__(self, workload: Workload, processes: int) -> None:
        self.workload = workload
        self.processes = processes
        self._members: list[tuple[Any, Any]] = []

    def __enter__(self) -> Generators:
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(self.processes):
                ours, theirs = context.Pipe()
                member = context.Process(target=_worker, args=(self.workload, theirs), daemon=True)
                member.start()
                theirs.close()
                self._members.append((member, ours))
            self._answers(time.monotonic() + START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [member.pid for member, _ in self._members]

    def run(
        self,
        variant: str,
        mode: Mode,
        *,
        clients: int = 0,
        rate: float = 0.0,
        settle: float,
        length: float,
        seed: int,
        at_edges: Callable[[], object] | None = None,
    ) -> list[WorkerMeasurement]:
        """Run one block. `at_edges` is called when the measured window opens and when it closes.

        Raises GeneratorLost if a worker dies or does not answer in time, and the OsnError that ended a worker.
        """
        begin_ns = time.monotonic_ns() + 20_000_000  # 20 ms for the orders to arrive
        for at, ((_, pipe), own_clients) in enumerate(zip(self._members, shares(clients, self.processes), strict=True)):
            order = Order(
                variant,
                mode,
                own_clients,
                rate / self.processes,
                begin_ns,
                int(settle * 1e9),
                int(length * 1e9),
                # Far apart, since each worker uses its seed and the next numbers.
                seed * 1000 + at * 10,
            )
            try:
                pipe.send(order)
            except (BrokenPipeError, OSError):
                raise self._lost(at) from None
        if at_edges is not None:
            for moment_ns in (begin_ns + int(settle * 1e9), begin_ns + int((settle + length) * 1e9)):
                self._watch_until(moment_ns)
                at_edges()
        # A request of the window may take the whole timeout, and so may a request that kept up the load meanwhile.
        patience = 2 * self.workload.target.timeout + GRACE_SECONDS
        return self._answers(begin_ns / 1e9 + settle + length + patience)

    def _watch_until(self, moment_ns: int) -> None:
        """Sleep until the moment. Raises GeneratorLost as soon as a worker ends."""
        sentinels = [member.sentinel for member, _ in self._members]
        wait = (moment_ns - time.monotonic_ns()) / 1e9
        if wait > 0 and multiprocessing.connection.wait(sentinels, wait):
            raise self._lost()

    def _answers(self, deadline: float) -> list[Any]:
        """One answer of each worker, in their order. Raises GeneratorLost, and the OsnError that ended a worker."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._members):
            waited: list[Any] = []
            for at, (member, pipe) in enumerate(self._members):
                if at not in answers:
                    waited += [pipe, member.sentinel]
            ready = multiprocessing.connection.wait(waited, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._lost(next(at for at in range(len(self._members)) if at not in answers))
            for at, (_, pipe) in enumerate(self._members):
                if at in answers or not pipe.poll():
                    continue
                try:
                    answers[at] = pipe.recv()
                except (EOFError, OSError):
                    raise self._lost(at) from None
            for at, (member, pipe) in enumerate(self._members):
                if at not in answers and not member.is_alive() and not pipe.poll():
                    raise self._lost(at)
        for answer in answers.values():
            if isinstance(answer, OsnError):
                raise answer
        return [answers[at] for at in range(len(self._members))]

    def _lost(self, at: int | None = None) -> GeneratorLost:
        if at is None:
            at = next((at for at, (member, _) in enumerate(self._members) if not member.is_alive()), 0)
        member = self._members[at][0]
        member.join(1.0)
        how = "does not answer"
        if member.exitcode is not None:
            how = f"was ended by signal {-member.exitcode}" if member.exitcode < 0 else f"exited ({member.exitcode})"
        return GeneratorLost(f"generator process {at + 1} of {len(self._members)} {how}")

    def close(self) -> None:
        for _, pipe in self._members:
            pipe.close()
        for member, _ in self._members:
            member.join(2.0)
            if member.is_alive():  # in the middle of a block, or hanging; it has nothing to save
                member.kill()
                member.join()
        self._members.clear()


def merged(parts: Sequence[WorkerMeasurement], name: str) -> Iterator[int]:
    """The times `name` of all workers."""
    for part in parts:
        yield from getattr(part, name)
