"""A load test as data and as text: result rows (`summary.json`), also as CSV, and tables for a terminal.

`osn bench results` makes a page of result files.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.load.blocks import Level
from benchmarks.load.histogram import needed
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import MEASURES, QUANTILES, Cell, Levels, cells
from benchmarks.render import with_interval
from opensearch_neural.evaluation.provenance import Machine, clean_argument, machine_facts
from opensearch_neural.evaluation.results import Data, Row, Summary
from opensearch_neural.evaluation.tables import number, result_table
from opensearch_neural.files import write_text

CSV_NAME = "load.csv"
QUALITY = ("nDCG@10", "R@10", "R@100", "overlap@10", "score kept")
PARTS = ("wait", "encode", "network", "took")
"""The parts of a request's time."""
COLUMNS = (
    *("refused", *QUALITY, "P50 ms", "P90 ms", "P99 ms", "P99 / {base}", "requests/s", "requests/s / {base}"),
    *("server CPU ms", *(f"{part} ms, mean" for part in PARTS), "failed", "requests"),
)
"""Columns of the tables for a terminal."""


def set_name(measurement: Measurement, level: Level) -> str:
    return f"{measurement.index}, {level.label}"


def rows(measurement: Measurement, levels: Levels | None = None) -> list[Row]:
    """All numbers of the run as rows; those measured at a load level name it. A refused cell has only the row "refused"."""
    result = list(measurement.quality)
    for row in (cells(measurement) if levels is None else levels).values():
        for cell in row.values():
            result += [of_cell for of_cell in _cell_rows(measurement, cell) if math.isfinite(of_cell.value)]
    for name, ceiling in measurement.ceilings.items():
        result.append(Row(measurement.index, name, "generator's ceiling, requests/s", ceiling, None, None, 0))
    return result


def _cell_rows(measurement: Measurement, cell: Cell) -> list[Row]:
    """The numbers of one engine at one level; a percentile is infinite if failures reach it."""
    of_cell, base = partial(Row, measurement.index, cell.variant, level=cell.level.label), measurement.settings.baseline
    if cell.refused:
        return [of_cell("refused", 1.0, None, None, cell.requests)]
    result = [of_cell(measure, *value) for measure in MEASURES if (value := cell.estimate(measure)) is not None]
    for measure in MEASURES:
        if (ratio := cell.ratio(measure)) is not None:
            result.append(of_cell(measure.removesuffix(" ms"), *ratio, kind="ratio", baseline=base))
    for part in PARTS:
        mean = cell.mean_of(part)
        if mean is not None:
            result.append(of_cell(f"{part} ms, mean", mean, None, None, cell.requests))
    failed = sum(cell.failures.values())
    result.append(of_cell("failed", failed / max(1, cell.requests), None, None, cell.requests))
    result.append(of_cell("generator, share of a core", cell.strain.core_share, None, None, cell.requests))
    return result


def summary(
    *measurements: Measurement, data: Sequence[Data] = (), title: str = "", levels: Levels | None = None
) -> Summary:
    """The result file of a run, or of several, of which the last may be partial. levels: the cells of a single run, if they
    are known"""
    last = measurements[-1]
    of_levels = [cells(measurement) if levels is None else levels for measurement in measurements]
    notes_ = [
        note for pair in zip(measurements, of_levels, strict=True) for note in (*remarks(pair[1]), *notes(pair[0]))
    ]
    named = f"{title or f'Load: {last.index}'}{' (partial)' if last.partial else ''}"
    return Summary.of_this_run(
        machine=environment(last),
        data=data,
        seeds=[last.settings.seed],
        rows=[row for pair in zip(measurements, of_levels, strict=True) for row in rows(*pair)],
        title="; ".join([named, *(change for measurement in measurements for change in measurement.changes)]),
        notes=dict.fromkeys(notes_),
    )


def remarks(levels: Levels) -> list[str]:
    """A note for each engine and level whose machine had other work, or whose rows lack a percentile because failures reach
    it."""
    result = []
    for cell in (cell for row in levels.values() for cell in row.values()):
        if disturbances := cell.strain.disturbances():
            result.append(f"{cell.variant} at {cell.level.label}: {', and '.join(disturbances)}")
        estimates = {measure: cell.estimate(measure) for measure in QUANTILES}
        reached = [measure for measure, value in estimates.items() if value is not None and math.isinf(value.value)]
        if reached:
            failures = ", ".join(f"{count} × {what}" for what, count in cell.failures.items())
            result.append(
                f"{cell.variant} at {cell.level.label}: failures reach {', '.join(reached)}, which no row has then "
                f"({failures}, of {cell.requests:,} requests)"
            )
    return result


def notes(measurement: Measurement) -> list[str]:
    """How the run ended, what happened, and facts about indexes, engines, cluster and warm-up."""
    partial = [f"partial: {measurement.partial}"] if measurement.partial else []
    events = [clean_argument(event) for event in (*partial, *measurement.incidents)]
    return [*events, *facts_text(measurement).splitlines()]


def environment(measurement: Measurement) -> Machine:
    """The machine's facts and the cluster's."""
    facts = machine_facts()
    if measurement.cluster is not None:
        facts["opensearch"] = measurement.cluster.version
        facts["nodes"] = measurement.cluster.nodes
        facts["heap_gib"] = round(measurement.cluster.heap_max / 2**30, 2)
    return facts


def write(folder: Path, made: Summary) -> list[Path]:
    """Write the rows of the summary `made` as CSV, and the summary, into `folder`. Returns their paths."""
    path, lines = Path(folder) / CSV_NAME, io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["set", "engine", "measure", "value", "low", "high", "n"])
    writer.writerows([row.where, row.line, row.column, row.value, row.low, row.high, row.n] for row in made.rows)
    write_text(path, lines.getvalue())
    return [path, made.write(folder)]


