"""Numbers with their intervals: what a run's rounds say about an engine, and about its ratio to another.

Rounds are resampled whole (a block bootstrap): requests of one block share the machine's mood, so treating them as
independent would make intervals far too narrow. Both sides of a ratio take the same rounds, because their blocks were
neighbours in time. With the few rounds of a run a plain percentile interval is too narrow; its ends are widened as
Hesterberg advises ("What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block
from opensearch_neural.errors import MissingExtra

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95
FEWEST_ROUNDS = 3  # for an interval
_BATCH_VALUES = 4_000_000


@dataclass(frozen=True)
class Sample:
    """One engine at one level, a row a round.

    values: (v,) the latencies that occur, in ms, ascending; counted: (rounds, v) answered requests of each
    failed, completed, seconds, server_cpu: (rounds,)
    """

    rounds: npt.NDArray[np.int64]
    values: Floats
    counted: Floats
    failed: Floats
    completed: Floats
    seconds: Floats
    server_cpu: Floats | None

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Sample:
        """Of all blocks of one engine at one level; broken ones are left out."""
        fine = sorted((block for block in blocks if block.broken is None), key=lambda block: block.round)
        every = [hdr.counts(hdr.decode(block.latency)) for block in fine]
        counted = np.stack(every) if every else np.zeros((0, len(hdr.values())))
        occurs = counted.any(axis=0)
        cpu = [block.server_cpu for block in fine]
        return cls(
            rounds=np.array([block.round for block in fine], dtype=np.int64),
            values=hdr.values()[occurs],
            counted=counted[:, occurs],
            failed=np.array([block.failed for block in fine], dtype=np.float64),
            completed=np.array([block.completed for block in fine], dtype=np.float64),
            seconds=np.array([block.seconds for block in fine], dtype=np.float64),
            server_cpu=None if None in cpu or not cpu else np.array(cpu, dtype=np.float64),
        )

    @property
    def requests(self) -> int:
        return int(self.counted.sum() + self.failed.sum())

    def take(self, rounds: npt.NDArray[np.int64]) -> Sample:
        """Only these rounds."""
        kept = np.isin(self.rounds, rounds)
        return Sample(
            self.rounds[kept],
            self.values,
            self.counted[kept],
            self.failed[kept],
            self.completed[kept],
            self.seconds[kept],
            None if self.server_cpu is None else self.server_cpu[kept],
        )


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; no interval from fewer than three rounds, or where failures reach the value."""

    value: float
    low: float | None
    high: float | None
    n: int


def latencies(sample: Sample, weights: Floats, quantiles: Sequence[float]) -> Floats:
    """Quantiles of latency in ms, failed requests counting as slower than all others.

    weights: (n, rounds) how often each round is taken. Returns (quantiles, n).
    """
    found = np.full((len(quantiles), len(weights)), np.inf)
    if not len(sample.values):
        return found
    step = max(1, _BATCH_VALUES // len(sample.values))
    for start in range(0, len(weights), step):
        part = weights[start : start + step]
        cumulated = np.cumsum(part @ sample.counted, axis=1)
        total = cumulated[:, -1] + part @ sample.failed
        for at, q in enumerate(quantiles):
            # A hair less, so that rounding adds no sample.
            reached = cumulated >= (q * total * (1 - 1e-12))[:, None]
            first = sample.values[np.argmax(reached, axis=1)]
            found[at, start : start + step] = np.where(reached[:, -1], first, np.inf)
    return found


def mean_latency(sample: Sample, weights: Floats) -> Floats:
    """Mean latency of answered requests in ms."""
    counted = weights @ sample.counted
    with np.errstate(invalid="ignore", divide="ignore"):
        return (counted @ sample.values) / counted.sum(axis=1)


def throughput(sample: Sample, weights: Floats) -> Floats:
    """Requests answered well, a second."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ sample.completed) / (weights @ sample.seconds)


def server_cpu(sample: Sample, weights: Floats) -> Floats:
    """Milliseconds of the nodes' processor time for each answered request; not a number where it is not known."""
    if sample.server_cpu is None:
        return np.full(len(weights), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 1000 * (weights @ sample.server_cpu) / (weights @ sample.completed)


def resampled(rounds: int, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    """(1 + resamples, rounds): how often each round is taken: once each, then as drawn with replacement."""
    drawn = np.random.default_rng(seed).multinomial(rounds, np.full(rounds, 1 / rounds), size=resamples)
    return np.concatenate([np.ones((1, rounds)), drawn])


def estimated(drawn: Floats, rounds: int, n: int) -> Estimate | None:
    """From a value (the first element) and its bootstrap draws (the rest); None where the value is not a number."""
    if not len(drawn) or math.isnan(drawn[0]):
        return None
    low, high = interval(drawn[1:], rounds) or (None, None)
    return Estimate(float(drawn[0]), low, high, n)


def interval(drawn: Floats, rounds: int, level: float = LEVEL) -> tuple[float, float] | None:
    """The widened percentile interval of bootstrap values that were drawn from so many rounds."""
    if rounds < FEWEST_ROUNDS or not np.isfinite(drawn).all():
        return None
    stats = _scipy_stats()
    widened = stats.norm.cdf(math.sqrt(rounds / (rounds - 1)) * stats.t.ppf((1 - level) / 2, rounds - 1))
    low, high = np.quantile(drawn, [widened, 1 - widened])
    return float(low), float(high)


@dataclass(frozen=True)
class Change:
    """How a number of one run differs from that of another, independent run: their ratio, and how sure that is.

    p: of "there is no change"; low, high: 95% interval of the ratio
    """

    ratio: float
    low: float
    high: float
    p: float


def change(before: Floats, after: Floats, rounds_before: int, rounds_after: int) -> Change | None:
    """From the values themselves (element 0) and their bootstrap draws (the rest), as `resampled` orders them.

    The logarithm of a ratio is close to normal; its variance is the sum of the two runs', each widened for its few
    rounds. None where a value is missing, infinite or zero, or there are too few rounds.
    """
    if min(rounds_before, rounds_after) < FEWEST_ROUNDS:
        return None
    both = np.concatenate([before, after])
    if not np.isfinite(both).all() or (both <= 0).any():
        return None
    stats = _scipy_stats()
    variances = [
        float(np.var(np.log(draws[1:]), ddof=1)) * rounds / (rounds - 1)
        for draws, rounds in ((before, rounds_before), (after, rounds_after))
    ]
    error = math.sqrt(sum(variances))
    difference = float(np.log(after[0]) - np.log(before[0]))
    if error == 0:
        return Change(math.exp(difference), math.exp(difference), math.exp(difference), float(difference == 0))
    # Welch and Satterthwaite's degrees of freedom, since the two runs need not be equally steady.
    freedom = sum(variances) ** 2 / sum(
        variance**2 / (rounds - 1) for variance, rounds in zip(variances, (rounds_before, rounds_after), strict=True)
    )
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom))
    return Change(math.exp(difference), math.exp(difference - reach), math.exp(difference + reach), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for there being several (Holm, 1979), in the same order."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = highest
    return corrected


def slope(x: Sequence[float], y: Floats) -> Floats:
    """Least-squares slope of log y over log x: the exponent of growth. x: (n,), y: (…, n) → (…,)."""
    log_x = np.log(np.asarray(x, dtype=np.float64))
    log_x -= log_x.mean()
    return np.log(y) @ log_x / (log_x @ log_x)


def _scipy_stats() -> Any:
    try:
        import scipy.stats
    except ModuleNotFoundError as error:
        raise MissingExtra("the load benchmark", "bench") from error
    return scipy.stats
