"""BM25, and what a sparse model adds: what it gains on judged sets, and what it costs under load, of the same models.

    osn bench bm25-sparse --start MODEL --data DIR --work DIR --record benchmarks/results/bm25_sparse

`--data` holds BEIR folders, each with a test split. MODEL is a published SPLADE. Arms: the model as it is, and trained on
the train splits of TRAINED_ON by the recipe sparse-published-start. The other sets are unseen by every arm.

Quality: each set is ingested with each model into an index of its own, its queries weighed by the IDF of that set's corpus.
All engines search as `osn search` does, with no setting chosen on any of the sets. The rivals are the index's own BM25, and
BM25 with analyzer, k1 and b chosen on the set's train split (where it has none: those best on average).

Cost: an index of so many documents resampled from COST_SET with the model's vectors (`osn bench grow`), all engines under
load in random turns, and what they keep of the exact result's score.

The plot has quality against P99, an engine a point. Everything that takes long is kept in --work; the same command goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.experiment import (
    Part,
    Table,
    compared,
    goal_of,
    kept,
    kept_measured,
    means,
    paper_options,
    run_parts,
    slug,
    trials,
)
from benchmarks.grown.scale import cluster
from benchmarks.load.command import NumberList
from benchmarks.papers.cluster_bm25 import cluster_bm25, corpus_of, tuned_bm25
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Engine, Goal, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Measured
    from trainers.sparse.settings import SparseConfig

logger = logging.getLogger(__name__)

TRAINED_ON = ("squad-mix", "tldr", "wikiqa-doc", "wikiqa-sent", "wikitablequestions")
COST_SET = "scifact"
PUBLISHED = "as published"
STEPS = {"trained 10 minutes": 900, "trained an hour": 5400}
"""{arm: steps of 32 questions}; the times are of two cores."""
BM25, TUNED, SUM, SPARSE, HIGH_IDF_FIRST, HYBRID = (
    "bm25",
    "bm25 tuned",
    "bm25-sparse",
    "sparse",
    "high-idf-first",
    "hybrid",
)
MEASURES = ("nDCG@10", "R@100")
FACTS = "facts"
DIFFERENCES = [(engine, BM25) for engine in (TUNED, SUM, SPARSE, HIGH_IDF_FIRST, HYBRID)] + [(SUM, TUNED)]
NARROW = "bm25-sparse, window 20"
LOADED = "bm25,bm25-sparse,window-20=bm25-sparse+window=20,sparse,high-idf-first"
RESAMPLES = 2000
LEAST_GAIN = {PUBLISHED: 2.5}
LEAST_TRAINED, LEAST_UNSEEN = 4.5, 3.5
"""Points of nDCG@10 over BM25, in the mean of all sets as published and trained, and of the unseen ones."""
LEAST_KEPT = 0.99
MOST_COST = {100_000: 1.25, 1_000_000: 1.15}
"""P50 and P99 as ratios to BM25's, by documents, with 20 clients."""