# ------------------------------------------------ text


def text(measurement: Measurement, levels: Levels | None = None) -> str:
    """The run as text: how it ended, a table for each level with quality beside cost, and facts."""
    parts = []
    if measurement.partial:
        parts.append(f"PARTIAL RESULT: {measurement.partial}")
    levels = cells(measurement) if levels is None else levels
    parts += [f"! {incident}" for incident in (*measurement.incidents, *measurement.changes, *remarks(levels))]
    for level, row in levels.items():
        parts.append(f"{set_name(measurement, level)}\n\n{level_table(measurement, level, row)}")
        parts += [f"refused: {name}: {cell.refused}" for name, cell in row.items() if cell.refused]
        parts += [
            f"failed: {name}: " + ", ".join(f"{count} × {what}" for what, count in cell.failures.items())
            for name, cell in row.items()
            if cell.failures
        ]
    if not levels and (quality := _quality(measurement)):
        parts.append(result_table(quality))
    broken = [block for block in measurement.blocks if block.broken]
    parts += [
        f"left out: {block.variant} at {block.level.label}, {block.broken}: "
        + ", ".join(f"{count} × {what}" for what, count in sorted(block.failures.items()))
        for block in broken
    ]
    parts.append("\n".join([*strain_lines(levels), facts_text(measurement)]))
    return "\n\n".join(parts)


def strain_lines(levels: Levels) -> list[str]:
    """The most that the generator needed, and that the cluster spent on garbage collection."""
    cells_ = [cell for row in levels.values() for cell in row.values()]
    if not cells_:
        return []
    core = max(cells_, key=lambda cell: cell.strain.core_share)
    lines = [
        f"the generator's busiest process needed at most {core.strain.core_share:.0%} of a core "
        f"({core.variant} at {core.level.label})"
    ]
    near = [(cell.strain.ceiling_share, cell) for cell in cells_ if cell.strain.ceiling_share is not None]
    if near:
        share, cell = max(near, key=lambda pair: pair[0])
        lines.append(f"it reached at most {share:.0%} of its ceiling ({cell.variant} at {cell.level.label})")
    collecting = [(cell.gc_share, cell) for cell in cells_ if cell.gc_share is not None]
    if collecting:
        share, cell = max(collecting, key=lambda pair: pair[0])
        lines.append(f"garbage collection took at most {share:.1%} of the time ({cell.variant} at {cell.level.label})")
    return lines


def level_table(measurement: Measurement, level: Level, row: Mapping[str, Cell]) -> str:
    """One table: a line for each engine, quality beside cost. Brackets are 95% intervals; an empty cell means unknown or too
    few requests, – that there is no ratio (the baseline has none), and ∞ that failures reach the percentile."""
    quality, rows = _quality(measurement), list[Row]()
    for name, cell in row.items():
        rows += [replace(of_engine, level=level.label) for of_engine in quality if of_engine.engine == name]
        requests = Row(measurement.index, name, "requests", cell.requests, None, None, cell.requests, level=level.label)
        rows += [*_cell_rows(measurement, cell), requests]
    columns = {row.column for row in rows}
    shown = [column.format(base=measurement.settings.baseline) for column in COLUMNS]

    def as_text(row: Row) -> str:
        if row.measure == "refused":
            return "yes"
        if row.measure == "failed":
            return f"{row.value:.2%}"
        if row.measure == "requests":
            return f"{row.value:,.0f}"
        if math.isinf(row.value):
            return "∞"
        return with_interval(row) if row.kind == "ratio" else number(row.value)

    no_ratio = dict.fromkeys(
        (column for column in shown if column.endswith(f" / {measurement.settings.baseline}")), "–"
    )
    shown = [column for column in shown if column in columns]
    return result_table(rows, shown, text=as_text, unknown=no_ratio) + _lacking(row)


def _lacking(row: Mapping[str, Cell]) -> str:
    """A sentence on engines with too few requests for a P99; empty if all have enough."""
    least = needed(0.99)
    lacking = [
        f"{name} lacks {least - cell.requests:,}"
        for name, cell in row.items()
        if cell.requests < least and not cell.refused
    ]
    if not lacking:
        return ""
    how = "more --minutes and --requests, or fewer engines and levels"
    return f"\n\nA P99 needs {least:,} requests: {', '.join(lacking)} ({how})."


def _quality(measurement: Measurement) -> list[Row]:
    """The quality of the engines, without differences."""
    return [row for row in measurement.quality if row.kind == "value" and row.measure in QUALITY]


def facts_text(measurement: Measurement) -> str:
    """Facts about indexes, cluster, generator and warm-up, and the notes."""
    lines = [
        f"{name}: {facts.documents:,} documents, {facts.bytes / 2**20:.1f} MiB, {facts.segments} segments, "
        f"{facts.shards} shards"
        for name, facts in measurement.indexes.items()
    ]
    if cluster := measurement.cluster:
        lines.append(
            f"{cluster.version}, {cluster.nodes} node(s), heap {cluster.heap_max / 2**30:.1f} GiB, "
            f"processor time from {cluster.cpu_from}"
        )
    if measurement.ceilings:
        lines.append(
            "the generator's own ceiling: "
            + ", ".join(f"{name} {ceiling:,.0f}/s" for name, ceiling in measurement.ceilings.items())
        )
    steady = "steady" if measurement.warmup.steady else "not steady"
    lines.append(f"warm-up {measurement.warmup.seconds:.0f} s ({steady}); {measurement.queries} different queries")
    return "\n".join([*lines, *measurement.notes])
