"""The two phases of a run that end by what they see: the warm-up, and the search for the highest rate.

Until it is warm, the server is not measured: a JVM needs a minute and more until its code is compiled. The highest rate is
that at which an engine keeps its promise: P99 at or below a limit, under Poisson arrivals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.load.blocks import Block, Level, Turn

SHORTEST = 0.5  # seconds of a window
WINDOWS = 3  # of each engine that are compared with as many before them
PRECISION = 1.05  # the search ends where the lowest rate that failed is within 5% of the highest that held
STEP = 1.5
MOST_PROBES = 20


@dataclass(frozen=True)
class WarmupSettings:
    """How long to warm up: seconds."""

    least: float = 60.0
    most: float = 300.0
    window: float = 2.0
    """Of one block, at most."""
    tolerance: float = 0.05
    """Change of throughput that counts as none."""


@dataclass
class Warmup:
    """How it went."""

    throughput: dict[str, list[float]] = field(default_factory=dict)
    """{engine: requests a second, window after window}"""
    seconds: float = 0.0
    steady: bool = False
    """Whether throughput was steady at the end."""


def steady(throughput: Sequence[float], tolerance: float) -> bool:
    """Whether the last windows are as fast as those before them."""
    if len(throughput) < 2 * WINDOWS:
        return False
    last, before = sum(throughput[-WINDOWS:]), sum(throughput[-2 * WINDOWS : -WINDOWS])
    return before > 0 and abs(last / before - 1) <= tolerance


def warm_up(
    measure: Callable[[Turn, float], Block],
    variants: Sequence[str],
    level: Level,
    settings: WarmupSettings,
    *,
    on_block: Callable[[Block], object] | None = None,
) -> Warmup:
    """Engines take turns at `level` until each of them is steady, for `least` seconds at least and `most` at most.

    measure: (turn, seconds of the window) → block. Stops at once where a block is broken.
    """
    # Of many engines each has shorter windows, so that all of them have enough of them in the least time.
    length = min(settings.window, max(SHORTEST, settings.least / (2 * WINDOWS * len(variants))))
    warmup = Warmup({variant: [] for variant in variants})
    began = time.monotonic()
    number = 0
    while True:
        for variant in variants:
            block = measure(Turn(-1 - number, level, variant), length)
            warmup.throughput[variant].append(block.completed / block.seconds)
            warmup.seconds = time.monotonic() - began
            if on_block:
                on_block(block)
            if block.broken:
                return warmup
        number += 1
        warmup.steady = all(steady(windows, settings.tolerance) for windows in warmup.throughput.values())
        if warmup.seconds >= settings.most or (warmup.steady and warmup.seconds >= settings.least):
            return warmup


@dataclass(frozen=True)
class Probe:
    """One trial."""

    rate: float
    p99: float
    """Milliseconds; infinite if failures reach it, or if the trial was given up early for good reason."""
    requests: int
    seconds: float
    refused: str | None = None
    """Why it says more about the generator than about the cluster."""


@dataclass
class SloResult:
    """The highest rate that was found."""

    limit_ms: float
    rate: float = 0.0
    """The highest that held; 0 if none did."""
    above: float = math.inf
    """The lowest that did not hold; infinite if all held."""
    probes: list[Probe] = field(default_factory=list)
    refused: str | None = None
    """Why the search ended below what the cluster can do: the generator came near its own limits."""


def highest_rate(measure: Callable[[float], Probe], limit_ms: float, first: float) -> SloResult:
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
            if result.above / result.rate <= PRECISION:
                break
            rate = math.sqrt(result.rate * result.above)
        elif result.rate:
            rate *= STEP
        else:
            rate /= STEP
            if rate < 0.1:
                break
    return result
