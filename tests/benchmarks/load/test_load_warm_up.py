"""The warm-up ends when the server is warm."""

from __future__ import annotations

import time

import numpy as np
import pytest
from runs import block, simulated

from benchmarks.load import result
from benchmarks.load.blocks import Level, Turn
from benchmarks.load.command import load
from benchmarks.load.measurement import Warmup, WarmupSettings
from benchmarks.load.run import steady, warm_up


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([10, 20, 30, 40, 50, 60], False),
        ([100, 101, 99, 100, 102, 98], True),
        ([100, 101, 99], False),
        ([0, 0, 0, 0, 0, 0], False),
        ([10, 50, 100, 101, 99, 100, 100, 100], True),
    ],
)
def test_steady_means_that_the_last_windows_are_like_those_before(windows: list[float], expected: bool) -> None:
    assert steady(windows) is expected


def test_warm_up_goes_on_until_every_engine_is_steady() -> None:
    """A server that gets faster for twelve windows: it is not measured before that is over."""

    def measure(turn: Turn, seconds: float) -> object:
        speed = 100 * min(1.0, (-turn.round) / 12)
        return block(turn.round, turn.variant, np.ones(round(speed)), seconds=1.0)

    settings = WarmupSettings(least=0.0, most=60.0, window=1.0)
    warmup = Warmup()
    warm_up(measure, ["a", "b"], Level("closed", 5), settings, warmup)  # type: ignore[arg-type]
    assert warmup.steady and len(warmup.throughput["a"]) == len(warmup.throughput["b"]) >= 14


def test_warm_up_that_never_gets_steady_ends_and_says_so() -> None:
    def measure(turn: Turn, seconds: float) -> object:
        return block(turn.round, turn.variant, np.ones(1000 if turn.round % 2 else 10), seconds=1.0)

    warmup = Warmup()
    settings = WarmupSettings(least=0.0, most=0.05, window=1.0)
    warm_up(measure, ["a"], Level("closed", 5), settings, warmup)  # type: ignore[arg-type]
    assert not warmup.steady and warmup.seconds < 5


def test_an_interrupted_warm_up_has_the_seconds_that_passed() -> None:
    """A partial result said "warm-up 0 s" after two minutes."""

    def measure(turn: Turn, seconds: float) -> object:
        time.sleep(0.1)
        if turn.variant == "b":
            raise KeyboardInterrupt
        return block(turn.round, turn.variant, np.ones(10), seconds=1.0)

    run = simulated(1)
    run.warmup = Warmup()
    with pytest.raises(KeyboardInterrupt):
        warm_up(measure, ["a", "b"], Level("closed", 5), WarmupSettings(window=1.0), run.warmup)  # type: ignore[arg-type]
    assert 0.2 <= run.warmup.seconds < 5 and run.warmup.throughput == {"a": [10.0], "b": []}
    run.warmup.seconds = 120.4
    assert "warm-up 120 s (not steady)" in result.facts_text(run)


def test_the_help_says_that_the_warm_up_comes_before_the_minutes() -> None:
    (minutes,) = (option for option in load.params if option.name == "minutes")
    assert "after the warm-up" in str(minutes.to_info_dict()["help"])
