"""Percentiles that may be shown, and failures that cannot improve them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import histogram as hdr
from opensearch_neural.errors import InputError


@pytest.mark.parametrize(
    ("q", "samples", "shown"),
    [
        *((0.5, 199, False), (0.5, 200, True), (0.9, 999, False), (0.9, 1000, True)),
        *((0.99, 9_999, False), (0.99, 10_000, True), (0.999, 99_999, False), (0.999, 100_000, True)),
    ],
)
def test_a_percentile_is_shown_only_with_a_hundred_samples_beyond_it(q: float, samples: int, shown: bool) -> None:
    assert hdr.may_show(q, samples) is shown
    found = hdr.histogram([1000] * samples)
    assert (hdr.percentile(found, 0, q) is not None) is shown


def test_failed_requests_count_towards_the_samples_and_as_slower_than_all() -> None:
    found = hdr.histogram([1000] * 9_850)
    p99 = hdr.percentile(found, 150, 0.99)
    assert p99 is not None and math.isinf(p99)  # 1.5% failed
    assert hdr.percentile(hdr.histogram([1000] * 9_950), 50, 0.99) == pytest.approx(1.0, rel=1e-3)
    assert hdr.shown(math.inf) == "∞" and hdr.shown(None) == "–"


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_quantiles_are_those_of_the_samples_within_a_thousandth(times: list[int], q: float) -> None:
    exact = np.sort(times)[math.ceil(q * len(times) * (1 - 1e-12)) - 1] / 1000
    found = float(hdr.quantile(hdr.counts(hdr.histogram(times)), 0.0, q))
    assert found == pytest.approx(exact, rel=1.1e-3, abs=1.1e-3)


@given(st.lists(st.integers(0, 10**7), max_size=100), st.lists(st.integers(0, 10**7), max_size=100))
def test_merging_after_a_journey_as_text_loses_nothing(first: list[int], second: list[int]) -> None:
    parts = [hdr.decode(hdr.encode(hdr.histogram(times))) for times in (first, second)]
    together = hdr.counts(hdr.merge(parts))
    assert (together == hdr.counts(hdr.histogram([*first, *second]))).all()


def test_means_and_values() -> None:
    assert hdr.mean(hdr.histogram([1000, 3000])) == pytest.approx(2.0, rel=1e-3)
    assert hdr.mean(hdr.histogram()) is None
    assert (np.diff(hdr.values()) > 0).all()


def test_what_is_no_histogram_is_refused() -> None:
    with pytest.raises(InputError, match="not an HDR histogram"):
        hdr.decode("bm90IG9uZQ==")
