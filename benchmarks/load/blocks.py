"""Engines in random turns within one run, so that a slow minute of the machine slows all of them alike.

A round gives every engine one block at every level (number of clients, or rate). Levels come in random order, and so do
the engines within a level, which keeps the blocks that are compared close in time. Intervals resample whole rounds
(`statistics.py`), so they include differences between rounds.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.load import histogram as hdr
from benchmarks.load.generator import Generators, Mode, WorkerMeasurement, merged
from benchmarks.load.server import ServerProbe
from opensearch_neural.errors import InputError
from opensearch_neural.files import write_text
from opensearch_neural.index.contents import Contents


@dataclass(frozen=True, order=True)
class Level:
    """A level of load: `value` clients (closed loop), or requests a second (open loop)."""

    mode: Mode
    """ "closed": each client waits for its answer; "open": requests begin at a given rate."""
    value: float
    """Clients of a closed loop, requests a second of an open one."""

    @property
    def label(self) -> str:
        if self.mode == "open":
            return f"{self.value:g}/s"
        return f"{self.value:g} client{'' if self.value == 1 else 's'}"

    @property
    def clients(self) -> int:
        return int(self.value) if self.mode == "closed" else 0

    @property
    def rate(self) -> float:
        return self.value if self.mode == "open" else 0.0


@dataclass(frozen=True)
class Turn:
    round: int
    """The number of its round; each round measures every engine at every level."""
    level: Level
    """The load to put on the cluster."""
    variant: str
    """The name of the engine with its options."""


@dataclass(frozen=True)
class Block:
    """The measurement of one turn. Times are of answered requests; see `generator.py` for their meaning."""

    round: int
    """The number of its round; intervals resample whole rounds."""
    level: Level
    """The load that was put on the cluster."""
    variant: str
    """The name of the engine with its options."""
    began: float
    """Seconds since the run began."""
    seconds: float
    """The length of the window."""
    requests: int
    """Requests that began within the window."""
    completed: int
    """Requests answered without error within the window; throughput counts these."""
    failures: dict[str, int]
    """{error: number of requests}"""
    latency: str
    """HDR histogram, as text."""
    late: str
    """HDR histogram, as text; empty for a closed loop."""
    encode: float | None
    """Mean, ms."""
    network: float | None
    """Mean of service − took, ms. OpenSearch rounds took down to whole milliseconds, so up to 1 ms of it is counted here.
    So is the wait of an answer while its worker encodes another query."""
    took: float | None
    """Mean, ms."""
    server_cpu: float | None
    """Processor seconds of all nodes within the window; None if unknown."""
    gc_ms: float | None
    """Milliseconds of the nodes' garbage collections, the window's share of those during the load; None if unknown."""
    core_share: float
    """Processor time of the busiest generator process, as a share of one core."""
    broken: str | None = None
    """Why the block is left out; None: it counts. Its failures are still listed."""
    example: str = ""
    """The message of one failure."""
    wait: float | None = None
    """Mean time from when a request was due to when its worker began it, ms; None also in blocks of earlier versions."""
    others: float | None = None
    """Processor time of other processes than nodes and generator within the window, and what other virtual machines took,
    as a share of this machine's cores; None if unknown, as on a machine without /proc or without the nodes."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


def round_of(number: int, levels: Sequence[Level], variants: Sequence[str], seed: int) -> list[Turn]:
    """The turns of one round, in random order; the same for the same seed and number."""
    random_ = random.Random(f"{seed}/{number}")
    turns = []
    for level in random_.sample(list(levels), len(levels)):
        turns += [Turn(number, level, variant) for variant in random_.sample(list(variants), len(variants))]
    return turns


