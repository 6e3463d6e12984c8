"""`osn bench large-sparse`: how to search cheaply by a large sparse model.

    osn bench large-sparse --model MODEL --data data/scifact --work work --record benchmarks/results/large_sparse

MODEL is a sparse model that gives documents many terms. --vectors names a folder of `osn encode`; without it, the corpus
is encoded. Documents are drawn from the corpus as in `osn bench grow`, and are in one index for all ideas.

Settings are chosen on train queries: each idea that has one, and neural-search's own processor, gets the cheapest setting
whose score kept lies above 0.99 with its whole interval. Then all arms answer the test queries, which shows the score kept
(the exact scores of the ten hits returned, divided by those of the exact ten), and are put under load in random turns. Slow
results are kept in --work; the same command continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from benchmarks.beir_parts import check_data
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import RowsAndNotes, Table, goal_of, kept, kept_costs, publish, slug, work_options
from benchmarks.grown.index import Growth, set_of_size
from benchmarks.large_sparse.arms import FieldSearch
from benchmarks.large_sparse.indexes import Layout, field_of, write_all
from benchmarks.load import quality
from benchmarks.load.blocks import Level
from benchmarks.load.command import owned_option, rows_under_load
from benchmarks.load.measurement import LoadSettings, WarmupSettings
from benchmarks.load.variants import TWO_PHASE, Variant, parameters
from benchmarks.load.workload import LoadTarget, ModelChoice, Workload, allowed_target, body_builders, prepared
from benchmarks.local_cluster import HEAP, NODE, reachable
from benchmarks.options import NumberList, of_options, setting, setting_options
from benchmarks.render import LEAST_KEPT, SCORE_KEPT
from benchmarks.turns import fastest
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines.settings import RARE_WORDS
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, Row
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import Rare
from opensearch_neural.queries.forward_index import FIELD as ROWS
from opensearch_neural.retrievers.opensearch import search
from trainers.common.config import fingerprint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

BM25, SUM = "bm25", "bm25-sparse"
SUMS = {SUM: (), **{f"{SUM}, window {window}": (("window", window),) for window in (20, 50)}}
"""{arm of bm25-sparse: its settings}; (): the index's window. Their score kept is relative to the exact sum with BM25,
not to the sparse model's result."""
NDCG = "nDCG@10"
BYTES = "bytes read, a document"
"""Bytes on disk of the fields that a search reads."""
LOAD = LoadSettings(rounds=8, settle=0.3, ceiling=0.5, warmup=WarmupSettings(30, 90), quality=False)
MOST_COST = 1.1
"""Highest P99 as a ratio to BM25's."""
TUNING_QUERIES = 100
PASSES = 3
"""How often each tuned setting is timed."""

WINDOWS = (10, 15, 20, 30, 50, 100, 200, 300, 400, 600, 800)
CUTS = (0.2, 0.4, 0.6, 0.8, 0.9)
RARE, HIGH_IDF_WINDOWS = tuple(map(Rare.parse, ("ratio:0.4", "ratio:0.5", "ratio:0.6", "share:0.8"))), (20, 30, 50, 100)
PRUNE_RATIOS, EXPANSIONS = (0.2, 0.4, 0.6), (2.0, 3.0, 5.0, 10.0, 20.0, 40.0)


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
    minutes: float = setting(8.0, "Longest time for a load test, after its warm-up.", type=float)
    requests: int = setting(10_000, "Requests of each arm; a P99 needs 10,000.", type=int)
    prefix: str = setting("osn-large-sparse", "Indexes are called INDEX-….", option="--index")
    heap: str = setting("4g", HEAP)
    seed: int = setting(0, "Seed of the drawn documents and their order.")
    keep: bool = setting(False, "Keep the indexes (and the local node).", option="--keep-indexes")


