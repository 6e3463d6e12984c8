"""Quality in `osn bench bm25-sparse`: every engine on judged sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bm25_sparse.engines import (
    BACKEND,
    BM25,
    CASCADES,
    HYBRID,
    SPARSE_ENGINES,
    SUM,
    TUNED,
    TUNED_SUM,
    WAYS,
    Way,
    dense_engines,
    differences_of,
    hybrid_of,
)
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment
from benchmarks.bm25_sparse.vectors import (
    all_vectors,
    dense_variant,
    kept_variant,
    quantized,
    query_models,
    shards,
    sparse_vectors,
)
from benchmarks.cluster_bm25 import Bm25Settings, cluster_bm25, corpus_of, tuned_bm25
from benchmarks.experiment import Baseline, compared, facts, kept, kept_measured, mean_values, means, pairs, slug
from benchmarks.local_cluster import created_with, ingested, judged_result
from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models, NewIndex, Writing
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import (
    RARE_FIRST_WEIGHT,
    RARE_WORDS,
    Bm25SparseSetting,
    CascadeSetting,
    HighIdfFirstSetting,
)
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import MeasuredEngine, Row
from opensearch_neural.evaluation.significance import mean_interval
from opensearch_neural.files import read_json_object
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from trainers.common.config import fingerprint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


MEASURES = ("nDCG@10", "R@100")
TERMS = "active terms"
MOST_QUERIES = 2000
"""Most judged questions of a set, taken evenly."""


def measured_set(
    client: OpenSearch, experiment: Experiment, name: str, tuned: Bm25Settings | None
) -> tuple[dict[MeasuredEngine, Measured], list[Row]]:
    """The measures of every engine with every model on the set, and rows of the terms that a document has.

    tuned: BM25's analyzer, k1 and b; None with --beside, which measures only engines that need --dense"""
    measured: dict[MeasuredEngine, Measured] = {}
    rows: list[Row] = []
    for model in experiment.models:
        if not experiment.beside:
            # BM25's hits do not depend on the index's vectors.
            names = SPARSE_ENGINES if MeasuredEngine(BM25) in measured else (BM25, *SPARSE_ENGINES)
            ways = {engine: WAYS[engine] for engine in names}
            place = measured_with(experiment, model, name, with_dense=False)
            for engine, of_engine in kept_measures(client, experiment, model, name, ways, place).items():
                with_model = MeasuredEngine(engine, model.seed, model.name)
                measured[MeasuredEngine(BM25) if engine == BM25 else with_model] = of_engine
            if tuned is not None:
                tuned_sum = kept_measures(client, experiment, model, name, {TUNED_SUM: WAYS[SUM]}, place, bm25=tuned)
                measured[MeasuredEngine(TUNED_SUM, model.seed, model.name)] = tuned_sum[TUNED_SUM]
            terms = kept(place / "facts.json", partial(active_terms, experiment, model, name))[TERMS]
            rows += facts(name, MeasuredEngine(SUM, model.seed, model.name), {TERMS: terms}, 1)
        if experiment.dense:
            measured |= dense_measured(client, experiment, model, name)
    return measured, rows


def dense_measured(
    client: OpenSearch, experiment: Experiment, model: MeasuredEngine, name: str
) -> dict[MeasuredEngine, Measured]:
    """The set's measures of the engines that need a dense model, and of BM25 if the sparse model is the published one.

    With --pq, the hybrid kept in `work`, if any, is added as their rival.
    """
    engines = dense_engines(experiment, model.name)
    names = (BM25, *engines) if model.name == PUBLISHED else engines
    place = measured_with(experiment, model, name, with_dense=True)
    ways = {engine: WAYS[engine] for engine in names}
    of_name = kept_measures(client, experiment, model, name, ways, place, with_dense=True)
    variant = dense_variant(experiment, model.name)
    measured = {MeasuredEngine(engine, model.seed, variant): of_name[engine] for engine in engines}
    measured |= {MeasuredEngine(BM25): of_name[BM25]} if BM25 in names else {}
    if experiment.quantized is not None:
        place = measured_with(replace(experiment, quantized=None), MeasuredEngine(PUBLISHED), name, with_dense=True)
        if (kept_hybrid := place / f"{slug(HYBRID)}.json").exists():
            measured[hybrid_of(experiment)] = Measured.from_json(read_json_object(kept_hybrid))
    return measured


def measured_with(experiment: Experiment, model: MeasuredEngine, name: str, *, with_dense: bool) -> Path:
    """The folder of the set's measures with the sparse model. with_dense: with the dense model and its codes too"""
    made_with = kept_variant(experiment, str(model), with_dense)
    return experiment.work / "measured" / f"{name}-{made_with}-{defaults_hash()}"


