"""Workloads without a cluster, and runs whose numbers are known, for the tests of the load benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block, Level, Turn, block_of
from benchmarks.load.generator import Generators
from benchmarks.load.measurement import LoadSettings, Measurement
from benchmarks.load.variants import Variant
from benchmarks.load.workload import LoadTarget, SearchedIndex, Workload
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.engines import Engines
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.queries import Body

QUERIES = 100


@dataclass(frozen=True)
class SameBody:
    """One body for all queries but those with a number from `known` on, which cannot be encoded."""

    known: int = QUERIES

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        bodies: list[Body] = [{"query": {"match_all": {}}}] * self.known
        return lambda text: bodies[int(text)]


def workload_at(
    url: str, *, names: tuple[str, ...] = ("bm25",), timeout: float = 30.0, known: int = QUERIES
) -> Workload:
    """Requests that need neither an index nor a model. known: the number of queries that can be encoded"""
    target = LoadTarget(ConnectionSettings(urls=(url,), timeout=timeout))
    texts = tuple(map(str, range(QUERIES)))
    variants = tuple(Variant(name, "bm25", bodies=SameBody(known)) for name in names)
    return Workload(target, texts, variants, {"an-index": SearchedIndex(IndexMeta(), False)}, "an-index")


def measured(workload: Workload, level: Level, length: float, *, settle: float = 0.3, processes: int = 2) -> Block:
    """A block of bm25 that the generator really measured."""
    with Generators(workload, processes) as generators:
        parts = generators.run(
            "bm25", level.mode, clients=level.clients, rate=level.rate, settle=settle, length=length, seed=1
        )
    return block_of(Turn(0, level, "bm25"), length, parts)


TEN_CLIENTS = Level("closed", 10)


@cache
def constant(ms: float) -> str:
    """A histogram of nothing else."""
    return hdr.encode(hdr.histogram([int(ms * 1000)] * 100))


def block(
    round_: int,
    variant: str,
    latencies_ms: np.ndarray,
    *,
    level: Level = TEN_CLIENTS,
    seconds: float = 10.0,
    failures: dict[str, int] | None = None,
    late_ms: float = 0.0,
    core_share: float = 0.1,
    server_cpu: float | None = None,
    broken: str | None = None,
) -> Block:
    """A block with these latencies; everything else of it is plain."""
    return Block(
        round=round_,
        level=level,
        variant=variant,
        began=float(round_),
        seconds=seconds,
        requests=len(latencies_ms) + sum((failures or {}).values()),
        completed=len(latencies_ms),
        failures=failures or {},
        latency=hdr.encode(hdr.histogram((latencies_ms * 1000).astype(int))),
        late=constant(late_ms) if level.mode == "open" else "",
        encode=0.1,
        network=1.0,
        took=2.0,
        server_cpu=server_cpu,
        gc_ms=0.0,
        core_share=core_share,
        broken=broken,
    )


def run_of(
    blocks: list[Block],
    *,
    variants: tuple[str, ...] = ("bm25", "fast"),
    ceiling: float = 1e6,
    settings: LoadSettings | None = None,
) -> Measurement:
    """A finished run that holds these blocks."""
    levels = {block.level for block in blocks}
    return Measurement(
        settings=settings
        or LoadSettings(
            clients=tuple(sorted({level.clients for level in levels if level.mode == "closed"})),
            rates=tuple(sorted({level.rate for level in levels if level.mode == "open"})),
        ),
        index="docs",
        variants={name: name for name in variants},
        queries=200,
        blocks=blocks,
        ceilings=dict.fromkeys(variants, ceiling),
    )


def simulated(
    seed: int,
    *,
    rounds: int = 20,
    requests: int = 600,
    factor: float = 1.0,
    machine: float = 1.0,
    spread: Callable[[np.random.Generator], float] = lambda random: random.lognormal(0, 0.1),
) -> Measurement:
    """bm25 with log-normal latencies, and `fast`, `factor` times as slow. The machine is `machine` times as slow as the
    other day, and each round has a mood of its own, which both engines share."""
    random = np.random.default_rng(seed)
    blocks = []
    for number in range(rounds):
        mood = machine * spread(random)
        for name, times in (("bm25", 1.0), ("fast", factor)):
            own = mood * times * random.lognormal(0, 0.02)
            latencies = 10 * own * random.lognormal(0, 0.4, requests)
            seconds = float(latencies.sum() / 1000 / 10)  # ten clients
            blocks.append(block(number, name, latencies, seconds=seconds, server_cpu=requests * 0.001 * times))
    return run_of(blocks)
