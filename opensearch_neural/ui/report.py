"""What `osn eval` measured as one page that needs no server, for a browser and for a printer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensearch_neural.evaluation.engine_report import difference
from opensearch_neural.evaluation.measures import label, rank
from opensearch_neural.evaluation.tables import cell, pivot
from opensearch_neural.retrievers import Run
from opensearch_neural.ui.pages import render

if TYPE_CHECKING:
    from opensearch_neural.evaluation.engine_comparison import EngineResult
    from opensearch_neural.evaluation.results import Kind, Row, Summary

WIDTH = 640
"""Of a plot, in its own units."""
MOST_QUERIES = 400
"""Whose hits the page holds: those of the largest differences."""
PAGE = 10


@dataclass(frozen=True)
class Bar:
    """A difference with its interval, in the units of the plot."""

    label: str
    x: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Forest:
    """Differences to the baseline by one measure."""

    measure: str
    zero: float
    bars: list[Bar]


@dataclass(frozen=True)
class QueryHits:
    """One query's pages by the baseline and by one engine."""

    id: str
    text: str
    before: float
    after: float
    pages: list[list[tuple[str, str, float | None]]]
    """Of both: (id, title, grade), best first."""


@dataclass(frozen=True)
class Scatter:
    """Every query's value by one engine against the baseline's."""

    engine: str
    queries: list[QueryHits]
    """By difference, the largest gain first."""
    left_out: int

    @property
    def losses(self) -> list[QueryHits]:
        """The five largest, the largest last."""
        return [each for each in self.queries[-5:] if each.after < each.before]


def report(
    summary: Summary,
    results: Sequence[EngineResult],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
    baseline: str | None,
    titles: Mapping[str, str] | None = None,
) -> str:
    """titles: {document id: title}, where they are known."""
    measures = list(results[0].measured.mean)
    columns, lines = pivot([row for row in summary.rows if row.kind == "value"])
    base = next((result for result in results if result.engine == baseline), None)
    others = [result for result in results if base is not None and result is not base]
    return render(
        "report.html",
        alone=True,
        summary=summary,
        verdict=verdict(summary, label(measures[0]), baseline),
        columns=columns,
        lines=[(line, [cell(values.get(name)) for name in columns]) for _, line, values in lines],
        forests=[forest(summary.rows, label(measure)) for measure in measures] if others else [],
        baseline=baseline,
        measure=label(measures[0]),
        costs=costs(results, measures[0]),
        scatters=[
            scatter(base, result, measures[0], queries, qrels, titles or {}) for result in others if base is not None
        ],
        detectable=[
            row
            for row in summary.rows
            if row.kind == "detectable" and row.measure == label(measures[0]) and not row.variant
        ],
        width=WIDTH,
    )


def verdict(summary: Summary, measure: str, baseline: str | None) -> str:
    """One sentence: whether an engine is better than the baseline, by the whole of its interval."""
    gains = [row for row in summary.rows if row.kind == "difference" and row.measure == measure and not row.variant]
    n = summary.rows[0].n
    if baseline is None or not gains:
        return f"{n:,} queries were measured; there is nothing to compare."
    best = max(gains, key=lambda row: row.value)
    by_key = {row.key: row for row in summary.rows}
    kinds: tuple[Kind, ...] = ("holm", "p-value")
    p = next(by_key[key] for kind in kinds if (key := best.key._replace(kind=kind)) in by_key)
    told = f"{measure} {difference(best, p)}, over {n:,} queries"
    if best.low is not None and best.low > 0:
        return f"{best.line} is better than {baseline}: {told}."
    worse = [row.line for row in gains if row.high is not None and row.high < 0]
    also = f" Worse than it: {', '.join(worse)}." if worse else ""
    return f"No engine is shown to be better than {baseline}; the highest is {best.line}: {told}.{also}"


def forest(rows: Sequence[Row], measure: str) -> Forest:
    """Every engine's difference to the baseline, and that of each segment."""
    shown = [row for row in rows if row.kind == "difference" and row.measure == measure]
    ends = [end for row in shown for end in (row.low, row.high, row.value, 0.0) if end is not None]
    least, most = min(ends, default=0.0), max(ends, default=0.0)
    across = (most - least) or 1.0

    def place(value: float) -> float:
        return round(WIDTH * (0.03 + 0.94 * (value - least) / across), 1)

    bars = []
    for row in shown:
        p = next(each for each in rows if each.key == row.key._replace(kind="p-value"))
        low, high = (row.value if end is None else end for end in (row.low, row.high))
        bars.append(Bar(row.line, place(row.value), place(low), place(high), difference(row, p)))
    return Forest(measure, place(0.0), bars)


def costs(results: Sequence[EngineResult], measure: str) -> list[tuple[str, float, float, float, float]]:
    """(engine, P99 in ms, quality, x, y) of those that were timed; both axes in the units of the plot."""
    timed = [
        (each.engine, each.latency.p99, each.measured.mean[measure]) for each in results if each.latency is not None
    ]
    if not timed:
        return []
    slowest = max(p99 for _, p99, _ in timed)
    low, high = min(value for *_, value in timed), max(value for *_, value in timed)
    across = (high - low) or 1.0
    return [
        (engine, p99, value, round(0.75 * WIDTH * p99 / slowest, 1), round(160 - 140 * (value - low) / across, 1))
        for engine, p99, value in timed
    ]


def scatter(
    base: EngineResult,
    result: EngineResult,
    measure: str,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
    titles: Mapping[str, str],
) -> Scatter:
    before, after = base.measured.per_query[measure], result.measured.per_query[measure]
    order = sorted(after, key=lambda query: (-abs(after[query] - before[query]), query))
    pages: list[Run] = [next(iter(each.runs.values()), {}) for each in (base, result)]
    kept = [
        QueryHits(
            query,
            queries.get(query, "") or query,
            before[query],
            after[query],
            [
                [(id, titles.get(id, ""), qrels.get(query, {}).get(id)) for id, _ in rank(run.get(query, {}))[:PAGE]]
                for run in pages
            ],
        )
        for query in order[:MOST_QUERIES]
    ]
    kept.sort(key=lambda each: (each.before - each.after, each.id))
    return Scatter(result.engine, kept, len(order) - len(kept))


def documents_shown(results: Sequence[EngineResult], most: int = 20_000) -> list[str]:
    """The ids of what a report shows of the pages, each once."""
    pages = (run for result in results for run in list(result.runs.values())[:1])
    ids = (id for run in pages for hits in run.values() for id, _ in rank(hits)[:PAGE])
    return list(dict.fromkeys(ids))[:most]