def defaults_hash() -> str:
    """A hash of how engines search if no setting is given, for file names."""
    defaults = (Bm25SparseSetting(), HighIdfFirstSetting(), CascadeSetting())
    return fingerprint([setting.record for setting in defaults], str(RARE_WORDS), RARE_FIRST_WEIGHT)


def kept_measures(
    client: OpenSearch,
    experiment: Experiment,
    model: MeasuredEngine,
    name: str,
    ways: Mapping[str, Way],
    place: Path,
    *,
    with_dense: bool = False,
    judged: BeirData | None = None,
    measures: Sequence[str] = MEASURES,
    bm25: Bm25Settings | None = None,
) -> dict[str, Measured]:
    """{way to search the set with the model: its measures}, kept in `place`; an index is made only if measures are missing.

    ways: {name: (engine, its settings)}; judged: the questions, None for those of the test split; bm25: see `opened_index`
    """
    with ExitStack() as stack:

        @cache
        def opened() -> tuple[Engines, BeirData]:
            index = opened_index(client, experiment, model, name, with_dense=with_dense, bm25=bm25)
            return stack.enter_context(index), judged or judged_queries(experiment.sets[name])

        def measured(way: str) -> Measured:
            (engines, asked), (searched_by, settings) = opened(), ways[way]
            body_of = engines.with_settings(**settings).body_of(searched_by)
            retriever = OpenSearchRetriever(client, engines.index, way, body_of)
            return judged_result(client, engines.index, retriever, asked.queries, asked.qrels, measures).measured

        return {way: kept_measured(place / f"{slug(way)}.json", partial(measured, way)) for way in ways}


@contextmanager
def opened_index(
    client: OpenSearch,
    experiment: Experiment,
    model: MeasuredEngine,
    name: str,
    *,
    with_dense: bool = False,
    bm25: Bm25Settings | None = None,
) -> Iterator[Engines]:
    """The engines of an index of the set with the model's sparse vectors.

    with_dense: also dense vectors and codes; bm25: the index's analyzer, k1 and b, None for the defaults"""
    vectors = (all_vectors if with_dense else sparse_vectors)(experiment, model, name)
    index = f"osn-{vectors.parent.name}"
    new_index = NewIndex(replicas=0) if bm25 is None else NewIndex(replicas=0, analyzer=bm25.analyzer)
    job = Job(
        CorpusSource(str(corpus_of(experiment.sets[name]))),
        index,
        models=Models(pq=quantized(experiment) if with_dense else None),
        vectors=vectors,
        new_index=new_index,
        dead_letters=experiment.work / f"{index}.dead-letters.jsonl",
        writing=Writing(merge=True, restart=True),
    )
    query_encoders: dict[str, Any] = {**query_models(experiment), "backend": BACKEND} if with_dense else {}
    similarity = nullcontext() if bm25 is None else created_with(client, index, {"similarity": bm25.similarity})
    with similarity, ingested(client, job, show_progress=False), translate_errors():
        yield open_engines(client, index, **query_encoders)