@dataclass(frozen=True)
class LargeSparseExperiment:
    """What is measured, and where."""

    options: LargeSparseOptions
    """The options of the command."""
    layouts: tuple[Layout, ...]
    """One for each number of documents."""
    target: LoadTarget
    """The cluster that is put under load."""
    model: ModelChoice
    """The sparse model and how its queries are encoded."""
    load: LoadSettings
    """Clients, windows and seed of the load test."""


@dataclass(frozen=True)
class SearchArm:
    """One way to search, and the fields that it reads."""

    variant: Variant
    """The requests, as the load test sends them."""
    reads: tuple[str, ...]
    """Fields that the search reads, whose bytes count as its cost."""


# ------------------------------------------------ arms


def _pruned(layout: Layout, label: str, rule: Pruning | None, window: int | None, cut: float = 1.0) -> SearchArm:
    field = "sparse" if rule is None else field_of(rule)
    parts = [
        *([f"documents {rule}"] if rule is not None else ()),
        *([f"query {cut:g}"] if cut < 1 else ()),
        f"rows {window}" if window is not None else "as they are",
    ]
    bodies = FieldSearch(field, window, cut, layout.frequencies if cut < 1 else None)
    variant = Variant(f"{label}: {', '.join(parts)}", "sparse", bodies=bodies)
    return SearchArm(variant, (field, *([ROWS] if window is not None else ())))


def fixed_arms(layout: Layout) -> list[SearchArm]:
    """The arms without a setting to choose: baselines, and pruned documents without rescoring."""
    return [
        SearchArm(Variant(BM25, BM25), ("contents",)),
        SearchArm(Variant("sparse", "sparse"), ("sparse",)),
        SearchArm(Variant("high-idf-first", "high-idf-first"), ("sparse", ROWS)),
        *(SearchArm(Variant(name, SUM, settings=how), ("contents", ROWS)) for name, how in SUMS.items()),
        SearchArm(Variant(TWO_PHASE, TWO_PHASE), ("sparse",)),
        *(_pruned(layout, "pruned", rule, None) for rule in layout.prunes),
    ]


def arms_of_ideas(layout: Layout) -> dict[str, list[SearchArm]]:
    """{idea: the settings to choose from}."""

    def two_phase(prune: float, expansion: float) -> SearchArm:
        name = f"{TWO_PHASE}: prune {prune:g}, expansion {expansion:g}"
        settings = (("expansion", expansion), ("prune", prune))
        return SearchArm(Variant(name, TWO_PHASE, settings=settings), ("sparse",))

    def high_idf_first(rare: Rare, window: int) -> SearchArm:
        settings = (("rare", rare), ("window", window))
        variant = Variant(f"high-idf-first: {rare}, window {window}", "high-idf-first", settings=settings)
        return SearchArm(variant, ("sparse", ROWS))

    return {
        TWO_PHASE: [two_phase(*how) for how in product(PRUNE_RATIOS, EXPANSIONS)],
        "high-idf-first": [high_idf_first(*how) for how in product(RARE, HIGH_IDF_WINDOWS)],
        **{f"pruned {rule}": [_pruned(layout, "pruned", rule, window) for window in WINDOWS] for rule in layout.prunes},
        "cut": [_pruned(layout, "cut", None, *how) for how in product((None, *WINDOWS), CUTS)],
        "pruned and cut": [_pruned(layout, "pruned", *how) for how in product(layout.prunes, WINDOWS, CUTS)],
    }


# ------------------------------------------------ tuning


def chosen(
    client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout, arms: Sequence[SearchArm]
) -> dict[str, Any]:
    """The `choice` among `arms` on train queries."""
    texts = dict(islice(BeirData.load(experiment.options.data, "train").queries.items(), TUNING_QUERIES))
    variants = [arm.variant for arm in arms]
    with prepared(
        client, experiment.target, layout.index, variants, list(texts.values()), experiment.model
    ) as workload:
        rows = quality.nearness_rows(client, workload, texts, "train")
        return choice(rows, variants, partial(timed, client, workload))


