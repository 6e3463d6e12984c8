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

Learning rate and schedule are the same for all arms; test questions choose nothing. Folders of trainings are named by their
sizes; the same command continues an interrupted run.

Several copies of the command at once, with one thread each (OMP_NUM_THREADS=1), share the trainings; run it once more alone
to measure latencies. A GPU is used if there is one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from benchmarks.beir_parts import check_data, evenly, write_part
from benchmarks.cluster_bm25 import cluster_bm25, corpus_of, tuning_questions
from benchmarks.experiment import (
    JudgedSet,
    Table,
    compared,
    facts,
    gains_goal,
    kept,
    paper_options,
    publish,
    shared,
    slug,
)
from benchmarks.local_cluster import cluster_or_node
from benchmarks.options import setting, setting_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured, rank, relevant_documents
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.files import write_json_lines
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import MINILM, hash_files, locate
from opensearch_neural.models.generative.generative_model import GenerativeModel, load_generative
from opensearch_neural.models.generative.settings import PASSAGE, GenerativeSettings
from opensearch_neural.models.generative.url_trie import CorpusUrls
from opensearch_neural.models.pretrained import load_sequence_to_sequence
from opensearch_neural.queries import bm25
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.generative import GenerativeRetriever
from opensearch_neural.retrievers.opensearch import Latencies, time_queries
from trainers.common.config import fingerprint
from trainers.common.precision import PRECISIONS, Precision
from trainers.common.settings import TrainingSettings
from trainers.data.loading import load_training, read_documents, text_store
from trainers.data.negatives import open_retriever
from trainers.data.settings import SetSettings
from trainers.doc2query.settings import Doc2QueryConfig, GenerationSettings
from trainers.encoders.settings import NewBackbone
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.tome.settings import TomeConfig

logger = logging.getLogger(__name__)

SETS = ("tldr", "wikiqa-doc")
PAIRS = ("squad-mix", *SETS)
"""The sets whose train splits teach the query generator."""
TWO, SINGLE, SMALL, RANDOM = "two-stage", "single-stage", "single-stage, one T5", "random ids"
BARE, HALF, SPANLESS = "no prompts", "half the queries", "no spans"
ARMS = (TWO, SINGLE, SMALL, RANDOM, BARE, HALF, SPANLESS)
LAYERS, DEEPER = 4, 9
"""The layers of a stage, and of the single stage with as many parameters (one table of word embeddings instead of two)."""
EMBEDDING_RATE = 20.0
"""A new T5's word embeddings are 16 times as large as its matrices; at the same learning rate they learn several times
slower."""
MASKED = 0.3
"""The share of corrupted tokens: T5's 15% teach too little in so few updates."""
SEED = 42


@dataclass(frozen=True)
class TomeScale:
    """The lengths of trainings, in updates of `batch` examples, and their data."""

    pretraining_steps: int = setting(4000, "Updates of span corruption, for each size of T5.")
    generator_steps: int = setting(4000, "Updates of the query generator.")
    steps: int = setting(6000, "Updates of stage 1.")
    url_steps: int = setting(3000, "Updates of stage 2; a single stage has the sum of both.")
    batch: int = setting(64, "Examples of an update.")
    learning_rate: float = setting(1e-3, "Learning rate of the generator and all arms.")
    candidates: int = setting(10, "Generated queries a document.")
    spans: int = setting(0, 'Random spans of each document that are queries too, in all arms but "no spans".')
    documents: int | None = setting(None, "Documents of each set, those of the test questions first.  [default: all]")
    precision: Precision = setting("auto", "Precision of the networks in training.", type=click.Choice(PRECISIONS))
    writer: str = ""
    """Hash of the model that writes queries."""

    @property
    def backbones(self) -> str:
        """The folder of what was trained before the arms."""
        return f"pretrained-{self.pretraining_steps}-{self.batch}-{self.learning_rate:g}"

    @property
    def queries(self) -> str:
        """A folder name for the documents and queries of a set."""
        return f"{self.documents or 'all'}-documents-{self.candidates}-queries-{self.writer}"

    @property
    def arms(self) -> str:
        """The other settings that decide an arm's model, for folder names."""
        sizes = f"{self.pretraining_steps}-{self.steps}-{self.url_steps}-{self.batch}-{self.learning_rate:g}"
        return sizes + (f"-{self.spans}" if self.spans else "")

    def training(self, steps: int, **more: float) -> TrainingSettings:
        return TrainingSettings(
            steps=steps,
            batch_size=self.batch,
            learning_rate=self.learning_rate,
            embedding_rate=EMBEDDING_RATE,
            precision=self.precision,
            **more,  # type: ignore[arg-type]
        )


