"""The evidence for TOME: do two stages find more than one, and where is what they miss lost?

    osn bench tome --data DIR --work DIR --record benchmarks/results/tome

`--data` holds the BEIR folders tldr and wikiqa-doc, whose documents have URLs, and squad-mix, which the query generator is
trained on too. From nothing: a T5 (d = 256, 4 + 4 layers) by span corruption on the corpora, a generator of queries (unless
--generator names one), and the arms of each set:
    two-stage              query → passage → URL, each stage a T5 of its own
    single-stage           query → URL: one T5 of as many parameters, trained for as many updates as both stages
    single-stage, half the updates    the same for as many as one stage: it reads each query as often as stage 1 does
    random ids             the single stage with 12 digits in place of a URL
    no prompts             the two stages without "title:" and "passage:"
    half the queries       stage 1 with half of the generated queries
    gold passages          stage 2 alone, given the passage of the relevant document: what is lost in stage 1
    added later            both stages without a tenth of the documents, which the trie then gets without training
Each decodes freely (the paper's exact match), and held to the corpus's URLs, greedily and with 10 beams. Hits@k, the share
of questions with a relevant document among the first k, on the test splits; BM25 (OpenSearch's, its analyzer, k1 and b
chosen on train), all-MiniLM-L6-v2 as it is, and BM25 fused with the two stages beside them.

All trainings lie in `--work`: interrupted, the same command goes on. On a GPU where there is one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.beir_parts import evenly, write_part
from opensearch_neural.cluster import ConnectionSettings, connection_options
from opensearch_neural.errors import InputError
from trainers.precision import PRECISIONS, Precision

if TYPE_CHECKING:
    from opensearch_neural.evaluate import Measured
    from opensearch_neural.models.generative import GenerativeModel
    from opensearch_neural.results import Goal, Row
    from opensearch_neural.retrievers import Run
    from trainers.data import TrainingData
    from trainers.tome import TomeConfig

logger = logging.getLogger(__name__)

SETS = ("tldr", "wikiqa-doc")
PAIRS = ("squad-mix", *SETS)
"""What the generator learns questions from: the train splits."""
DENSE = "sentence-transformers/all-MiniLM-L6-v2"
MEASURES = {"Success@1": "Hits@1", "Success@10": "Hits@10"}
BM25, MINILM, FUSED = "BM25", "MiniLM", "BM25 and two-stage, RRF"
TWO, SINGLE, SHORT, RANDOM, BARE, HALF, LATER = (
    "two-stage",
    "single-stage",
    "single-stage, half the updates",
    "random ids",
    "no prompts",
    "half the queries",
    "added later",
)
GOLD = "gold passages"
ARMS = (TWO, SINGLE, SHORT, RANDOM, BARE, HALF, LATER)
FREE, GREEDY = "free", "greedy"
LAYERS, DEEPER = 4, 9
"""Of a stage, and of the single stage, which has one table of word embeddings instead of two."""
ADDED = 0.1
BEAMS = 10
DEPTH = 10
TIMED = 50
RRF_CONSTANT = 60


@dataclass(frozen=True)
class Effort:
    """How long each training is, in updates of 64 examples; of the single stage twice `steps`."""

    pretraining: int
    generator: int
    steps: int
    candidates: int
    spans: int
    precision: Precision
    batch_size: int = 64


# ------------------------------------------------ what is trained


def pretrained(data: Path, work: Path, effort: Effort, layers: int) -> Path:
    """A T5 of so many layers a side, by span corruption on the corpora; both sizes have the same tokenizer."""
    from trainers.backbones import NewBackbone
    from trainers.loop import TrainingSettings
    from trainers.masked_lm import MaskedLmConfig, run

    # Without dropout, in what follows too: its random numbers cost a processor a third of a step's time.
    new = NewBackbone("t5", layers=layers, hidden=256, heads=4, vocabulary=8000, dropout=0.0)
    settings = TrainingSettings(
        steps=effort.pretraining,
        batch_size=effort.batch_size,
        learning_rate=1e-3,
        precision=effort.precision,
        bucket=16,
    )
    corpora = [data / one for one in PAIRS]
    return run(MaskedLmConfig(output=work / f"t5-{layers}", corpus=corpora, new=new, max_length=64, training=settings))


def generator(data: Path, work: Path, effort: Effort) -> Path:
    """A model that writes a question for a passage, from the T5 and the questions of the train splits."""
    from trainers.doc2query import Doc2QueryConfig, run
    from trainers.loop import TrainingSettings

    return run(
        Doc2QueryConfig(
            output=work / "generator",
            data=[data / one for one in PAIRS],
            backbone=str(work / f"t5-{LAYERS}"),
            passage_length=128,
            query_length=32,
            training=TrainingSettings(
                # By size alone three of four batches would be of squad-mix, for whose documents it writes nothing.
                set_weights=0.3,
                steps=effort.generator,
                batch_size=effort.batch_size,
                learning_rate=5e-4,
                precision=effort.precision,
                bucket=16,
            ),
        )
    )


def generated(model: str | Path, data: Path, name: str, work: Path, effort: Effort) -> Path:
    """Queries for every document of a set; the same for all arms."""
    from trainers.data import read_documents
    from trainers.doc2query import generate_queries, sampling_for
    from trainers.texts import TextStore

    path = work / name / "queries.jsonl"
    sampling = sampling_for(str(model), candidates=effort.candidates, top_k=20, top_p=1.0)
    documents = TextStore((one.id, one.contents) for one in read_documents(data / name))
    generate_queries(model, documents, output=path, sampling=sampling)
    return path


def configuration(arm: str, data: Path, name: str, work: Path, effort: Effort) -> TomeConfig:
    """What `osn train tome` is told for an arm."""
    from opensearch_neural.models.generative import GenerativeSettings
    from trainers.bi_encoder import SetSettings
    from trainers.loop import TrainingSettings
    from trainers.tome import TomeConfig

    training = TrainingSettings(
        steps=effort.steps,
        batch_size=effort.batch_size,
        learning_rate=1e-3,
        precision=effort.precision,
        weight_decay=0.0,
    )
    # Which state would be kept by the likelihood of dev questions says little of Hits@1, and stage 2 has none: the last
    # state of every stage is what is measured.
    folder = work / name / "before" if arm == LATER else data / name
    queries = work / name / ("before/queries-generated.jsonl" if arm == LATER else "queries.jsonl")
    config = TomeConfig(
        output=work / name / arm.replace(",", "").replace(" ", "-"),
        corpus=folder,
        backbone=str(work / f"t5-{LAYERS}"),
        queries=[SetSettings(folder, name="labelled"), SetSettings(queries, corpus=folder, name="generated")],
        unseen=[SetSettings(data / name, split="test", name="test")],
        spans=effort.spans,
        dev_share=0.0,
        training=training,
        url_training=training,
    )
    if arm in (SINGLE, SHORT, RANDOM):
        identifiers = GenerativeSettings(identifiers="random") if arm == RANDOM else config.settings
        both = replace(training, steps=effort.steps if arm == SHORT else 2 * effort.steps)
        deeper = str(work / f"t5-{DEEPER}")
        return replace(config, stages="single", backbone=deeper, settings=identifiers, training=both)
    if arm == BARE:
        return replace(config, settings=GenerativeSettings(prompts=False))
    if arm == HALF:
        return replace(config, stages="passage", candidates=effort.candidates // 2)
    return config


def trained(arm: str, data: Path, name: str, work: Path, effort: Effort) -> tuple[GenerativeModel, int]:
    """The model of an arm, trained where it is not yet, and the updates of its stages together."""
    from opensearch_neural.models.generative import PASSAGE, load_generative
    from opensearch_neural.models.pretrained import load_sequence_to_sequence
    from trainers.tome import train_tome

    config = configuration(arm, data, name, work, effort)
    stages = train_tome(config)
    for stage, found in stages.items():
        logger.info("%s, %s, %s: %d steps, %s", name, arm, stage, found.steps, found.measures)
    if arm != HALF:
        return load_generative(config.output), sum(found.steps for found in stages.values())
    # Stage 2 never sees a query, so it is the same.
    whole, updates = trained(TWO, data, name, work, effort)
    model, tokenizer = load_sequence_to_sequence(config.output / PASSAGE)
    return replace(whole, passage=(model.to(whole.url[0].device).eval(), tokenizer)), updates


def without_some(data: Path, name: str, work: Path) -> set[str]:
    """Write the set without a tenth of the documents that test questions ask for, and return these documents' ids. The T5
    and the generator have read them: what is measured is a model that never learned to lead a query there."""
    from opensearch_neural.corpus import BeirData
    from opensearch_neural.files import write_text
    from trainers.data import read_documents

    folder = work / name / "before"
    left_out = set(asked_for(BeirData.load(data / name, "test").qrels)[:: round(1 / ADDED)])
    write_part(data / name, folder, {one.id for one in read_documents(data / name)} - left_out, ["train"])
    written = [json.loads(line) for line in (work / name / "queries.jsonl").read_text().splitlines()]
    lines = [json.dumps(line) for line in written if "_id" in line and line["_id"] not in left_out]
    write_text(folder / "queries-generated.jsonl", "".join(f"{line}\n" for line in lines))
    return left_out


def some_documents(data: Path, name: str, work: Path, count: int) -> Path:
    """Write a set of so many documents, those that test questions ask for first, and return the folder that holds it."""
    from opensearch_neural.corpus import BeirData
    from trainers.data import read_documents

    asked = asked_for(BeirData.load(data / name, "test").qrels)
    known = set(asked)
    others = [one.id for one in read_documents(data / name) if one.id not in known]
    kept = evenly(asked, count)
    write_part(data / name, work / "data" / name, {*kept, *evenly(others, count - len(kept))}, ["train", "test"])
    return work / "data"


def asked_for(qrels: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The relevant documents of all questions, by id."""
    return sorted({document for judged in qrels.values() for document, grade in judged.items() if grade > 0})


