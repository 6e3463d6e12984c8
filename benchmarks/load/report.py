"""A load test as text for a terminal, and its files. `osn bench results` makes a page of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.load.histogram import needed, shown
from benchmarks.load.measurement import Measurement
from benchmarks.load.result import PARTS, csv_text, set_name
from benchmarks.load.statistics import SERVER_CPU, THROUGHPUT, Cell, Estimate, Levels, cells
from benchmarks.render import with_interval
from opensearch_neural.evaluation.results import Row, Summary
from opensearch_neural.evaluation.tables import number, table
from opensearch_neural.files import write_text

CSV_NAME = "load.csv"
QUALITY = ("nDCG@10", "R@10", "R@100", "overlap@10", "score kept")


def text(measurement: Measurement, levels: Levels | None = None) -> str:
    """The run as text: how it ended, a table for each level with quality beside cost, and facts."""
    parts = []
    if measurement.partial:
        parts.append(f"PARTIAL RESULT: {measurement.partial}")
    parts += [f"! {incident}" for incident in measurement.incidents]
    levels = cells(measurement) if levels is None else levels
    for level, row in levels.items():
        parts.append(f"{set_name(measurement, level)}\n\n{level_table(measurement, row)}")
        parts += [f"refused: {name}: {cell.refused}" for name, cell in row.items() if cell.refused]
        parts += [
            f"failed: {name}: " + ", ".join(f"{count} × {what}" for what, count in cell.failures.items())
            for name, cell in row.items()
            if cell.failures
        ]
    if not levels and measurement.quality:
        parts.append(quality_table(measurement))
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
    every = [cell for row in levels.values() for cell in row.values()]
    if not every:
        return []
    core = max(every, key=lambda cell: cell.strain.core_share)
    lines = [
        f"the generator's busiest process needed at most {core.strain.core_share:.0%} of a core "
        f"({core.variant} at {core.level.label})"
    ]
    near = [(cell.strain.ceiling_share, cell) for cell in every if cell.strain.ceiling_share is not None]
    if near:
        share, cell = max(near, key=lambda each: each[0])
        lines.append(f"it reached at most {share:.0%} of its ceiling ({cell.variant} at {cell.level.label})")
    collecting = [(cell.gc_share, cell) for cell in every if cell.gc_share is not None]
    if collecting:
        share, cell = max(collecting, key=lambda each: each[0])
        lines.append(f"garbage collection took at most {share:.1%} of the time ({cell.variant} at {cell.level.label})")
    return lines


def level_table(measurement: Measurement, row: Mapping[str, Cell]) -> str:
    """One table: a line for each engine, quality beside cost. Brackets are 95% intervals; – means unknown or too few
    requests."""
    base = measurement.settings.baseline
    by_engine = _quality_of(measurement)
    measures = [name for name in QUALITY if any(name in values for values in by_engine.values())]
    header = [
        "engine",
        *measures,
        *("P50 ms", "P90 ms", "P99 ms", f"P99 / {base}", "requests/s", f"requests/s / {base}", "server CPU ms"),
        *("encode", "network", "took", "failed", "requests"),
    ]
    lines = []
    for name, cell in row.items():
        own = by_engine.get(name, {})
        quality = [f"{own[measure].value:.3f}" if measure in own else "" for measure in measures]
        if cell.refused:
            lines.append([name, *quality, *["refused"] * 7, "", "", "", "", f"{cell.requests:,}"])
            continue
        lines.append(
            [
                name,
                *quality,
                *(_number(cell.estimate(percentile)) for percentile in ("P50 ms", "P90 ms", "P99 ms")),
                with_interval(cell.ratio("P99 ms")) if name != base else "1",
                _number(cell.estimate(THROUGHPUT)),
                with_interval(cell.ratio(THROUGHPUT)) if name != base else "1",
                _number(cell.estimate(SERVER_CPU)),
                *(shown(cell.mean_of(part)) for part in PARTS),
                f"{sum(cell.failures.values()) / max(1, cell.requests):.2%}" if cell.failures else "0",
                f"{cell.requests:,}",
            ]
        )
    return table(header, lines) + _lacking(row)


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


def quality_table(measurement: Measurement) -> str:
    by_engine: dict[str, dict[str, Row]] = {name: {} for name in measurement.variants} | _quality_of(measurement)
    measures = [name for name in QUALITY if any(name in values for values in by_engine.values())]
    return table(
        ["engine", *measures],
        [
            [name, *(f"{own[measure].value:.3f}" if measure in own else "" for measure in measures)]
            for name, own in by_engine.items()
        ],
    )


def _quality_of(measurement: Measurement) -> dict[str, dict[str, Row]]:
    """{engine: {measure: its value}}"""
    by_engine: dict[str, dict[str, Row]] = {}
    for row in measurement.quality:
        if row.kind == "value":
            by_engine.setdefault(row.engine, {})[row.measure] = row
    return by_engine


def facts_text(measurement: Measurement) -> str:
    """Facts about indexes, cluster, generator and warm-up, and the notes."""
    lines = [
        f"{name}: {facts.documents:,} documents, {facts.bytes / 2**20:.1f} MiB, {facts.segments} segments, "
        f"{facts.shards} shards"
        for name, facts in measurement.indexes.items()
    ]
    if measurement.more:
        lines.append("; ".join(f"{row.column} {number(row.value)}" for row in measurement.more))
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


def _number(value: Estimate | None) -> str:
    return "–" if value is None else shown(value.value)


def write(folder: Path, made: Summary) -> list[Path]:
    """Write the rows of the summary `made` as CSV, and the summary, into `folder`. Returns their paths."""
    table = Path(folder) / CSV_NAME
    write_text(table, csv_text(made.rows))
    return [table, made.write(folder)]