# ------------------------------------------------ parts of sets


def some_documents(data: Path, work: Path, count: int) -> Path:
    """Write a smaller set, with the documents of the test questions first, and return its folder."""
    qrels = {split: BeirData.load(data, split).qrels for split in ("train", "test")}
    answers = relevant_documents(qrels["test"])
    answer_ids = set(answers)
    others = [document.id for document in read_documents(data) if document.id not in answer_ids]
    chosen_answers = evenly(answers, count)
    folder = work / data.name
    chosen = {*chosen_answers, *evenly(others, count - len(chosen_answers))}
    splits = {
        split: [
            f"{query}\t{document}\t{grade}"
            for query, judged in of_split.items()
            for document, grade in judged.items()
            if document in chosen
        ]
        for split, of_split in qrels.items()
    }
    write_part(data, folder, splits, chosen)
    return folder


def with_urls(folder: Path, file: Path) -> Path:
    """Write the documents of a set with their URLs behind their texts: a model that writes URLs should have read some."""
    if not file.exists():
        documents = read_documents(folder)
        with_url = (replace(document, text=f"{document.text} {document.url or ''}".rstrip()) for document in documents)
        write_json_lines(file, (document.record() for document in with_url))
    return file


# ------------------------------------------------ before the arms


def backbone(work: Path, scale: TomeScale, layers: int) -> Path:
    return work / scale.backbones / f"t5-{layers}"


def pretrained(data: Path, work: Path, scale: TomeScale, layers: int) -> Path:
    """A T5 with `layers` layers a side, trained by span corruption on the corpora; both sizes have the same tokenizer."""
    from trainers.masked_lm.train import train_masked_lm

    return train_masked_lm(
        MaskedLmConfig(
            output=backbone(work, scale, layers),
            corpus=[with_urls(data / name, work / "with-urls" / f"{name}.jsonl") for name in PAIRS],
            # No dropout, also in later trainings: its random numbers cost a CPU a third of a step's time.
            new=NewBackbone("t5", layers=layers, hidden=256, heads=4, vocabulary=8000, dropout=0.0),
            max_length=64,
            masked=MASKED,
            training=scale.training(scale.pretraining_steps, bucket=16),
        )
    )


def generator(data: Path, work: Path, scale: TomeScale) -> Path:
    """A model that writes a question for a passage, from the T5 and the questions of the train splits."""
    from trainers.doc2query.train import train_doc2query

    return train_doc2query(
        Doc2QueryConfig(
            output=work / scale.backbones / f"generator-{scale.generator_steps}",
            data=[data / name for name in PAIRS],
            unseen=[data / name for name in PAIRS],
            backbone=str(backbone(work, scale, LAYERS)),
            passage_length=96,
            query_length=32,
            # By size alone three of four batches would be of squad-mix, for which it writes no queries.
            training=scale.training(scale.generator_steps, bucket=16, set_weights=0.3),
        )
    )


