"""The plots of `osn bench multi-layer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.papers.multi_layer import CHOICES, COUNTS, DUAL, LAMBDAS, SEEDS, TESTS, TOP_5, WINS, named_layers
from opensearch_neural.errors import MissingExtra

if TYPE_CHECKING:
    from opensearch_neural.evaluation.results import Row


def plots(part: str, rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against the number of vectors (part layers) or λ (part lambda), a panel for each set; and how
    often layers other than the last win. Raises MissingExtra without matplotlib."""
    value = {(row.set, row.line, row.column): row.value for row in rows}
    seed = f", seed {SEEDS[0]}"
    if part == "layers":
        curves = {choice: _layer_points(rows, choice) for choice in CHOICES}
        curves["ME-BERT"] = [(count, f"ME-BERT {count}, multi-vector{seed}") for count in (2, 4, 8)]
        _curves(value, curves, "vectors a document", folder / "layers.svg")
        _shares(rows, folder / "winners.svg")
    elif part == "lambda":
        points = [(weight, f"MLR last:2, self-contrastive, λ {weight:g}{seed}") for weight in LAMBDAS]
        _curves(value, {"self-contrastive": points}, "λ", folder / "lambda.svg", logarithmic=True)


def _layer_points(rows: Sequence[Row], choice: str) -> list[tuple[int, str]]:
    """(layers, engine) of the arms that `choice` names. What is the same layers as another choice was trained once."""
    from trainers.multi_layer import chosen_layers

    depth = max((int(row.column.split()[1]) for row in rows if row.column.startswith("layer ")), default=0)
    names = named_layers(depth)
    chosen = {count: names[chosen_layers(f"{choice}:{count}", depth)] for count in COUNTS if count <= depth}
    return [(count, f"MLR {layers}, multi-vector, seed {SEEDS[0]}") for count, layers in chosen.items()]


def _curves(
    value: Mapping[tuple[str, str, str], float],
    curves: Mapping[str, Sequence[tuple[float, str]]],
    axis_name: str,
    file: Path,
    *,
    logarithmic: bool = False,
) -> None:
    plt = _pyplot()
    sets = [name for name in TESTS if any(of == name for of, _, _ in value)]
    figure, axes = plt.subplots(1, len(sets), figsize=(4 * len(sets), 3.2), squeeze=False)
    for axis, name in zip(axes[0], sets, strict=True):
        for curve, points in curves.items():
            known = [(at, value[name, engine, TOP_5]) for at, engine in points if (name, engine, TOP_5) in value]
            if known:
                axis.plot(*zip(*known, strict=True), marker="o", label=curve)
        axis.axhline(value[name, f"{DUAL.name}, seed {SEEDS[0]}", TOP_5], linestyle="--", label=DUAL.name)
        axis.set(title=name, xlabel=axis_name, ylabel="top-5 accuracy", xscale="log" if logarithmic else "linear")
    axes[0][0].legend()
    _save(figure, file)


def _shares(rows: Sequence[Row], file: Path) -> None:
    """How many answers another layer than the last is the nearest of, a panel for each set: what remains is the last one's,
    and beside it the others could not be told from each other."""
    plt = _pyplot()
    shown = [row for row in rows if row.column.endswith(f"wins, {WINS[0]}")]
    engines = list(dict.fromkeys(row.line for row in shown))
    if not engines:
        return
    *others, last = sorted({int(row.column.split()[1]) for row in shown})
    sets = [name for name in TESTS if any(row.set == name for row in shown)]
    size = (3 * len(sets) + 1, 0.3 * len(engines) + 1.7)
    figure, axes = plt.subplots(1, len(sets), figsize=size, sharex=True, sharey=True, squeeze=False)
    labels = [engine.partition(", multi-vector")[0] for engine in engines]
    for axis, name in zip(axes[0], sets, strict=True):
        left = [0.0] * len(engines)
        for number in others:
            measure = f"layer {number} wins, {WINS[0]}"
            shares = {row.line: 100 * row.value for row in shown if (row.set, row.column) == (name, measure)}
            widths = [shares.get(engine, 0.0) for engine in engines]
            axis.barh(labels, widths, left=left, label=f"layer {number}")
            left = [sum(both) for both in zip(left, widths, strict=True)]
        axis.set(title=name, xlabel=f"% of answers; the rest: layer {last}")
    axes[0][0].invert_yaxis()
    axes[0][-1].legend(fontsize="small")
    _save(figure, file)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtra("drawing plots", "bench") from None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    _pyplot().close(figure)