@dataclass(frozen=True)
class Experiment:
    """What the command was asked for."""

    data: Path
    start: str
    work: Path
    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    dense: str | None
    sizes: tuple[int, ...]
    clients: tuple[int, ...]
    minutes: float
    heap: str
    connection: ConnectionSettings
    owned: bool

    @property
    def sets(self) -> dict[str, Path]:
        """{name: folder} of the sets that have a test split."""
        return {file.parents[1].name: file.parents[1] for file in sorted(self.data.glob("*/qrels/test.tsv"))}

    @property
    def unseen(self) -> list[str]:
        return [name for name in self.sets if name not in TRAINED_ON]

    @property
    def models(self) -> list[Engine]:
        """The models, each named by its arm and the seed that it was trained with."""
        trained = trials([arm for arm in self.arms if arm != PUBLISHED], self.arms, self.seeds)
        return ([Engine(PUBLISHED)] if PUBLISHED in self.arms else []) + trained

    def configuration(self, model: Engine) -> SparseConfig:
        from trainers.common.config import load_config, recipe
        from trainers.data.sets import QuestionSet
        from trainers.sparse.settings import SparseConfig

        base = load_config(SparseConfig, recipe("sparse-published-start"))
        assert model.seed is not None
        return replace(
            base,
            output=self.work / "models" / slug(str(model)),
            cache=self.work / "cache",
            start=self.start,
            train=[QuestionSet(self.data / name) for name in TRAINED_ON],
            unseen=[QuestionSet(folder, split="test", name=f"{name}-test") for name, folder in self.sets.items()],
            training=replace(base.training, steps=STEPS[model.name], seed=model.seed),
        )

    def folder(self, model: Engine) -> str:
        """Where the model lies; it is trained if it is not there yet."""
        from trainers.sparse.train import train_sparse

        if model.name == PUBLISHED:
            return self.start
        config = self.configuration(model)
        train_sparse(config)
        return str(config.output)

    def on_corpus(self, model: Engine, name: str) -> str:
        """The model with the IDF of the set's corpus."""
        from opensearch_neural.commands.reading import reading
        from opensearch_neural.models.corpus_statistics import tokenizer_of, write_with_statistics
        from opensearch_neural.models.lexical import count_documents

        folder = self.folder(model)
        out = self.work / "models" / f"{slug(str(model))}-on-{name}"
        if not out.exists():
            with reading(str(corpus_of(self.sets[name])), "counting") as (documents, _):
                counts = count_documents((each.contents for each in documents), tokenizer_of(folder))
            write_with_statistics(folder, out, counts)
        return str(out)


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
        names = [BM25, SUM, SPARSE, HIGH_IDF_FIRST, *([HYBRID] if experiment.dense and model.name == PUBLISHED else ())]
        if not all((folder / f"{made}.json").exists() for made in (*names, FACTS)):
            with ingested(client, experiment, model, name) as index, translate_errors():
                measure_index(client, index, experiment, model, name, names, folder)
        for engine in names:
            own = Engine(BM25) if engine == BM25 else Engine(engine, model.seed, model.name)
            measured.setdefault(own, kept_measured(folder / f"{engine}.json", _not_measured))
        for measure, value in kept(folder / f"{FACTS}.json", _not_measured).items():
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

    judged = BeirData.load(experiment.sets[name], "test")
    engines = open_engines(client, index)

    def of_engine(engine: str) -> Measured:
        body_of = engines.body_of(engine)
        return run_engine(client, index, engine, body_of, judged.queries, judged.qrels, MEASURES).measured

    for engine in names:
        kept_measured(folder / f"{engine}.json", partial(of_engine, engine))
    kept(folder / f"{FACTS}.json", lambda: facts(client, index, experiment, model, name))


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
        rows += more
    for label, names in (
        (f"mean of {len(of_sets)} sets", list(of_sets)),
        (f"mean of {len(experiment.unseen)} unseen sets", experiment.unseen),
    ):
        rows += mean_rows(label, {name: of_sets[name] for name in names})
    return rows


def tuned_measured(client: OpenSearch, folder: Path, settings: Any) -> Measured:
    from opensearch_neural.evaluation.measures import measure

    judged = BeirData.load(folder, "test")
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
        clients=experiment.clients, minutes=experiment.minutes, warmup=WarmupSettings(least=20, most=90)
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
            engine=NARROW if row.engine == "window-20" else row.engine,
        ).to_json()
        for row in rows
    ]


# ------------------------------------------------ goals and plot


def goals(experiment: Experiment, rows: Sequence[Row]) -> list[Goal]:
    """What issue a reader would ask: above BM25 on how many sets, by how much, at which cost."""
    table = Table(rows, experiment.seeds)
    made: list[Goal] = []
    sets = list(experiment.sets)
    for arm in experiment.arms:
        gains = {name: gain for name in sets if (gain := table.difference(name, SUM, BM25, "nDCG@10", variant=arm))}
        above = [name for name, row in gains.items() if row.low is not None and row.low > 0]
        below = [name for name, row in gains.items() if row.high is not None and row.high < 0]
        made.append(goal_of(
            f"bm25-sparse {arm}: nDCG@10 above BM25 with its interval on at least 7 of {len(sets)} sets, below on none",
            "7, 0", f"{len(above)}, {len(below)}", len(above) >= 7 and not below,
        ))  # fmt: skip
        least = LEAST_GAIN.get(arm, LEAST_TRAINED)
        for label, target in (
            (f"mean of {len(sets)} sets", least),
            (f"mean of {len(experiment.unseen)} unseen sets", LEAST_UNSEEN),
        ):
            if arm == PUBLISHED and target == LEAST_UNSEEN:
                continue
            row = table.difference(label, SUM, BM25, "nDCG@10", variant=arm)
            points = None if row is None else round(100 * row.value, 2)
            made.append(
                goal_of(
                    f"bm25-sparse {arm}: points of nDCG@10 over BM25, {label}, at least",
                    target,
                    points,
                    (points or -1) >= target,
                )
            )
    for size in experiment.sizes:
        for arm in experiment.arms:
            level, limit = f"{size:,} documents, 20 clients", MOST_COST.get(size)
            for measure in ("P50", "P99"):
                ratio = next(
                    (
                        row
                        for row in rows
                        if (row.set, row.engine, row.measure, row.kind, row.variant)
                        == (level, SUM, measure, "ratio", arm)
                    ),
                    None,
                )
                if limit and ratio:
                    made.append(
                        goal_of(
                            f"bm25-sparse {arm}: {measure} on {level}, in BM25's, at most",
                            limit,
                            round(ratio.value, 3),
                            ratio.value <= limit,
                        )
                    )
            share = next(
                (
                    row
                    for row in rows
                    if (row.set, row.engine, row.measure, row.variant)
                    == (f"{size:,} documents", SUM, "score kept", arm)
                ),
                None,
            )
            if share:
                made.append(
                    goal_of(
                        f"bm25-sparse {arm}: score kept on {size:,} documents, at least",
                        LEAST_KEPT,
                        round(share.value, 4),
                        share.value >= LEAST_KEPT,
                    )
                )
    return made


