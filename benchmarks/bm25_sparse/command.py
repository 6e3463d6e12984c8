"""BM25, and what a sparse model adds: the gain on judged sets, and the cost under load, of the same models.

    osn bench bm25-sparse --start MODEL --data DIR --work DIR --record benchmarks/results/bm25_sparse

`--data` holds BEIR folders, each with a test split. MODEL is a published SPLADE. The arms are: the model as it is; trained
further on the train splits of TRAINED_ON by the recipe sparse-published-start; and the trained weights averaged with the
start. No arm is trained on judgements of the other sets, which are called unseen. The arm ON_CORPUS has a model for each
set, unseen ones too, trained on titles and first sentences of its documents and on no judgement. It is measured if it is
named.

Quality: each model ingests each set into an index of its own; queries are weighted by the IDF of that set's corpus. All
engines search with the defaults of `osn search`; no setting was chosen on any test question of the sets. The rivals are
the index's own BM25, and BM25 with analyzer, k1 and b chosen on the set's train split (without one: those that are best on
average). Of each set at most 2,000 judged queries are used, taken evenly.

Cost: all engines search an index of documents resampled from COST_SET with the model's vectors (`osn bench grow`), under
load and in random turns. Also measured: how much of the exact result's score they keep, the bytes a document of an index
with what the engine needs, documents encoded a second on this machine (all models in turns), and the terms that the
model gives a document.

--dense adds `hybrid` and two cascades, in indexes with dense vectors and codes. A trained model gets only the cascade after
bm25-sparse: its quality with every seed, its cost with the first. ONNX Runtime encodes the queries in 8 bits. OPQ, learned
from the dense vectors of all sets, makes the codes. With --pq, that model makes them and encodes the cascades' queries, and
rows name it. The cascade after bm25-sparse is compared with hybrid, which is the same for every sparse model; --pq does not
measure hybrid, and takes the one kept in --work, if any.

--quality-of measures costs alone, to have them anew (on another machine, or after a change of the code) without the
hours that quality takes. OPQ is then learned from the vectors of COST_SET. Give a --work that has kept no costs.

The plot shows quality against P99, a point for each engine. Slow results are kept in --work; the same command continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks import plots
from benchmarks.bm25_sparse.cost import BYTES, RATE, check_load, cost_rows
from benchmarks.bm25_sparse.engines import BM25, DENSE_ENGINES, SPARSE_ENGINES, SUM
from benchmarks.bm25_sparse.measures import TERMS, quality_rows
from benchmarks.bm25_sparse.models import ARMS, PUBLISHED, Experiment, check_models, start_option
from benchmarks.bm25_sparse.vectors import dense_variant
from benchmarks.experiment import Table, goal_of, paper_options, publish
from benchmarks.grown.index import set_of_size
from benchmarks.load.blocks import Level
from benchmarks.load.command import owned_option
from benchmarks.local_cluster import NODE, reachable
from benchmarks.options import setting_options
from benchmarks.render import LEAST_KEPT, in_points, of_first
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, Row, read

LEAST_GAIN = {PUBLISHED: 2.5}
LEAST_TRAINED, LEAST_UNSEEN = 4.5, 3.5
"""Least points of nDCG@10 over BM25: in the mean of all sets (LEAST_GAIN, else LEAST_TRAINED), and of the unseen sets."""
GOAL_SETS = 9
"""Goals for quality need at least this many sets."""
LEVEL = "20 clients"
WAIT_COUNTED = "bm25_sparse_cost"
"""The one recorded result whose latencies count the whole wait of a request, but which does not show it by itself."""
ENGINES = dict(zip((*SPARSE_ENGINES, *DENSE_ENGINES), "o<>hHdsD^vP", strict=True))
"""{engine: its marker in the plot}"""
MOST_COST = {100_000: 1.25, 1_000_000: 1.15}
"""{documents: the highest ratio of P50 and P99 to BM25's, at LEVEL}"""


# ------------------------------------------------ goals and plot


def goals(experiment: Experiment, rows: Sequence[Row]) -> list[Goal]:
    """What a reader would ask: above BM25 on how many sets, by how much, at which cost."""
    table = Table(rows, experiment.seeds)
    goals: list[Goal] = []
    sets = list(experiment.sets)
    for arm in experiment.arms if len(sets) >= GOAL_SETS and not experiment.quality_of else ():
        gains = {name: gain for name in sets if (gain := table.difference(name, SUM, BM25, "nDCG@10", variant=arm))}
        above = [name for name, row in gains.items() if row.low is not None and row.low > 0]
        below = [name for name, row in gains.items() if row.high is not None and row.high < 0]
        goals.append(goal_of(
            f"bm25-sparse {arm}: nDCG@10 above BM25 with its interval on at least 7 of {len(sets)} sets, below on none",
            "7, 0", f"{len(above)}, {len(below)}", len(above) >= 7 and not below,
        ))  # fmt: skip
        targets = {experiment.mean_of_all: LEAST_GAIN.get(arm, LEAST_TRAINED)}
        if arm != PUBLISHED:
            targets[experiment.mean_of_unseen] = LEAST_UNSEEN
        for label, target in targets.items():
            row = table.difference(label, SUM, BM25, "nDCG@10", variant=arm)
            points = None if row is None else 100 * row.value
            words = f"bm25-sparse {arm}: points of nDCG@10 over BM25, {label}, at least"
            shown = None if points is None else round(points, 2)
            goals.append(goal_of(words, target, shown, points is not None and points >= target))
    levels = [Level("closed", clients).label for clients in experiment.clients]
    for size in experiment.sizes:
        for arm in experiment.arms:
            limit = MOST_COST.get(size)
            for measure in ("P50", "P99"):
                if not limit or LEVEL not in levels:
                    continue
                ratio = table.ratio(set_of_size(size), LEVEL, SUM, BM25, measure, variant=arm)
                words = f"bm25-sparse {arm}: {measure} on {set_of_size(size)}, {LEVEL}, in BM25's, at most"
                shown = None if ratio is None else round(ratio.value, 3)
                goals.append(goal_of(words, limit, shown, ratio is not None and ratio.value <= limit))
            if share := table.value(set_of_size(size), SUM, "score kept", variant=arm):
                words = f"bm25-sparse {arm}: score kept on {share.set}, at least"
                goals.append(goal_of(words, LEAST_KEPT, round(share.value, 4), share.value >= LEAST_KEPT))
    return goals


def draw(experiment: Experiment, rows: Sequence[Row], folder: Path) -> None:
    """Draw quality_and_cost.svg: each engine's gain over BM25 in the mean of sets, against its P99 divided by BM25's.
    Engines without a P99 are left out, and those of the results named by --beside and --quality-of are shown too, unless
    their P99 leaves a part of the wait out."""
    results = (*experiment.beside, *experiment.quality_of)
    earlier = [_comparable(read(result).rows, WAIT_COUNTED in Path(result).parts) for result in results]
    rows = of_first([_comparable(rows, True), *earlier])
    file, size = folder / "quality_and_cost.svg", max(experiment.sizes, default=0)
    table, label = Table(rows, experiment.seeds), experiment.mean_of_all
    variants = list(dict.fromkeys(row.variant for row in rows if row.variant))
    models = sorted(variants, key=lambda name: ARMS.index(name) if name in ARMS else len(ARMS))
    points = {
        (arm, engine): (cost, in_points(gain))
        for arm, engine in product(models, ENGINES)
        if (gain := table.difference(label, engine, BM25, "nDCG@10", variant=arm))
        and (cost := table.ratio(set_of_size(size), LEVEL, engine, BM25, "P99", variant=arm))
    }
    if not points:  # no P99 was measured: remove the plot of an earlier run
        file.unlink(missing_ok=True)
        return
    plots.quality_and_cost(
        points,
        file,
        baseline=BM25,
        models=models,
        markers=ENGINES,
        x=f"P99, in BM25's ({set_of_size(size)}, {LEVEL})",
        y=f"points of nDCG@10 over BM25,\n{label}",
    )


def _comparable(rows: Sequence[Row], wait_counted: bool) -> list[Row]:
    """The rows without the costs of engines whose P99 is not known, as in a load test with too few requests: an earlier
    result may have them. Nor with those of DENSE_ENGINES if their latencies leave a part of the wait out, as before the wait
    was recorded ("Older load tests" of docs/evidence.md). wait_counted: they count it, recorded or not"""

    def part(row: Row) -> tuple[str, ...]:
        return row.set, row.level, row.engine, row.variant

    costs = {part(row) for row in rows if row.kind == "ratio" and row.measure == "P99"}
    if not wait_counted:
        waits = {part(row) for row in rows if row.measure == "wait ms, mean"}
        costs -= {cost for cost in costs - waits if cost[2] in DENSE_ENGINES}
    return [row for row in rows if not row.level or part(row) in costs]


def check_quality(experiment: Experiment) -> None:
    """Raises InputError if a result of --quality-of cannot be read, or if none has the quality of one of the arms."""
    rows = [row for earlier in experiment.quality_of for row in read(earlier).rows]
    known = {row.variant for row in rows if row.kind == "difference" and row.sets}
    missing = [name for arm in experiment.arms if (name := dense_variant(experiment, arm)) not in known]
    if experiment.quality_of and missing:
        raise InputError(
            f"no result of --quality-of has the quality of {', '.join(map(repr, missing))} in a mean of sets",
            "name the result that has it, or leave the arm out",
        )


def shown(row: Row) -> bool:
    return (
        (row.kind == "difference" and row.measure == "nDCG@10")
        or (row.kind == "ratio" and row.measure in ("P50", "P99", "requests/s"))
        or row.measure in ("score kept", BYTES, RATE, TERMS)
    )


# ------------------------------------------------ the command


@click.command("bm25-sparse")
@start_option
@setting_options(Experiment)
@owned_option
@paper_options
@connection_options
def bm25_sparse(connection: ConnectionSettings, record: Path | None, **options: Any) -> None:
    """BM25 and what a sparse model adds: quality on judged sets and cost under load, with the same models.

    \b
    osn bench bm25-sparse --start my-splade --data data --work work --record benchmarks/results/bm25_sparse
    osn bench bm25-sparse --start my-splade --data data --work work --arm 'as published' --documents 100000
    osn bench bm25-sparse --start my-splade --data data --work work --dense all-MiniLM-L6-v2 --documents 100000
    osn bench bm25-sparse … --arm 'as published' --dense all-MiniLM-L6-v2 --beside benchmarks/results/bm25_sparse
    osn bench bm25-sparse … --arm 'as published' --dense all-MiniLM-L6-v2 --pq models/jpq --beside results/bm25_sparse
    """
    experiment = Experiment(connection=connection, **options)
    if not experiment.sets:
        raise InputError(f"{experiment.data} holds no BEIR folder with a test split", "name the folder that holds them")
    if experiment.beside and experiment.dense is None:
        raise InputError("--beside measures what a dense model adds, so it needs one", "give --dense MODEL too")
    if experiment.dense is not None and PUBLISHED not in experiment.arms:
        raise InputError(
            "--dense compares cascades with hybrid, measured with the published model, which is not among the arms",
            f"add --arm '{PUBLISHED}'",
        )
    if experiment.quality_of and not experiment.sizes:
        raise InputError("--quality-of measures costs alone, and --documents names no size", "name one")
    if experiment.quality_of and experiment.beside:
        raise InputError("--quality-of measures the costs of all engines, --beside of some", "leave one of them out")
    check_load(experiment)
    check_models(experiment)
    check_quality(experiment)

    experiment.make_models(lambda model, name: name in experiment.measured_sets and model in experiment.measured_models)
    with reachable(connection, NODE, goes_on=True, heap=experiment.heap) as settings:
        client = connect(settings=settings)
        rows = [] if experiment.quality_of else quality_rows(client, experiment)
        costs, notes = cost_rows(client, settings, experiment)
        rows += costs
    publish(
        rows,
        [] if experiment.beside else goals(experiment, rows),
        title="BM25 and what a sparse model adds",
        data=[experiment.sets[name] for name in experiment.measured_sets],
        seeds=experiment.seeds,
        record=record,
        shown=shown,
        draw=partial(draw, experiment),
        notes=notes,
    )
