"""The plots of `osn paper multi-layer`, and which choices of layers they draw as curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.experiment import Table
from benchmarks.papers import plots
from benchmarks.papers.multi_layer_arms import DUAL, LAMBDAS, me_bert, mlr
from benchmarks.papers.multi_layer_training import SEEDS, TESTS, TOP_5
from opensearch_neural.evaluation.results import Row

CHOICES, COUNTS = ("last", "first", "uniform"), (2, 4, 6, 8)
"""Which layers, and how many; if two choices are the same layers, the first is trained for both."""
WINS = ("answers", "documents ranked first")
"""The documents whose nearest vector is looked at."""


def layer_choices(depth: int) -> dict[tuple[int, ...], str]:
    """{layers: what chose them first} for all CHOICES and COUNTS that a backbone of this depth has."""
    from trainers.multi_layer import chosen_layers

    named: dict[tuple[int, ...], str] = {}
    for choice in (f"{choice}:{count}" for count in COUNTS if count <= depth for choice in CHOICES):
        named.setdefault(chosen_layers(choice, depth), choice)
    return named


def draw_layers(rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against the number of vectors, and how often layers other than the last win."""
    arms = {choice: layer_points(rows, choice) for choice in CHOICES}
    arms["ME-BERT"] = [(count, me_bert(count, "multi-vector").name) for count in (2, 4, 8)]
    _draw(rows, arms, folder / "layers.svg", x="vectors a document")
    _draw_winners(rows, folder / "winners.svg")


def draw_lambdas(rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against λ."""
    points = [(weight, mlr("last:2", "self-contrastive", weight=weight).name) for weight in LAMBDAS]
    _draw(rows, {"self-contrastive": points}, folder / "lambda.svg", x="λ", xscale="log")


def layer_points(rows: Iterable[Row], choice: str) -> list[tuple[int, str]]:
    """(layers, arm) of the arms that `choice` names. What is the same layers as another choice was trained once."""
    from trainers.multi_layer import chosen_layers

    depth = max((_layer(row) for row in rows if row.measure.startswith("layer ")), default=0)
    names = layer_choices(depth)
    chosen = {count: names[chosen_layers(f"{choice}:{count}", depth)] for count in COUNTS if count <= depth}
    return [(count, mlr(layers, "multi-vector").name) for count, layers in chosen.items()]


def _layer(row: Row) -> int:
    """The layer of a row such as "layer 5 wins, answers"."""
    return int(row.measure.split()[1])


def _draw(
    rows: Iterable[Row], arms: Mapping[str, Sequence[tuple[float, str]]], file: Path, *, x: str, **options: str
) -> None:
    table = Table(rows, SEEDS[:1])
    panels: dict[str, dict[str, plots.Points]] = {}
    levels: dict[str, tuple[str, float]] = {}
    for name in TESTS:
        dual = table.value(name, DUAL.name, TOP_5)
        if dual is None:
            continue
        levels[name] = (DUAL.name, dual.value)
        panels[name] = {
            curve: [(at, row.value) for at, arm in points if (row := table.value(name, arm, TOP_5)) is not None]
            for curve, points in arms.items()
        }
    plots.curves(panels, file, x=x, y="top-5 accuracy", levels=levels, **options)


def _draw_winners(rows: Sequence[Row], file: Path) -> None:
    """How many answers another layer than the last is the nearest of, a panel for each set: what remains is the last one's,
    and beside it the others could not be told from each other."""
    plt = plots.pyplot()
    shown = [row for row in rows if row.measure.endswith(f"wins, {WINS[0]}")]
    engines = list(dict.fromkeys(row.engine for row in shown))
    if not engines:
        return
    *others, last = sorted({_layer(row) for row in shown})
    sets = [name for name in TESTS if any(row.set == name for row in shown)]
    size = (3 * len(sets) + 1, 0.3 * len(engines) + 1.7)
    figure, axes = plt.subplots(1, len(sets), figsize=size, sharex=True, sharey=True, squeeze=False)
    labels = [engine.partition(", multi-vector")[0] for engine in engines]
    for axis, name in zip(axes[0], sets, strict=True):
        left = [0.0] * len(engines)
        for number in others:
            shares = {row.engine: 100 * row.value for row in shown if row.set == name and _layer(row) == number}
            widths = [shares.get(engine, 0.0) for engine in engines]
            axis.barh(labels, widths, left=left, label=f"layer {number}")
            left = [sum(both) for both in zip(left, widths, strict=True)]
        axis.set(title=name, xlabel=f"% of answers; the rest: layer {last}")
    axes[0][0].invert_yaxis()
    axes[0][-1].legend(fontsize="small")
    plots.save(figure, file)