def judged_queries(folder: Path, split: str = "test", most: int = MOST_QUERIES) -> BeirData:
    """The split with at most `most` judged queries, taken evenly."""
    judged = BeirData.load(folder, split)
    queries = sorted(judged.qrels)[:: -(-len(judged.qrels) // most)]
    return replace(
        judged,
        queries={query: judged.queries[query] for query in queries},
        qrels={query: judged.qrels[query] for query in queries},
    )


def active_terms(experiment: Experiment, model: MeasuredEngine, name: str) -> dict[str, float]:
    """{TERMS: mean number of terms that the model gives a document of the set}"""
    stored = [shard.sparse for shard in shards(sparse_vectors(experiment, model, name))]
    vectors = SparseVectors.concat([part for part in stored if part is not None])
    return {TERMS: len(vectors.weights) / max(1, len(vectors))}


def quality_rows(client: OpenSearch, experiment: Experiment) -> list[Row]:
    """Values, differences and active terms of every set, and their means over all sets and over the unseen sets."""
    settings = {} if experiment.beside else tuned_settings(client, experiment)
    tuned = {} if experiment.beside else tuned_measured(client, experiment, settings)
    terms: list[Row] = []

    def measured(name: str) -> dict[MeasuredEngine, Measured]:
        of_engines, of_set = measured_set(client, experiment, name, settings.get(name))
        terms.extend([*of_set, *mean_values(of_set, experiment.seeds)])
        return of_engines | ({MeasuredEngine(TUNED): tuned[name]} if tuned else {})

    rows = rows_of_sets(experiment, measured, differences_of(experiment), sets_of_means(experiment))
    return [*rows, *terms, *mean_terms(experiment, terms)]


def rows_of_sets(
    experiment: Experiment,
    measured: Callable[[str], Mapping[MeasuredEngine, Measured]],
    differences: Sequence[tuple[str, Baseline]],
    sets_of: Mapping[str, Sequence[str]],
) -> list[Row]:
    """Rows of every set and of means over sets, with means over the seeds.

    measured: name of a set → the measures of its engines; sets_of: {name of a mean: its sets}
    """
    of_sets: dict[str, Mapping[MeasuredEngine, Measured]] = {}
    rows: list[Row] = []
    for name in experiment.sets:
        of_engines = measured(name)
        of_sets[name] = {**of_engines, **means(of_engines, experiment.seeds)}
        rows += compared(name, of_sets[name], differences, seeds=experiment.seeds)
    for label, names in sets_of.items():
        rows += mean_rows(label, {name: of_sets[name] for name in names}, differences)
    return rows


def sets_of_means(experiment: Experiment) -> dict[str, list[str]]:
    """{name of a mean: its sets}: all sets, and those that no arm is trained on."""
    groups = {experiment.mean_of_all: [*experiment.sets], experiment.mean_of_unseen: experiment.unseen}
    return {label: names for label, names in groups.items() if names}


def mean_terms(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
    """The mean over sets of each model's active terms (`rows`), for every engine that searches them."""
    of_model: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        of_model.setdefault((row.seed, row.variant, row.seeds), []).append(row)
    averages: list[Row] = []
    for of_sets in of_model.values():
        value = fmean(row.value for row in of_sets)
        mean = replace(of_sets[0], set=experiment.mean_of_all, sets=len(of_sets), value=value)
        averages += [replace(mean, engine=engine) for engine in SPARSE_ENGINES]
        if experiment.dense:
            variant = dense_variant(experiment, mean.variant)
            engines = dense_engines(experiment, mean.variant)
            averages += [replace(mean, engine=engine, variant=variant) for engine in CASCADES if engine in engines]
    return averages


def tuned_settings(client: OpenSearch, experiment: Experiment) -> dict[str, Bm25Settings]:
    """{set: analyzer, k1 and b that are best on its train split; without one, best on average}"""
    chosen = tuned_bm25(client, experiment.with_train, experiment.work / "bm25")
    return {name: chosen.get(name, chosen[""]) for name in experiment.sets}


def tuned_measured(
    client: OpenSearch, experiment: Experiment, settings: Mapping[str, Bm25Settings]
) -> dict[str, Measured]:
    """{set: measures of BM25 with its settings of `tuned_settings`}"""

    def measure_set(folder: Path) -> Measured:
        judged, tuned = judged_queries(folder), settings[folder.name]
        with cluster_bm25(client, corpus_of(folder), [tuned.analyzer]) as rival:
            return rival.measure(judged.queries, judged.qrels, tuned, MEASURES)

    files = {name: experiment.work / "measured" / f"{name}-{slug(TUNED)}.json" for name in experiment.sets}
    return {name: kept_measured(file, partial(measure_set, experiment.sets[name])) for name, file in files.items()}


def mean_rows(
    label: str, of_sets: Mapping[str, Mapping[MeasuredEngine, Measured]], differences: Iterable[tuple[str, Baseline]]
) -> list[Row]:
    """The mean over sets of each engine's measures, and of differences in them. Intervals resample each set's queries."""
    rows: list[Row] = []
    shared = [engine for engine in next(iter(of_sets.values())) if all(engine in of_set for of_set in of_sets.values())]
    wanted = [*((engine, None) for engine in shared), *pairs(shared, differences)]
    measures = next(iter(next(iter(of_sets.values())).values())).per_query
    for (engine, rival), measure in product(wanted, measures):
        values = []
        for of_set in of_sets.values():
            of_query = of_set[engine].per_query[measure]
            against = of_set[rival].per_query[measure] if rival else dict.fromkeys(of_query, 0.0)
            if of_query.keys() != against.keys():
                raise InputError(f"{engine} and {rival} were not measured on the same queries", "give another --work")
            values.append(np.array([value - against[query] for query, value in of_query.items()]))
        low, high = mean_interval(values)
        rows.append(
            Row(label, engine.name, measure, fmean(float(of_set.mean()) for of_set in values), low, high,
                sum(map(len, values)), seed=engine.seed, variant=engine.variant, seeds=engine.seeds, sets=len(of_sets),
                kind="difference" if rival else "value", baseline=rival.name if rival else "",
                baseline_variant=rival.variant if rival else "",
                baseline_label=str(rival) if rival and (rival.seed, rival.seeds) != (engine.seed, engine.seeds) else "")
        )  # fmt: skip
    return rows