# ------------------------------------------------ what is measured


@dataclass
class Arm:
    """A model over a corpus, and what its last stage reads for each test question: the passages that stage 1 wrote."""

    model: GenerativeModel
    corpus: Sequence[tuple[str, str | None]]
    read: dict[str, str]

    @classmethod
    def of(cls, model: GenerativeModel, corpus: Sequence[tuple[str, str | None]], queries: Mapping[str, str]) -> Arm:
        texts = model.stage_two_inputs(list(queries.values()))
        return cls(model, corpus, dict(zip(queries, texts, strict=True)))

    def run(self, **options: Any) -> Run:
        """The hits for each text that the last stage reads; `options` of GenerativeRetriever."""
        from opensearch_neural.retrievers.generative import GenerativeRetriever

        retriever = GenerativeRetriever(self.model, self.model.index_urls(self.corpus), **options)
        hits = retriever.decode(list(self.read.values()))
        return {
            query: {retriever.urls.ids[row]: score for row, score in found[:DEPTH]}
            for query, found in zip(self.read, hits, strict=True)
        }

    def runs(self, name: str) -> dict[str, Run]:
        """{engine: run} for the three ways to decode."""
        return {
            f"{name}, {FREE}": self.run(decoding="free"),
            f"{name}, {GREEDY}": self.run(beams=1),
            name: self.run(beams=BEAMS),
        }


