"""Part "layers" of `osn paper multi-layer`: which layer's vector is nearest, what the other layers add to the last, and the
plots; the plot of λ too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import plots
from benchmarks.experiment import Table, facts, kept_rows
from benchmarks.papers.multi_layer.arms import CHOICES, DUAL, LAMBDAS, layer_arms, layer_points, me_bert, mlr
from benchmarks.papers.multi_layer.training import (
    DEPTH,
    MEASURES,
    SEEDS,
    TESTS,
    TOP_5,
    MultiLayerExperiment,
    TrainedArm,
)
from opensearch_neural.evaluation import result_rows
from opensearch_neural.evaluation.results import Row
from opensearch_neural.models.dense.multi_layer import load_multi_layer
from opensearch_neural.retrievers.faiss import FaissRetriever
from trainers.common.precision import computing_in
from trainers.data.embedding_cache import several_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERIES_AT_ONCE = 64
ALONE = "the last layer's vectors alone"
WINS = ("answers", "documents ranked first")
"""The documents of which the nearest vector is counted."""


def wins(layer: int, whose: str = WINS[0]) -> str:
    """The measure of how often this layer's vector is the nearest."""
    return f"layer {layer} wins, {whose}"


# ------------------------------------------------ rows


def winner_rows(experiment: MultiLayerExperiment, models: Iterable[TrainedArm]) -> list[Row]:
    """For multi-vector arms over layers: the share won by each layer, and the gain over the last layer's vectors alone."""
    rows: list[Row] = []
    for model in models:
        for name in TESTS:
            file = experiment.measured_file(model.spec, name, "-winner-rows")
            rows += kept_rows(file, partial(_rows_of, experiment, model, name))
    return rows


def _rows_of(experiment: MultiLayerExperiment, model: TrainedArm, name: str) -> list[Row]:
    test, encoder = experiment.judged(name), load_multi_layer(model.folder)
    documents = test.data.documents
    with computing_in(experiment.recipe.computed):
        vectors = several_vectors(encoder, documents, experiment.vectors(model.spec, name) / "documents").stacked()
        queries = encoder.encode_queries(list(test.texts.values()))
    answers = np.array([documents.row(next(iter(positives))) for positives in test.qrels.values()])
    shares = {
        wins(layer, whose): share
        for whose, of_layers in zip(WINS, shares_won(queries, vectors, answers).tolist(), strict=True)
        for layer, share in zip(encoder.selection.layers, of_layers, strict=True)
    }
    last = np.ascontiguousarray(vectors[:, encoder.selection.last])
    run = FaissRetriever(documents.ids, last, lambda texts: queries).retrieve(test.texts, DEPTH)
    alone = model.engine._replace(variant=ALONE)
    measured = {alone: test.measure(run, MEASURES), model.engine: experiment.searched(model.spec, name)}
    rows = result_rows.rows(name, measured, baseline=alone, clusters=test.clusters)
    rows = [row for row in rows if row.variant == ALONE or row.kind != "value"]
    return facts(name, model.engine, shares, len(test.data)) + rows


def shares_won(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(2, layers): the share of queries for which each layer's vector is the nearest vector of the answer, and of the
    document ranked first. queries: (q, D); vectors: (documents, layers, D); answers: (q,), rows of documents."""
    counts = np.zeros((2, vectors.shape[1]))
    flat = vectors.reshape(-1, vectors.shape[2])
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = queries[start : start + QUERIES_AT_ONCE]
        similarities = (block @ flat.T).reshape(len(block), *vectors.shape[:2])  # (queries, documents, layers)
        rows = np.arange(len(block))
        first = similarities.max(axis=2).argmax(axis=1)
        for at, documents in enumerate((answers[start : start + QUERIES_AT_ONCE], first)):
            counts[at] += np.bincount(similarities[rows, documents].argmax(axis=1), minlength=vectors.shape[1])
    shares: NDArray[np.float64] = counts / len(queries)
    return shares


# ------------------------------------------------ plots


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