def prepared_experiments(
    data: Path, work: Path, scale: TomeScale, folders: Mapping[str, Path], arms: Sequence[str]
) -> list[SetExperiment]:
    """The experiments of the sets, with backbones, query generator and generated queries, made if they are not there yet.
    folders: {set: its folder, with all of its documents or a part of them}"""

    def backbone_and_generator() -> str:
        pretrained(data, work, scale, LAYERS)
        return str(generator(data, work, scale))

    beginnings: dict[Path, Callable[[], object]] = {backbone(work, scale, LAYERS): backbone_and_generator}
    if {SINGLE, RANDOM} & set(arms):
        beginnings[backbone(work, scale, DEEPER)] = partial(pretrained, data, work, scale, DEEPER)
    writer = str(shared(beginnings)[0])
    scale = replace(scale, writer=hash_files(locate(writer))[:8])
    experiments = [
        SetExperiment(folder, work / name / scale.queries, work / scale.backbones, scale, arms)
        for name, folder in folders.items()
    ]
    shared({of_set.queries: partial(of_set.generate_queries, writer) for of_set in experiments})
    return experiments


# ------------------------------------------------ decoding


DocumentUrls = Sequence[tuple[str, str | None]]
"""(document id, its URL)."""

MEASURES = {"Success@1": "Hits@1", "Success@10": "Hits@10"}
FREE, GREEDY, BEAM = "free", "greedy", ""
"""Ways to decode: free, the paper's exact match; restricted to the corpus's URLs, greedily or with several beams."""
BEAMS = 10
WAYS: dict[str, dict[str, Any]] = {FREE: {"decoding": "free"}, GREEDY: {"beams": 1}, BEAM: {"beams": BEAMS}}
"""{way: options of GenerativeRetriever}."""
DEPTH = 10
UNTIMED = 5
RRF_CONSTANT = 60
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


@dataclass(frozen=True)
class Decoder:
    """A model over a corpus, with the input of its last stage for each test question."""

    model: GenerativeModel
    """The trained stages."""
    corpus: DocumentUrls
    """The URLs that it may write, and their documents."""
    inputs: dict[str, str]
    """{question: input of the last stage}: the passage that stage 1 wrote; for a single stage, the question's text."""
    folder: Path
    """Keeps decoded runs."""
    updates: int = 0
    """Training updates of all stages together."""

    def with_passages(self, stage_one: Path) -> Decoder:
        """The decoder whose inputs are what stage 1 writes for these; unchanged for a single stage. stage_one: its folder"""
        if self.model.passage is None:
            return self

        def write() -> dict[str, str]:
            passages = self.model.stage_two_inputs(list(self.inputs.values()))
            return dict(zip(self.inputs, passages, strict=True))

        made_of = fingerprint(hash_files(stage_one), self.inputs, self.model.settings)
        return replace(self, inputs=kept(self.folder / f"passages-{made_of}.json", write))

    @cached_property
    def urls(self) -> CorpusUrls:
        return self.model.index_urls(self.corpus)

    def retriever(self, way: str) -> Any:
        return GenerativeRetriever(self.model, self.urls, **WAYS[way])

    def run(self, way: str) -> Run:
        """The hits for each input of the last stage."""
        retriever = self.retriever(way)

        def decode() -> Run:
            hits = retriever.decode(list(self.inputs.values()))
            return {
                query: {retriever.urls.ids[row]: score for row, score in of_query[:DEPTH]}
                for query, of_query in zip(self.inputs, hits, strict=True)
            }

        run: Run = kept(self.folder / f"{fingerprint(retriever.name, self.inputs, DEPTH)}.json", decode)
        return run


def hits(run: Run, test: JudgedSet) -> Measured:
    """Hits@1 and Hits@10; ir-measures calls them Success."""
    measured = test.measure(run, list(MEASURES))
    return replace(
        measured,
        per_query={MEASURES[name]: values for name, values in measured.per_query.items()},
        mean={MEASURES[name]: value for name, value in measured.mean.items()},
    )