def draw(experiment: Experiment, rows: Sequence[Row], folder: Path) -> None:
    """quality_and_cost.svg: each engine's gain over BM25 in the mean of all sets, against its P99 in BM25's."""
    from benchmarks.papers.plots import pyplot, save

    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6.4, 4))
    size = max(experiment.sizes, default=0)
    table = Table(rows, experiment.seeds)
    label = f"mean of {len(experiment.sets)} sets"
    axis.errorbar([1], [0], fmt="s", color="black", label="bm25")
    for number, (engine, arm) in enumerate(
        (engine, arm) for arm in experiment.arms for engine in (SUM, SPARSE, HIGH_IDF_FIRST)
    ):
        gain = table.difference(label, engine, BM25, "nDCG@10", variant=arm)
        cost = next(
            (
                row
                for row in rows
                if (row.set, row.engine, row.measure, row.kind, row.variant)
                == (f"{size:,} documents, 20 clients", engine, "P99", "ratio", arm)
            ),
            None,
        )
        if (
            gain is None
            or cost is None
            or gain.low is None
            or gain.high is None
            or cost.low is None
            or cost.high is None
        ):
            continue
        axis.errorbar(
            [cost.value], [100 * gain.value],
            xerr=[[cost.value - cost.low], [cost.high - cost.value]],
            yerr=[[100 * (gain.value - gain.low)], [100 * (gain.high - gain.value)]],
            fmt="osD"[number % 3], color=f"C{number // 3}", capsize=2, label=f"{engine}, {arm}",
        )  # fmt: skip
    axis.axhline(0, color="grey", linewidth=0.6)
    axis.set(xlabel=f"P99, in BM25's ({size:,} documents, 20 clients)", ylabel=f"nDCG@10 over BM25, points, {label}")
    axis.legend(fontsize=8)
    save(figure, folder / "quality_and_cost.svg")


def shown(row: Row) -> bool:
    return (
        (row.kind == "difference" and row.measure == "nDCG@10")
        or (row.kind == "ratio" and row.measure in ("P50", "P99", "requests/s"))
        or row.measure in ("score kept", "active terms")
    )


# ------------------------------------------------ the command


@click.command("bm25-sparse")
@click.option("--start", required=True, help="The published SPLADE: a folder or a hub id.")
@click.option("--dense", default=None, help="The dense model of `hybrid`, in the indexes of the published model.")
@click.option("--seeds", type=NumberList(int), default="42,43,44", show_default=True, help="Of the trainings.")
@click.option(
    "--arm", "arms", multiple=True, type=click.Choice([PUBLISHED, *STEPS]), help="Repeatable.  [default: all]"
)
@click.option(
    "--documents", type=NumberList(int), default="100000,1000000", show_default=True, help="Of cost; '' for none."
)
@click.option("--clients", type=NumberList(int), default="1,20", show_default=True, help="Clients at once.")
@click.option("--minutes", type=float, default=12.0, show_default=True, help="The most that each load test may take.")
@click.option("--heap", default="4g", show_default=True, help="Of the local node, if no cluster is named.")
@click.option("--i-own-this-cluster", "owned", is_flag=True, help="Put load on a cluster that is not on this machine.")
@paper_options
@connection_options
def bm25_sparse(
    connection: ConnectionSettings,
    start: str,
    data: Path,
    work: Path,
    record: Path | None,
    arms: tuple[str, ...],
    documents: tuple[int, ...],
    **options: Any,
) -> None:
    """BM25 and what a sparse model adds: quality on judged sets and cost under load, of the same models.

    \b
    osn bench bm25-sparse --start my-splade --data data --work work --record benchmarks/results/bm25_sparse
    osn bench bm25-sparse --start my-splade --data data --work work --arm 'as published' --documents 100000
    """
    chosen = tuple(arm for arm in (PUBLISHED, *STEPS) if not arms or arm in arms)
    experiment = Experiment(
        data=data, start=start, work=work, connection=connection, arms=chosen, sizes=documents, **options
    )
    if not experiment.sets:
        raise InputError(f"{data} holds no BEIR folder with a test split", "name the folder that holds them")

    def run() -> tuple[list[Row], list[Goal]]:
        for model in experiment.models:
            experiment.folder(model)
        with cluster(connection, experiment.heap, False) as (client, settings):
            rows = quality_rows(client, experiment)
            rows += cost_rows(client, settings, experiment)
        return rows, goals(experiment, rows)

    part = Part(
        "BM25 and what a sparse model adds", run, list(experiment.sets.values()), experiment.seeds, shown,
        lambda rows, folder: draw(experiment, rows, folder),
    )  # fmt: skip
    run_parts({"": part}, record)
