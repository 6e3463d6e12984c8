"""Intervals of a mean, and paired comparisons of two engines.

Comparisons are paired by query: a percentile bootstrap interval of the mean difference (Sakai, SIGIR 2006) and a
randomization test that flips the sign of each query's difference (Smucker, Allan & Carterette, CIKM 2007). If many
queries ask for the same article, they are not independent: with `clusters`, whole clusters are resampled and flipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra

RESAMPLES = 10_000
FEW = 20
"""From fewer queries, percentile intervals are clearly too narrow: of normal differences, those of 10 queries cover the mean
in 89% of all cases and those of 5 in 83%, instead of 95%."""
MANY = 2_000
"""From this many queries on, resampling counts equal values instead of drawing queries one by one."""
# Resampled values held at once: 32 MB of float64.
_BATCH_VALUES = 4_000_000


@dataclass(frozen=True)
class Comparison:
    """A paired difference of means, with its 95% interval."""

    difference: float
    """The mean over queries of engine minus baseline."""
    low: float | None
    """Lower end of the interval; None for a single query, which tells nothing about the spread."""
    high: float | None
    """Upper end of the interval; None likewise."""
    p: float
    """p-value of the two-sided randomization test of no difference."""


def interval(
    values: Iterable[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    clusters: Iterable[str] | None = None,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of `values` over resampled queries; None for fewer than two values.

    clusters: the cluster of each value. Whole clusters are then resampled; None is returned for fewer than two clusters.
    """
    array = np.fromiter(values, dtype=np.float64)
    numbers = None if clusters is None else _numbered(clusters)
    if len(array if numbers is None else np.unique(numbers)) < 2:
        return None
    if numbers is not None or _repeats(array):
        if numbers is not None:
            totals, sizes = np.bincount(numbers, weights=array), np.bincount(numbers)
            drawn, shares = len(totals), np.full(len(totals), 1 / len(totals))
        else:  # equal values are a group, which is equivalent to drawing queries
            totals, counts = np.unique(array, return_counts=True)
            sizes, drawn, shares = np.ones_like(counts), len(array), counts / len(array)
        means = _resampled_means(totals, sizes, drawn, shares, resamples, seed)
        tail = 50 * (1 - level)
        low, high = np.percentile(means, [tail, 100 - tail])
        return float(low), float(high)
    bootstrap = _scipy_stats().bootstrap(
        (array,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        batch=_batch(array),
        rng=np.random.default_rng(seed),
    )
    return float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high)


def mean_interval(sets: Sequence[npt.ArrayLike]) -> tuple[float, float]:
    """Percentile bootstrap interval, 95%, of the mean over sets of each set's mean; values are resampled within each set."""
    generator = np.random.default_rng(0)
    drawn = [
        np.concatenate(
            [generator.choice(each, (count, len(each))).mean(axis=1) for count in _batches(RESAMPLES, len(each))]
        )
        for each in map(np.asarray, sets)
    ]
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return float(low), float(high)


