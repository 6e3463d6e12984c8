"""The table of `osn train sparse --try`: what each trial gains on sets that were left out. It needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from opensearch_neural.evaluation.results import Row
from opensearch_neural.evaluation.tables import bracketed, table

TERMS = "active terms"


def trials_table(rows: Sequence[Row]) -> str:
    """A line for each trial, of the rows of `leave_one_out.result`.

    It has the points of nDCG@10 over BM25 in the mean of the sets, how many points that is above the model without training
    and above the first trial, the points on each set, and the mean number of terms of a document.
    """
    differences = [row for row in rows if row.kind == "difference"]
    first = next(row for row in differences if not row.baseline_variant)
    (mean,) = {row.set for row in rows if row.sets}
    rivals = dict.fromkeys(row.baseline_variant for row in differences if row.baseline_variant)
    points = {(row.variant, row.baseline_variant, row.set): _points(row) for row in differences}
    terms = {row.variant: f"{row.value:,.0f}" for row in rows if row.measure == TERMS and row.set == mean}
    sets = [mean, *dict.fromkeys(row.set for row in differences if not row.sets)]
    return table(
        [
            f"points over {first.baseline}",
            mean,
            *(f"above {rival}" for rival in rivals),
            *sets[1:],
            TERMS,
        ],
        [
            [
                name,
                points[name, "", mean],
                *(points.get((name, rival, mean), "") for rival in rivals),
                *(points[name, "", set_name] for set_name in sets[1:]),
                terms[name],
            ]
            for name in dict.fromkeys(row.variant for row in differences)
        ],
    )


def _points(row: Row) -> str:
    return bracketed(row, lambda value: f"{100 * value:.2f}")
