"""The warm-up, which ends when the throughput is steady: a JVM needs a minute or more to compile its code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.load.blocks import Block, Level, Turn

SHORTEST = 0.5  # seconds of the shortest window
WINDOWS = 3  # the last windows of each engine that are compared with as many before them


@dataclass(frozen=True)
class WarmupSettings:
    """Lengths of the warm-up and its blocks, in seconds."""

    least: float = 60.0
    most: float = 300.0
    window: float = 2.0
    """The longest block."""
    tolerance: float = 0.05
    """Throughput that changes by at most this share is steady."""


@dataclass
class Warmup:
    """What the warm-up measured."""

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
    """Engines take turns at `level` until all are steady, for `least` to `most` seconds.

    measure: (turn, seconds of the window) → block. A broken block ends the warm-up at once.
    """
    # With many engines the windows are shorter, so that each engine gets enough windows in the least time.
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
