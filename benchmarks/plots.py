"""Plots: curves, a panel for each set; and quality against cost, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opensearch_neural.errors import MissingExtra
from opensearch_neural.evaluation.tables import WithInterval

Points = Sequence[tuple[float, float]]

WIDE, TICKS = 6, (1, 1.5, 2, 3, 5, 10, 20, 50)
"""If a cost is above WIDE, the cost axis is logarithmic, with these ticks."""


def curves(
    panels: Mapping[str, Mapping[str, Points]],
    file: Path,
    *,
    x: str,
    y: str,
    levels: Mapping[str, tuple[str, float]] | None = None,
    **axis_options: Any,
) -> None:
    """Write an SVG. panels: {set: {curve: its points}}; levels: {set: (name, value of a dashed line)}. Raises MissingExtra
    without matplotlib."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), squeeze=False)
    for axis, (name, lines) in zip(axes[0], panels.items(), strict=True):
        for curve, points in lines.items():
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=curve)
        if levels:
            label, value = levels[name]
            axis.axhline(value, linestyle="--", label=label)
        axis.set(title=name, xlabel=x, ylabel=y, **axis_options)
    axes[0][0].legend()
    save(figure, file)


def quality_and_cost(
    points: Mapping[tuple[str, str], tuple[WithInterval, WithInterval]],
    file: Path,
    *,
    baseline: str,
    models: Sequence[str],
    markers: Mapping[str, str],
    x: str,
    y: str,
) -> None:
    """Write an SVG of engines by their cost, as a ratio to the baseline's, and their gain over the baseline.

    points: {(model, engine): (cost, gain)}. Colours tell models apart, in the order of `models`; markers tell engines apart.
    """
    from matplotlib.lines import Line2D

    plt = pyplot()
    figure, axis = plt.subplots(figsize=(8.0, 5.4))
    axis.axhline(0, color="grey", linewidth=0.6)
    axis.plot([1], [0], "ks")
    marks = {engine: mark for engine, mark in markers.items() if any(engine == of for _, of in points)}
    colors = {model: f"C{number}" for number, model in enumerate(models) if any(model == of for of, _ in points)}
    for (model, engine), (cost, gain) in points.items():
        axis.errorbar(
            [cost.value], [gain.value], xerr=_error_bar(cost), yerr=_error_bar(gain), fmt=marks[engine],
            color=colors[model], capsize=2, markersize=7,
        )  # fmt: skip
    if axis.get_xlim()[1] > WIDE:
        axis.set_xscale("log")
        axis.xaxis.set(major_locator=plt.FixedLocator(TICKS), major_formatter="{x:g}", minor_locator=plt.NullLocator())
    axis.set(xlabel=x, ylabel=y)
    keys = [Line2D([], [], color="black", marker="s", linestyle="", label=baseline)]
    keys += [Line2D([], [], color="grey", marker=mark, linestyle="", label=engine) for engine, mark in marks.items()]
    keys += [Line2D([], [], color=color, linewidth=5, label=model) for model, color in colors.items()]
    axis.legend(handles=keys, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3)
    save(figure, file)


def _error_bar(estimate: WithInterval) -> list[list[float]]:
    """[[length below], [length above]] of the interval, for matplotlib; 0 without an interval."""
    below = 0.0 if estimate.low is None else max(0.0, estimate.value - estimate.low)
    above = 0.0 if estimate.high is None else max(0.0, estimate.high - estimate.value)
    return [[below], [above]]


def pyplot() -> Any:
    """matplotlib.pyplot, set to write SVG. Raises MissingExtra without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtra("drawing plots", "bench") from None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")  # a legend may lie beside the axes
    pyplot().close(figure)
