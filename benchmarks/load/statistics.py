"""Estimates with intervals from a run's rounds: an engine's values, its ratios to another engine, and which may be shown.

Rounds are resampled whole (a block bootstrap): requests of one block share the machine's state at that time, so treating
them as independent would make intervals far too narrow. Both sides of a ratio take the same rounds, because their blocks
were neighbours in time. With the few rounds of a run a plain percentile interval is too narrow, so its ends are widened
(`turns.widened_tail`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block, Level
from benchmarks.load.ceiling import Strain, strain_of
from benchmarks.load.measurement import Measurement
from benchmarks.turns import widened_tail

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
FEWEST_ROUNDS = 3  # for an interval
_BATCH_VALUES = 4_000_000

QUANTILES = {"P50 ms": 0.5, "P90 ms": 0.9, "P99 ms": 0.99, "P99.9 ms": 0.999}
THROUGHPUT, SERVER_CPU = "requests/s", "server CPU ms"
MEASURES = (*QUANTILES, THROUGHPUT, SERVER_CPU)


@dataclass(frozen=True)
class Sample:
    """One engine at one level, a value for each round: (rounds,), unless a field says otherwise."""

    rounds: npt.NDArray[np.int64]
    """The numbers of the rounds."""
    values: Floats
    """(v,): the latencies that occur, in ms, ascending."""
    counted: Floats
    """(rounds, v): answered requests of each latency."""
    failed: Floats
    """Failed requests."""
    completed: Floats
    """Requests answered without error within the window."""
    seconds: Floats
    """Length of the window."""
    server_cpu: Floats
    """Processor seconds of all nodes; NaN if unknown."""

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Sample:
        """The sample of all blocks of one engine at one level."""
        ordered = sorted(blocks, key=lambda block: block.round)
        counted = np.stack([hdr.counts(hdr.decode(block.latency)) for block in ordered])
        occurs = counted.any(axis=0)
        return cls(
            rounds=np.array([block.round for block in ordered], dtype=np.int64),
            values=hdr.values()[occurs],
            counted=counted[:, occurs],
            failed=np.array([block.failed for block in ordered], dtype=np.float64),
            completed=np.array([block.completed for block in ordered], dtype=np.float64),
            seconds=np.array([block.seconds for block in ordered], dtype=np.float64),
            server_cpu=np.array([block.server_cpu for block in ordered], dtype=np.float64),
        )


class Estimate(NamedTuple):
    """A value with its 95% interval; no interval from fewer than three rounds, or if failures reach the value."""

    value: float
    """The value over all rounds; infinite if failures reach it."""
    low: float | None
    """Lower end of the interval; None if there is none."""
    high: float | None
    """Upper end of the interval; None if there is none."""
    n: int
    """Requests."""


def latencies(sample: Sample, weights: Floats, quantiles: Sequence[float]) -> Floats:
    """Quantiles of latency in ms, failed requests counting as slower than all others.

    weights: (n, rounds) how often each round is taken. Returns (quantiles, n).
    """
    latency = np.full((len(quantiles), len(weights)), np.inf)
    if not len(sample.values):
        return latency
    step = max(1, _BATCH_VALUES // len(sample.values))
    for start in range(0, len(weights), step):
        part = weights[start : start + step]
        counted, failed = part @ sample.counted, part @ sample.failed
        for at, q in enumerate(quantiles):
            latency[at, start : start + step] = hdr.quantile(counted, failed, q, sample.values)
    return latency


def throughput(sample: Sample, weights: Floats) -> Floats:
    """Requests answered without error, a second: (n,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ sample.completed) / (weights @ sample.seconds)


