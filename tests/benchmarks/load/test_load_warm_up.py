"""The warm-up ends when the server is warm."""

from __future__ import annotations

import numpy as np
import pytest
from runs import block

from benchmarks.load.blocks import Level, Turn
from benchmarks.load.measurement import WarmupSettings
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
    warmup = warm_up(measure, ["a", "b"], Level("closed", 5), settings)  # type: ignore[arg-type]
    assert warmup.steady and len(warmup.throughput["a"]) == len(warmup.throughput["b"]) >= 14


def test_warm_up_that_never_gets_steady_ends_and_says_so() -> None:
    def measure(turn: Turn, seconds: float) -> object:
        return block(turn.round, turn.variant, np.ones(1000 if turn.round % 2 else 10), seconds=1.0)

    warmup = warm_up(measure, ["a"], Level("closed", 5), WarmupSettings(least=0.0, most=0.05, window=1.0))  # type: ignore[arg-type]
    assert not warmup.steady and warmup.seconds < 5