def run_block(
    generators: Generators, probe: ServerProbe, turn: Turn, *, settle: float, length: float, seed: int, run_began: float
) -> Block:
    """Measure one turn: `settle` seconds of load that is not measured, then a window of `length` seconds.

    In a round, all engines get the same queries in the same order. Raises GeneratorLost; the block is lost then.
    """
    cpu: list[float | None] = []
    busy: list[float | None] = []

    def at_edges() -> None:
        busy.append(probe.busy_seconds())
        cpu.append(probe.cpu_seconds())

    gc_before, spanned = probe.gc_ms(), -time.monotonic()
    began = time.monotonic() - run_began
    parts = generators.run(
        turn.variant,
        turn.level.mode,
        clients=turn.level.clients,
        rate=turn.level.rate,
        settle=settle,
        length=length,
        seed=seed + turn.round,
        at_edges=at_edges,
    )
    gc_after = probe.gc_ms()
    share = min(1.0, length / max(1e-9, spanned + time.monotonic()))
    return block_of(
        turn,
        length,
        parts,
        began=began,
        server_cpu=_within(cpu),
        busy=_within(busy),
        gc_ms=share * (gc_after - gc_before) if gc_before is not None and gc_after is not None else None,
    )


def _within(edges: Sequence[float | None]) -> float | None:
    """How much a time grew from one edge of the window to the other; None if it is not known at both."""
    return edges[1] - edges[0] if len(edges) == 2 and edges[0] is not None and edges[1] is not None else None


def block_of(
    turn: Turn,
    length: float,
    parts: Sequence[WorkerMeasurement],
    *,
    began: float = 0.0,
    server_cpu: float | None = None,
    busy: float | None = None,
    gc_ms: float | None = None,
) -> Block:
    """The block of what the workers measured in a window of `length` seconds. busy: processor seconds of all processes of
    this machine, on which the nodes run too; None if unknown"""
    failures = sum((part.failures for part in parts), Counter[str]())
    answered = sum(len(part.latency) for part in parts)
    gave_up = any(part.gave_up for part in parts)
    others = None
    if busy is not None and server_cpu is not None:
        own = server_cpu + sum(part.cpu_ns for part in parts) / 1e9
        others = max(0.0, busy - own) / (length * (os.cpu_count() or 1))
    return Block(
        round=turn.round,
        level=turn.level,
        variant=turn.variant,
        began=began,
        seconds=length,
        requests=answered + sum(failures.values()),
        completed=sum(part.completed for part in parts),
        failures=dict(failures),
        latency=_histogram(merged(parts, "latency")),
        late=_histogram(merged(parts, "late")) if turn.level.mode == "open" else "",
        wait=_mean_ms(merged(parts, "late"), answered),
        encode=_mean_ms(merged(parts, "encode"), answered),
        network=_mean_ms(_network(parts), answered),
        took=_mean_ms(merged(parts, "took"), answered),
        server_cpu=server_cpu,
        gc_ms=gc_ms,
        core_share=max(part.cpu_ns for part in parts) / (length * 1e9),
        broken="no connection to the cluster for some seconds" if gave_up else None,
        example=next((part.example for part in parts if part.example), ""),
        others=others,
    )


def _histogram(times: Iterable[int]) -> str:
    return hdr.encode(hdr.histogram(times))


def _mean_ms(microseconds: Iterable[int], count: int) -> float | None:
    return sum(microseconds) / count / 1000 if count else None


def _network(parts: Sequence[WorkerMeasurement]) -> Iterable[int]:
    for part in parts:
        yield from (service - took for service, took in zip(part.service, part.took, strict=True))


@dataclass
class Pace:
    """Chooses the length of each engine's windows from its last speed, so that it gets its requests."""

    requests: int
    """Requests wanted of each engine at each level, over all rounds."""
    rounds: int
    """Rounds over which these requests are spread."""
    shortest: float
    """Seconds of the shortest window."""
    longest: float
    """Seconds of the longest window."""
    speed: dict[tuple[Level, str], float] = field(default_factory=dict)
    """{(level, engine): its last speed, in requests a second}"""

    def learn(self, block: Block) -> None:
        if block.completed:
            self.speed[block.level, block.variant] = block.completed / block.seconds

    def length(self, turn: Turn) -> float:
        """Seconds of the window."""
        speed = self.speed.get((turn.level, turn.variant)) or self._elsewhere(turn)
        if not speed:
            return self.shortest
        # 5% more, so that the last round does not miss the target by a few requests.
        return min(self.longest, max(self.shortest, 1.05 * self.requests / self.rounds / speed))

    def _elsewhere(self, turn: Turn) -> float | None:
        """The engine's speed at the nearest level; of two such levels the slower: too long is better than too short."""
        if turn.level.mode == "open":
            return turn.level.value
        known = [
            (abs(math.log(level.value / turn.level.value)), speed)
            for (level, variant), speed in self.speed.items()
            if variant == turn.variant and level.mode == "closed"
        ]
        return min(known)[1] if known else None


