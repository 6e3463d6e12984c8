"""The look-up table of a query as it is sent: packed in a seventh of its numbers, and as exact as that allows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opensearch_neural import queries
from opensearch_neural.queries.look_up_table import PackedTable, spread


def test_a_table_worked_out_by_hand() -> None:
    table = np.zeros((2, 256))
    table[0, :3] = [-1.0, 0.0, 0.5]  # its other 253 values are 0
    table[1, :2] = [0.25, 0.75]
    packed = PackedTable.of(table)
    # Least values are −1 and 0; the widest part reaches 1.5 above its least, which is 95³ − 1 steps.
    assert packed.offset == 1.0
    assert packed.scale == pytest.approx(1.5 / (95**3 - 1))
    # 0 steps are three blanks, 95³ − 1 three tildes.
    assert packed.text[0:3] == "   "
    assert packed.text[6:9] == "~~~"
    assert packed.parts == 2
    scores = packed.scores(np.array([[2, 1], [0, 0]], np.uint8)) - packed.offset
    assert scores == pytest.approx([0.5 + 0.75, -1.0 + 0.25], abs=1e-6)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.just(256)), elements=st.floats(-1e4, 1e4, width=32)),
    st.integers(0, 255),
)
def test_scores_are_never_negative_and_within_half_a_step_a_part(table: np.ndarray, code: int) -> None:
    if not table.any():
        return
    packed = PackedTable.of(table)
    (score,) = packed.scores(np.full((1, len(table)), code, np.uint8))
    assert score >= 0
    exact = table[:, code].astype(np.float64).sum()
    widest = float((table.max(1) - table.min(1)).max())
    assert abs(score - packed.offset - exact) <= len(table) * (widest / (95**3 - 1)) / 2 + 1e-9 * abs(table).max()
    assert PackedTable.from_params(json.loads(json.dumps(packed.params("pq")))) == packed


def test_the_spread_of_a_table_is_that_of_the_inner_products_of_random_codes() -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(24, 256))
    products = table[np.arange(24), random.integers(0, 256, size=(4000, 24))].sum(axis=1)
    assert spread(table) == pytest.approx(products.std(), rel=0.03)


def test_a_table_is_a_seventh_of_its_numbers_as_json() -> None:
    table = np.random.default_rng(0).normal(size=(48, 256))
    as_numbers = len(json.dumps(table.tolist()))
    assert len(json.dumps(queries.quantized(table))) * 6 < as_numbers


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (np.ones((3, 255)), "shape"),
        (np.ones(256), "shape"),
        (np.zeros((0, 256)), "shape"),
        (np.ones((1025, 256)), "shape"),
        (np.full((2, 256), np.nan), "not a finite number"),
        (np.full((2, 256), np.inf), "not a finite number"),
        (np.zeros((2, 256)), "a query vector of zeros ranks nothing"),
    ],
)
def test_tables_that_rank_nothing_are_refused(table: np.ndarray, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        queries.quantized(table)
