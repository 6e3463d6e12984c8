"""A load test as data: result rows (`summary.json`), also as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeGuard

from benchmarks.load.blocks import Level
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import MEASURES, Cell, Estimate, Levels, cells
from opensearch_neural.evaluation.provenance import Machine, machine_facts
from opensearch_neural.evaluation.results import Data, Row, Summary

PARTS = ("encode", "network", "took")
"""The parts of a request's time."""


def set_name(measurement: Measurement, level: Level) -> str:
    return f"{measurement.index}, {level.label}"


def rows(measurement: Measurement, levels: Levels | None = None) -> list[Row]:
    """All numbers of the run as rows; those measured at a load level name it. A refused cell has only the row "refused"."""
    result = [*measurement.quality, *measurement.more]
    base = measurement.settings.baseline
    for level, row in (cells(measurement) if levels is None else levels).items():
        for name, cell in row.items():
            of_cell = partial(Row, measurement.index, name, level=level.label)
            result += _cell_rows(of_cell, cell, base)
    for name, ceiling in measurement.ceilings.items():
        result.append(Row(measurement.index, name, "generator's ceiling, requests/s", ceiling, None, None, 0))
    return result


def _cell_rows(of_cell: Callable[..., Row], cell: Cell, base: str) -> list[Row]:
    if cell.refused:
        return [of_cell("refused", 1.0, None, None, cell.requests)]
    result = [
        of_cell(measure, value.value, value.low, value.high, value.n)
        for measure in MEASURES
        if _is_known(value := cell.estimate(measure))
    ]
    for measure in MEASURES:
        if _is_known(value := cell.ratio(measure)):
            unitless, ratio = measure.removesuffix(" ms"), partial(of_cell, kind="ratio", baseline=base)
            result.append(ratio(unitless, value.value, value.low, value.high, value.n))
    for part in PARTS:
        mean = cell.mean_of(part)
        if mean is not None:
            result.append(of_cell(f"{part} ms, mean", mean, None, None, cell.requests))
    failed = sum(cell.failures.values())
    result.append(of_cell("failed", failed / max(1, cell.requests), None, None, cell.requests))
    result.append(of_cell("generator, share of a core", cell.strain.core_share, None, None, cell.requests))
    return result


def _is_known(value: Estimate | None) -> TypeGuard[Estimate]:
    return value is not None and math.isfinite(value.value)


def summary(
    measurement: Measurement,
    data: Sequence[Data] = (),
    title: str = "",
    levels: Levels | None = None,
) -> Summary:
    """The result file."""
    levels = cells(measurement) if levels is None else levels
    return Summary.of_this_run(
        machine=environment(measurement),
        data=data,
        seeds=[measurement.settings.seed],
        rows=rows(measurement, levels),
        title=f"{title or f'Load: {measurement.index}'}{' (partial)' if measurement.partial else ''}",
    )


def environment(measurement: Measurement) -> Machine:
    """The machine's facts and the cluster's."""
    facts = machine_facts()
    if measurement.cluster is not None:
        facts["opensearch"] = measurement.cluster.version
        facts["nodes"] = measurement.cluster.nodes
        facts["heap_gib"] = round(measurement.cluster.heap_max / 2**30, 2)
    return facts


def csv_text(result: Iterable[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["set", "engine", "measure", "value", "low", "high", "n"])
    for row in result:
        writer.writerow([row.where, row.line, row.column, row.value, row.low, row.high, row.n])
    return out.getvalue()