def choice(
    rows: Iterable[Row], variants: Sequence[Variant], timed: Callable[[Sequence[Variant]], Mapping[str, float]]
) -> dict[str, Any]:
    """{"chosen": name, "settings": {name: its measures}}.

    Chosen is the fastest variant whose score kept has an interval above LEAST_KEPT; if none has, the one that keeps most.
    timed: variants → {name: milliseconds a query}; called with the variants that keep enough
    """
    of_arm = {row.engine: row for row in rows if row.measure == SCORE_KEPT}
    enough = [arm for arm in variants if (of_arm[arm.name].low or of_arm[arm.name].value) >= LEAST_KEPT]
    times = timed(enough) if enough else {}
    settings = {name: {"kept": row.value, "low": row.low, "ms": times.get(name)} for name, row in of_arm.items()}
    best = min(times, key=times.__getitem__) if times else max(of_arm, key=lambda name: of_arm[name].value)
    return {"chosen": best, "settings": settings}


def timed(client: OpenSearch, workload: Workload, variants: Sequence[Variant]) -> dict[str, float]:
    """{variant: mean milliseconds a query}, one request at a time, in turns; of each query the fastest of several passes."""
    built = body_builders(workload, variants)

    def ask(variant: Variant, text: str) -> Any:
        return search(client, workload.index_of(variant), built[variant.name](text), **parameters(variant))

    ways = {variant.name: partial(ask, variant) for variant in variants}
    _, seconds = fastest(ways, dict.fromkeys(workload.texts), PASSES)
    return {name: 1000 * fmean(of_queries) for name, of_queries in seconds.items()}


# ------------------------------------------------ rows


def rows_of(client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout) -> RowsAndNotes:
    """All rows of one size, whose set is the number of documents, and notes on what happened. Deletes the index unless it is
    to be kept.

    Raises ClusterError if the load test stopped.
    """

    def measured() -> RowsAndNotes:
        with translate_errors():
            write_all(client, layout, logger.info)
            arms = fixed_arms(layout)
            for idea, settings in arms_of_ideas(layout).items():
                logger.info("choosing a setting of %s", idea)
                file = layout.folder / "tuned" / f"{slug(idea)}-{fingerprint(_names(settings))}.json"
                choice = kept(file, partial(chosen, client, experiment, layout, settings))
                arms += [arm for arm in settings if arm.variant.name == choice["chosen"]]
            quality_ = quality_rows(client, experiment, layout, arms)
            costs, notes = cost_rows(client, experiment, layout, arms)
            return quality_ + costs, notes

    made = kept_costs(layout.folder / f"rows-{settings_hash(experiment, layout)}.json", measured)
    if not experiment.options.keep:
        client.indices.delete(index=layout.index, params={"ignore_unavailable": "true"})
    return made


def settings_hash(experiment: LargeSparseExperiment, layout: Layout) -> str:
    """A hash of the documents, the arms, the defaults that they have, and the load, for file names."""
    load = experiment.load
    ways = [_names(arms) for arms in (fixed_arms(layout), *arms_of_ideas(layout).values())]
    options = [load.clients, load.requests, load.minutes, experiment.options.heap]
    return fingerprint(layout.described, ways, str(RARE_WORDS), *options)


def _names(arms: Iterable[SearchArm]) -> list[str]:
    return [arm.variant.name for arm in arms]


def quality_rows(
    client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout, arms: Sequence[SearchArm]
) -> list[Row]:
    """The score kept and the overlap with the exact ten (for bm25-sparse, those of its sum), nDCG@10 by the judgements of
    the real documents among the drawn ones, and the bytes that each arm reads."""
    judged = BeirData.load(experiment.options.data, "test")
    variants = [arm.variant for arm in arms]
    with prepared(
        client, experiment.target, layout.index, variants, list(judged.queries.values()), experiment.model
    ) as workload:
        logger.info("quality")
        set_ = set_of_size(layout.growth.documents)
        rows = quality.nearness_rows(client, workload, judged.queries, set_)
        rows += quality.judged_rows(client, workload, judged, set_, baseline=None, measures=(NDCG,))
    sizes: dict[str, float] = kept(layout.bytes_file, dict)
    for arm in arms:
        size = sum(sizes[part] for part in arm.reads)
        rows.append(Row(set_, arm.variant.name, BYTES, size, None, None, layout.growth.documents))
    return rows


