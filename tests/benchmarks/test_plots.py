"""Plots of result rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.plots import pyplot, save

pytest.importorskip("matplotlib")


def test_a_legend_beside_the_axes_is_not_cut(tmp_path: Path) -> None:
    figure, axis = pyplot().subplots(figsize=(2.0, 2.0))
    axis.plot([0, 1], [0, 1], label="a curve with a name that is longer than the plot is wide")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3))
    save(figure, tmp_path / "plot.svg")
    (width,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', (tmp_path / "plot.svg").read_text())
    assert float(width) > 2 * 2.0 * 72