def hits(run: Run, test: TrainingData) -> Measured:
    """Hits@1 and Hits@10, which ir-measures calls Success."""
    from opensearch_neural.evaluate import measure

    found = measure(run, test.qrels(), list(MEASURES))
    return replace(
        found,
        per_query={MEASURES[name]: values for name, values in found.per_query.items()},
        mean={MEASURES[name]: value for name, value in found.mean.items()},
    )


def fused(*runs: Run) -> Run:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) (Cormack, Clarke & Büttcher, SIGIR 2009)."""
    from opensearch_neural.evaluate import rank

    result: Run = {}
    for run in runs:
        for query, found in run.items():
            scores = result.setdefault(query, {})
            for at, (document, _) in enumerate(rank(found), start=1):
                scores[document] = scores.get(document, 0.0) + 1 / (RRF_CONSTANT + at)
    return {query: dict(rank(scores)) for query, scores in result.items()}


def gold_texts(model: GenerativeModel, data: Path, name: str, test: TrainingData) -> dict[str, str]:
    """{question: the passage of its first relevant document, as stage 1 should write it}."""
    from trainers.data import read_documents

    tokenizer = (model.passage or model.url)[1]
    passages = {one.id: model.settings.passage(tokenizer, one.title, one.text) for one in read_documents(data / name)}
    return {query: passages[next(iter(judged))] for query, judged in test.qrels().items()}


def shares(arm: Arm, data: Path, name: str, test: TrainingData) -> list[Row]:
    """Rows of what stage 1 wrote: the share of its passages that are in the corpus, and that are the relevant one's; and
    of the URLs that stage 2 wrote freely, the share that are a document's."""
    from opensearch_neural.results import Row
    from trainers.data import read_documents

    tokenizer = (arm.model.passage or arm.model.url)[1]
    passages: dict[str, set[str]] = {}
    for one in read_documents(data / name):
        passages.setdefault(arm.model.settings.passage(tokenizer, one.title, one.text), set()).add(one.id)
    relevant = test.qrels()
    there = [arm.read[query] in passages for query in arm.read]
    right = [bool(passages.get(arm.read[query], set()) & set(relevant[query])) for query in arm.read]
    free = [bool(found) for found in arm.run(decoding="free").values()]
    return [
        Row(name, TWO, measure, sum(values) / len(values), None, None, len(values))
        for measure, values in (
            ("generated passages in the corpus", there),
            ("generated passages of a relevant document", right),
            ("freely written URLs in the corpus", free),
        )
    ]


