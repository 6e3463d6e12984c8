"""The settings that `osn tune` tried and chose, as one page that works without a server."""

from __future__ import annotations

from opensearch_neural.evaluation.results import Summary
from opensearch_neural.tune import Tuned, pareto, share
from opensearch_neural.ui.report_parts import Interval, ReportTable, forest, plot, report_page


def tune_report(summary: Summary, tuned: Tuned, verdict: str) -> str:
    """The report's HTML. verdict: the choice in words"""
    tried, chosen, full, measure = tuned.tried, tuned.chosen, tuned.full, tuned.measure
    front = pareto(tried)
    shown = [each for each in front if each.setting is not None]
    if chosen is not None and chosen.tried not in shown:
        shown.append(chosen.tried)
    intervals = []
    for each in shown:
        kept, low, high = share(each.values, tried[0].values, seed=summary.seeds[0])
        intervals.append(Interval(str(each.setting), kept, low, high, in_words(kept, low, high)))
    if chosen is not None:
        kept, low, high = chosen.kept, chosen.low, chosen.high
        intervals.append(
            Interval(f"chosen, on {tuned.confirmed_by} queries", kept, low, high, in_words(kept, low, high))
        )
    points = []
    for each in tried:
        label = full if each.setting is None else ""
        if chosen is not None and each.setting == chosen.setting:
            label = "chosen"
        points.append((label, each.ms, each.quality, f"{each.quality:.3f}, {each.ms:.2f} ms"))
    title = f"Share kept of the {measure} of {full}, 95% intervals; the line is at {tuned.required:.1%}"
    lines = [[*each.cells(full), "yes" if each in front else ""] for each in sorted(tried, key=lambda each: each.ms)]
    return report_page(
        "osn tune",
        summary,
        verdict,
        forests=[forest(title, intervals, beside=tuned.required)],
        notes=[
            f"{len(tried) - 1} settings were tried on {tuned.queries:,} queries; the forest shows those that no other beats."
        ],
        plots=[plot(f"{measure} against the time of a query", "milliseconds from 0", points)],
        tables=[ReportTable("All settings", ["setting", "ms", measure, "kept", "nothing beats it"], lines)],
    )


def in_words(kept: float, low: float | None, high: float | None) -> str:
    return f"{kept:.1%}" + (f" [{low:.1%}, {high:.1%}]" if low is not None and high is not None else "")
