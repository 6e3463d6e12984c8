"""`osn bench sum-weight`: the gain of bm25-sparse over BM25 for each weight, on questions that no reported figure uses.

    osn bench sum-weight --start MODEL --data DIR --work DIR --record benchmarks/results/bm25_sparse_weight

With --dense: the gain of the cascade after bm25-sparse for each of its weights, in the indexes of `osn bench bm25-sparse
--dense`. With --pq, that model makes the codes and encodes the queries. The default weights come from both results.
Arms and --work are those of `osn bench bm25-sparse`, with models of the first seed. A set's questions are those of its dev
split, or without one of its train split; a trained arm is not asked questions that it was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.bm25_sparse.engines import BM25, SUM, SUM_CASCADE, WAYS
from benchmarks.bm25_sparse.measures import defaults_hash, judged_queries, kept_measures, mean_rows
from benchmarks.bm25_sparse.models import (
    ON_CORPUS,
    PUBLISHED,
    TRAINED_ON,
    Experiment,
    ModelOptions,
    check_models,
    start_option,
)
from benchmarks.bm25_sparse.vectors import dense_variant, kept_variant
from benchmarks.experiment import paper_options, publish
from benchmarks.local_cluster import NODE, reachable
from benchmarks.options import NumberList, setting_options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.evaluation import result_rows
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import MeasuredEngine, Row

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

MEASURE = "nDCG@10"
OF_SUM, OF_CASCADE = (0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.7), (0.025, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
"""Weights to try."""


def split_of(folder: Path, variant: str) -> str | None:
    """The split whose questions may choose the weight of a model in this set; None if there is none."""
    splits = [split for split in ("dev", "train") if (folder / "qrels" / f"{split}.tsv").exists()]
    if variant not in (PUBLISHED, ON_CORPUS) and folder.name in TRAINED_ON and "train" in splits:
        splits.remove("train")
    return splits[0] if splits else None


def weight_rows(client: OpenSearch, experiment: Experiment, weights: Sequence[float], most: int) -> list[Row]:
    """The gain with each weight on every set, and in the mean of a model's sets: of the sum, or with --dense of the cascade
    after it. A row's variant is the model."""
    with_dense, rows = experiment.dense is not None, list[Row]()
    label = SUM_CASCADE if with_dense else SUM
    searched_by, settings = WAYS[label]
    ways = {f"{label}, weight {weight:g}": (searched_by, {**settings, "weight": weight}) for weight in weights}
    for model in experiment.models:
        variant, models = dense_variant(experiment, model.name), kept_variant(experiment, str(model), with_dense)
        of_sets: dict[str, dict[MeasuredEngine, Measured]] = {}
        for name, folder in experiment.sets.items():
            if split := split_of(folder, variant):
                measured = kept_measures(
                    client, experiment, model, name, {BM25: WAYS[BM25], **ways},
                    experiment.work / "weights" / f"{name}-{split}-{most}-{models}-{defaults_hash()}",
                    with_dense=with_dense, judged=judged_queries(folder, split, most), measures=(MEASURE,),
                )  # fmt: skip
                of_sets[f"{name} {split}"] = {MeasuredEngine(way): of_way for way, of_way in measured.items()}
        if of_sets:
            of_model = mean_rows(f"mean of {len(of_sets)} sets", of_sets, [(way, BM25) for way in (BM25, *ways)])
            for name, of_set in of_sets.items():
                of_model += result_rows.rows(name, of_set, baseline=BM25)
            rows += [replace(row, variant=variant) for row in of_model]
    return rows


@click.command("sum-weight")
@start_option
@setting_options(
    ModelOptions,
    seeds="Training seeds; only models of the first are measured.",
    dense="Dense model: try weights of the cascade after bm25-sparse instead, with the published model.",
    quantized="Quantized model of --dense; train questions of sets that arms are trained on are left out.",
)
@click.option(
    "--weights",
    type=NumberList(float),
    default=None,
    help="Weights to try, as for `osn search --weight`.  [default: "
    f"{', '.join(map(str, OF_SUM))}; with --dense {', '.join(map(str, OF_CASCADE))}]",
)
@click.option(
    "--limit-queries", type=click.IntRange(min=1), default=300, show_default=True, help="Most queries of a set."
)
@paper_options
@connection_options
def sum_weight(
    connection: ConnectionSettings,
    record: Path | None,
    seeds: tuple[int, ...],
    arms: tuple[str, ...],
    weights: tuple[float, ...] | None,
    dense: str | None,
    limit_queries: int,
    **options: Any,
) -> None:
    """The gain of bm25-sparse over BM25 for each weight, on dev and train questions; with --dense, of the cascade after it.

    \b
    osn bench sum-weight --start my-splade --data data --work work --record benchmarks/results/bm25_sparse_weight
    osn bench sum-weight --start my-splade --data data --work work --dense all-MiniLM-L6-v2
    """
    weights = weights or (OF_SUM if dense is None else OF_CASCADE)
    arms = arms if dense is None else (PUBLISHED,)
    experiment = Experiment(seeds=seeds[:1], arms=arms, connection=connection, dense=dense, **options)
    check_models(experiment)
    experiment.make_models(lambda model, name: split_of(experiment.sets[name], model.name))
    with reachable(connection, NODE, goes_on=True, heap=experiment.heap) as settings:
        rows = weight_rows(connect(settings=settings), experiment, weights, limit_queries)
    publish(
        rows,
        [],
        title=f"The weight of what a {'sparse' if dense is None else 'dense'} model adds, on dev and train questions",
        data=experiment.sets.values(),
        seeds=experiment.seeds,
        record=record,
        shown=lambda row: (row.kind, row.measure) == ("difference", MEASURE),
    )