def latency(retriever: Any, queries: Sequence[str]) -> tuple[float, float]:
    """(P50, P99) in milliseconds of one query after the other, the first few untimed."""
    import numpy as np

    times = []
    for at, query in enumerate(queries):
        start = time.perf_counter()
        retriever.retrieve({"q": query}, DEPTH)
        if at >= 5:
            times.append((time.perf_counter() - start) * 1000)
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def parameters(model: GenerativeModel) -> int:
    return sum(
        parameter.numel()
        for stage in (model.passage, model.url)
        if stage is not None
        for parameter in stage[0].parameters()
    )


def one_set(
    data: Path, name: str, work: Path, effort: Effort, arms: Sequence[str], connection: ConnectionSettings
) -> list[Row]:
    """All rows of a set."""
    from opensearch_neural.evaluate import only_differences, rows
    from opensearch_neural.results import Row
    from opensearch_neural.retrievers.generative import GenerativeRetriever
    from trainers.data import load_training, read_documents
    from trainers.negatives import open_retriever

    test = load_training(data / name, split="test", name=name)
    queries = test.query_texts()
    corpus = [(one.id, one.url) for one in read_documents(data / name)]
    found: list[Row] = []
    # First what needs a cluster and no training.
    dense = open_retriever(f"dense:{DENSE}", test.documents, cache=work / name / "dense")
    runs: dict[str, Run] = {MINILM: dense.retrieve(queries, DEPTH)}
    runs[BM25], times = bm25_run(data, name, queries, connection)
    found += latency_rows(name, BM25, times)
    timed = list(queries.values())[: TIMED + 5]
    for arm in arms:
        left_out = without_some(data, name, work) if arm == LATER else set()
        model, updates = trained(arm, data, name, work, effort)
        measured = Arm.of(model, corpus, queries)
        if arm == LATER:
            whole = runs.get(TWO)
            found += added_rows(name, measured, test, left_out, whole)
            continue
        runs |= measured.runs(arm)
        found += [
            Row(name, arm, "parameters", parameters(model), None, None, 1),
            Row(name, arm, "updates", updates, None, None, 1),
        ]
        if arm in (TWO, SINGLE):
            for beams in (1, BEAMS):
                retriever = GenerativeRetriever(model, model.index_urls(corpus), beams=beams)
                engine = arm if beams == BEAMS else f"{arm}, {GREEDY}"
                found += latency_rows(name, engine, latency(retriever, timed), on=model.url[0].device.type)
        if arm == TWO:
            found += shares(measured, data, name, test)
            runs |= Arm(model, corpus, gold_texts(model, data, name, test)).runs(GOLD)
    if TWO in runs:
        runs[FUSED] = fused(runs[BM25], runs[TWO])
    scored = {engine: hits(run, test) for engine, run in runs.items()}
    found += rows(name, scored, baseline=None)
    for engine, baseline in compared(scored):
        pair = {baseline: scored[baseline], engine: scored[engine]}
        found += only_differences(rows(name, pair, baseline=baseline))
    return found


