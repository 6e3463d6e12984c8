"""The table of `--try`."""

from __future__ import annotations

from opensearch_neural.evaluation.results import Row
from trainers.sparse.trials_table import trials_table


def gain(trial: str, at: str, value: float, low: float | None, high: float | None, rival: str = "") -> Row:
    sets = 1 if at.startswith("mean") else 0
    engine, baseline = "BM25 + sparse", "BM25 + sparse" if rival else "BM25"
    return Row(at, engine, "nDCG@10", value, low, high, 9, baseline, rival, kind="difference", variant=trial, sets=sets)


def test_a_line_has_the_mean_gain_what_it_is_above_the_first_trial_each_set_and_the_terms() -> None:
    mean = "mean of 1 sets"
    rows = [
        gain("first", "one", 0.01, 0.0, 0.02),
        gain("first", mean, 0.01, 0.0, 0.02),
        Row("one", "BM25 + sparse", "active terms", 80.0, None, None, 9, variant="first"),
        Row(mean, "BM25 + sparse", "active terms", 1234.0, None, None, 9, variant="first", sets=1),
        gain("second", "one", 0.03, None, None),
        gain("second", mean, 0.03, None, None),
        gain("second", "one", 0.02, 0.01, 0.03, "first"),
        gain("second", mean, 0.02, 0.01, 0.03, "first"),
        Row(mean, "BM25 + sparse", "active terms", 90.0, None, None, 9, variant="second", sets=1),
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in trials_table(rows).splitlines()]
    assert cells[0] == ["points over BM25", mean, "above first", "one", "active terms"]
    assert cells[2:] == [
        ["first", "1.00 [0.00, 2.00]", "", "1.00 [0.00, 2.00]", "1,234"],
        ["second", "3.00", "2.00 [1.00, 3.00]", "3.00", "90"],
    ]
