"""The evidence for TOME: do two stages find more than one, and in which stage are documents lost?

    osn paper tome --data DIR --work DIR --record benchmarks/results/tome

`--data` holds the BEIR folders tldr and wikiqa-doc, whose documents have URLs, and squad-mix, which also trains the query
generator. Everything is trained from scratch: a T5 (d = 256, 4 + 4 layers) by span corruption on the corpora and their
URLs, a query generator (it copies words with a weight fitted on pairs held back), and the arms of each set:
    two-stage              query → passage → URL, each stage has its own T5
    single-stage           query → URL: one T5 with as many parameters as both stages, trained for as many updates as both
    single-stage, one T5   the same with the T5 of one stage, trained for as many updates as both: the paper's comparison
    random ids             the single stage with 12 digits in place of a URL
    no prompts             the two stages without "title:" and "passage:"
    half the queries       stage 1 with half of the generated queries
    no spans               stage 1 without random spans of documents as queries
    gold passages          stage 2 alone, given the passage of the relevant document: shows the loss in stage 1
Each arm decodes freely (the paper's exact match), and restricted to the corpus's URLs, greedily and with 10 beams. All 10
hits of two stages come from one passage. The measure is Hits@k, the share of questions with a relevant document among the
first k, on the test splits; intervals resample relevant documents, since several questions may ask for one. Beside them:
BM25 (OpenSearch's, with analyzer, k1 and b chosen on train), the published all-MiniLM-L6-v2, and BM25 fused with two-stage.

Several copies of the command at once, with one thread each (OMP_NUM_THREADS=1), share the trainings; run it once more alone
to measure latencies. A GPU is used if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.beir_parts import check_data
from benchmarks.cluster_bm25 import best_settings, cluster_bm25, corpus_of, tuning_questions
from benchmarks.experiment import (
    JudgedSet,
    PaperPart,
    RowsAndGoals,
    Table,
    compared,
    facts,
    goal_of,
    is_above,
    kept,
    paper_options,
    run_parts,
    shared,
)
from benchmarks.local_cluster import cluster_or_node
from benchmarks.options import setting_options
from benchmarks.papers.tome.decoding import (
    BEAM,
    BEAMS,
    DEPTH,
    FREE,
    GREEDY,
    WAYS,
    Decoder,
    fused,
    gold_texts,
    hits,
    latency,
    losses,
    parameters,
)
from benchmarks.papers.tome.training import (
    ARMS,
    BARE,
    HALF,
    PAIRS,
    RANDOM,
    SEED,
    SETS,
    SINGLE,
    SMALL,
    SPANLESS,
    TWO,
    TomeScale,
    Trainings,
    prepared_trainings,
    some_documents,
)
from benchmarks.render import signed
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import MINILM
from opensearch_neural.models.generative.settings import PASSAGE
from opensearch_neural.queries import bm25
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import time_queries
from trainers.data.loading import load_training, read_documents
from trainers.data.negatives import open_retriever

BM25, DENSE, FUSED, GOLD = "BM25", "MiniLM", "BM25 and two-stage, RRF", "gold passages"
TIMED = 200
TIMED_ARMS = (TWO, SINGLE)
DIFFERENCES = (
    (TWO, SMALL),
    (TWO, SINGLE),
    (RANDOM, SINGLE),
    *((arm, TWO) for arm in (GOLD, BARE, HALF, SPANLESS)),
    (TWO, BM25),
    (TWO, DENSE),
    (FUSED, BM25),
)


# ------------------------------------------------ one set


@dataclass(frozen=True)
class Decoded:
    """A trained arm and its answers to the test questions."""

    decoder: Decoder
    updates: int
    """Training updates of all stages together."""
    runs: dict[MeasuredEngine, Run]
    """{arm, with its seed: the documents of the written URLs}"""


class Bm25Searches(NamedTuple):
    """The results of OpenSearch's BM25, tuned on train."""

    run: Run
    """The run on the test questions."""
    ms: Sequence[float]
    """P50 and P99 of its searches, in milliseconds."""


