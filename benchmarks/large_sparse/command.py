"""`osn bench large-sparse`: how to search cheaply by a large sparse model.

    osn bench large-sparse --model MODEL --data data/scifact --work work --record benchmarks/results/large_sparse

MODEL is a sparse model that gives documents many terms. --vectors names a folder of `osn encode`; without it, the corpus
is encoded. Documents are drawn from the corpus as in `osn bench grow`, and are in one index for all ideas.

Each idea with a setting, and neural-search's own processor, gets the cheapest setting whose interval for the score kept on
train queries lies above 0.99. Then all arms answer the test queries: for the score kept (the exact scores of the ten hits
returned, over those of the exact ten), and under load in random turns. Slow results are kept in --work; the same command
continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.beir_parts import check_data
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import Table, goal_of, publish, work_options
from benchmarks.grown.index import Growth, set_of_size
from benchmarks.large_sparse.indexes import Layout
from benchmarks.large_sparse.measures import (
    BM25,
    BYTES,
    NDCG,
    SUMS,
    LargeSparseExperiment,
    load_settings,
    rows_of,
)
from benchmarks.load.blocks import Level
from benchmarks.load.command import owned_option
from benchmarks.load.workload import ModelChoice, allowed_target
from benchmarks.local_cluster import HEAP, NODE, reachable
from benchmarks.options import NumberList, of_options, setting, setting_options
from benchmarks.render import LEAST_KEPT
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, Row
from opensearch_neural.models.sparse.pruning import Pruning

MOST_COST = 1.1
"""Highest P99 as a ratio to BM25's."""


def goals(experiment: LargeSparseExperiment, rows: Sequence[Row]) -> list[Goal]:
    """For each size and level, the arm with the least P99 among those that keep enough of the sparse model's score."""
    table = Table(rows)
    made = []
    for layout in experiment.layouts:
        where = set_of_size(layout.growth.documents)
        enough = {
            row.engine: row.value
            for row in rows
            if (row.set, row.measure) == (where, "score kept") and row.value >= LEAST_KEPT and row.engine not in SUMS
        }
        for clients in experiment.load.clients:
            level = Level("closed", clients).label
            ratios = {name: row.value for name in enough if (row := table.ratio(where, level, name, BM25, "P99"))}
            words = f"P99 on {where}, {level}, in BM25's, at most, with {LEAST_KEPT:g} of the score kept"
            best = min(ratios, key=ratios.__getitem__, default="")
            value = f"{ratios[best]:.3f} ({best}, {enough[best]:.4f} kept)" if best else None
            made.append(goal_of(words, MOST_COST, value, bool(best) and ratios[best] <= MOST_COST))
    return made


def shown(row: Row) -> bool:
    return (row.kind == "ratio" and row.measure in ("P50", "P99", "requests/s")) or (
        row.kind == "value" and row.measure in ("score kept", "overlap@10", NDCG, BYTES)
    )


@dataclass(frozen=True)
class LargeSparseOptions:
    """What `osn bench large-sparse` measures."""

    model: str = setting(None, "The sparse model: a folder, a hub id, or lexical.", required=True, type=str)
    data: Path = setting(None, "A BEIR folder.", required=True, type=click.Path(path_type=Path, exists=True))
    vectors: Path | None = setting(None, "A folder of `osn encode`.", type=click.Path(path_type=Path))
    documents: tuple[int, ...] = setting((100_000,), "Index sizes.", type=NumberList(int, distinct=True))
    prune: tuple[str, ...] = setting(
        ("alpha_mass:0.7", "alpha_mass:0.85"),
        "Tokens that a pruned field holds, as for `osn bench grow`; repeatable.",
        type=str,
        multiple=True,
    )
    clients: tuple[int, ...] = setting((20,), "Clients of the load tests.", type=NumberList(int))
    minutes: float = setting(8.0, "Longest time for a load test.", type=float)
    requests: int = setting(10_000, "Requests of each arm; a P99 needs 10,000.", type=int)
    prefix: str = setting("osn-large-sparse", "Indexes are called INDEX-….", option="--index")
    heap: str = setting("4g", HEAP)
    seed: int = setting(0, "Seed of the drawn documents and their order.")
    keep: bool = setting(False, "Keep the indexes (and the local node).", option="--keep-indexes")


@click.command("large-sparse")
@setting_options(LargeSparseOptions)
@owned_option
@work_options
@connection_options
def large_sparse(connection: ConnectionSettings, work: Path, record: Path | None, owned: bool, **options: Any) -> None:
    """How to search cheaply by a large sparse model: cost and score kept of each idea, and of the best ones together.

    It compares baselines, pruned documents and cut queries with BM25 in one table. --data is one BEIR folder. Run the same
    command again to continue an interrupted run.

    \b
    osn bench large-sparse --model my-splade --data data/scifact --work work --record benchmarks/results/large_sparse
    osn bench large-sparse --model my-splade --data data/scifact --work work --documents 1000000
    """
    asked = of_options(LargeSparseOptions, options)
    model, data = asked.model, asked.data
    if not (data / "qrels" / "train.tsv").exists():
        raise InputError(f"{data} has no train split to choose settings on", "add qrels/train.tsv")
    load = load_settings(asked.clients, asked.minutes, asked.requests)  # refused before anything is written
    corpus = str(corpus_of(data))
    layouts = [
        Layout(
            Growth(corpus, asked.prefix, size, sparse=model, vectors=asked.vectors, seed=asked.seed),
            tuple(map(Pruning.parse, asked.prune)),
            work / str(size),
        )
        for size in sorted(asked.documents)
    ]
    check_data(work, [data], models={"model": model, **({} if asked.vectors is None else {"vectors": asked.vectors})})
    models = ModelChoice(sparse=None if model == "lexical" else model)

    with reachable(connection, NODE, goes_on=True, keep=asked.keep, heap=asked.heap) as settings:
        client, target = connect(settings=settings), allowed_target(settings, owned=owned)
        experiment = LargeSparseExperiment(data, tuple(layouts), target, models, load, asked.keep, asked.heap)
        rows = [row for layout in layouts for row in rows_of(client, experiment, layout)]
    publish(
        rows,
        goals(experiment, rows),
        title="What makes a large sparse model cheap",
        data=[data],
        seeds=[asked.seed],
        record=record,
        shown=shown,
    )
