"""Which layer's vector is nearest, for models with several, and what the other layers add to the last."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.experiment import kept_rows
from benchmarks.papers.multi_layer_plots import WINS, wins
from benchmarks.papers.multi_layer_training import DEPTH, MEASURES, TESTS, MultiLayerExperiment, TrainedArm
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
    shares = [
        Row(name, model.arm.name, wins(layer, whose), share, None, None, len(test.data), seed=model.seed)
        for whose, of_layers in zip(WINS, shares_won(queries, vectors, answers).tolist(), strict=True)
        for layer, share in zip(encoder.selection.layers, of_layers, strict=True)
    ]
    last = np.ascontiguousarray(vectors[:, encoder.selection.last])
    run = FaissRetriever(documents.ids, last, lambda texts: queries).retrieve(test.texts, DEPTH)
    alone = model.engine._replace(variant=ALONE)
    measured = {alone: test.measure(run, MEASURES), model.engine: experiment.searched(model.spec, name)}
    rows = result_rows.rows(name, measured, baseline=alone, clusters=test.clusters)
    return shares + [row for row in rows if row.variant == ALONE or row.kind != "value"]


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
