"""A load test that is over at once: it shows that every engine is measured, and nothing about how fast one is."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.load.measurement import LoadSettings, WarmupSettings


def quick(load: LoadSettings) -> LoadSettings:
    """The settings with one round of few requests, and everything else that takes time at its least."""
    return replace(
        load,
        requests=20,
        rounds=1,
        settle=0.05,
        shortest=0.1,
        ceiling=0.1,
        warmup=WarmupSettings(0.1, 0.1, window=0.1),
    )
