"""The settings of a load test, and everything it measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from benchmarks.load.blocks import Block, Level
from benchmarks.load.generator import CONNECTIONS, default_processes
from benchmarks.load.server import ClusterFacts, IndexStatistics
from benchmarks.options import NumberList, setting
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row


@dataclass(frozen=True)
class WarmupSettings:
    """Lengths of the warm-up and its blocks, in seconds."""

    least: float = 60.0
    """The shortest warm-up."""
    most: float = 300.0
    """The longest warm-up; it ends earlier if throughput is steady."""
    window: float = 2.0
    """The longest block."""


@dataclass
class Warmup:
    """What the warm-up measured."""

    throughput: dict[str, list[float]] = field(default_factory=dict)
    """{engine: requests a second, window after window}"""
    seconds: float = 0.0
    """How long it took, also if it was interrupted."""
    steady: bool = False
    """Whether throughput was steady at the end."""


@dataclass(frozen=True)
class LoadSettings:
    """The settings of a load test; those with a help text are options of its commands."""

    clients: tuple[int, ...] = setting((5, 10, 20, 40, 80), "Closed loop: numbers of clients.", type=NumberList(int))
    rates: tuple[float, ...] = setting((), "Open loop: numbers of requests a second.", type=NumberList(float))
    requests: int = setting(10_000, "Requests of each engine at each level.")
    rounds: int = setting(20, "Blocks of each engine at each level.")
    minutes: float | None = setting(None, "Longest time for all blocks, after the warm-up.", type=float)
    settle: float = setting(0.5, "Seconds of load before each measured window.", type=float)
    processes: int | None = setting(None, "Processes of the load generator.  [default: half the cores, at least two]")
    baseline: str = setting("bm25", "Engine to compare with.")
    seed: int = setting(0, "Seed of the order of requests and the bootstrap.")
    shortest: float = 1.0
    """Seconds of the shortest window."""
    longest: float = 60.0
    """Seconds of the longest window."""
    warmup: WarmupSettings = field(default_factory=WarmupSettings)
    """How long the load before the first block lasts."""
    ceiling: float = 2.0
    """Seconds for each engine against an endpoint that does nothing."""
    quality: bool = True
    """Whether to measure quality too."""
    quality_queries: int = 300
    """The most queries for overlap@10 and the score kept."""

    def levels(self) -> list[Level]:
        return [Level("closed", float(clients)) for clients in self.clients] + [
            Level("open", rate) for rate in self.rates
        ]

    def validate(self) -> LoadSettings:
        """Raises InputError for values that cannot work."""
        if not self.clients and not self.rates:
            raise InputError("no load is given", "give --clients or --rates")
        if any(clients < 1 for clients in self.clients) or not all(0 < rate < math.inf for rate in self.rates):
            raise InputError("numbers of clients and rates must be above 0, and finite")
        if len(set(self.levels())) < len(self.levels()):
            raise InputError("a number of clients or a rate is given twice")
        for name in ("requests", "rounds", "minutes", "shortest", "longest"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be above 0")
        if not 0 <= self.settle < math.inf:
            raise InputError("settle must be 0 or more seconds, and finite")
        if not 0 <= self.warmup.least <= self.warmup.most:
            raise InputError("the shortest warm-up must be 0 or more seconds, and not longer than the longest")
        most = CONNECTIONS * (self.processes or default_processes())
        if any(clients > most for clients in self.clients):
            raise InputError(
                f"{max(self.clients):,} clients are more than the generator has connections for: {most:,}",
                f"give more --processes, one for {CONNECTIONS} clients",
            )
        if not self.shortest <= self.longest or math.isinf(self.shortest):
            raise InputError("the shortest window must be finite, and not longer than the longest")
        return self


@dataclass
class Measurement:
    """Everything that a run measured; `result.py` makes rows and tables of it."""

    settings: LoadSettings
    """The load, and how long it was to be measured."""
    index: str
    """The index of variants that do not name another."""
    variants: dict[str, str]
    """{name: engine and options}"""
    queries: int
    """The number of different queries."""
    blocks: list[Block] = field(default_factory=list)
    """In the order of measurement, broken ones included."""
    ceilings: dict[str, float] = field(default_factory=dict)
    """{variant: the most of its requests that the generator can make a second}"""
    warmup: Warmup = field(default_factory=Warmup)
    """What the load before the first block showed."""
    quality: list[Row] = field(default_factory=list)
    """nDCG@10 and recall, if there are judgements; overlap@10 and the score kept."""
    cluster: ClusterFacts | None = None
    """None until the run has asked the cluster."""
    indexes: dict[str, IndexStatistics] = field(default_factory=dict)
    """{index: its statistics at the beginning of the run}"""
    partial: str | None = None
    """Why the run ended early; None if it is complete."""
    incidents: list[str] = field(default_factory=list)
    """Events during the run that a reader should know of."""
    changes: list[str] = field(default_factory=list)
    """Indexes whose documents changed during the run, and how."""
    notes: list[str] = field(default_factory=list)
    """Facts about indexes, engines and queries that a reader needs to judge the numbers."""
