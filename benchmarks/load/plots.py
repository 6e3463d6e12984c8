"""The plots of a load test: latency and throughput by level, quality by P99."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import THROUGHPUT, Levels
from benchmarks.render import error_bars, svg

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's, which people with any colour vision tell apart; markers differ too."""
MARKERS = "osD^vPX*"
PLOTTED_ENGINES = 8


def plots(measurement: Measurement, levels: Levels) -> dict[str, str]:
    """{file name without ending: SVG}. Raises MissingExtra without matplotlib."""
    drawings: list[tuple[str, Callable[[Any], bool]]] = [
        ("latency-by-clients", lambda axes: _by_level(axes, measurement, levels, "closed")),
        ("throughput-by-clients", lambda axes: _throughput(axes, measurement, levels)),
        ("latency-by-rate", lambda axes: _by_level(axes, measurement, levels, "open")),
        ("quality-by-p99", lambda axes: _quality(axes, measurement, levels)),
    ]
    drawn = {name: svg(draw) for name, draw in drawings}
    return {name: svg for name, svg in drawn.items() if svg is not None}


def _plain_ticks(axes: Any, *, x: bool, y: bool) -> None:
    """Logarithmic axes with numbers as people write them, at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, logarithmic in ((axes.xaxis, x), (axes.yaxis, y)):
        if logarithmic:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def _style(measurement: Measurement, name: str) -> dict[str, Any]:
    at = list(measurement.variants).index(name)
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 4}


def _plotted(measurement: Measurement) -> list[str]:
    """The engines that are drawn as lines: more than a few are unreadable, and the tables have them all."""
    return list(measurement.variants)[:PLOTTED_ENGINES]


def _by_level(axes: Any, measurement: Measurement, levels: Levels, mode: str) -> bool:
    chosen = sorted(level for level in levels if level.mode == mode)
    drawn = False
    for name in _plotted(measurement):
        for percentile, line in (("P99", "-"), ("P50", "--")):
            points = [
                (level.value, value)
                for level in chosen
                if name in levels[level] and (value := levels[level][name].estimate(f"{percentile} ms")) is not None
            ]
            points = [(x, value) for x, value in points if math.isfinite(value.value)]
            if points:
                y = [value.value for _, value in points]
                axes.errorbar(
                    [x for x, _ in points],
                    y,
                    yerr=error_bars([value for _, value in points]),
                    linestyle=line,
                    label=f"{name} {percentile}",
                    capsize=2,
                    **_style(measurement, name),
                )
                drawn = True
    axes.set_xlabel("clients" if mode == "closed" else "requests a second")
    axes.set_xticks([level.value for level in chosen])
    axes.set_ylabel("latency, ms")
    axes.set_yscale("log")
    _plain_ticks(axes, x=False, y=True)
    return drawn


def _throughput(axes: Any, measurement: Measurement, levels: Levels) -> bool:
    chosen = sorted(level for level in levels if level.mode == "closed")
    drawn = False
    for name in _plotted(measurement):
        points = [
            (level.value, value)
            for level in chosen
            if name in levels[level] and (value := levels[level][name].estimate(THROUGHPUT)) is not None
        ]
        if points:
            values = [value for _, value in points]
            axes.errorbar(
                [x for x, _ in points],
                [value.value for value in values],
                yerr=error_bars(values),
                label=name,
                capsize=2,
                **_style(measurement, name),
            )
            drawn = True
    axes.set_xlabel("clients")
    axes.set_xticks([level.value for level in chosen])
    axes.set_ylabel("requests a second")
    axes.set_ylim(bottom=0)
    return drawn


def _quality(axes: Any, measurement: Measurement, levels: Levels) -> bool:
    """Quality over the highest percentile that may be shown, at the highest number of clients."""
    if not levels:
        return False
    level = max((each for each in levels if each.mode == "closed"), default=max(levels))
    quality = [row for row in measurement.quality if row.kind == "value"]
    names = {row.measure for row in quality}
    measure = "nDCG@10" if "nDCG@10" in names else "overlap@10"
    value = {row.engine: row for row in quality if row.measure == measure}
    fine = {name: cell for name, cell in levels[level].items() if not cell.refused}
    shared = [name for name in ("P99 ms", "P90 ms", "P50 ms") if all(cell.may_show(name) for cell in fine.values())]
    if not value or not shared:
        return False
    drawn = False
    for name, cell in fine.items():
        latency = cell.estimate(shared[0])
        if name in value and latency is not None and math.isfinite(latency.value):
            axes.plot([latency.value], [value[name].value], linestyle="", label=name, **_style(measurement, name))
            axes.annotate(
                name, (latency.value, value[name].value), textcoords="offset points", xytext=(4, 4), fontsize=6
            )
            drawn = True
    axes.set_xlabel(f"{shared[0].removesuffix(' ms')} at {level.label}, ms")
    axes.set_ylabel(measure)
    return drawn
