"""Measured values as result rows."""

from __future__ import annotations

import pytest

from opensearch_neural.evaluation.measures import measure
from opensearch_neural.evaluation.result_rows import rows
from opensearch_neural.evaluation.results import Key, MeasuredEngine


def test_rows_hold_the_mean_the_difference_and_its_p_value() -> None:
    qrels = {str(at): {"d": 1} for at in range(8)}
    measured = {
        "bm25": measure({query: {"x": 2.0, "d": 1.0} for query in qrels}, qrels, ["RR@10"]),
        "sparse": measure({query: {"d": 1.0} for query in qrels}, qrels, ["RR@10"]),
    }
    by_name = {(row.line, row.column): row for row in rows("toy", measured)}
    assert by_name.keys() == {
        ("bm25", "MRR@10"),
        ("sparse", "MRR@10"),
        ("sparse", "MRR@10 - bm25"),
        ("sparse", "p(MRR@10 - bm25)"),
    }
    difference = by_name["sparse", "MRR@10 - bm25"]
    assert (difference.set, difference.value, difference.low, difference.high, difference.n) == (
        "toy",
        0.5,
        0.5,
        0.5,
        8,
    )
    assert by_name["sparse", "p(MRR@10 - bm25)"].value == pytest.approx(2 / 2**8)
    assert difference.key == Key("toy", "sparse", "MRR@10", "difference", "bm25")
    assert len(rows("toy", measured, baseline=None)) == 2


def test_engines_of_a_seed_are_compared_with_the_baseline_of_that_seed() -> None:
    qrels = {str(at): {"d": 1} for at in range(3)}
    scored = measure({query: {"d": 1.0} for query in qrels}, qrels, ["RR@10"])
    measured = {
        MeasuredEngine("dual", 42): scored,
        MeasuredEngine("MLR", 42, "nested"): scored,
        MeasuredEngine("untrained"): scored,
        MeasuredEngine("MLR", seeds=(42, 43)): scored,
    }
    found = [row for row in rows("toy", measured, baseline=MeasuredEngine("dual", 42)) if row.kind == "difference"]
    assert [(row.engine, row.seed, row.variant, row.baseline) for row in found] == [
        ("MLR", 42, "nested", "dual"),
        ("untrained", 42, "", "dual"),
        ("MLR", None, "", "dual"),
    ]
    assert [row.line for row in found] == ["MLR, seed 42, nested", "untrained", "MLR, seeds 42 to 43"]
    assert {row.column for row in found} == {"MRR@10 - dual, seed 42"}
    (mean,) = [
        row
        for row in rows("toy", measured, baseline=MeasuredEngine("untrained"))
        if row.seeds and row.kind == "difference"
    ]
    assert (mean.line, mean.column) == ("MLR, seeds 42 to 43", "MRR@10 - untrained")
