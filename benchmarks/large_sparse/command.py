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
from pathlib import Path

import click

from benchmarks.beir_parts import check_data
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import PaperPart, Table, goal_of, run_parts, work_options
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
from benchmarks.local_cluster import NODE, heap_option, reachable
from benchmarks.options import NumberList
from benchmarks.render import LEAST_KEPT
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import seed_option
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


@click.command("large-sparse")
@click.option("--model", required=True, help="The sparse model: a folder, a hub id, or lexical.")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="A BEIR folder.")
@click.option("--vectors", type=click.Path(path_type=Path), default=None, help="A folder of `osn encode`.")
@click.option(
    "--documents", type=NumberList(int, distinct=True), default="100000", show_default=True, help="Index sizes."
)
@click.option(
    "--prune",
    multiple=True,
    default=("alpha_mass:0.7", "alpha_mass:0.85"),
    show_default=True,
    help="Tokens that a pruned field holds, as for `osn bench grow`; repeatable.",
)
@click.option("--clients", type=NumberList(int), default="20", show_default=True, help="Clients of the load tests.")
@click.option("--minutes", type=float, default=8.0, show_default=True, help="Longest time for a load test.")
@click.option(
    "--requests", type=int, default=10_000, show_default=True, help="Requests of each arm; a P99 needs 10,000."
)
@click.option("--index", "prefix", default="osn-large-sparse", show_default=True, help="Indexes are called INDEX-….")
@heap_option("4g")
@seed_option("Seed of the drawn documents and their order.")
@click.option("--keep-indexes", "keep", is_flag=True, help="Keep the indexes (and the local node).")
@owned_option
@work_options
@connection_options
def large_sparse(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    model: str,
    vectors: Path | None,
    documents: tuple[int, ...],
    prune: tuple[str, ...],
    clients: tuple[int, ...],
    minutes: float,
    requests: int,
    prefix: str,
    heap: str,
    seed: int,
    keep: bool,
    owned: bool,
) -> None:
    """How to search cheaply by a large sparse model: cost and score kept of each idea, and of the best ones together.

    It compares baselines, pruned documents and cut queries with BM25 in one table. --data is one BEIR folder. Run the same
    command again to continue an interrupted run.

    \b
    osn bench large-sparse --model my-splade --data data/scifact --work work --record benchmarks/results/large_sparse
    osn bench large-sparse --model my-splade --data data/scifact --work work --documents 1000000
    """
    if not (data / "qrels" / "train.tsv").exists():
        raise InputError(f"{data} has no train split to choose settings on", "add qrels/train.tsv")
    load = load_settings(clients, minutes, requests)  # what cannot work is refused before anything is written
    corpus = str(corpus_of(data))
    layouts = [
        Layout(
            Growth(corpus, prefix, size, sparse=model, vectors=vectors, seed=seed),
            tuple(map(Pruning.parse, prune)),
            work / str(size),
        )
        for size in sorted(set(documents))
    ]
    check_data(work, [data], models={"model": model, **({} if vectors is None else {"vectors": vectors})})
    models = ModelChoice(sparse=None if model == "lexical" else model)

    def run() -> tuple[list[Row], list[Goal]]:
        with reachable(connection, NODE, goes_on=True, keep=keep, heap=heap) as settings:
            client, target = connect(settings=settings), allowed_target(settings, owned=owned)
            experiment = LargeSparseExperiment(data, tuple(layouts), target, models, load, keep, heap)
            rows = [row for layout in layouts for row in rows_of(client, experiment, layout)]
        return rows, goals(experiment, rows)

    run_parts({"": PaperPart("What makes a large sparse model cheap", run, [data], [seed], shown)}, record)