def fused(*runs: Run) -> Run:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) (Cormack, Clarke & Büttcher, SIGIR 2009)."""
    result: Run = {}
    for run in runs:
        for query, of_query in run.items():
            scores = result.setdefault(query, {})
            for at, (document, _) in enumerate(rank(of_query), start=1):
                scores[document] = scores.get(document, 0.0) + 1 / (RRF_CONSTANT + at)
    return {query: dict(rank(scores)) for query, scores in result.items()}


def gold_texts(model: GenerativeModel, data: Path, test: JudgedSet) -> dict[str, str]:
    """{question: the passage of its first relevant document, as stage 1 should write it}."""
    passages = dict(passages_of(model, data))
    return {query: passages[next(iter(judged))] for query, judged in test.qrels.items()}


def passages_of(model: GenerativeModel, data: Path) -> list[tuple[str, str]]:
    """(document id, its passage) as stage 1 should write it."""
    tokenizer = (model.passage or model.url)[1]
    return [
        (document.id, model.settings.passage(tokenizer, document.title, document.text))
        for document in read_documents(data)
    ]


def stage_losses(decoder: Decoder, data: Path, test: JudgedSet) -> dict[str, float]:
    """The loss in each stage: the share of stage 1's passages that are in the corpus, and that are a relevant document's;
    and the share of stage 2's freely written URLs that are a document's."""
    documents_of: dict[str, set[str]] = {}
    for document, passage in passages_of(decoder.model, data):
        documents_of.setdefault(passage, set()).add(document)
    written = {query: documents_of.get(text, set()) for query, text in decoder.inputs.items()}
    free = decoder.run(FREE)
    return {
        "generated passages in the corpus": fmean(map(bool, written.values())),
        "generated passages of a relevant document": fmean(
            bool(documents & test.qrels[query].keys()) for query, documents in written.items()
        ),
        "freely written URLs in the corpus": fmean(bool(free[query]) for query in decoder.inputs),
    }


def latency(retriever: Any, queries: Sequence[str]) -> tuple[float, float]:
    """(P50, P99) in milliseconds, one query after the other, on one thread; the first few are not counted."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for query in queries[:UNTIMED]:
            retriever.retrieve({"q": query}, DEPTH)
        times = []
        for query in queries:
            start = time.perf_counter()
            retriever.retrieve({"q": query}, DEPTH)
            times.append((time.perf_counter() - start) * 1000)
    finally:
        torch.set_num_threads(threads)
    return Latencies(times).p50, Latencies(times).p99


def parameters(model: GenerativeModel) -> int:
    stages = [stage[0] for stage in (model.passage, model.url) if stage is not None]
    return sum(parameter.numel() for stage in stages for parameter in stage.parameters())


# ------------------------------------------------ one set