def server_cpu(sample: Sample, weights: Floats) -> Floats:
    """Milliseconds of the nodes' processor time for each answered request: (n,); NaN if unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return 1000 * (weights @ sample.server_cpu) / (weights @ sample.completed)


def resampled(rounds: int, seed: int = 0) -> Floats:
    """(1 + resamples, rounds): how often each round is taken; in the first row once each, then as drawn with replacement."""
    drawn = np.random.default_rng(seed).multinomial(rounds, np.full(rounds, 1 / rounds), size=RESAMPLES)
    return np.concatenate([np.ones((1, rounds)), drawn])


def estimated(drawn: Floats, rounds: int, n: int) -> Estimate | None:
    """From a value (the first element) and its bootstrap draws (the rest); None if the value is not a number."""
    if math.isnan(drawn[0]):
        return None
    low, high = interval(drawn[1:], rounds) or (None, None)
    return Estimate(float(drawn[0]), low, high, n)


def interval(drawn: Floats, rounds: int) -> tuple[float, float] | None:
    """The percentile interval of bootstrap values, widened by the number of rounds that they were drawn from."""
    if rounds < FEWEST_ROUNDS or not np.isfinite(drawn).all():
        return None
    tail = widened_tail(rounds)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


@dataclass
class Cell:
    """The blocks of one engine at one level, one or more, broken ones left out."""

    level: Level
    """The load of all its blocks."""
    variant: str
    """The name of the engine with its options."""
    blocks: list[Block] = field(repr=False)
    """Those that count, at most one for each round."""
    strain: Strain
    """How near these blocks brought the generator to its limits."""
    baseline: Cell | None = field(repr=False, default=None)
    """The cell that ratios are taken to; None if the baseline has no blocks at this level."""
    seed: int = 0
    """Seed of the bootstrap."""
    _drawn: dict[tuple[str, tuple[int, ...]], Floats] = field(repr=False, default_factory=dict)
    """{(measure, rounds): the measure and its bootstrap draws}"""

    @cached_property
    def sample(self) -> Sample:
        return Sample.of(self.blocks)

    @property
    def refused(self) -> str | None:
        """Why its times and throughput may not be shown; None if they may."""
        return self.strain.refusal()

    @property
    def requests(self) -> int:
        return sum(block.requests for block in self.blocks)

    def requests_in(self, rounds: Sequence[int]) -> int:
        return sum(block.requests for block in self.blocks if block.round in rounds)

    @property
    def failures(self) -> dict[str, int]:
        return dict(sorted(sum((Counter(block.failures) for block in self.blocks), Counter()).items()))

    def may_show(self, measure: str) -> bool:
        """Whether there are enough requests for the measure, and the cell is not refused."""
        return self.refused is None and self.requests >= needed(measure)

    def drawn(self, measure: str, rounds: Sequence[int] | None = None) -> Floats:
        """The measure over `rounds` (None: all), and its bootstrap draws: (1 + resamples,).

        Cells of one run with the same rounds draw the same ones.
        """
        sample = self.sample
        chosen = tuple(sample.rounds.tolist() if rounds is None else rounds)
        if (measure, chosen) not in self._drawn:
            weights = np.zeros((1 + RESAMPLES, len(sample.rounds)))
            weights[:, np.isin(sample.rounds, chosen)] = resampled(len(chosen), self.seed)
            if measure in QUANTILES:
                # All quantiles at once: counting the draws is most of the work.
                quantiles = latencies(sample, weights, list(QUANTILES.values()))
                self._drawn.update({(name, chosen): quantiles[at] for at, name in enumerate(QUANTILES)})
            else:
                statistic = throughput if measure == THROUGHPUT else server_cpu
                self._drawn[measure, chosen] = statistic(sample, weights)
        return self._drawn[measure, chosen]

    def estimate(self, measure: str) -> Estimate | None:
        """The estimate of one of MEASURES: infinite if failures reach a percentile; None if not to be shown, or unknown."""
        if not self.may_show(measure):
            return None
        return estimated(self.drawn(measure), len(self.sample.rounds), self.requests)

    def ratio(self, measure: str) -> Estimate | None:
        """The measure as a ratio to the baseline's, over the rounds that both have.

        None if either may not be shown, or if there is no interval: a ratio without one proves nothing. A baseline whose
        failures reach a percentile has none, so that nothing is infinitely faster than it.
        """
        base = self.baseline
        if base is None or base is self or not self.may_show(measure) or not base.may_show(measure):
            return None
        shared = np.intersect1d(self.sample.rounds, base.sample.rounds).tolist()
        requests = min(self.requests_in(shared), base.requests_in(shared))
        if not shared or requests < needed(measure):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            of_base = base.drawn(measure, shared)
            drawn = self.drawn(measure, shared) / np.where(np.isfinite(of_base), of_base, np.nan)
        ratio = estimated(drawn, len(shared), requests)
        return None if ratio is None or ratio.low is None else ratio

    def mean_of(self, part: str) -> float | None:
        """Mean of "wait", "encode", "network" or "took" in ms, over all answered requests."""
        parts = [
            (value, block.requests - block.failed)
            for block in self.blocks
            if (value := getattr(block, part)) is not None
        ]
        answered = sum(count for _, count in parts)
        return sum(value * count for value, count in parts) / answered if answered else None

    @property
    def gc_share(self) -> float | None:
        """The share of the time that the cluster spent in garbage collection around these blocks."""
        if any(block.gc_ms is None for block in self.blocks):
            return None
        return sum(block.gc_ms or 0.0 for block in self.blocks) / sum(1000 * block.seconds for block in self.blocks)


def needed(measure: str) -> int:
    """The fewest requests with which the measure may be shown."""
    return hdr.needed(QUANTILES[measure]) if measure in QUANTILES else 0


def cells(measurement: Measurement) -> Levels:
    """{level: {engine: its cell}}, in the order of the run's settings; engines without a block are left out."""
    settings = measurement.settings
    by: dict[tuple[Level, str], list[Block]] = {}
    for block in measurement.blocks:
        if block.broken is None:
            by.setdefault((block.level, block.variant), []).append(block)
    result: Levels = {}
    for level in settings.levels():
        row = {
            name: Cell(
                level, name, blocks, strain_of(level, blocks, measurement.ceilings.get(name)), seed=settings.seed
            )
            for name in measurement.variants
            if (blocks := by.get((level, name)))
        }
        for cell in row.values():
            cell.baseline = row.get(settings.baseline)
        if row:
            result[level] = row
    return result


Levels = dict[Level, dict[str, Cell]]