def compared(scored: Collection[str]) -> list[tuple[str, str]]:
    """(engine, what it is compared with) of those that were measured: each ablation with two-stage, two-stage with its
    rivals, all decoded alike; and ways to decode with each other."""
    alike = [(TWO, SINGLE), (TWO, SHORT), (RANDOM, SINGLE), (BARE, TWO), (HALF, TWO), (GOLD, TWO)]
    pairs = [(f"{one}{how}", f"{other}{how}") for one, other in alike for how in ("", f", {GREEDY}", f", {FREE}")]
    pairs += [(TWO, BM25), (TWO, MINILM), (FUSED, BM25)]
    pairs += [(f"{TWO}, {GREEDY}", f"{TWO}, {FREE}"), (TWO, f"{TWO}, {GREEDY}")]
    return [pair for pair in pairs if set(pair) <= set(scored)]


def added_rows(name: str, arm: Arm, test: TrainingData, left_out: set[str], whole: Run | None) -> list[Row]:
    """Rows of the model that was trained without some documents, which the trie has: on questions for these, and others,
    each beside `whole`, the run of the model that was trained on all."""
    from opensearch_neural.evaluate import rows

    relevant = test.qrels()
    run = arm.run(beams=BEAMS)
    found: list[Row] = []
    for kind, added in (("their questions", True), ("other questions", False)):
        chosen = [
            at for at, example in enumerate(test.examples) if bool(set(relevant[example.query_id]) & left_out) == added
        ]
        if chosen:
            part = test.take(chosen)
            scored = {
                label: hits({query: of[query] for query in part.query_texts()}, part)
                for label, of in ((f"{TWO}: {kind}", whole), (f"{LATER}: {kind}", run))
                if of is not None
            }
            found += rows(name, scored, baseline=None if whole is None else f"{TWO}: {kind}")
    return found


def bm25_run(
    data: Path, name: str, queries: Mapping[str, str], connection: ConnectionSettings
) -> tuple[Run, tuple[float, float]]:
    """OpenSearch's BM25, tuned on train, and (P50, P99) of its searches in milliseconds."""
    from benchmarks.cluster_bm25 import cluster_bm25
    from benchmarks.inference_free_sparse import GRID, best_settings, some_questions
    from benchmarks.local_cluster import cluster_or_node
    from opensearch_neural.corpus import BeirData
    from opensearch_neural.queries import bm25
    from opensearch_neural.retrievers.opensearch import time_queries

    corpus = BeirData.load(data / name, "test").corpus_path
    with cluster_or_node(connection, "osn-bench-tome") as client, cluster_bm25(client, corpus) as engine:
        scores = engine.scores(some_questions(data, name), GRID, measure="Success@1")
        chosen = best_settings({name: scores})[name]
        run = engine.run(queries, DEPTH, chosen)
        bodies = [bm25(text, size=DEPTH) for text in list(queries.values())[:TIMED]]
        times = time_queries(client, engine.indexes[chosen.analyzer], bodies)
    return run, (times.p50, times.p99)


