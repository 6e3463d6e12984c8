"""Intervals that hold what they promise, on runs whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from runs import block, run_of, simulated

from benchmarks.load import statistics as stats
from benchmarks.load.statistics import Estimate, Sample, cells


def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says() -> None:
    """Eighty runs of twenty rounds whose true P50 ratio is 1.25: 95% of the intervals hold it, give or take chance."""
    covered, widths = 0, []
    for seed in range(80):
        (row,) = cells(simulated(seed, requests=60, factor=1.25)).values()
        ratio = row["fast"].ratio("P50 ms")
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        covered += ratio.low <= 1.25 <= ratio.high
        widths.append(ratio.high - ratio.low)
    assert 0.88 <= covered / 80 <= 1.0
    assert np.median(widths) < 0.15  # and not by being useless


def test_pairing_rounds_takes_the_machine_out_of_a_ratio() -> None:
    """Rounds differ by tens of percent, but both engines share them: the ratio is known ten times as well."""
    (row,) = cells(simulated(3, factor=1.1, spread=lambda random: random.lognormal(0, 0.5))).values()
    alone, paired = row["fast"].estimate("P50 ms"), row["fast"].ratio("P50 ms")
    assert alone is not None and paired is not None
    assert _relative_width(paired) < _relative_width(alone) / 4
    assert paired.value == pytest.approx(1.1, rel=0.05)


def _relative_width(estimate: Estimate) -> float:
    assert estimate.low is not None and estimate.high is not None
    return (estimate.high - estimate.low) / estimate.value


def test_an_identical_engine_has_the_ratio_one() -> None:
    (row,) = cells(simulated(1)).values()
    ratio = replace(row["bm25"], baseline=replace(row["bm25"])).ratio("P90 ms")
    assert ratio is not None and (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_throughput_and_processor_time_are_of_all_rounds_together() -> None:
    """By hand: 100 requests in 10 s and 300 in 20 s; 1 s and 5 s of processor time."""
    sample = Sample.of(
        [
            block(0, "bm25", np.full(100, 5.0), seconds=10, server_cpu=1.0),
            block(1, "bm25", np.full(300, 5.0), seconds=20, server_cpu=5.0),
        ]
    )
    ones = np.ones((1, 2))
    assert stats.throughput(sample, ones) == pytest.approx(400 / 30)
    assert stats.server_cpu(sample, ones) == pytest.approx(1000 * 6 / 400)
    estimate = stats.estimated(stats.throughput(sample, stats.resampled(2)), 2, 400)
    assert estimate is not None and estimate.low is None  # two rounds say nothing about their spread


def test_broken_blocks_are_no_part_of_a_sample() -> None:
    fine, broken = block(0, "bm25", np.full(10, 5.0)), block(1, "bm25", np.full(10, 900.0), broken="node died")
    (row,) = cells(run_of([fine, broken], variants=("bm25",))).values()
    assert row["bm25"].sample.counted.sum() == row["bm25"].requests == 10


def test_failures_reach_a_percentile_and_take_its_interval() -> None:
    blocks = [block(at, "bm25", np.full(980, 5.0), failures={"timeout": 20}) for at in range(10)]
    drawn = stats.latencies(Sample.of(blocks), stats.resampled(10), [0.5, 0.99])
    half, p99 = (stats.estimated(each, 10, 10_000) for each in drawn)
    assert half is not None and half.value == pytest.approx(5.0, rel=1e-3)
    assert p99 is not None and math.isinf(p99.value) and p99.low is None


def test_nothing_is_compared_with_a_percentile_that_failures_reach() -> None:
    """Before, every engine had the ratio 0 [0, 0] to a baseline that failed too often, and the report called it faster."""
    base = [block(at, "bm25", np.full(980, 5.0), failures={"timeout": 20}) for at in range(12)]
    other = [block(at, "fast", np.full(1000, 10.0)) for at in range(12)]
    (row,) = cells(run_of([*base, *other], variants=("bm25", "fast"))).values()
    half = row["fast"].ratio("P50 ms")
    assert half is not None and half.value == pytest.approx(2.0, rel=1e-2)
    assert row["fast"].may_show("P99 ms") and row["fast"].ratio("P99 ms") is None


def test_processor_time_that_nobody_knows_has_no_estimate() -> None:
    sample = Sample.of([block(at, "bm25", np.ones(10)) for at in range(5)])
    assert stats.estimated(stats.server_cpu(sample, stats.resampled(5)), 5, 50) is None


def test_quantiles_of_resampled_rounds_are_those_of_the_pooled_requests() -> None:
    """By hand: round 0 has 1…10 ms, round 1 has 101…110 ms. Taken once each, the median is 10; round 1 twice: 105."""
    sample = Sample.of([block(0, "a", np.arange(1.0, 11.0)), block(1, "a", np.arange(101.0, 111.0))])
    medians = stats.latencies(sample, np.array([[1.0, 1.0], [0.0, 2.0], [2.0, 0.0]]), [0.5])
    assert medians[0] == pytest.approx([10.0, 105.0, 5.0], rel=2e-3)
