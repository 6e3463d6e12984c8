"""The parts of reports: a verdict, forest plots of intervals, scatter plots, tables.

`report_page` combines them into one page that works without a server, for a browser and for a printer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.evaluation.tables import cell, pivot
from opensearch_neural.ui.pages import render

if TYPE_CHECKING:
    from opensearch_neural.evaluation.results import Row, Summary

WIDTH, HEIGHT = 640, 160
"""The size of a plot, in the units of its SVG."""
LABEL_WIDTH, LABEL_HEIGHT = 240, 15
"""The approximate size of a point's label, in the same units."""


@dataclass(frozen=True)
class Interval:
    """A number with the ends of its interval, if it has one."""

    label: str
    """What the number is of: an engine, or a segment."""
    value: float
    """In the units of the measure, as are its ends."""
    low: float | None
    """Lower end; None if there is none."""
    high: float | None
    """Upper end; None if there is none."""
    text: str
    """The numbers as text."""


@dataclass(frozen=True)
class Bar:
    """An interval in the units of the plot."""

    label: str
    """The line's title, left of the plot."""
    x: float
    """Where the number's mark is."""
    low: float
    """The bar's left end."""
    high: float
    """The bar's right end."""
    text: str
    """The numbers as text, right of the plot."""


@dataclass(frozen=True)
class Forest:
    """A forest plot: intervals below each other, with a line at the value that they are compared with."""

    title: str
    """The heading above the plot."""
    zero: float
    """Where the line is, in the units of the plot."""
    bars: list[Bar]
    """From top to bottom."""
    left: float
    """The width of the labels, in the units of the plot."""


@dataclass(frozen=True)
class Point:
    """A point in the units of the plot."""

    label: str
    """Empty: the point has no label."""
    x: float
    """From the left."""
    y: float
    """From the top."""
    text: str
    """The point's numbers as text."""
    below: float = 0.0
    """How far the label is below its point, so that labels of near points do not overlap."""


@dataclass(frozen=True)
class Plot:
    """A scatter plot: one number vertically, another horizontally."""

    title: str
    """The heading above the plot, with the measure of the vertical axis."""
    across: str
    """The title of the horizontal axis."""
    points: list[Point]
    """In the order in which they are drawn."""


@dataclass(frozen=True)
class ReportTable:
    title: str
    """The heading above the table."""
    columns: list[str]
    """The column titles; the first column names the lines."""
    lines: list[list[str]]
    """Cells of each line, as many as columns."""


def values_table(title: str, rows: Iterable[Row]) -> ReportTable:
    """A line for each engine and a column for each measure, with intervals. Differences and ratios are left out."""
    columns, lines = pivot(row for row in rows if row.kind == "value")
    cells = [[line, *(cell(values.get(name)) for name in columns)] for _, line, values in lines]
    return ReportTable(title, ["engine", *columns], cells)


def forest(title: str, intervals: Sequence[Interval], beside: float = 0.0) -> Forest:
    """The forest plot of these intervals. beside: the value of the line."""
    ends = [end for each in intervals for end in (each.low, each.high, each.value, beside) if end is not None]
    least, most = min(ends, default=beside), max(ends, default=beside)
    across = (most - least) or 1.0

    def place(value: float) -> float:
        return round(WIDTH * (0.03 + 0.94 * (value - least) / across), 1)

    bars = []
    for each in intervals:
        low, high = (each.value if end is None else end for end in (each.low, each.high))
        bars.append(Bar(each.label, place(each.value), place(low), place(high), each.text))
    return Forest(title, place(beside), bars, 10 + 7 * max((len(each.label) for each in intervals), default=0))


def plot(title: str, across: str, points: Iterable[tuple[str, float, float, str]], *, start: float = 0.0) -> Plot:
    """The scatter plot of these points: (label, x, y, both as text). start: the start of the horizontal axis."""
    listed = list(points)
    furthest = max((x for _, x, _, _ in listed), default=start)
    width = (furthest - start) or 1.0
    low, high = min((y for *_, y, _ in listed), default=0.0), max((y for *_, y, _ in listed), default=0.0)
    drawn: list[Point] = []
    for label, x, y, text in listed:
        share = (y - low) / (high - low) if high > low else 0.5
        across_at, down_at = round(0.75 * WIDTH * (x - start) / width, 1), round(HEIGHT - (HEIGHT - 20) * share, 1)
        others = [point for point in drawn if point.label and label and abs(point.x - across_at) < LABEL_WIDTH]
        places = (step * sign * LABEL_HEIGHT for step in range(len(others) + 1) for sign in (-1, 1))
        free = (
            place
            for place in places
            if all(abs(each.y + each.below - down_at - place) >= LABEL_HEIGHT for each in others)
        )
        drawn.append(Point(label, across_at, down_at, text, next(free, 0.0)))
    return Plot(title, across, drawn)


def report_page(
    command: str,
    summary: Summary,
    verdict: str,
    *,
    forests: Sequence[Forest] = (),
    plots: Sequence[Plot] = (),
    tables: Sequence[ReportTable] = (),
    notes: Sequence[str] = (),
    template: str = "report.html",
    **more: Any,
) -> str:
    """A report's HTML. command: the command that writes it. template: may have further sections, which `more` fills."""
    return render(
        template,
        alone=True,
        command=command,
        summary=summary,
        verdict=verdict,
        forests=[each for each in forests if each.bars],
        plots=[each for each in plots if each.points],
        tables=tables,
        notes=notes,
        width=WIDTH,
        height=HEIGHT,
        **more,
    )