def compare(
    values: Mapping[str, float],
    baseline: Mapping[str, float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    clusters: Mapping[str, str] | None = None,
) -> Comparison:
    """The difference between `values` and `baseline`, both {query id: value} of one measure over the same queries.

    The p-value comes from `resamples` random assignments of signs, or from all assignments if there are fewer. clusters:
    {query id: cluster}, such as the article that answers it; whole clusters are resampled and flipped.
    Raises InputError if the queries differ, or if there are none.
    """
    if values.keys() != baseline.keys():
        missing = sorted(values.keys() ^ baseline.keys())
        raise InputError(
            f"a paired comparison needs the same queries on both sides; {missing[0]!r} is on one side only"
        )
    if not values:
        raise InputError("a comparison needs at least one query")
    differences = np.array([values[query] - baseline[query] for query in values], dtype=np.float64)
    of_queries = None if clusters is None else [clusters[query] for query in values]
    spread = interval(differences.tolist(), resamples=resamples, seed=seed, clusters=of_queries)
    flipped = differences
    if of_queries is not None:
        flipped = np.bincount(_numbered(of_queries), weights=differences).astype(np.float64)
    return Comparison(
        difference=float(differences.mean()),
        low=spread[0] if spread else None,
        high=spread[1] if spread else None,
        p=_sign_flip_p(flipped, resamples, seed),
    )


def detectable(differences: Sequence[float]) -> float | None:
    """The smallest true mean difference that a two-sided test at 5% detects with 80% probability; None for one value, and
    for differences that are all the same, which tell nothing about their spread.

    (z(0.975) + z(0.8)) * s / sqrt(n), with s the standard deviation of the n paired differences (Cohen,
    Statistical Power Analysis, 1988, chapter 2; for retrieval Sakai, Information Retrieval Journal 2016): 2.8 * s / sqrt(n).
    """
    if len(set(differences)) < 2:
        return None
    normal = NormalDist()
    z = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
    return float(z * np.std(differences, ddof=1) / math.sqrt(len(differences)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number, in the given order (Holm, Scandinavian Journal of Statistics 1979).

    The smallest of m is multiplied by m, the next by m - 1, and so on. A corrected value is at least that of every smaller
    p-value, and at most 1.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[at]))
        corrected[at] = largest
    return corrected


def _repeats(values: npt.NDArray[np.float64]) -> bool:
    """Whether there are many values, but few different ones: success is 0 or 1, and with one relevant document nDCG@10
    depends only on its rank."""
    return len(values) >= MANY and len(np.unique(values)) * 8 <= len(values)


def _numbered(clusters: Iterable[str]) -> npt.NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)


def _resampled_means(
    totals: npt.NDArray[Any], sizes: npt.NDArray[Any], drawn: int, shares: Any, resamples: int, seed: int
) -> npt.NDArray[np.float64]:
    """The mean of each bootstrap sample, (resamples,). It draws how often each group of values is in a sample, so the time
    depends on the number of groups.

    totals, sizes: (groups,), the sum and the number of a group's values; drawn: groups in a sample; shares: (groups,), how
    likely each is drawn
    """
    generator = np.random.default_rng(seed)
    means: list[npt.NDArray[np.float64]] = []
    for count in _batches(resamples, len(totals)):
        times = generator.multinomial(drawn, shares, size=count)
        means.append((times @ totals) / (times @ sizes))
    return np.concatenate(means)


def _sign_flip_p(differences: npt.NDArray[np.float64], resamples: int, seed: int) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0  # a single difference is as extreme with the other sign
    if _repeats(differences):
        return _sign_flip_p_of_many(differences, resamples, seed)
    test = _scipy_stats().permutation_test(
        (differences,),
        np.mean,
        # For a single sample, "samples" flips the sign of each value.
        permutation_type="samples",
        n_resamples=resamples,
        vectorized=True,
        batch=_batch(differences),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _sign_flip_p_of_many(differences: npt.NDArray[np.float64], resamples: int, seed: int) -> float:
    """The p-value of the permutation test, from how many differences of each size are positive."""
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    generator, observed = np.random.default_rng(seed), differences.sum()
    near = 1e-9 * max(1.0, abs(observed))  # sums in another order differ in their last digits
    above = below = 0
    for count in _batches(resamples, len(sizes)):
        sums = (2 * generator.binomial(counts, 0.5, size=(count, len(sizes))) - counts) @ sizes
        above += np.count_nonzero(sums >= observed - near)
        below += np.count_nonzero(sums <= observed + near)
    return float(min(1.0, 2 * (min(above, below) + 1) / (resamples + 1)))


def _batch(values: npt.NDArray[np.float64]) -> int:
    return max(1, _BATCH_VALUES // len(values))


def _batches(resamples: int, width: int) -> Iterator[int]:
    """The sizes of the batches that make up `resamples`, each small enough for memory. width: values of one resample"""
    at_once = max(1, _BATCH_VALUES // width)
    for start in range(0, resamples, at_once):
        yield min(at_once, resamples - start)


def _scipy_stats() -> Any:
    try:
        import scipy.stats
    except ModuleNotFoundError as error:
        raise MissingExtra("comparing runs", "eval") from error
    return scipy.stats
