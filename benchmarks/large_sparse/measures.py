"""Measures each idea: its setting is chosen on train queries; test queries give score kept, nDCG@10 and cost under load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.experiment import kept, kept_rows, slug
from benchmarks.grown.index import set_of_size
from benchmarks.large_sparse.arms import FieldSearch
from benchmarks.large_sparse.indexes import Layout, field_of, write_all
from benchmarks.load import quality
from benchmarks.load.command import rows_under_load
from benchmarks.load.measurement import LoadSettings, WarmupSettings
from benchmarks.load.variants import TWO_PHASE, Variant, parameters
from benchmarks.load.workload import LoadTarget, ModelChoice, Workload, body_builders, prepared
from benchmarks.render import LEAST_KEPT, SCORE_KEPT
from benchmarks.speed.turns import fastest
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.evaluation import measures, result_rows
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.evaluation.results import Row
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
TUNING_QUERIES = 100
PASSES = 3
"""How often each tuned setting is timed."""

WINDOWS = (10, 15, 20, 30, 50, 100, 200, 300, 400, 600, 800)
CUTS = (0.2, 0.4, 0.6, 0.8, 0.9)
RARE, HIGH_IDF_WINDOWS = tuple(map(Rare.parse, ("ratio:0.4", "ratio:0.5", "ratio:0.6", "share:0.8"))), (20, 30, 50, 100)
PRUNE_RATIOS, EXPANSIONS = (0.2, 0.4, 0.6), (2.0, 3.0, 5.0, 10.0, 20.0, 40.0)


@dataclass(frozen=True)
class LargeSparseExperiment:
    """The options of the command."""

    data: Path
    """A BEIR folder."""
    layouts: tuple[Layout, ...]
    """One for each number of documents."""
    target: LoadTarget
    """The cluster that is put under load."""
    model: ModelChoice
    """The sparse model and how its queries are encoded."""
    load: LoadSettings
    """Clients, windows and seed of the load test."""
    keep: bool
    """Whether the indexes are kept."""
    heap: str | None = None
    """Java heap of the local node, such as 4g."""


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


def fixed(layout: Layout) -> list[SearchArm]:
    """The arms without a setting to choose: baselines, and pruned documents without rescoring."""
    return [
        SearchArm(Variant(BM25, BM25), ("contents",)),
        SearchArm(Variant("sparse", "sparse"), ("sparse",)),
        SearchArm(Variant("high-idf-first", "high-idf-first"), ("sparse", ROWS)),
        *(SearchArm(Variant(name, SUM, settings=how), ("contents", ROWS)) for name, how in SUMS.items()),
        SearchArm(Variant(TWO_PHASE, TWO_PHASE), ("sparse",)),
        *(_pruned(layout, "pruned", rule, None) for rule in layout.prunes),
    ]


def tuned(layout: Layout) -> dict[str, list[SearchArm]]:
    """{idea: the settings to choose from}."""

    def two_phase(prune: float, expansion: float) -> SearchArm:
        name = f"{TWO_PHASE}: prune {prune:g}, expansion {expansion:g}"
        return SearchArm(Variant(name, TWO_PHASE, prune=prune, expansion=expansion), ("sparse",))

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
    texts = dict(islice(BeirData.load(experiment.data, "train").queries.items(), TUNING_QUERIES))
    variants = [arm.variant for arm in arms]
    asked = experiment.target, layout.index, variants, list(texts.values()), experiment.model
    with prepared(client, *asked) as workload:
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
    enough = [each for each in variants if (of_arm[each.name].low or of_arm[each.name].value) >= LEAST_KEPT]
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


def rows_of(client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout) -> list[Row]:
    """All rows of one size; their set is the number of documents. Deletes the index unless it is to be kept.

    Raises ClusterError if the load test stopped.
    """

    def measured() -> list[Row]:
        with translate_errors():
            write_all(client, layout, logger.info)
            arms = fixed(layout)
            for idea, settings in tuned(layout).items():
                logger.info("choosing a setting of %s", idea)
                file = layout.folder / "tuned" / f"{slug(idea)}-{fingerprint(_names(settings))}.json"
                choice = kept(file, partial(chosen, client, experiment, layout, settings))
                arms += [arm for arm in settings if arm.variant.name == choice["chosen"]]
            return quality_rows(client, experiment, layout, arms) + cost_rows(client, experiment, layout, arms)

    rows = kept_rows(layout.folder / f"rows-{_asked(experiment, layout)}.json", measured)
    if not experiment.keep:
        client.indices.delete(index=layout.index, params={"ignore_unavailable": "true"})
    return rows


def _asked(experiment: LargeSparseExperiment, layout: Layout) -> str:
    """A hash of the documents, the arms and the load, for file names."""
    load = experiment.load
    ways = [_names(arms) for arms in (fixed(layout), *tuned(layout).values())]
    return fingerprint(layout.described, ways, load.clients, load.requests, load.minutes, experiment.heap)


def _names(arms: Iterable[SearchArm]) -> list[str]:
    return [arm.variant.name for arm in arms]


def quality_rows(
    client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout, arms: Sequence[SearchArm]
) -> list[Row]:
    """The score kept and the overlap with the exact ten (for bm25-sparse, those of its sum), nDCG@10 by the judgements of
    the real documents among the drawn ones, and the bytes that each arm reads."""
    judged = BeirData.load(experiment.data, "test")
    variants = [arm.variant for arm in arms]
    asked = experiment.target, layout.index, variants, list(judged.queries.values()), experiment.model
    with prepared(client, *asked) as workload:
        logger.info("quality")
        set_ = set_of_size(layout.growth.documents)
        rows = quality.nearness_rows(client, workload, judged.queries, set_)
        runs = {
            each.name: quality.retriever(client, workload, each).retrieve(judged.queries, PAGE) for each in variants
        }
    ndcg = {name: measures.measure(run, judged.qrels, (NDCG,)) for name, run in runs.items()}
    rows += result_rows.rows(set_, ndcg, baseline=None)
    sizes: dict[str, float] = kept(layout.bytes_file, dict)
    for arm in arms:
        size = sum(sizes[part] for part in arm.reads)
        rows.append(Row(set_, arm.variant.name, BYTES, size, None, None, layout.growth.documents))
    return rows


def load_settings(clients: tuple[int, ...], minutes: float, requests: int) -> LoadSettings:
    """Raises InputError for settings that cannot work."""
    return replace(LOAD, clients=clients, minutes=minutes, requests=requests).validate()


def cost_rows(
    client: OpenSearch, experiment: LargeSparseExperiment, layout: Layout, arms: Iterable[SearchArm]
) -> list[Row]:
    """P50, P99 and throughput of all arms under load in random turns, also as ratios to BM25's."""
    variants = [arm.variant for arm in arms]
    rows = rows_under_load(
        client, experiment.target, layout.index, variants, experiment.data, experiment.model, experiment.load,
        layout.folder / f"load-{_asked(experiment, layout)}",
    )  # fmt: skip
    return [replace(row, set=set_of_size(layout.growth.documents)) for row in rows]
