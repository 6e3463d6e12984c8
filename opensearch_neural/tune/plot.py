"""The settings that were tried, as a plot and a table of characters."""

from __future__ import annotations

from collections.abc import Sequence

from opensearch_neural.evaluation.tables import table
from opensearch_neural.tune.trials import Tried, pareto
from opensearch_neural.tune.tuning import Chosen, Tuned

PLOT_WIDTH, PLOT_HEIGHT = 64, 16
SHOWN_BELOW = 0.1
"""The plot shows settings down to this much below the required share."""


def plot_and_table(tuned: Tuned) -> str:
    """All settings as a plot, and the Pareto set as a table."""
    measure, full = tuned.measure, tuned.full
    return "\n".join(
        [
            plot(tuned.tried, tuned.chosen, tuned.required),
            f"{'':>9}up: {measure}, as a share of that of {full} (=: the required share); right: time of a query",
            f"{'':>9}A {full}, # chosen, o nothing is both faster and better, · other settings\n",
            front_table(tuned.tried, tuned.chosen, measure, full) + "\n",
        ]
    )


def plot(tried: Sequence[Tried], chosen: Chosen | None, keep: float) -> str:
    """A plot of the share of quality kept (up) over time (right).

    · is a setting, o a setting of the Pareto set, # the chosen setting, = the required share, A all tokens. Settings far
    below the share are drawn on the lowest line, to leave room for settings near it.
    """
    front = pareto(tried)
    quickest, slowest = min(each.ms for each in tried), max(each.ms for each in tried)
    best = max(each.kept for each in tried)
    worst = max(min(each.kept for each in tried), keep - SHOWN_BELOW)
    span_ms, span_kept = max(slowest - quickest, 1e-9), max(best - worst, 1e-9)
    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]

    def row(kept: float) -> int:
        return min(PLOT_HEIGHT - 1, round((best - kept) / span_kept * (PLOT_HEIGHT - 1)))

    if worst <= keep <= best:
        grid[row(keep)] = ["="] * PLOT_WIDTH
    for each in sorted(tried, key=lambda each: _mark(each, front, chosen) != "·"):  # special marks on top
        column = round((each.ms - quickest) / span_ms * (PLOT_WIDTH - 1))
        grid[row(each.kept)][column] = _mark(each, front, chosen)
    labels = [f"{best:6.1%}", *[""] * (PLOT_HEIGHT - 2), f"{worst:6.1%}"]
    lines = [f"{label:>7} |{''.join(line)}" for label, line in zip(labels, grid, strict=True)]
    ends = f"{quickest:.2f} ms"
    return "\n".join(
        [*lines, f"{'':>7} +{'-' * PLOT_WIDTH}", f"{'':>9}{ends}{slowest:>{PLOT_WIDTH - len(ends) - 3}.2f} ms"]
    )


def _mark(each: Tried, front: Sequence[Tried], chosen: Chosen | None) -> str:
    if each.setting is None:
        return "A"
    if chosen is not None and each.setting == chosen.setting:
        return "#"
    return "o" if each in front else "·"


def front_table(tried: Sequence[Tried], chosen: Chosen | None, measure: str, full: str) -> str:
    """The Pareto set as a table, with the engine `full`, with which all are compared."""
    front = [each for each in pareto(tried) if each.setting is not None]
    lines = [
        [*each.cells(full), "chosen" if chosen and each.setting == chosen.setting else ""]
        for each in [*front, *([chosen.tried] if chosen and chosen.tried not in front else []), tried[0]]
    ]
    return table(["setting", "ms", measure, "kept", ""], lines)
