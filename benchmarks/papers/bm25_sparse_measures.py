"""What `osn bench bm25-sparse` measures: every engine's quality on judged sets, and its cost under load."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.experiment import compared, kept, kept_measured, means, of_seeds, slug
from benchmarks.papers.bm25_sparse_models import PUBLISHED, STEPS, Experiment
from benchmarks.papers.cluster_bm25 import cluster_bm25, corpus_of, tuned_bm25
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import open_engines
from opensearch_neural.evaluation.results import Engine, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Measured

logger = logging.getLogger(__name__)

COST_SET = "scifact"
WARM_UP = (20.0, 90.0)
"""Seconds, at least and at most."""
BM25, TUNED, SUM, SPARSE, HIGH_IDF_FIRST, HYBRID = (
    "bm25",
    "bm25 tuned",
    "bm25-sparse",
    "sparse",
    "high-idf-first",
    "hybrid",
)
WINDOWS = {f"bm25-sparse, window {window}": window for window in (20, 50)}
"""{engine: window}, beside bm25-sparse with its default."""
MEASURES = ("nDCG@10", "R@100")
FACTS = "facts"
DIFFERENCES = [(engine, BM25) for engine in (TUNED, SUM, *WINDOWS, SPARSE, HIGH_IDF_FIRST, HYBRID)] + [(SUM, TUNED)]
NAMED = {f"window{window}": engine for engine, window in WINDOWS.items()}
"""{variant under load: its name in the table}"""
LOADED = ",".join(
    [BM25, SUM, *(f"window{window}={SUM}+window={window}" for window in WINDOWS.values()), SPARSE, HIGH_IDF_FIRST]
)
RESAMPLES = 2000
MOST_QUERIES = 2000
"""Of a set, evenly taken from all that have judgements."""


# ------------------------------------------------ quality


@contextmanager
def ingested(client: OpenSearch, experiment: Experiment, model: Engine, name: str) -> Iterator[str]:
    """The set's index with the model's vectors, deleted when the block ends; vectors are kept."""
    from ingest.corpus import CorpusSource
    from ingest.job import Job, run_job
    from ingest.settings import Writing
    from ingest.vectors.encode_corpus import EncodeJob, run_encode

    source = CorpusSource(str(corpus_of(experiment.sets[name])))
    place = experiment.work / "vectors" / f"{name}-{slug(str(model))}"
    dense = experiment.dense if model.name == PUBLISHED else None
    sparse = experiment.on_corpus(model, name)
    vectors = run_encode(EncodeJob(source, place, sparse=sparse, dense=dense), show_progress=False).manifest
    index = f"osn-{place.name}"
    client.indices.delete(index=index, params={"ignore_unavailable": "true"})
    letters = experiment.work / f"{index}.dead-letters.jsonl"
    job = Job(
        source, index, vectors=vectors, replicas=0, dead_letters=letters, writing=Writing(merge=True, restart=True)
    )
    try:
        run_job(client, job, show_progress=False)
        yield index
    finally:
        client.indices.delete(index=index, params={"ignore_unavailable": "true"})


def measured_set(client: OpenSearch, experiment: Experiment, name: str) -> tuple[dict[Engine, Measured], list[Row]]:
    """What every engine finds in the set by every model, and how many terms a document has."""
    measured: dict[Engine, Measured] = {}
    rows: list[Row] = []
    for model in experiment.models:
        folder = experiment.work / "measured" / f"{name}-{slug(str(model))}"
        names = [
            SUM,
            *WINDOWS,
            SPARSE,
            HIGH_IDF_FIRST,
            *([HYBRID] if experiment.dense and model.name == PUBLISHED else ()),
        ]
        if Engine(BM25) not in measured:  # it finds the same whatever vectors lie beside the text
            names.insert(0, BM25)
        if not all(kept_of(folder, made).exists() for made in (*names, FACTS)):
            with ingested(client, experiment, model, name) as index, translate_errors():
                measure_index(client, index, experiment, model, name, names, folder)
        for engine in names:
            own = Engine(BM25) if engine == BM25 else Engine(engine, model.seed, model.name)
            measured[own] = kept_measured(kept_of(folder, engine), _not_measured)
        for measure, value in kept(kept_of(folder, FACTS), _not_measured).items():
            rows.append(Row(name, SUM, measure, value, None, None, 1, seed=model.seed, variant=model.name))
    return measured, rows


def measure_index(
    client: OpenSearch,
    index: str,
    experiment: Experiment,
    model: Engine,
    name: str,
    names: Iterable[str],
    folder: Path,
) -> None:
    """What the engines `names` find in the index, and facts of it, are kept in `folder`."""
    from opensearch_neural.evaluation.engine_comparison import run_engine

    judged = judged_queries(experiment.sets[name])
    engines = open_engines(client, index)

    def of_engine(engine: str) -> Measured:
        window = WINDOWS.get(engine)
        body_of = engines.with_settings(window=window).body_of(SUM) if window else engines.body_of(engine)
        return run_engine(client, index, engine, body_of, judged.queries, judged.qrels, MEASURES).measured

    for engine in names:
        kept_measured(kept_of(folder, engine), partial(of_engine, engine))
    kept(kept_of(folder, FACTS), lambda: facts(client, index, experiment, model, name))


def kept_of(folder: Path, name: str) -> Path:
    """Where what was measured of an engine is kept."""
    return folder / f"{slug(name)}.json"


def judged_queries(folder: Path) -> BeirData:
    """The test split, of MOST_QUERIES at most."""
    every = BeirData.load(folder, "test")
    queries = sorted(every.qrels)[:: -(-len(every.qrels) // MOST_QUERIES)]
    return replace(
        every,
        queries={query: every.queries[query] for query in queries},
        qrels={query: every.qrels[query] for query in queries},
    )


def _not_measured() -> Any:
    raise AssertionError("measured before")


def facts(client: OpenSearch, index: str, experiment: Experiment, model: Engine, name: str) -> dict[str, float]:
    """What the index weighs, and how many terms the model gives a document."""
    from ingest.vectors.shards import LoadedShard
    from ingest.vectors.stored_vectors import find_manifest
    from opensearch_neural.index.sparse_scale import SCALE
    from opensearch_neural.query_encoder import QueryEncoder

    place = experiment.work / "vectors" / f"{name}-{slug(str(model))}"
    folder, _ = find_manifest(place)
    vocabulary = QueryEncoder.load(experiment.on_corpus(model, name)).vocabulary
    shards = [LoadedShard.read(path, vocabulary).sparse for path in sorted(folder.rglob("*.safetensors"))]
    documents = sum(len(shard.indptr) - 1 for shard in shards if shard is not None)
    stats = client.indices.stats(index=index, metric="store,docs")["_all"]["primaries"]
    return {
        "active terms": sum(len(shard.weights) for shard in shards if shard is not None) / max(1, documents),
        "bytes a document": stats["store"]["size_in_bytes"] / stats["docs"]["count"],
        "scale": float(open_engines(client, index).meta.extra.get(SCALE, float("nan"))),
    }


def quality_rows(client: OpenSearch, experiment: Experiment) -> list[Row]:
    """Every set's values, differences and facts, and the mean differences over all sets and over the unseen ones."""
    with_train = {name: path for name, path in experiment.sets.items() if (path / "qrels" / "train.tsv").exists()}
    chosen = tuned_bm25(client, with_train, experiment.work / "bm25")
    of_sets: dict[str, dict[Engine, Measured]] = {}
    rows: list[Row] = []
    for name, folder in experiment.sets.items():
        measured, more = measured_set(client, experiment, name)
        measured[Engine(TUNED)] = kept_measured(
            experiment.work / "measured" / f"{name}-{slug(TUNED)}.json",
            lambda name=name, folder=folder: tuned_measured(client, folder, chosen.get(name, chosen[""])),  # type: ignore[misc]
        )
        for arm in STEPS:
            own = {engine: each for engine, each in measured.items() if engine.variant in (arm, "")}
            measured.update(means(own, experiment.seeds))
        of_sets[name] = measured
        rows += compared(name, measured, DIFFERENCES, seeds=experiment.seeds)
        rows += [*more, *mean_facts(more, experiment.seeds)]
    for label, names in (
        (f"mean of {len(of_sets)} sets", list(of_sets)),
        (f"mean of {len(experiment.unseen)} unseen sets", experiment.unseen),
    ):
        rows += mean_rows(label, {name: of_sets[name] for name in names})
    return rows