@dataclass
class SetExperiment:
    """Everything trained and measured on one set."""

    trainings: Trainings
    """Models and generated queries of the set."""
    arms: Sequence[str]
    """Names of ARMS."""
    searched: Bm25Searches
    """BM25's results, the baseline."""

    @property
    def data(self) -> Path:
        return self.trainings.data

    @cached_property
    def test(self) -> JudgedSet:
        return judged_set(self.data)

    @property
    def jobs(self) -> dict[Path, Callable[[], Decoded]]:
        """Jobs (see `shared`): train each arm and let it answer the test questions."""
        return {self.trainings.output(arm): partial(self.decode, arm) for arm in self.arms}

    def decode(self, arm: str) -> Decoded:
        """An arm's runs; for two stages, also those of stage 2 with the gold passages."""
        folder = self.trainings.work / "runs"
        corpus = [(document.id, document.url) for document in read_documents(self.data)]
        model, updates = self.trainings.train(arm)
        stage_one = self.trainings.output(arm) / PASSAGE
        decoder = Decoder.of(model, corpus, self.test.texts, folder, stage_one=stage_one)
        runs = {MeasuredEngine(arm, SEED, way): decoder.run(way) for way in WAYS}
        if arm == TWO:
            gold = Decoder(model, corpus, gold_texts(model, self.data, self.test), folder)
            runs |= {MeasuredEngine(GOLD, SEED, way): gold.run(way) for way in WAYS}
        return Decoded(decoder, updates, runs)

    def rows(self) -> list[Row]:
        name, texts = self.test.name, self.test.texts
        cache = self.trainings.work / "dense"
        dense = open_retriever(f"dense:{MINILM}", self.test.data.documents, cache=cache)
        with locked(cache):
            runs = {MeasuredEngine(DENSE): dense.retrieve(texts, DEPTH), MeasuredEngine(BM25): self.searched.run}
        timed = list(texts.values())[:TIMED]
        rows = latency_rows(name, MeasuredEngine(BM25), self.searched.ms, len(timed))
        for arm, decoded in zip(self.arms, shared(self.jobs), strict=True):
            runs |= decoded.runs
            decoder, engine = decoded.decoder, MeasuredEngine(arm, SEED)
            rows += facts(name, engine, {"parameters": parameters(decoder.model), "updates": decoded.updates}, 1)
            for way in WAYS if arm in TIMED_ARMS else ():
                times, device = latency(decoder.retriever(way), timed), decoder.model.url[0].device.type
                rows += latency_rows(name, engine._replace(variant=way), times, len(timed), on=device)
            if arm == TWO:
                rows += facts(name, engine, losses(decoder, self.data, self.test), len(decoder.read))
        if TWO in self.arms:
            runs[MeasuredEngine(FUSED)] = fused(runs[MeasuredEngine(BM25)], runs[MeasuredEngine(TWO, SEED)])
        measured = {engine: hits(run, self.test) for engine, run in runs.items()}
        return rows + compared(name, measured, DIFFERENCES, clusters=self.test.clusters)


def judged_set(data: Path) -> JudgedSet:
    """The test split in a folder. Its clusters are documents, since questions for the same document are not independent."""
    test = load_training(data, split="test", name=data.name)
    return JudgedSet.grouped(test, {document: document for document in test.documents.ids})


def latency_rows(
    name: str, engine: MeasuredEngine, times: Sequence[float], count: int, *, on: str = "cpu"
) -> list[Row]:
    """Rows of P50 and P99. count: timed queries; on: the device, which the measure names if it is not a CPU"""
    device = "" if on == "cpu" else f", {on}"
    return facts(name, engine, {f"P{at} ms{device}": time for at, time in zip((50, 99), times, strict=True)}, count)


def search_bm25(data: Path, folder: Path, connection: ConnectionSettings) -> Bm25Searches:
    """BM25 on a set's test questions, kept in `folder`."""
    test = judged_set(data)

    def search() -> dict[str, object]:
        with cluster_or_node(connection, "osn-bench-tome") as client, cluster_bm25(client, corpus_of(data)) as engine:
            scores = engine.scores(tuning_questions(data), measure="Success@1")
            chosen = best_settings({data.name: scores})[data.name]
            run = engine.run(test.texts, DEPTH, chosen)
            bodies = [bm25(text, size=DEPTH) for text in list(test.texts.values())[:TIMED]]
            times = time_queries(client, engine.indexes[chosen.analyzer], bodies)
        return {"run": run, "ms": [times.p50, times.p99]}

    return Bm25Searches(**kept(folder / f"bm25-{test.data.hash}.json", search))


