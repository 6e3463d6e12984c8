"""Intervals over turns hold what they promise."""

from __future__ import annotations

import numpy as np

from benchmarks.turns import rate, ratio


def test_the_interval_over_eight_turns_covers_the_truth_as_often_as_it_says() -> None:
    """300 runs of eight turns with a true ratio of 1: 95% of the intervals hold it, give or take chance. A plain percentile
    interval holds it in 91%."""
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(300):
        slow, fast = np.exp(random.normal(0, 0.2, (2, 8)))
        _, low, high = ratio(slow, fast, seed)
        covered += low <= 1 <= high
    assert 0.92 <= covered / 300 <= 0.98


def test_a_single_turn_is_its_own_interval() -> None:
    assert rate([2.0], 100) == (50.0, 50.0, 50.0)