def mean_facts(rows: Sequence[Row], seeds: Sequence[int]) -> list[Row]:
    """Of each fact that the models of several seeds have, the mean over them."""
    of_model: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.seed is not None:
            of_model.setdefault((row.variant, row.measure), []).append(row)
    return [
        replace(own[0], value=fmean(row.value for row in own), seed=None, variant=of_seeds(seeds, model))
        for (model, _), own in of_model.items()
        if len(own) > 1
    ]


def tuned_measured(client: OpenSearch, folder: Path, settings: Any) -> Measured:
    from opensearch_neural.evaluation.measures import measure

    judged = judged_queries(folder)
    with cluster_bm25(client, corpus_of(folder), [settings.analyzer]) as rival:
        return measure(rival.run(judged.queries, 100, settings), judged.qrels, MEASURES)


def mean_rows(label: str, of_sets: Mapping[str, Mapping[Engine, Measured]]) -> list[Row]:
    """The mean over sets of each engine's nDCG@10 and of its difference from BM25. Intervals resample each set's queries."""
    rows: list[Row] = []
    shared = [engine for engine in next(iter(of_sets.values())) if all(engine in own for own in of_sets.values())]
    for engine, rival in ((engine, rival) for engine in shared for rival in (None, BM25)):
        if engine.name == rival:
            continue
        values = []
        for own in of_sets.values():
            of_query = own[engine].per_query["nDCG@10"]
            against = own[Engine(rival)].per_query["nDCG@10"] if rival else {}
            values.append(np.array([value - against.get(query, 0.0) for query, value in of_query.items()]))
        low, high = mean_interval(values)
        rows.append(
            Row(label, engine.name, "nDCG@10", fmean(float(each.mean()) for each in values), low, high,
                sum(map(len, values)), seed=engine.seed, variant=engine.variant,
                kind="difference" if rival else "value", baseline=rival or "")
        )  # fmt: skip
    return rows