@dataclass
class SetExperiment:
    """Everything trained and measured on one set."""

    data: Path
    """The folder of the set."""
    work: Path
    """The folder of its trainings and generated queries."""
    start: Path
    """The folder of the backbones."""
    scale: TomeScale
    """Lengths and data of the trainings."""
    arms: Sequence[str] = ARMS
    """Names of ARMS."""

    @cached_property
    def test(self) -> JudgedSet:
        return judged_set(self.data)

    # -------------------------------------------- trainings

    @property
    def queries(self) -> Path:
        """The file of generated queries, which all arms have."""
        return self.work / "queries.jsonl"

    def generate_queries(self, model: str) -> None:
        """Let `model` write queries for every document."""
        from trainers.doc2query.generate import generate_queries

        generation = GenerationSettings(model, candidates=self.scale.candidates, top_k=20, top_p=1.0)
        generate_queries(generation, text_store(self.data), output=self.queries)

    def output(self, arm: str) -> Path:
        return self.work / f"{slug(arm)}-{SEED}-{self.scale.arms}"

    def configuration(self, arm: str) -> TomeConfig:
        """The configuration of `osn train tome` for an arm."""
        data, scale = self.data, self.scale
        config = TomeConfig(
            output=self.output(arm),
            corpus=data,
            backbone=str(self.start / f"t5-{LAYERS}"),
            queries=[SetSettings(data, name="labelled"), SetSettings(self.queries, corpus=data, name="generated")],
            unseen=[SetSettings(data, split="test", name="test")],
            spans=scale.spans,
            # The last state of every stage is kept: the likelihood of dev questions says little about Hits@1, and stage 2
            # has no dev questions.
            dev_share=0.0,
            training=scale.training(scale.steps, weight_decay=0.0, seed=SEED),
            url_training=scale.training(scale.url_steps, weight_decay=0.0, seed=SEED),
        )
        if arm in (SINGLE, SMALL, RANDOM):
            return replace(
                config,
                stages="single",
                backbone=config.backbone if arm == SMALL else str(self.start / f"t5-{DEEPER}"),
                settings=GenerativeSettings(identifiers="random") if arm == RANDOM else config.settings,
                training=replace(config.training, steps=scale.steps + scale.url_steps),
            )
        if arm == BARE:
            return replace(config, settings=GenerativeSettings(prompts=False))
        if arm == HALF:
            return replace(config, stages="passage", candidates=scale.candidates // 2)
        if arm == SPANLESS:
            return replace(config, stages="passage", spans=0)
        return config

    def train(self, arm: str) -> tuple[GenerativeModel, int]:
        """The model of an arm, trained if it is not there yet, and the updates of its stages together."""
        from trainers.tome.train import train_tome

        config = self.configuration(arm)
        stages = train_tome(config)
        for stage, outcome in stages.items():
            logger.info("%s, %s: %d steps, %s", arm, stage, outcome.steps, outcome.measures)
        if arm not in (HALF, SPANLESS):
            return load_generative(config.output), sum(outcome.steps for outcome in stages.values())
        # Stage 2 never sees a query, so it is that of TWO.
        with locked(self.output(TWO)):
            whole, updates = self.train(TWO)
        model, tokenizer = load_sequence_to_sequence(config.output / PASSAGE)
        return replace(whole, passage=(model.to(whole.url[0].device).eval(), tokenizer)), updates

    # -------------------------------------------- searches

    @property
    def jobs(self) -> dict[Path, Callable[[], dict[str, Decoder]]]:
        """Jobs (see `shared`): train each arm and let it answer the test questions."""
        return {self.output(arm): partial(self.decoded, arm) for arm in self.arms}

    def decoded(self, arm: str) -> dict[str, Decoder]:
        """{arm: its decoder, which has answered}; for two stages, also that of stage 2 with the gold passages."""
        corpus = [(document.id, document.url) for document in read_documents(self.data)]
        model, updates = self.train(arm)
        decoder = Decoder(model, corpus, dict(self.test.texts), self.work / "runs", updates)
        decoders = {arm: decoder.with_passages(self.output(arm) / PASSAGE)}
        if arm == TWO:
            decoders[GOLD] = replace(decoder, inputs=gold_texts(model, self.data, self.test))
        for decoder, way in product(decoders.values(), WAYS):
            decoder.run(way)
        return decoders

    def rows(self, connection: ConnectionSettings) -> list[Row]:
        name, texts = self.test.name, self.test.texts
        searched, cache = search_bm25(self.data, self.work.parent, connection), self.work / "dense"
        dense = open_retriever(f"dense:{MINILM}", self.test.data.documents, cache=cache)
        with locked(cache):
            runs = {MeasuredEngine(DENSE): dense.retrieve(texts, DEPTH), MeasuredEngine(BM25): searched["run"]}
        timed = list(texts.values())[:TIMED]
        rows = latency_rows(name, MeasuredEngine(BM25), searched["ms"], len(timed))
        for arm, decoders in zip(self.arms, shared(self.jobs), strict=True):
            runs |= {
                MeasuredEngine(key, SEED, way): decoder.run(way) for key, decoder in decoders.items() for way in WAYS
            }
            decoder, engine = decoders[arm], MeasuredEngine(arm, SEED)
            rows += facts(name, engine, {"parameters": parameters(decoder.model), "updates": decoder.updates}, 1)
            for way in WAYS if arm in TIMED_ARMS else ():
                times, device = latency(decoder.retriever(way), timed), decoder.model.url[0].device.type
                rows += latency_rows(name, engine._replace(variant=way), times, len(timed), on=device)
            if arm == TWO:
                rows += facts(name, engine, stage_losses(decoder, self.data, self.test), len(decoder.inputs))
        if TWO in self.arms:
            runs[MeasuredEngine(FUSED)] = fused(runs[MeasuredEngine(BM25)], runs[MeasuredEngine(TWO, SEED)])
        measured = {engine: hits(run, self.test) for engine, run in runs.items()}
        return rows + compared(name, measured, DIFFERENCES, clusters=self.test.clusters)


def judged_set(data: Path) -> JudgedSet:
    """The test split in a folder. Its clusters are documents, since questions for the same document are not independent."""
    test = load_training(data, split="test", name=data.name)
    return JudgedSet.grouped(test, {document: document for document in test.documents.ids})


def search_bm25(data: Path, folder: Path, connection: ConnectionSettings) -> dict[str, Any]:
    """{"run": OpenSearch's BM25 on a set's test questions, tuned on train, "ms": P50 and P99 of its searches}, kept in
    `folder`."""
    test = judged_set(data)

    def search() -> dict[str, Any]:
        with cluster_or_node(connection, "osn-bench-tome") as client, cluster_bm25(client, corpus_of(data)) as engine:
            scores = engine.scores(tuning_questions(data), measure="Success@1")
            chosen = max(scores, key=scores.__getitem__)
            run = engine.run(test.texts, DEPTH, chosen)
            bodies = [bm25(text, size=DEPTH) for text in list(test.texts.values())[:TIMED]]
            times = time_queries(client, engine.indexes[chosen.analyzer], bodies)
        return {"run": run, "ms": [times.p50, times.p99]}

    result: dict[str, Any] = kept(folder / f"bm25-{test.data.hash}.json", search)
    return result


def latency_rows(
    name: str, engine: MeasuredEngine, times: Sequence[float], count: int, *, on: str = "cpu"
) -> list[Row]:
    """Rows of P50 and P99. count: timed queries; on: the device, which the measure names if it is not a CPU"""
    device = "" if on == "cpu" else f", {on}"
    return facts(name, engine, {f"P{at} ms{device}": time for at, time in zip((50, 99), times, strict=True)}, count)


# ------------------------------------------------ goals


def goals(rows: Iterable[Row]) -> list[Goal]:
    """A goal for each way to decode (first the paper's, free) and each rival (first the paper's). The smaller rival learns
    faster, so it is harder to beat with few updates."""
    table = Table(rows, [SEED])
    ways = {
        FREE: "decoded freely, as in the paper",
        GREEDY: "held to the corpus's URLs, greedily",
        BEAM: f"held to them, {BEAMS} beams",
    }
    rivals = {
        SMALL: "the paper's comparison: one T5 as either stage is, as many updates",
        SINGLE: "of as many parameters and updates",
    }
    return [
        gains_goal(
            f"two-stage above single-stage, {rivals[rival]}, on one set, interval over documents above zero (Hits@1, "
            f"{ways[way]}; 1 seed)",
            "above it on 1 set",
            table.differences(table.sets, TWO, rival, "Hits@1", variant=way),
            1,
        )
        for way, rival in product(ways, rivals)
    ]


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
    check_data(work, [data / name for name in PAIRS])
    folders = {name: data / name for name in SETS if not only or name in only}
    if scale.documents:
        part = work / f"{scale.documents}-documents"
        folders = {name: some_documents(whole, part, scale.documents) for name, whole in folders.items()}
    for name, folder in folders.items():
        search_bm25(folder, work / name, connection)  # first, since it needs a cluster and no training
    ordered = [arm for arm in ARMS if not arms or arm in arms]
    experiments = prepared_experiments(data, work, scale, folders, ordered)
    shared({path: job for experiment in experiments for path, job in experiment.jobs.items()})
    rows: list[Row] = []
    for experiment in experiments:
        size = f", {scale.documents:,} documents" if scale.documents else ""
        rows += [replace(row, set=f"{row.set}{size}") for row in experiment.rows(connection)]
    publish(
        rows,
        goals(rows),
        title="Retrieval by writing URLs: two stages, one, and a search",
        data=[data / name for name in sorted({*folders, *PAIRS})],
        seeds=[SEED],
        record=record,
        shown=lambda row: row.kind != "p-value",
    )
