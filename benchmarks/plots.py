"""Line plots: a panel for each set, with several curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opensearch_neural.errors import MissingExtra

Points = Sequence[tuple[float, float]]


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
