"""Weights written short make the same index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingest.writing.short_weights import SMALLEST, shortest

weights = st.lists(
    st.floats(SMALLEST, float(np.finfo(np.float32).max), width=32, allow_subnormal=False), min_size=1, max_size=50
)


def cells(numbers: np.ndarray) -> np.ndarray:
    """What Lucene keeps of a feature's value: the upper 17 bits of the float32."""
    return numbers.astype(np.float32).view(np.uint32) >> 15


@given(weights)
def test_the_short_weight_lies_in_the_same_cell(values: list[float]) -> None:
    given_ = np.array(values, np.float32)
    short = shortest(given_)
    assert (cells(short) == cells(given_)).all()


def test_weights_of_retrieval_models_take_four_digits_at_most() -> None:
    values = np.random.default_rng(3).lognormal(-1, 1.5, 10_000).astype(np.float32)
    digits = [len(repr(number).replace(".", "").lstrip("0").split("e")[0]) for number in shortest(values).tolist()]
    assert max(digits) <= 4
    assert np.mean(digits) < 3.2


def test_by_hand() -> None:
    # 9 significant bits: 0.28125637769699097 lies in [0.28125, 0.282226…), which 0.28 does not and 0.282 does.
    assert shortest(np.array([0.28125637769699097, 1.0, 2.5], np.float32)).tolist() == [0.282, 1.0, 2.5]