def mean_interval(values: Sequence[Any]) -> tuple[float, float]:
    """Of the mean over sets of each set's mean: values are resampled within each set."""
    generator = np.random.default_rng(0)
    drawn = [generator.choice(each, (RESAMPLES, len(each))).mean(axis=1) for each in values]
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return float(low), float(high)


# ------------------------------------------------ cost


def cost_rows(client: OpenSearch, chosen: ConnectionSettings, experiment: Experiment) -> list[Row]:
    """Each size under load by each arm's first model. The variant of a row is the arm, its set the size and the level."""
    rows: list[Row] = []
    for size in experiment.sizes:
        for model in (model for model in experiment.models if model.seed in (None, experiment.seeds[0])):
            file = experiment.work / "cost" / f"{size}-{slug(model.name)}.json"
            measured = kept(file, partial(loaded, client, chosen, experiment, size, model))
            rows += [Row(**row) for row in measured]
    return rows


def loaded(
    client: OpenSearch, chosen: ConnectionSettings, experiment: Experiment, size: int, model: Engine
) -> list[dict[str, Any]]:
    """The rows of the load benchmark on `size` documents with the model's vectors. Raises ClusterError where it stopped."""
    from benchmarks.grown.index import Growth, grow
    from benchmarks.load import result
    from benchmarks.load.command import queries_of, run
    from benchmarks.load.measurement import LoadSettings
    from benchmarks.load.phases import WarmupSettings
    from benchmarks.load.variants import parse_variants
    from benchmarks.load.workload import ModelChoice, allowed_target
    from opensearch_neural.errors import ClusterError

    data = experiment.sets[COST_SET]
    index = f"osn-{slug(model.name)}-{size}"
    growth = Growth(str(corpus_of(data)), index, size, sparse=experiment.on_corpus(model, COST_SET))
    grow(client, growth.validate(), say=logger.info)
    _, texts = queries_of(None, data, "test", None)
    settings = LoadSettings(
        clients=experiment.clients, minutes=experiment.minutes, warmup=WarmupSettings(*WARM_UP)
    ).validate()
    measured = run(
        client, allowed_target(chosen, owned=experiment.owned), index, parse_variants(LOADED), texts, ModelChoice(),
        settings, None, experiment.work / "load" / index, False,
    )  # fmt: skip
    if measured.partial:
        raise ClusterError(f"the load test of {index} was interrupted: {measured.partial}", "the same command goes on")
    rows = result.rows(measured)
    client.indices.delete(index=index)
    documents = f"{size:,} documents"
    return [
        replace(
            row,
            set=row.set.replace(index, documents),
            variant=model.name,
            engine=NAMED.get(row.engine, row.engine),
        ).to_json()
        for row in rows
    ]
