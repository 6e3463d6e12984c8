"""The results of `osn eval` as one page that works without a server, for a browser and for a printer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensearch_neural.evaluation.engine_report import difference, few_queries
from opensearch_neural.evaluation.measures import label, rank
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.evaluation.tables import cell
from opensearch_neural.retrievers import Run
from opensearch_neural.ui.report_parts import (
    Forest,
    Interval,
    Plot,
    ReportTable,
    forest,
    plot,
    report_page,
    values_table,
)

if TYPE_CHECKING:
    from opensearch_neural.evaluation.engine_comparison import EngineResult
    from opensearch_neural.evaluation.results import Key, Row, RowKind, Summary

MOST_QUERIES = 400
"""The report contains the hits of this many queries, those with the largest differences."""
MOST_DOCUMENTS = 20_000
"""The report has titles for this many documents."""
MOST_P = 0.05
"""The verdict calls a difference shown if its p-value is below this."""


@dataclass(frozen=True)
class QueryHits:
    """The pages of a query by the baseline and by one engine."""

    id: str
    """The query's id."""
    text: str
    """The query's text."""
    before: float
    """The measure by the baseline."""
    after: float
    """The measure by the engine."""
    pages: list[list[tuple[str, str, float | None]]]
    """The pages of both: (id, title, grade), best first."""


@dataclass(frozen=True)
class Scatter:
    """Each query's value by one engine against its value by the baseline."""

    engine: str
    """The engine compared with the baseline."""
    queries: list[QueryHits]
    """By difference, the largest gain first."""
    left_out: int
    """How many queries are not in `queries`, those with the smallest differences."""

    @property
    def losses(self) -> list[QueryHits]:
        """The five largest losses, the largest last."""
        return [each for each in self.queries[-5:] if each.after < each.before]


def report(
    summary: Summary,
    results: Sequence[EngineResult],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
    baseline: str | None,
    titles: Mapping[str, str] | None = None,
) -> str:
    """The report's HTML. titles: {document id: title}, for documents with a known title."""
    measures = list(results[0].measured.mean)
    base = next((result for result in results if result.engine == baseline), None)
    others = [result for result in results if base is not None and result is not base]
    shown = label(measures[0])
    detectable = [
        f"{cell(row)} on ({row.line})"
        for row in summary.rows
        if row.kind == "detectable" and row.measure == shown and not row.variant
    ]
    can_show = [f"These queries can show a difference of {shown} from {', '.join(detectable)}."] if detectable else []
    few = few_queries(summary.rows)
    return report_page(
        "osn eval",
        summary,
        verdict(summary, shown, baseline),
        forests=[difference_forest(summary.rows, label(measure), baseline) for measure in measures] if others else [],
        notes=[*can_show, *([f"{few[0].upper()}{few[1:]}."] if few else [])],
        plots=[costs(results, measures[0])],
        tables=list(tables(summary.rows)),
        template="evaluation.html",
        baseline=baseline,
        measure=shown,
        scatters=[
            scatter(base, result, measures[0], queries, qrels, titles or {}) for result in others if base is not None
        ],
    )


def tables(rows: Sequence[Row]) -> Iterator[ReportTable]:
    """The table of all queries, then one of each segment."""
    for name in dict.fromkeys(row.set for row in rows):
        title = "All measures" if name == rows[0].set else f"Segment {_segment(name, rows)}"
        yield values_table(title, [row for row in rows if row.set == name])


def verdict(summary: Summary, measure: str, baseline: str | None) -> str:
    """One sentence: whether an engine is better than the baseline; of several better ones, it names the highest.

    It is better if the whole interval is above zero and the corrected p-value is below .05; with few queries the interval
    alone would claim too much. Segments are not considered.
    """
    whole = [row for row in summary.rows if row.set == summary.rows[0].set]
    gains = [row for row in whole if row.kind == "difference" and row.measure == measure and not row.variant]
    n = summary.rows[0].n
    if baseline is None or not gains:
        return f"{n:,} queries were measured; there is nothing to compare."
    by_key = {row.key: row for row in whole}

    def shown(row: Row) -> bool:
        return corrected_p(row, by_key).value < MOST_P

    better = [row for row in gains if row.low is not None and row.low > 0 and shown(row)]
    best = max(better or gains, key=lambda row: row.value)
    gain = f"{measure} {difference(best, corrected_p(best, by_key))}, over {n:,} queries"
    if better:
        return f"{best.line} is better than {baseline}: {gain}."
    worse = [row.line for row in gains if row.high is not None and row.high < 0 and shown(row)]
    also = f" Worse than it: {', '.join(worse)}." if worse else ""
    return f"No engine is shown to be better than {baseline}; the highest is {best.line}: {gain}.{also}"


def difference_forest(rows: Sequence[Row], measure: str, baseline: str | None) -> Forest:
    """Each engine's difference to the baseline, over all queries and over each segment. p is corrected (Holm) for the
    engines, and that of segments for all segments' engines."""
    by_key = {row.key: row for row in rows}
    shown = [row for row in rows if row.kind == "difference" and row.measure == measure]
    intervals = []
    for row in shown:
        name = row.line if row.set == rows[0].set else f"{row.line} ({_segment(row.set, rows)})"
        label = difference(row, corrected_p(row, by_key))
        intervals.append(Interval(name, row.value, row.low, row.high, label))
    engines = sum(row.set == rows[0].set for row in shown)
    several = ", p corrected (Holm)" if engines > 1 else ""
    if len(shown) - engines > 1:
        several += ", that of segments separately" if several else ", p of segments corrected (Holm)"
    return forest(f"{measure}: difference to {baseline}, 95% intervals{several}", intervals)


def _segment(name: str, rows: Sequence[Row]) -> str:
    """A segment's own name: "tail" of the set "docs: tail"."""
    return name.removeprefix(f"{rows[0].set}: ")


def corrected_p(row: Row, by_key: Mapping[Key, Row]) -> Row:
    """The p-value of a difference: Holm's if there is one."""
    kinds: tuple[RowKind, ...] = ("holm", "p-value")
    return next(by_key[key] for kind in kinds if (key := row.key._replace(kind=kind)) in by_key)


def costs(results: Sequence[EngineResult], measure: str) -> Plot:
    """Quality against P99, for the engines that were timed."""
    timed = [
        (each.engine, each.latency.p99, each.measured.mean[measure]) for each in results if each.latency is not None
    ]
    requests = next((len(each.latency.ms) for each in results if each.latency is not None), 0)
    return plot(
        f"{label(measure)} against P99",
        f"P99 of {requests:,} single requests, from 0 ms",
        [(engine, p99, value, f"{value:.3f}, {p99:.1f} ms") for engine, p99, value in timed],
    )


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
    points = [
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
    points.sort(key=lambda each: (each.before - each.after, each.id))
    return Scatter(result.engine, points, len(order) - len(points))


def documents_shown(results: Sequence[EngineResult]) -> list[str]:
    """The ids of the documents that a report shows, each once; MOST_DOCUMENTS at most."""
    pages = (run for result in results for run in list(result.runs.values())[:1])
    ids = (id for run in pages for hits in run.values() for id, _ in rank(hits)[:PAGE])
    return list(dict.fromkeys(ids))[:MOST_DOCUMENTS]
