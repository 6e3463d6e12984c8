"""One engine at one level: its numbers with intervals, its ratios to the baseline, and whether they may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.load import histogram as hdr
from benchmarks.load import statistics as stats
from benchmarks.load.blocks import Block, Level
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import Estimate, Floats, Sample
from benchmarks.load.strain import Strain, strain_of

QUANTILES = {"P50 ms": 0.5, "P90 ms": 0.9, "P99 ms": 0.99, "P99.9 ms": 0.999}
THROUGHPUT, SERVER_CPU = "requests/s", "server CPU ms"
MEASURES = (*QUANTILES, THROUGHPUT, SERVER_CPU)

Levels = dict[Level, dict[str, "Cell"]]


@dataclass
class Cell:
    """The blocks of one engine at one level, broken ones left out.

    refused: why no time and no throughput of it may be shown; baseline: the cell that ratios are taken to
    """

    level: Level
    variant: str
    blocks: list[Block] = field(repr=False)
    strain: Strain
    refused: str | None
    baseline: Cell | None = field(repr=False, default=None)
    seed: int = 0
    _drawn: dict[tuple[str, tuple[int, ...]], Floats] = field(repr=False, default_factory=dict)

    @cached_property
    def sample(self) -> Sample:
        return Sample.of(self.blocks)

    @property
    def requests(self) -> int:
        return sum(block.requests for block in self.blocks)

    def requests_in(self, rounds: Sequence[int]) -> int:
        return sum(block.requests for block in self.blocks if block.round in rounds)

    @property
    def failures(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for block in self.blocks:
            for what, count in block.failures.items():
                found[what] = found.get(what, 0) + count
        return dict(sorted(found.items()))

    def may_show(self, measure: str) -> bool:
        """Whether enough requests stand behind the measure, and nothing refuses it."""
        return self.refused is None and (measure not in QUANTILES or hdr.may_show(QUANTILES[measure], self.requests))

    def drawn(self, measure: str, rounds: Sequence[int] | None = None) -> Floats:
        """The measure over all rounds (or those named) and its bootstrap draws: (1 + resamples,).

        Cells of one run that have the same rounds draw the same of them.
        """
        chosen = tuple(int(number) for number in (self.sample.rounds if rounds is None else rounds))
        if (measure, chosen) not in self._drawn:
            sample = self.sample if rounds is None else self.sample.take(np.array(chosen))
            weights = stats.resampled(len(chosen), self.seed)
            if measure in QUANTILES:
                # All at once, since most of the work is the same.
                found = stats.latencies(sample, weights, list(QUANTILES.values()))
                self._drawn.update({(name, chosen): found[at] for at, name in enumerate(QUANTILES)})
            else:
                statistic = stats.throughput if measure == THROUGHPUT else stats.server_cpu
                self._drawn[measure, chosen] = statistic(sample, weights)
        return self._drawn[measure, chosen]

    def estimate(self, measure: str) -> Estimate | None:
        """One of `MEASURES`; infinite where failures reach a percentile; None where it may not be shown, or is not known."""
        if not self.may_show(measure) or not self.blocks:
            return None
        return stats.estimated(self.drawn(measure), len(self.sample.rounds), self.requests)

    def ratio(self, measure: str) -> Estimate | None:
        """The measure as a ratio to the baseline's over the rounds that both have.

        None where either may not be shown, and where there is no interval: a ratio without one proves nothing.
        """
        base = self.baseline
        if base is None or base is self or not self.may_show(measure) or not base.may_show(measure):
            return None
        both = shared_rounds(self, base)
        requests = min(self.requests_in(both), base.requests_in(both))
        if not both or (measure in QUANTILES and not hdr.may_show(QUANTILES[measure], requests)):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = self.drawn(measure, both) / base.drawn(measure, both)
        found = stats.estimated(drawn, len(both), requests)
        return None if found is None or found.low is None else found

    def mean_of(self, part: str) -> float | None:
        """Mean of "encode", "network" or "took" in ms, over all answered requests."""
        parts = [
            (value, block.requests - block.failed)
            for block in self.blocks
            if (value := getattr(block, part)) is not None
        ]
        answered = sum(count for _, count in parts)
        return sum(value * count for value, count in parts) / answered if answered else None

    @property
    def core_share(self) -> float:
        """Of one core: what the busiest generator process needed, mean over blocks."""
        return sum(block.core_share * block.seconds for block in self.blocks) / max(1e-9, self._seconds)

    @property
    def gc_share(self) -> float | None:
        """Of the time, what the cluster spent in garbage collection around these blocks."""
        if any(block.gc_ms is None for block in self.blocks):
            return None
        return sum(block.gc_ms or 0.0 for block in self.blocks) / max(1e-9, 1000 * self._seconds)

    @property
    def _seconds(self) -> float:
        return sum(block.seconds for block in self.blocks)


def shared_rounds(one: Cell, other: Cell) -> list[int]:
    """The rounds that both have."""
    return np.intersect1d(one.sample.rounds, other.sample.rounds).tolist()


def cells(found: Measurement) -> Levels:
    """{level: {engine: its cell}}, in the order of the run's settings; engines without a block are left out."""
    by: dict[tuple[Level, str], list[Block]] = {}
    for block in found.blocks:
        if block.broken is None and block.round >= 0:
            by.setdefault((block.level, block.variant), []).append(block)
    result: Levels = {}
    for level in found.settings.levels():
        row: dict[str, Cell] = {}
        baseline = _cell(found, level, found.settings.baseline, by.get((level, found.settings.baseline), []), None)
        for variant in found.variants:
            blocks = by.get((level, variant), [])
            if blocks:
                own = variant == found.settings.baseline
                row[variant] = baseline if own else _cell(found, level, variant, blocks, baseline)
        if row:
            result[level] = row
    return result


def _cell(found: Measurement, level: Level, variant: str, blocks: list[Block], baseline: Cell | None) -> Cell:
    strain = strain_of(level, blocks, found.ceilings.get(variant))
    if baseline is not None and not baseline.blocks:
        baseline = None
    return Cell(level, variant, blocks, strain, strain.refusal(), baseline, found.settings.seed)