# ------------------------------------------------ goals


def goals(rows: Iterable[Row]) -> list[Goal]:
    """A goal for each way to decode (first the paper's, free) and each rival (first the paper's). The smaller rival learns
    faster, so it is harder to beat with few updates."""
    table = Table(rows, [SEED])
    every: list[Goal] = []
    for words, way in (
        ("decoded freely, as in the paper", FREE),
        ("held to the corpus's URLs, greedily", GREEDY),
        (f"held to them, {BEAMS} beams", BEAM),
    ):
        for rival, which in (
            (SMALL, "the paper's comparison: one T5 as either stage is, as many updates"),
            (SINGLE, "of as many parameters and updates"),
        ):
            known = table.differences(table.sets, TWO, rival, "Hits@1", variant=way)
            above = sum(map(is_above, known.values()))
            shown = "; ".join(f"{name}: {signed(row)}" for name, row in known.items())
            every.append(
                goal_of(
                    f"two-stage above single-stage, {which}, on one set, interval over documents above zero (Hits@1, "
                    f"{words}; 1 seed)",
                    "above it on 1 set",
                    f"{above} of {len(table.sets)} ({shown})" if known else None,
                    above > 0,
                )
            )
    return every


# ------------------------------------------------ the command


@click.command("tome")
@paper_options
@click.option("--only", multiple=True, type=click.Choice(SETS), help="Data set; repeatable.  [default: all]")
@click.option(
    "--arm", "arms", multiple=True, type=click.Choice(ARMS), help="Arm of the experiment; repeatable.  [default: all]"
)
@setting_options(TomeScale)
@connection_options
def tome(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    only: tuple[str, ...],
    arms: tuple[str, ...],
    **sizes: Any,
) -> None:
    """Measure model-based retrieval in two stages against one, BM25 and a dense model.

    All arms on all documents need a GPU; on a CPU, choose fewer documents, arms and updates. Stage 1 first writes passages
    regardless of the query, and begins to use the query after it has seen each document about a hundred times (updates ×
    examples of an update / documents).

    \b
    osn paper tome --data DIR --work DIR --record benchmarks/results/tome
    osn paper tome --data DIR --work DIR --only tldr --documents 150 --batch 32 --pretraining-steps 300 \\
        --generator-steps 300 --steps 700 --url-steps 350 --candidates 20 --spans 10 \\
        --arm two-stage --arm single-stage --arm "single-stage, one T5"
    """
    scale = TomeScale(**sizes)
    if scale.candidates % 2:
        raise InputError(
            f"half of {scale.candidates} generated queries is not a whole number", "give --candidates an even number"
        )
    sets = [name for name in SETS if not only or name in only]
    check_data(work, [data / name for name in PAIRS])

    def run() -> RowsAndGoals:
        experiments = prepared(data, work, scale, sets, arms or ARMS, connection)
        shared({path: job for experiment in experiments for path, job in experiment.jobs.items()})
        rows: list[Row] = []
        for experiment in experiments:
            name = experiment.test.name + (f", {scale.documents:,} documents" if scale.documents else "")
            rows += [replace(row, set=name) for row in experiment.rows()]
        return rows, goals(rows)

    title = "Retrieval by writing URLs: two stages, one, and a search"
    used = [data / name for name in sorted({*sets, *PAIRS})]
    run_parts({"": PaperPart(title, run, used, [SEED], lambda row: row.kind != "p-value")}, record)


def prepared(
    data: Path, work: Path, scale: TomeScale, sets: Sequence[str], arms: Sequence[str], connection: ConnectionSettings
) -> list[SetExperiment]:
    """The sets, each with its part of the documents, BM25's searches, and all that comes before its arms."""
    folders = {name: data / name for name in sets}
    if scale.documents:
        part = work / f"{scale.documents}-documents"
        folders = {name: some_documents(whole, part, scale.documents) for name, whole in folders.items()}
    # First the searches, which need a cluster and no training.
    searched = {name: search_bm25(folder, work / name, connection) for name, folder in folders.items()}
    trainings = prepared_trainings(data, work, scale, folders, arms)
    ordered = [arm for arm in ARMS if arm in arms]
    return [SetExperiment(trainings[name], ordered, searched[name]) for name in sets]
