"""The plots of `osn paper multi-layer`, and the choices of layers that are their curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import plots
from benchmarks.experiment import Table
from benchmarks.papers.multi_layer_arms import DUAL, LAMBDAS, Arm, me_bert, mlr
from benchmarks.papers.multi_layer_training import SEEDS, TESTS, TOP_5
from opensearch_neural.evaluation.results import Row
from trainers.multi_layer import chosen_layers

CHOICES, COUNTS = ("last", "first", "uniform"), (2, 4, 6, 8)
"""Which layers, and how many; if two choices give the same layers, only the first is trained."""
WINS = ("answers", "documents ranked first")
"""The documents of which the nearest vector is counted."""


def wins(layer: int, whose: str = WINS[0]) -> str:
    """The measure of how often this layer's vector is the nearest."""
    return f"layer {layer} wins, {whose}"


def layer_choices(depth: int) -> dict[tuple[int, ...], str]:
    """{layers: the first choice that gives them}, for all CHOICES and COUNTS possible at this depth of a backbone."""
    named: dict[tuple[int, ...], str] = {}
    for choice in (f"{choice}:{count}" for count in COUNTS if count <= depth for choice in CHOICES):
        named.setdefault(chosen_layers(choice, depth), choice)
    return named


def layer_arms(depth: int) -> list[Arm]:
    """m = 2, 4, 6, 8 of the last, first and uniform layers, if the backbone has as many; the counterpart of the paper's
    {10, 12} of 12 layers; and ME-BERT with 2, 4 and 8 vectors. Choices of the same layers occur once."""
    arms = {layers: mlr(name, "multi-vector") for layers, name in layer_choices(depth).items()}
    if depth >= 4:
        arms.setdefault((depth - 2, depth), mlr([depth - 2, depth], "multi-vector"))
    return [*arms.values(), *(me_bert(count, "multi-vector") for count in (2, 4, 8))]


def draw_layers(depth: int, rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against the number of vectors, and how often layers other than the last win."""
    arms = {choice: layer_points(depth, choice) for choice in CHOICES}
    arms["ME-BERT"] = [(count, me_bert(count, "multi-vector").name) for count in (2, 4, 8)]
    _draw(rows, arms, folder / "layers.svg", x="vectors a document")
    _draw_winners(depth, rows, folder / "winners.svg")


def draw_lambdas(rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against λ."""
    points = [(weight, mlr("last:2", "self-contrastive", weight=weight).name) for weight in LAMBDAS]
    _draw(rows, {"self-contrastive": points}, folder / "lambda.svg", x="λ", xscale="log")


def layer_points(depth: int, choice: str) -> list[tuple[int, str]]:
    """(number of layers, arm) for `choice`; layers that another choice gives too were trained under its name."""
    names = layer_choices(depth)
    chosen = {count: names[chosen_layers(f"{choice}:{count}", depth)] for count in COUNTS if count <= depth}
    return [(count, mlr(layers, "multi-vector").name) for count, layers in chosen.items()]


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


def _draw_winners(depth: int, rows: Iterable[Row], file: Path) -> None:
    """The share of answers whose nearest vector is of a layer other than the last, a panel for each set. The last layer's
    share is the rest and not drawn: beside it the others would be too small to see."""
    plt = plots.pyplot()
    layer_of = {wins(layer): layer for layer in range(1, depth + 1)}
    shares = {(row.set, row.engine, layer_of[row.measure]): 100 * row.value for row in rows if row.measure in layer_of}
    engines = list(dict.fromkeys(engine for _, engine, _ in shares))
    if not engines:
        return
    *others, last = sorted({layer for *_, layer in shares})
    sets = [name for name in TESTS if any(name == of for of, *_ in shares)]
    size = (3 * len(sets) + 1, 0.3 * len(engines) + 1.7)
    figure, axes = plt.subplots(1, len(sets), figsize=size, sharex=True, sharey=True, squeeze=False)
    layers_of = {arm.name: arm.layers for arm in layer_arms(depth)}
    labels = [layers_of[engine] for engine in engines]
    for axis, name in zip(axes[0], sets, strict=True):
        left = [0.0] * len(engines)
        for number in others:
            widths = [shares.get((name, engine, number), 0.0) for engine in engines]
            axis.barh(labels, widths, left=left, label=f"layer {number}")
            left = [sum(both) for both in zip(left, widths, strict=True)]
        axis.set(title=name, xlabel=f"% of answers; the rest: layer {last}")
    axes[0][0].invert_yaxis()
    axes[0][-1].legend(fontsize="small")
    plots.save(figure, file)
