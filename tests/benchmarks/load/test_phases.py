"""The warm-up ends when the server is warm, and the search for a rate where the limit is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from runs import block

from benchmarks.load.blocks import Level, Turn
from benchmarks.load.phases import Probe, WarmupSettings, highest_rate, steady, warm_up


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
    assert steady(windows, 0.05) is expected


def test_warm_up_goes_on_until_every_engine_is_steady() -> None:
    """A server that gets faster for twelve windows: it is not measured before that is over."""

    def measure(turn: Turn, seconds: float) -> object:
        speed = 100 * min(1.0, (-turn.round) / 12)
        return block(turn.round, turn.variant, np.ones(round(speed)), seconds=1.0)

    settings = WarmupSettings(least=0.0, most=60.0, window=1.0)
    found = warm_up(measure, ["a", "b"], Level("closed", 5), settings)  # type: ignore[arg-type]
    assert found.steady and len(found.throughput["a"]) == len(found.throughput["b"]) >= 14


def test_warm_up_that_never_gets_steady_ends_and_says_so() -> None:
    def measure(turn: Turn, seconds: float) -> object:
        return block(turn.round, turn.variant, np.ones(1000 if turn.round % 2 else 10), seconds=1.0)

    found = warm_up(measure, ["a"], Level("closed", 5), WarmupSettings(least=0.0, most=0.05, window=1.0))  # type: ignore[arg-type]
    assert not found.steady and found.seconds < 5


@pytest.mark.parametrize("first", [3.0, 80.0, 2000.0])
def test_the_highest_rate_within_the_limit_is_found_from_either_side(first: float) -> None:
    """A queue whose P99 is 4.6 / (1 - rate/100) ms holds 46 ms up to 90 requests a second."""

    def probe(rate: float) -> Probe:
        return Probe(rate, 4.6 / (1 - rate / 100) if rate < 100 else math.inf, 10_000, 10_000 / rate)

    found = highest_rate(probe, 46.0, first)
    assert 90 / 1.06 <= found.rate <= 90.0 < found.above <= 90 * 1.06
    assert len(found.probes) <= 15


def test_a_limit_that_nothing_keeps_ends_with_no_rate() -> None:
    found = highest_rate(lambda rate: Probe(rate, 50.0, 100, 1.0), 10.0, 100.0)
    assert found.rate == 0.0 and found.above < 1


def test_a_rate_search_ends_where_the_generator_is_the_limit() -> None:
    def probe(rate: float) -> Probe:
        return Probe(rate, 5.0, 10_000, 1.0, "80% of what the generator can do" if rate > 500 else None)

    found = highest_rate(probe, 10.0, 100.0)
    assert found.refused == "80% of what the generator can do at 506.2/s" and 300 < found.rate <= 500