def cost_rows(
    client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout, arms: Iterable[SearchArm]
) -> RowsAndNotes:
    """P50, P99 and throughput of all arms under load in random turns, also as ratios to BM25's."""
    variants = [arm.variant for arm in arms]
    rows, notes = rows_under_load(
        client, experiment.target, layout.index, variants, experiment.options.data, experiment.model, experiment.load,
        layout.folder / f"load-{settings_hash(experiment, layout)}",
    )  # fmt: skip
    return [replace(row, set=set_of_size(layout.growth.documents)) for row in rows], notes


# ------------------------------------------------ goals


def goals(experiment: LargeSparseExperiment, rows: Sequence[Row]) -> list[Goal]:
    """For each size and level, the arm with the least P99 among those that keep enough of the sparse model's score."""
    table = Table(rows)
    goals: list[Goal] = []
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
            goals.append(goal_of(words, MOST_COST, value, bool(best) and ratios[best] <= MOST_COST))
    return goals


def shown(row: Row) -> bool:
    return (row.kind == "ratio" and row.measure in ("P50", "P99", "requests/s")) or (
        row.kind == "value" and row.measure in ("score kept", "overlap@10", NDCG, BYTES)
    )


# ------------------------------------------------ the command


@click.command("large-sparse")
@setting_options(LargeSparseOptions)
@owned_option
@work_options
@connection_options
def large_sparse(connection: ConnectionSettings, work: Path, record: Path | None, owned: bool, **values: Any) -> None:
    """How to search cheaply by a large sparse model: cost and score kept of each idea, and of the best ones together.

    It compares baselines, pruned documents and cut queries with BM25 in one table. --data is one BEIR folder. Run the same
    command again to continue an interrupted run.

    \b
    osn bench large-sparse --model my-splade --data data/scifact --work work --record benchmarks/results/large_sparse
    osn bench large-sparse --model my-splade --data data/scifact --work work --documents 1000000
    """
    options = of_options(LargeSparseOptions, values)
    model, data = options.model, options.data
    if not (data / "qrels" / "train.tsv").exists():
        raise InputError(f"{data} has no train split to choose settings on", "add qrels/train.tsv")
    # Settings that cannot work are refused before anything is written.
    load = replace(LOAD, clients=options.clients, minutes=options.minutes, requests=options.requests).validate()
    corpus = str(corpus_of(data))
    layouts = [
        Layout(
            Growth(corpus, options.prefix, size, sparse=model, vectors=options.vectors, seed=options.seed),
            tuple(map(Pruning.parse, options.prune)),
            work / str(size),
        )
        for size in sorted(options.documents)
    ]
    check_data(
        work, [data], models={"model": model, **({} if options.vectors is None else {"vectors": options.vectors})}
    )
    models = ModelChoice(sparse=None if model == "lexical" else model)

    with reachable(connection, NODE, goes_on=True, keep=options.keep, heap=options.heap) as settings:
        client, target = connect(settings=settings), allowed_target(settings, owned=owned)
        experiment = LargeSparseExperiment(options, tuple(layouts), target, models, load)
        made = [rows_of(client, experiment, layout) for layout in layouts]
    rows = [row for of_size, _ in made for row in of_size]
    publish(
        rows,
        goals(experiment, rows),
        title="What makes a large sparse model cheap",
        data=[data],
        seeds=[options.seed],
        record=record,
        shown=shown,
        notes=[note for _, of_size in made for note in of_size],
    )
