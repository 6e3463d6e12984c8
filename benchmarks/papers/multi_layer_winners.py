"""Which layer's vector is the nearest, of models with several, and what the other layers add to the last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.experiment import kept
from benchmarks.papers.multi_layer_plots import WINS, wins
from benchmarks.papers.multi_layer_training import DEPTH, MEASURES, TESTS, MultiLayerExperiment, TrainedArm
from opensearch_neural.evaluation import result_rows
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Row
from opensearch_neural.models.dense.multi_layer import load_multi_layer
from opensearch_neural.retrievers.faiss import FaissRetriever
from trainers.common.precision import computing_in
from trainers.data.embedding_cache import several_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERIES_AT_ONCE = 64
ALONE = "the last layer's vectors alone"


@dataclass(frozen=True)
class Winners:
    """Which layer's vector is the nearest; shares sum to 1."""

    layers: list[int]
    of_answers: list[float]
    """For each layer, the share of answers whose nearest vector is the layer's."""
    of_first: list[float]
    """The same for the documents that are ranked first."""
    last_alone: Measured
    """The measures of the same model with the last layer's vectors alone."""


def winners(experiment: MultiLayerExperiment, model: TrainedArm, name: str) -> Winners:
    """The winners of a multi-vector arm over layers on a test set; stored like measures."""
    file = experiment.measured_file(model.spec, name, "-winners")
    content = kept(file, lambda: asdict(_winners(experiment, model, name)))
    return Winners(**content | {"last_alone": Measured(**content["last_alone"])})


def _winners(experiment: MultiLayerExperiment, model: TrainedArm, name: str) -> Winners:
    test, encoder = experiment.judged(name), load_multi_layer(model.folder)
    documents = test.data.documents
    with computing_in(experiment.recipe.computed):
        vectors = several_vectors(encoder, documents, experiment.vectors(model.spec, name) / "documents").stacked()
        queries = encoder.encode_queries(list(test.texts.values()))
    answers = np.array([documents.row(next(iter(positives))) for positives in test.qrels.values()])
    last = np.ascontiguousarray(vectors[:, encoder.selection.last])
    run = FaissRetriever(documents.ids, last, lambda texts: queries).retrieve(test.texts, DEPTH)
    of_answers, of_first = shares_won(queries, vectors, answers).tolist()
    return Winners(list(encoder.selection.layers), of_answers, of_first, test.measure(run, MEASURES))


def shares_won(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(2, layers): of queries (q, D), the share for which each layer's vector is the nearest of the answer's, and of those
    of the document ranked first. vectors: (documents, layers, D); answers: (q,), rows of documents."""
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


def winner_rows(experiment: MultiLayerExperiment, models: Iterable[TrainedArm]) -> list[Row]:
    """Shares by layer, and what the vectors of the other layers add to those of the last."""
    result: list[Row] = []
    for model in models:
        for name in TESTS:
            test, won = experiment.judged(name), winners(experiment, model, name)
            for whose, shares in zip(WINS, (won.of_answers, won.of_first), strict=True):
                for layer, share in zip(won.layers, shares, strict=True):
                    measure = wins(layer, whose)
                    result.append(
                        Row(name, model.arm.name, measure, share, None, None, len(test.data), seed=model.seed)
                    )
            alone = model.engine._replace(variant=ALONE)
            measured = {alone: won.last_alone, model.engine: experiment.searched(model.spec, name)}
            rows = result_rows.rows(name, measured, baseline=alone, clusters=test.clusters)
            result += [row for row in rows if row.variant == ALONE or row.kind != "value"]
    return result
