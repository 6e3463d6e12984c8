"""The highest rate at which an engine keeps its promise: P99 at or below a limit, under Poisson arrivals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

QUANTILE = 0.99
PRECISION = 1.05  # the search ends where the lowest rate that failed is within 5% of the highest that held
STEP = 1.5
MOST_PROBES = 20


@dataclass(frozen=True)
class Probe:
    """One trial. p99 in ms: infinite where failures reach it, or where it was given up for good reason early.

    refused: why it says more about the generator than about the cluster
    """

    rate: float
    p99: float
    requests: int
    seconds: float
    refused: str | None = None


@dataclass
class SloResult:
    """rate: the highest that held (0 where none did); above: the lowest that did not, infinite where all held.

    refused: why the search ended below what the cluster can do: the generator came near its own limits
    """

    limit_ms: float
    rate: float = 0.0
    above: float = math.inf
    probes: list[Probe] = field(default_factory=list)
    refused: str | None = None


def highest_rate(
    measure: Callable[[float], Probe], limit_ms: float, first: float, *, precision: float = PRECISION
) -> SloResult:
    """Search from the rate `first`: in steps until one holds and one fails, then halving (geometrically) between.

    A rate that failed is not tried again: with noise, the answer is the lowest crossing that the search met.
    """
    result = SloResult(limit_ms)
    rate = first
    while len(result.probes) < MOST_PROBES:
        probe = measure(rate)
        result.probes.append(probe)
        if probe.refused is not None:
            result.refused = f"{probe.refused} at {rate:.4g}/s"
            break
        if probe.p99 <= limit_ms:
            result.rate = max(result.rate, rate)
        else:
            result.above = min(result.above, rate)
        if result.rate and result.above < math.inf:
            if result.above / result.rate <= precision:
                break
            rate = math.sqrt(result.rate * result.above)
        elif result.rate:
            rate *= STEP
        else:
            rate /= STEP
            if rate < 0.1:
                break
    return result
