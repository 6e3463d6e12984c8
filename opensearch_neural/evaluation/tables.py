"""Result rows as Markdown tables, for the terminal, the README and report pages. Tables are never typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from opensearch_neural.evaluation.results import Row


class WithInterval(Protocol):
    """A number with the ends of its interval: a row, or an estimate of a load test."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded for terminals; the first column is aligned left, the others right."""
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in (header, *lines)]
    widths = [max(3, *(len(line[at]) for line in cells)) for at in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in cells
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (aligned[0], rule, *aligned[1:]))


def pivot(rows: Iterable[Row]) -> tuple[list[str], list[tuple[str, str, dict[str, Row]]]]:
    """(columns, lines) of a table: a line (set, engine, {column: row}) for each set and engine, in order of appearance."""
    columns: dict[str, None] = {}
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        columns[row.column] = None
        lines.setdefault((row.where, row.line), {})[row.column] = row
    return list(columns), [(data, engine, values) for (data, engine), values in lines.items()]


def result_table(
    rows: Sequence[Row],
    shown: Sequence[str] | None = None,
    *,
    intervals: bool = False,
    sets: bool = False,
    text: Callable[[Row], str] | None = None,
    unknown: Mapping[str, str] | None = None,
) -> str:
    """The rows as a Markdown table: a line for each set and engine.

    shown: the columns; None: all. sets: name the set even if there is only one. text: how a row's value is written; None: by
    `cell`. unknown: {column: what is written there if a line has no row}; in other columns nothing
    """
    written = text or partial(cell, intervals=intervals)
    columns, lines = pivot(rows)
    if shown is not None:
        columns = list(shown)
        lines = [line for line in lines if any(column in line[2] for column in columns)]
    sets = sets or len({data for data, _, _ in lines}) != 1
    first = ["set", "engine"] if sets else ["engine"]
    return table(
        [*first, *columns],
        [
            [
                *([data, engine] if sets else [engine]),
                *(written(values[name]) if name in values else (unknown or {}).get(name, "") for name in columns),
            ]
            for data, engine, values in lines
        ],
    )


def cell(row: Row | None, intervals: bool = True) -> str:
    """A row's value as text, with its interval in brackets: "0.683 [0.641, 0.724]"."""
    if row is None:
        return ""
    return bracketed(row, number) if intervals else number(row.value)


def bracketed(estimate: WithInterval, form: Callable[[float], str]) -> str:
    """The value with its interval in brackets, each number written by `form`; without an interval, the value alone."""
    if estimate.low is None or estimate.high is None:
        return form(estimate.value)
    return f"{form(estimate.value)} [{form(estimate.low)}, {form(estimate.high)}]"


def number(value: float) -> str:
    """A number as text: three decimals below 10, one below 1,000, then none, with separators."""
    if value != 0 and abs(value) < 0.0005:
        return f"{value:.1e}"
    size = abs(value)
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"