def latency_rows(name: str, engine: str, times: tuple[float, float], *, on: str = "cpu") -> list[Row]:
    """on: the device; it stands in the measure where it is not a processor."""
    from opensearch_neural.results import Row

    return [
        Row(name, engine, measure if on == "cpu" else f"{measure}, {on}", value, None, None, TIMED)
        for measure, value in zip(("P50 ms", "P99 ms"), times, strict=True)
    ]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals of the issue, in its words, as far as they were measured."""
    from opensearch_neural.results import Goal

    found: list[Goal] = []
    gains: dict[str, list[Row]] = {}
    for row in rows:
        if row.engine == TWO and row.measure in (f"Hits@1 - {SINGLE}", f"Hits@1 - {SHORT}"):
            gains.setdefault(row.set, []).append(row)
    if gains:
        above = [name for name, each in gains.items() if all((row.low or 0) > 0 for row in each)]
        found.append(
            Goal(
                "two-stage above single-stage, however long that trained (Hits@1), on one set, interval above zero",
                "1 of 2",
                f"{len(above)} of {len(gains)}" + (f" ({', '.join(above)})" if above else ""),
                bool(above),
            )
        )
    first = {(row.set, row.engine): row.value for row in rows if row.measure == "Hits@1"}
    for how, suffix in (("greedy", f", {GREEDY}"), (f"{BEAMS} beams", "")):
        differences = [
            held - value
            for (name, engine), value in first.items()
            if engine.endswith(f", {FREE}")
            and (held := first.get((name, f"{engine.removesuffix(f', {FREE}')}{suffix}"))) is not None
        ]
        if differences:
            worst = min(differences)
            words = f"constrained, {how}, never below free, which is greedy (Hits@1, all arms)"
            found.append(Goal(words, "at least 0", round(worst, 4), worst >= 0))
    return found


@click.command("tome")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Models and queries are kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@click.option("--only", multiple=True, help="A set by name; repeatable. All by default.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(ARMS), help="Repeatable. All by default.")
@click.option("--pretraining-steps", default=4000, show_default=True, help="Updates of span corruption, each size.")
@click.option("--generator", "query_model", help="A model of `osn train doc2query`, which is then not trained here.")
@click.option("--generator-steps", default=4000, show_default=True, help="Updates of the query generator.")
@click.option("--steps", default=6000, show_default=True, help="Updates of each stage.")
@click.option("--candidates", default=10, show_default=True, help="Generated queries a document.")
@click.option(
    "--spans", default=0, show_default=True, help="Random spans a document that are queries too, in all arms."
)
@click.option(
    "--documents", type=int, help="So many of each set, those that test questions ask for first.  [default: all]"
)
@click.option("--precision", type=click.Choice(PRECISIONS), default="auto", show_default=True)
@connection_options
def tome(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    only: tuple[str, ...],
    arms: tuple[str, ...],
    pretraining_steps: int,
    query_model: str | None,
    generator_steps: int,
    steps: int,
    candidates: int,
    spans: int,
    documents: int | None,
    precision: Precision,
) -> None:
    """Measure model-based retrieval in two stages against one, BM25 and a dense model.

    All arms on all documents are work for a GPU; on a processor, some documents, the two main arms and fewer updates:

    \b
    osn bench tome --data DIR --work DIR --record benchmarks/results/tome
    osn bench tome --data DIR --work DIR --only wikiqa-doc --documents 1000 --candidates 4 \\
        --arm two-stage --arm single-stage --pretraining-steps 500 --generator-steps 500 --steps 1200
    """
    from benchmarks.publish import publish

    if candidates % 2:
        raise InputError(
            f"half of {candidates} generated queries is no whole number", "give --candidates an even number"
        )
    effort = Effort(pretraining_steps, generator_steps, steps, candidates, spans, precision)
    chosen = [arm for arm in ARMS if not arms or arm in arms]
    sets = [name for name in SETS if not only or name in only]
    sizes = {DEEPER if arm in (SINGLE, SHORT, RANDOM) else LAYERS for arm in chosen} | {LAYERS}
    for layers in sorted(sizes):
        pretrained(data, work, effort, layers)
    writer = query_model or generator(data, work, effort)
    found: list[Row] = []
    for name in sets:
        held = data if documents is None else some_documents(data, name, work, documents)
        label = name if documents is None else f"{name}, {documents:,} documents"
        generated(writer, held, name, work, effort)
        found += [replace(row, set=label) for row in one_set(held, name, work, effort, chosen, connection)]
    publish(
        found,
        goals(found),
        title="Retrieval by writing URLs: two stages, one, and a search",
        data=[data / name for name in sorted({*sets, *PAIRS})],
        seeds=[42],
        shown=sorted({row.measure for row in found}),
        record=record,
    )
