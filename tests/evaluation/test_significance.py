"""Intervals and paired comparisons against numbers worked out by hand."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.result_rows import rows
from opensearch_neural.evaluation.significance import compare, detectable, holm, interval, mean_interval


def test_a_comparison_is_paired_by_query_whatever_the_order() -> None:
    comparison = compare({"a": 0.9, "b": 0.2, "c": 0.5}, {"c": 0.5, "b": 0.1, "a": 1.0})
    assert comparison.difference == pytest.approx(0.0, abs=1e-12)


def test_the_p_value_of_few_queries_is_exact() -> None:
    # All five differences are +0.1: of the 2^5 sign assignments, the two of equal signs are as extreme. p = 2/32.
    queries = [str(at) for at in range(5)]
    comparison = compare(dict.fromkeys(queries, 0.6), dict.fromkeys(queries, 0.5))
    assert comparison.p == pytest.approx(2 / 32)
    assert comparison.difference == pytest.approx(0.1)
    assert (comparison.low, comparison.high) == pytest.approx((0.1, 0.1))


def test_equal_runs_differ_by_nothing() -> None:
    values = {str(at): at / 10 for at in range(10)}
    comparison = compare(values, dict(values))
    assert (comparison.difference, comparison.low, comparison.high, comparison.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_real_difference_is_significant_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    base = {str(at): value for at, value in enumerate(rng.random(200))}
    better, same = (
        compare(dict(zip(base, np.array(list(base.values())) + rng.normal(shift, 0.1, 200), strict=True)), base)
        for shift in (0.05, 0)
    )
    assert better.p < 0.001 and better.low is not None and better.low > 0
    assert same.p > 0.05 and same.low is not None and same.high is not None and same.low < 0 < same.high
    assert better.low < better.difference < better.high  # type: ignore[operator]


def test_the_same_seed_gives_the_same_interval_and_p() -> None:
    rng = np.random.default_rng(2)
    values, baseline = ({str(at): value for at, value in enumerate(rng.random(60))} for _ in range(2))
    assert compare(values, baseline, seed=3) == compare(values, baseline, seed=3)
    assert compare(values, baseline, seed=3) != compare(values, baseline, seed=4)


def test_the_bootstrap_interval_is_near_the_normal_one_for_many_queries() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.2, 2000)
    low, high = interval(values) or (0, 0)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.001)
    assert high == pytest.approx(values.mean() + half, abs=0.001)


@pytest.mark.parametrize("successes", [True, False])
def test_many_queries_have_the_interval_and_p_that_drawing_each_query_gives(
    successes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    ranks, others = rng.integers(1, 12, (2, 2500)) - np.array([[1], [0]]) * (rng.random(2500) < 0.08)
    one, other = (1 / np.log2(1 + np.maximum(1, each)) for each in (ranks, others))
    if successes:
        one, other = (one > 0.4).astype(float), (other > 0.4).astype(float)
    values, baseline = ({str(at): float(value) for at, value in enumerate(each)} for each in (one, other))
    many = compare(values, baseline, resamples=4000)
    monkeypatch.setattr("opensearch_neural.evaluation.significance.MANY", 10**9)
    each = compare(values, baseline, resamples=4000)
    assert many != each, "counted as few queries are"
    for got, expected in ((many.low, each.low), (many.high, each.high)):
        assert got is not None and expected is not None
        assert abs(got - expected) < 0.002
    assert each.p > 0.01 and many.p == pytest.approx(each.p, abs=0.03)


def test_many_resamples_are_never_held_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 resamples of 500 different values take 8 MB."""
    values = np.repeat(np.random.default_rng(0).normal(0.01, 1, 500), 8)
    compared = {str(at): float(value) for at, value in enumerate(values)}, dict.fromkeys(map(str, range(4000)), 0.0)
    whole = compare(*compared, resamples=2000)
    monkeypatch.setattr("opensearch_neural.evaluation.significance._BATCH_VALUES", 50_000)
    tracemalloc.start()
    parts = compare(*compared, resamples=2000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 6e6
    assert (parts.low, parts.high, parts.p) == pytest.approx((whole.low, whole.high, whole.p), abs=1e-12)


def test_one_query_has_no_interval() -> None:
    comparison = compare({"q": 0.7}, {"q": 0.5})
    assert (comparison.low, comparison.high, comparison.p) == (None, None, 1.0)
    assert interval([0.5]) is None


def test_questions_about_one_article_count_as_one_where_clusters_are_given() -> None:
    rng = np.random.default_rng(7)
    of_article = rng.normal(0.02, 0.1, 30)
    # Ten questions of each article, all with its difference: there are thirty differences, not three hundred.
    values = {f"{at}-{number}": float(gain) for at, gain in enumerate(of_article) for number in range(10)}
    baseline, clusters = dict.fromkeys(values, 0.0), {query: query.partition("-")[0] for query in values}
    alone = compare(
        {str(at): float(gain) for at, gain in enumerate(of_article)}, dict.fromkeys(map(str, range(30)), 0.0)
    )
    clustered, free = compare(values, baseline, clusters=clusters), compare(values, baseline)
    assert clustered.difference == pytest.approx(alone.difference)
    for got, expected in ((clustered.low, alone.low), (clustered.high, alone.high)):
        assert got == pytest.approx(expected, abs=0.003)
    assert clustered.p == pytest.approx(alone.p, abs=0.02) and clustered.p > free.p
    assert free.high is not None and clustered.high is not None
    assert clustered.high - clustered.difference > 2 * (free.high - free.difference)
    measured = {
        name: Measured({"RR@10": of}, {"RR@10": 0.0}, 300, 0, 0) for name, of in (("a", values), ("b", baseline))
    }
    (row,) = (row for row in rows("s", measured, baseline="b", clusters=clusters) if row.column == "MRR@10 - b")
    assert (row.value, row.low, row.high) == (clustered.difference, clustered.low, clustered.high)


def test_articles_of_unlike_size_weigh_as_much_as_they_have_questions() -> None:
    values = {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 0.0}
    clusters = {query: query[0] for query in values}
    # Samples: a and a (mean 1), b and b (0), one of each (3/4, half of all samples).
    assert interval(values.values(), clusters=clusters.values()) == (0.0, 1.0)
    assert interval(values.values(), level=0.4, clusters=clusters.values()) == (0.75, 0.75)
    assert interval(values.values(), clusters=["a"] * 4) is None


def test_the_interval_of_a_mean_over_sets_weighs_each_set_alike_and_resamples_within_each() -> None:
    assert mean_interval([np.full(5, 0.2), np.full(9, 0.4)]) == pytest.approx((0.3, 0.3))
    low, high = mean_interval([[0.0, 1.0] * 50, [0.0, 1.0] * 50])
    spread = 1.96 * 0.5 / np.sqrt(200)
    assert (low, high) == (pytest.approx(0.5 - spread, abs=0.01), pytest.approx(0.5 + spread, abs=0.01))


def test_a_comparison_of_different_queries_is_refused() -> None:
    with pytest.raises(InputError, match="'q2'"):
        compare({"q1": 1.0, "q2": 1.0}, {"q1": 1.0})
    with pytest.raises(InputError, match="at least one"):
        compare({}, {})


def test_holm_multiplies_by_the_number_of_what_is_left() -> None:
    # Worked out by hand: 0.01 * 4, 0.02 * 3 = 0.06, 0.03 * 2 = 0.06, 0.9 * 1.
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.4, 0.6]) == [0.8, 0.8], "none is below one that was smaller"
    assert holm([0.5]) == [0.5] and holm([]) == []


def test_the_smallest_difference_that_can_be_seen_is_found_four_times_in_five() -> None:
    assert detectable([0.0, 0.2] * 50) == pytest.approx((1.959964 + 0.841621) * np.std([0.0, 0.2] * 50, ddof=1) / 10)
    for alike in ([0.3], [0.0, 0.0], [0.1, 0.1, 0.1]):  # the standard deviation of the last is not quite 0
        assert detectable(alike) is None, "no spread is known"
    generator = np.random.default_rng(0)
    seen = 0
    for _ in range(2_000):
        noise = generator.normal(0, 0.3, 100)
        sample = noise + (1.959964 + 0.841621) * 0.3 / 10
        seen += abs(sample.mean()) / (sample.std(ddof=1) / 10) > 1.984  # t(99)
    assert seen / 2_000 == pytest.approx(0.8, abs=0.03)
