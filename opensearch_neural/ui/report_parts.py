"""The parts of which reports are made: a verdict, intervals as a forest, one number against another, tables.

`report_page` puts them together to one page that needs no server, for a browser and for a printer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.ui.pages import render

if TYPE_CHECKING:
    from opensearch_neural.evaluation.results import Summary

WIDTH, HEIGHT = 640, 160
"""The size of a plot, in its own units."""
LABEL_WIDTH, LABEL_HEIGHT = 240, 15
"""The size of a point's label, in the same units, roughly."""


@dataclass(frozen=True)
class Interval:
    """A number with the ends of its interval, if it has one."""

    label: str
    value: float
    low: float | None
    high: float | None
    text: str
    """The numbers in words."""


@dataclass(frozen=True)
class Bar:
    """An interval in the units of the plot."""

    label: str
    x: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Forest:
    """Intervals below each other, beside a line at what they are compared with."""

    title: str
    zero: float
    bars: list[Bar]
    left: float
    """How wide the labels are, in the units of the plot."""


@dataclass(frozen=True)
class Point:
    """In the units of the plot. label: empty for a point that is only counted."""

    label: str
    x: float
    y: float
    text: str
    below: float = 0.0
    """How far the label stands below its point, so that labels of near points do not cover each other."""


@dataclass(frozen=True)
class Plot:
    """One number up, another to the right."""

    title: str
    across: str
    """What grows to the right, and from where."""
    points: list[Point]


@dataclass(frozen=True)
class ReportTable:
    title: str
    columns: list[str]
    """The first heads what the lines are of."""
    lines: list[list[str]]


def forest(title: str, intervals: Sequence[Interval], beside: float = 0.0) -> Forest:
    """beside: the value at which the line stands."""
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
    """points: (label, number to the right, number up, both in words); start: of the axis to the right."""
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
    """A report's text. command: what wrote it; template: with sections of its own, which `more` fills."""
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
