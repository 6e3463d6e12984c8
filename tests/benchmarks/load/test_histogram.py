"""Percentiles that may be shown, and failures that cannot improve them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import histogram as hdr


@pytest.mark.parametrize(
    ("q", "samples", "shown"),
    [
        *((0.5, 199, False), (0.5, 200, True), (0.9, 999, False), (0.9, 1000, True)),
        *((0.99, 9_999, False), (0.99, 10_000, True), (0.999, 99_999, False), (0.999, 100_000, True)),
    ],
)
def test_a_percentile_is_shown_only_with_a_hundred_samples_beyond_it(q: float, samples: int, shown: bool) -> None:
    assert (samples >= hdr.needed(q)) is shown


def test_failed_requests_count_as_slower_than_all() -> None:
    def p99(answered: int, failed: int) -> float:
        return float(hdr.quantile(hdr.counts(hdr.histogram([1000] * answered)), failed, 0.99))

    assert math.isinf(p99(9_850, 150))  # 1.5% failed
    assert p99(9_950, 50) == pytest.approx(1.0, rel=1e-3)


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_quantiles_are_those_of_the_samples_within_a_thousandth(times: list[int], q: float) -> None:
    exact = np.sort(times)[math.ceil(q * len(times) * (1 - 1e-12)) - 1] / 1000
    found = float(hdr.quantile(hdr.counts(hdr.histogram(times)), 0.0, q))
    assert found == pytest.approx(exact, rel=1.1e-3, abs=1.1e-3)


@given(st.lists(st.integers(0, 10**7), max_size=100), st.lists(st.integers(0, 10**7), max_size=100))
def test_adding_up_after_a_journey_as_text_loses_nothing(first: list[int], second: list[int]) -> None:
    parts = [hdr.decode(hdr.encode(hdr.histogram(times))) for times in (first, second)]
    assert (sum(map(hdr.counts, parts)) == hdr.counts(hdr.histogram([*first, *second]))).all()


def test_values_ascend() -> None:
    assert (np.diff(hdr.values()) > 0).all()
