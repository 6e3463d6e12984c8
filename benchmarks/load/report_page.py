"""A load test as one page that needs no server: what `osn bench load --report` writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchmarks.load import result
from benchmarks.load.blocks import Level
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import THROUGHPUT, Levels
from opensearch_neural.evaluation.results import Row, Summary
from opensearch_neural.evaluation.tables import cell, number
from opensearch_neural.ui.report_parts import Forest, Interval, Plot, forest, plot, report_page, values_table

LATENCIES = ("P99", "P90", "P50")
"""Ratios for the verdict: it takes the first that was measured often enough."""
SHOWN = (*LATENCIES, "requests/s", "server CPU")


def page(measurement: Measurement, made: Summary, levels: Levels) -> str:
    """The HTML page. made: the run's summary; levels: its cells. Raises MissingExtra without the extra [ui]."""
    base = measurement.settings.baseline
    names = [result.set_name(measurement, level) for level in levels]
    ratios = [row for row in made.rows if row.kind == "ratio" and row.engine != base]
    return report_page(
        "osn bench load",
        made,
        speed_verdict(measurement, ratios, names, base),
        forests=list(forests(ratios, base)),
        notes=[
            *(f"Refused: {row.engine}, {row.where}." for row in made.rows if row.measure == "refused"),
            *measurement.incidents,
            *measurement.changes,
            *result.strain_lines(levels),
            *result.facts_text(measurement).splitlines(),
        ],
        plots=list(plots(measurement, made.rows, levels)),
        tables=[
            values_table(where, [row for row in made.rows if row.where == where])
            for where in dict.fromkeys(row.where for row in made.rows)
        ],
    )


def speed_verdict(measurement: Measurement, ratios: Sequence[Row], names: Sequence[str], base: str) -> str:
    """One sentence about the last load that was measured: which engines are faster, with their whole interval."""
    partial = f"This is a part of the result: {measurement.partial}. " if measurement.partial else ""
    for measure in LATENCIES:
        last = [row for row in ratios if row.measure == measure and names and row.where == names[-1]]
        if not last:
            continue
        faster = [line_with_value(row) for row in last if row.high is not None and row.high < 1]
        slower = [line_with_value(row) for row in last if row.low is not None and row.low > 1]
        apart = [line_with_value(row) for row in last if line_with_value(row) not in (*faster, *slower)]
        groups = (f"faster than {base}", faster), ("slower", slower), ("neither for sure", apart)
        verdict = "; ".join(f"{words}: {', '.join(engines)}" for words, engines in groups if engines)
        return f"{partial}{names[-1]}, by {measure} as a share of that of {base}: {verdict}."
    return f"{partial}Nothing was measured often enough to be compared with {base}."


def line_with_value(row: Row) -> str:
    return f"{row.line} {cell(row)}"


def forests(ratios: Sequence[Row], base: str) -> Iterator[Forest]:
    for measure in SHOWN:
        better = "right" if measure == "requests/s" else "left"
        of_measure = [row for row in ratios if row.measure == measure]
        intervals = [
            Interval(f"{row.line}, {row.level}", row.value, row.low, row.high, cell(row)) for row in of_measure
        ]
        yield forest(f"{measure} / {base}, 95% intervals; better to the {better} of the line", intervals, beside=1.0)


def plots(measurement: Measurement, rows: Sequence[Row], levels: Levels) -> Iterator[Plot]:
    """Latency and throughput by load, and quality against P99 for each load."""
    for mode, across in (("closed", "clients"), ("open", "requests a second")):
        chosen = sorted(level for level in levels if level.mode == mode)
        for measure in ("P99 ms", "P50 ms", THROUGHPUT) if mode == "closed" else ("P99 ms", "P50 ms"):
            yield plot(f"{measure} by {across}", across, by_level(levels, chosen, measure))
    values = {(row.where, row.engine, row.measure): row.value for row in rows if row.kind == "value"}
    measures = [row.measure for row in measurement.quality if row.kind == "value" and row.measure in result.QUALITY]
    if not measures:
        return
    quality = {
        row.engine: row.value for row in measurement.quality if (row.kind, row.measure) == ("value", measures[0])
    }
    for level in levels:
        name = result.set_name(measurement, level)
        points = [
            (engine, p99, value, f"{value:.3f}, {p99:.1f} ms")
            for engine, value in quality.items()
            if (p99 := values.get((name, engine, "P99 ms"))) is not None
        ]
        yield plot(f"{name}: {measures[0]} against P99", "P99 from 0 ms", points)


def by_level(levels: Levels, chosen: Sequence[Level], measure: str) -> Iterator[tuple[str, float, float, str]]:
    """The points of a plot: each engine at each of the chosen levels, with its name at its last level."""
    estimates = {
        (engine, level): estimate
        for level in chosen
        for engine, cell_ in levels[level].items()
        if (estimate := cell_.estimate(measure)) is not None and math.isfinite(estimate.value)
    }
    last = dict(estimates.keys())  # levels ascend, so each engine keeps its last
    for (engine, level), estimate in estimates.items():
        text = f"{number(estimate.value)} at {level.label}"
        named = level == last[engine]
        yield engine if named else "", level.value, estimate.value, text if named else f"{engine}, {text}"
