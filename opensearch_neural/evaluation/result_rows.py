"""Measured values as rows of a result file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from opensearch_neural.evaluation.measures import Measured, label
from opensearch_neural.evaluation.results import MeasuredEngine, Row
from opensearch_neural.evaluation.significance import Comparison, compare, holm, interval


def rows(
    data: str,
    measured: Mapping[str, Measured] | Mapping[MeasuredEngine, Measured],
    *,
    baseline: str | MeasuredEngine | None = "bm25",
    seed: int = 0,
    clusters: Mapping[str, str] | None = None,
) -> list[Row]:
    """Result rows of several engines on the set `data`: each mean with its interval, and its difference to `baseline`.

    measured: {engine: Measured}. For each measure of an engine other than the baseline there are three rows: the value, the
    paired difference with its interval, and its p-value. clusters: as in `compare`.
    """
    of_engine = {_engine(name): each for name, each in measured.items()}
    against = None if baseline is None else _engine(baseline)
    result: list[Row] = []
    for engine, each in of_engine.items():
        for name, values in each.per_query.items():
            of_queries = None if clusters is None else [clusters[query] for query in values]
            low, high = interval(values.values(), seed=seed, clusters=of_queries) or (None, None)
            row = Row(
                data,
                engine.name,
                label(name),
                each.mean[name],
                low,
                high,
                len(values),
                seed=engine.seed,
                variant=engine.variant,
                seeds=engine.seeds,
            )
            result.append(row)
            if against in of_engine and engine != against:
                comparison = compare(values, of_engine[against].per_query[name], seed=seed, clusters=clusters)
                result += _compared(row, against, comparison)
    return result


def _compared(row: Row, baseline: MeasuredEngine, comparison: Comparison) -> list[Row]:
    """The rows of a comparison. Their seed is the engine's; if it has none, the baseline's."""
    seed = row.seed if row.seeds or row.seed is not None else baseline.seed
    compared = replace(
        row,
        value=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        kind="difference",
        baseline=baseline.name,
        baseline_variant=baseline.variant,
        seed=seed,
        engine_label=row.line if seed != row.seed else "",
        baseline_label=str(baseline) if (baseline.seed, baseline.seeds) != (seed, row.seeds) else "",
    )
    return [compared, replace(compared, value=comparison.p, low=None, high=None, kind="p-value")]


def holm_rows(made: Sequence[Row]) -> list[Row]:
    """The p-values of each measure, corrected for the number of comparisons (one for each engine, or engine and segment)."""
    family: dict[str, list[Row]] = {}
    for row in made:
        if row.kind == "p-value":
            family.setdefault(row.measure, []).append(row)
    return [
        replace(row, kind="holm", value=value)
        for of_measure in family.values()
        for row, value in zip(of_measure, holm([row.value for row in of_measure]), strict=True)
    ]


def _engine(name: str | MeasuredEngine) -> MeasuredEngine:
    return name if isinstance(name, MeasuredEngine) else MeasuredEngine(name)
