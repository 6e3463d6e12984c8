"""Latencies as HDR histograms, which can be merged, with an error below 0.1%.

A percentile is shown only if at least 100 samples lie beyond it: P99 needs 10,000 requests. A failed request counts as
slower than every answered one, so failures can make a percentile infinite but never improve it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import MissingExtra

LOWEST_US, HIGHEST_US = 1, 3_600_000_000
DIGITS = 3
BEYOND = 100  # samples that must lie beyond a percentile for it to be shown

Counts = npt.NDArray[np.float64]


def histogram(microseconds: Iterable[int] = ()) -> Any:
    """An HdrHistogram of times in microseconds, from 1 µs to one hour."""
    try:
        from hdrh.histogram import HdrHistogram
    except ModuleNotFoundError as error:
        raise MissingExtra("the load benchmark", "bench") from error
    recorded = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    values = np.clip(np.fromiter(microseconds, dtype=np.int64), LOWEST_US, HIGHEST_US)
    for value, count in zip(*np.unique(values, return_counts=True), strict=True):
        recorded.record_value(int(value), int(count))
    return recorded


def encode(histogram: Any) -> str:
    """The histogram as text: base64 of HdrHistogram's compressed V2 format, which other HDR tools read too."""
    return histogram.encode().decode("ascii")


def decode(text: str) -> Any:
    """The histogram that `encode` wrote."""
    from hdrh.histogram import HdrHistogram

    return HdrHistogram.decode(text.encode("ascii"))


def counts(histogram: Any) -> Counts:
    """(v,): the number of samples at each value of `values()`."""
    return np.ctypeslib.as_array(histogram.counts).astype(np.float64)


@cache
def values() -> npt.NDArray[np.float64]:
    """(v,): the values in milliseconds that samples are counted at, ascending, each the middle of its range."""
    empty = histogram()
    lowest = np.array([empty.get_value_from_index(at) for at in range(empty.counts_len)], dtype=np.float64)
    highest = np.append(lowest[1:] - 1, lowest[-1])
    return np.maximum(lowest, (lowest + highest) / 2) / 1000


def quantile(
    counted: Counts, failed: Counts | float, q: float, at: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """Milliseconds within which the share `q` of all requests was answered; infinite if fewer were answered at all.

    counted: (…, v) answered requests by the values `at`, which ascend (None: `values()`); failed: (…,) failed requests.
    Returns (…,).
    """
    cumulated = np.cumsum(counted, axis=-1)
    total = cumulated[..., -1] + failed
    # The smallest value with at least the share q at or below it; slightly less, so that rounding adds no sample.
    least = np.asarray(q * total * (1 - 1e-12))[..., None]
    reached = cumulated >= least
    reached_values = (values() if at is None else at)[np.argmax(reached, axis=-1)]
    return np.where((total > 0) & reached.any(axis=-1), reached_values, np.inf)


def needed(q: float) -> int:
    """The fewest samples with which the quantile `q` may be shown."""
    return math.ceil((BEYOND - 1e-6) / (1 - q))