FILE_NAME = "blocks.jsonl"
FORMAT = 2
"""1: a latency of a closed loop left out the wait while the worker encoded other clients' queries."""


@dataclass
class BlockLog:
    """The blocks of one run on disk, in the order of measurement: a crash loses no finished block, and the run can continue.

    `blocks.jsonl`: the first line identifies the run, then each line is a block. A run with the same identity continues;
    of an interrupted round it keeps the levels at which every engine had its turn. Another run is refused.
    """

    path: Path
    """The file `blocks.jsonl`."""
    blocks: list[Block]
    """All blocks in the file, with those of an interrupted run that this one continues."""
    contents: dict[str, Contents | None]
    """{index: what it held before the first of the blocks}"""

    @classmethod
    def open(
        cls,
        folder: Path,
        identity: dict[str, Any],
        *,
        engines: int,
        restart: bool = False,
        contents: Mapping[str, Contents | None] = MappingProxyType({}),
    ) -> BlockLog:
        """The run's log: continues an existing one of the same run, or begins a new one (always if `restart`).

        contents: {index: what it holds now}

        Raises InputError if the folder holds another run.
        """
        path = Path(folder) / FILE_NAME
        blocks: list[Block] = []
        earlier: dict[str, Contents | None] = {}
        if path.exists() and not restart:
            known, blocks, earlier = read_blocks(path)
            if known != identity:
                differs = sorted(key for key in {*known, *identity} if known.get(key) != identity.get(key))
                raise InputError(
                    f"{path} holds the blocks of another run (differs in {', '.join(differs)})",
                    f"give another --output or --restart, or remove {folder} to begin anew",
                )
            blocks = whole_levels(blocks, engines)
        at_first = dict(contents)
        if blocks:
            at_first |= {index: then for index, then in earlier.items() if index in at_first and then is not None}
        lines = [{"format": FORMAT, "identity": identity, "contents": at_first}, *map(asdict, blocks)]
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        return cls(path, blocks, at_first)

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(block)) + "\n")


def read_blocks(path: Path) -> tuple[dict[str, Any], list[Block], dict[str, Contents | None]]:
    """(identity, blocks, contents). A last line that a crash cut off is left out, and earlier versions noted no contents.
    Raises InputError for other files."""
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        head = json.loads(lines[0])
        identity = head["identity"]
        contents = {
            index: None if then is None else _contents(then) for index, then in head.get("contents", {}).items()
        }
        if head["format"] != FORMAT:
            raise InputError(
                f"{path} has format {head['format']}, but this version reads format {FORMAT}",
                "give another --output or --restart",
            )
    except (ValueError, KeyError, IndexError, TypeError):
        raise InputError(f"{path}, line 1: not the journal of a load run") from None
    blocks = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            content = json.loads(line)
            blocks.append(Block(**{**content, "level": Level(**content["level"])}))
        except (ValueError, TypeError, KeyError):
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: not a block of a load run") from None
    return identity, blocks, contents


def _contents(read: dict[str, list[Any]]) -> Contents:
    """Contents as they were before JSON made lists of them."""
    return {index: (documents, last) for index, (documents, last) in read.items()}


def whole_levels(blocks: list[Block], engines: int) -> list[Block]:
    """The blocks of levels at which all `engines` of a round were measured; broken blocks are left out."""
    fine = [block for block in blocks if block.broken is None]
    sizes = Counter((block.round, block.level) for block in fine)
    return [block for block in fine if sizes[block.round, block.level] >= engines]
