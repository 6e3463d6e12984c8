"""The evidence for TOME: do two stages find more than one, and where is what they miss lost?

    osn bench tome --data DIR --work DIR --record benchmarks/results/tome

`--data` holds the BEIR folders tldr and wikiqa-doc, whose documents have URLs, and squad-mix, which the query generator is
trained on too. From nothing: a T5 (d = 256, 4 + 4 layers) by span corruption on the corpora and their URLs, a generator of
queries (unless --generator names one; it copies words with the weight that was fitted on pairs held back), and the arms of
each set:
    two-stage              query → passage → URL, each stage a T5 of its own
    single-stage           query → URL: one T5 of as many parameters, trained for as many updates as both stages
    single-stage, one T5   the same with a T5 as either stage is, for as many updates as both
    random ids             the single stage with 12 digits in place of a URL
    no prompts             the two stages without "title:" and "passage:"
    half the queries       stage 1 with half of the generated queries
    no spans               stage 1 without random spans of documents as queries
    written passages       stage 2 also reads what stage 1 writes for a query in five (not in the paper)
    gold passages          stage 2 alone, given the passage of the relevant document: what is lost in stage 1
Each decodes freely (the paper's exact match), and held to the corpus's URLs, greedily and with 10 beams. All 10 hits of two
stages come of one passage. Hits@k, the share of questions with a relevant document among the first k, on the test splits;
intervals resample the relevant documents, of which several questions may ask. BM25 (OpenSearch's, its analyzer, k1 and b
chosen on train), all-MiniLM-L6-v2 as it is, and BM25 fused with the two stages beside them.

Learning rate and schedule are the same for all arms; nothing is chosen by test questions. `--dev` asks a fifth of the train
questions instead, which then train no arm (the generator has read them, for all arms alike): settings are chosen by them.
All trainings lie in `--work`, in folders named by their sizes: interrupted, the same command goes on. Started several times
at once, with one thread each (OMP_NUM_THREADS=1), it shares them; latencies are then those of a last run alone. On a GPU
where there is one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.beir_parts import by_article, check_data, evenly, judgements, write_judged, write_part
from benchmarks.papers.jobs import share_stage, shared
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import result_rows
from trainers.common.precision import PRECISIONS, Precision

if TYPE_CHECKING:
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from opensearch_neural.models.generative import GenerativeModel
    from opensearch_neural.models.url_trie import CorpusUrls
    from opensearch_neural.retrievers import Run
    from trainers.data.examples import TrainingData
    from trainers.tome.settings import TomeConfig

logger = logging.getLogger(__name__)

SETS = ("tldr", "wikiqa-doc")
PAIRS = ("squad-mix", *SETS)
"""What the generator learns questions from: the train splits."""
DENSE = "sentence-transformers/all-MiniLM-L6-v2"
MEASURES = {"Success@1": "Hits@1", "Success@10": "Hits@10"}
BM25, MINILM, FUSED = "BM25", "MiniLM", "BM25 and two-stage, RRF"
TWO, SINGLE, SMALL, RANDOM, BARE, HALF, SPANLESS, WRITTEN = (
    "two-stage",
    "single-stage",
    "single-stage, one T5",
    "random ids",
    "no prompts",
    "half the queries",
    "no spans",
    "written passages",
)
GOLD = "gold passages"
ARMS = (TWO, SINGLE, SMALL, RANDOM, BARE, HALF, SPANLESS, WRITTEN)
REPEATED = (TWO, SINGLE, SMALL)
"""Trained with every seed."""
FREE, GREEDY = "free", "greedy"
LAYERS, DEEPER = 4, 9
"""Of a stage, and of the single stage, which has one table of word embeddings instead of two."""
EMBEDDING_RATE = 20.0
"""A new T5's word embeddings are 16 times as large as its matrices; at their rate it learns several times slower."""
MASKED = 0.3
"""Of a window's tokens in span corruption; the T5's 15% are little to learn from in so few updates."""
WRITTEN_SHARE = 5
"""Of so many queries one has its passage written, for stage 2 to read."""
DEV = 0.2
BEAMS = 10
DEPTH = 10
TIMED, UNTIMED = 200, 5
RRF_CONSTANT = 60
SEED, MOST_SEEDS = 42, 5


@dataclass(frozen=True)
class Effort:
    """How long each training is, in updates of `batch_size` examples; of a single stage `steps` and `url_steps` together.
    spans: random spans of a document that are queries too."""

    pretraining: int
    generator: int
    steps: int
    url_steps: int
    candidates: int
    spans: int
    precision: Precision
    batch_size: int = 64
    learning_rate: float = 1e-3
    documents: int | None = None
    writer: str = ""
    """Hash of the model that writes queries."""

    @property
    def backbones(self) -> str:
        """The folder of what was trained before the arms."""
        return f"pretrained-{self.pretraining}-{self.batch_size}-{self.learning_rate:g}"

    @property
    def queries(self) -> str:
        """Names the documents and queries of a set."""
        return f"{self.documents or 'all'}-documents-{self.candidates}-queries-{self.writer}"

    @property
    def arms(self) -> str:
        """Names what else decides what an arm becomes."""
        sizes = f"{self.pretraining}-{self.steps}-{self.url_steps}-{self.batch_size}-{self.learning_rate:g}"
        return sizes + (f"-{self.spans}" if self.spans else "")


@dataclass(frozen=True)
class Trial:
    """An arm with one seed."""

    arm: str
    seed: int = SEED

    @property
    def engine(self) -> str:
        return self.arm + (f", seed {self.seed}" if self.seed != SEED else "")

    @property
    def slug(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.engine).replace("--", "-")


# ------------------------------------------------ what is trained


def backbone(work: Path, effort: Effort, layers: int) -> Path:
    return work / effort.backbones / f"t5-{layers}"


def pretrained(data: Path, work: Path, effort: Effort, layers: int) -> Path:
    """A T5 of so many layers a side, by span corruption on the corpora; both sizes have the same tokenizer."""
    from trainers.common.settings import TrainingSettings
    from trainers.encoders.backbones import NewBackbone
    from trainers.masked_lm.train import MaskedLmConfig, run

    # Without dropout, in what follows too: its random numbers cost a processor a third of a step's time.
    new = NewBackbone("t5", layers=layers, hidden=256, heads=4, vocabulary=8000, dropout=0.0)
    settings = TrainingSettings(
        steps=effort.pretraining,
        batch_size=effort.batch_size,
        learning_rate=effort.learning_rate,
        embedding_rate=EMBEDDING_RATE,
        precision=effort.precision,
        bucket=16,
    )
    corpora = [with_urls(data / one, work / "with-urls" / f"{one}.jsonl") for one in PAIRS]
    output = backbone(work, effort, layers)
    return run(MaskedLmConfig(output=output, corpus=corpora, new=new, max_length=64, masked=MASKED, training=settings))


def with_urls(folder: Path, file: Path) -> Path:
    """The documents of a set with their URLs behind their texts: what writes URLs should have read some."""
    from opensearch_neural.files import write_text
    from trainers.data.loading import read_documents

    if not file.exists():
        documents = (replace(one, text=f"{one.text} {one.url or ''}".rstrip()) for one in read_documents(folder))
        write_text(file, "".join(json.dumps(one.record(), ensure_ascii=False) + "\n" for one in documents))
    return file


def generator(data: Path, work: Path, effort: Effort) -> Path:
    """A model that writes a question for a passage, from the T5 and the questions of the train splits."""
    from trainers.common.settings import TrainingSettings
    from trainers.doc2query.train import Doc2QueryConfig, run

    return run(
        Doc2QueryConfig(
            output=work / effort.backbones / f"generator-{effort.generator}",
            data=[data / one for one in PAIRS],
            unseen=[data / one for one in PAIRS],
            backbone=str(backbone(work, effort, LAYERS)),
            passage_length=96,
            query_length=32,
            training=TrainingSettings(
                # By size alone three of four batches would be of squad-mix, for whose documents it writes nothing.
                set_weights=0.3,
                steps=effort.generator,
                batch_size=effort.batch_size,
                learning_rate=effort.learning_rate,
                embedding_rate=EMBEDDING_RATE,
                precision=effort.precision,
                bucket=16,
            ),
        )
    )


def generated(model: str | Path, data: Path, work: Path, effort: Effort) -> Path:
    """Queries for every document of a set; the same for all arms."""
    from trainers.data.loading import read_documents
    from trainers.data.texts import TextStore
    from trainers.doc2query.generate import generate_queries
    from trainers.doc2query.sampling import sampling_for

    path = work / "queries.jsonl"
    sampling = sampling_for(str(model), candidates=effort.candidates, top_k=20, top_p=1.0)
    documents = TextStore((one.id, one.contents) for one in read_documents(data))
    generate_queries(model, documents, output=path, sampling=sampling)
    return path


def configuration(trial: Trial, data: Path, work: Path, start: Path, effort: Effort) -> TomeConfig:
    """What `osn train tome` is told for an arm. data: the set; work: the folder of its trainings; start: of backbones."""
    from opensearch_neural.models.generative import GenerativeSettings
    from trainers.common.settings import TrainingSettings
    from trainers.data.sets import SetSettings
    from trainers.tome.settings import TomeConfig

    arm = trial.arm
    training = TrainingSettings(
        steps=effort.steps,
        batch_size=effort.batch_size,
        learning_rate=effort.learning_rate,
        embedding_rate=EMBEDDING_RATE,
        precision=effort.precision,
        weight_decay=0.0,
        seed=trial.seed,
    )
    # Which state would be kept by the likelihood of dev questions says little of Hits@1, and stage 2 has none: the last
    # state of every stage is what is measured.
    queries = work / "queries.jsonl"
    config = TomeConfig(
        output=work / f"{trial.slug}-{effort.arms}",
        corpus=data,
        backbone=str(start / f"t5-{LAYERS}"),
        queries=[SetSettings(data, name="labelled"), SetSettings(queries, corpus=data, name="generated")],
        unseen=[SetSettings(data, split="test", name="test")],
        spans=effort.spans,
        dev_share=0.0,
        training=training,
        url_training=replace(training, steps=effort.url_steps),
    )
    if arm in (SINGLE, SMALL, RANDOM):
        identifiers = GenerativeSettings(identifiers="random") if arm == RANDOM else config.settings
        both = replace(training, steps=effort.steps + effort.url_steps)
        used = config.backbone if arm == SMALL else str(start / f"t5-{DEEPER}")
        return replace(config, stages="single", backbone=used, settings=identifiers, training=both)
    if arm == BARE:
        return replace(config, settings=GenerativeSettings(prompts=False))
    if arm == HALF:
        return replace(config, stages="passage", candidates=effort.candidates // 2)
    if arm == SPANLESS:
        return replace(config, stages="passage", spans=0)
    return config


def trained(trial: Trial, data: Path, work: Path, start: Path, effort: Effort) -> tuple[GenerativeModel, int]:
    """The model of an arm, trained where it is not yet, and the updates of its stages together."""
    from opensearch_neural.models.generative import PASSAGE, load_generative
    from opensearch_neural.models.pretrained import load_sequence_to_sequence
    from trainers.tome.train import train_tome

    config = configuration(trial, data, work, start, effort)
    if trial.arm == WRITTEN:
        two = configuration(Trial(TWO, trial.seed), data, work, start, effort)
        shared({two.output: partial(train_tome, two)})
        share_stage(two.output / PASSAGE, config.output / PASSAGE)
        config = replace(config, written=count_queries(config) // WRITTEN_SHARE)
    stages = train_tome(config)
    for stage, found in stages.items():
        logger.info("%s, %s: %d steps, %s", trial.engine, stage, found.steps, found.measures)
    if trial.arm not in (HALF, SPANLESS):
        return load_generative(config.output), sum(found.steps for found in stages.values())
    # Stage 2 never sees a query, so it is the same.
    other = Trial(TWO, trial.seed)
    output = configuration(other, data, work, start, effort).output
    ((whole, updates),) = shared({output: partial(trained, other, data, work, start, effort)})
    model, tokenizer = load_sequence_to_sequence(config.output / PASSAGE)
    return replace(whole, passage=(model.to(whole.url[0].device).eval(), tokenizer)), updates


def count_queries(config: TomeConfig) -> int:
    """The (query, document) pairs that stage 1 learns."""
    from trainers.tome.data import read_sets

    return sum(len(example.positives) for data in read_sets(config) for example in data.examples)


def some_documents(data: Path, work: Path, count: int) -> Path:
    """Write a set of so many documents, those that test questions ask for first, and return its folder."""
    from opensearch_neural.corpus.judgements import BeirData
    from trainers.data.loading import read_documents

    asked = asked_for(BeirData.load(data, "test").qrels)
    known = set(asked)
    others = [one.id for one in read_documents(data) if one.id not in known]
    kept = evenly(asked, count)
    folder = work / data.name
    write_part(data, folder, {*kept, *evenly(others, count - len(kept))}, ["train", "test"])
    return folder


def with_dev_questions(data: Path, work: Path) -> Path:
    """Write a set whose test questions are a fifth of the train split's, and return its folder: to choose settings by."""
    folder = work / data.name
    lines = list(judgements(data, "train"))
    questions = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    asked = set(evenly(questions, round(DEV * len(questions))))
    splits: dict[str, list[str]] = {"train": [], "test": []}
    for line in lines:
        splits["test" if line.split("\t")[0] in asked else "train"].append(line)
    shared({folder: partial(write_judged, data, folder, splits)})
    return folder


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
    kept: Path
    """A folder for what was decoded."""

    @classmethod
    def of(
        cls,
        model: GenerativeModel,
        corpus: Sequence[tuple[str, str | None]],
        queries: Mapping[str, str],
        kept: Path,
        *,
        stage_one: Path,
    ) -> Arm:
        """stage_one: the directory of the model's first stage, which a single stage has not."""
        from opensearch_neural.files import read_json_object, write_json
        from opensearch_neural.models.directory import hash_files
        from trainers.common.config import fingerprint

        if model.passage is None:
            return cls(model, corpus, dict(queries), kept)
        file = kept / f"passages-{fingerprint(hash_files(stage_one), dict(queries), model.settings)}.json"
        if not file.exists():
            texts = model.stage_two_inputs(list(queries.values()))
            write_json(file, dict(zip(queries, texts, strict=True)), indent=None)
        return cls(model, corpus, read_json_object(file), kept)

    @cached_property
    def urls(self) -> CorpusUrls:
        return self.model.index_urls(self.corpus)

    def run(self, **options: Any) -> Run:
        """The hits for each text that the last stage reads; `options` of GenerativeRetriever."""
        from opensearch_neural.files import read_json_object, write_json
        from opensearch_neural.retrievers.generative import GenerativeRetriever
        from trainers.common.config import fingerprint

        retriever = GenerativeRetriever(self.model, self.urls, **options)
        file = self.kept / f"{fingerprint(retriever.name, self.read, DEPTH)}.json"
        if not file.exists():
            hits = retriever.decode(list(self.read.values()))
            run = {
                query: {retriever.urls.ids[row]: score for row, score in found[:DEPTH]}
                for query, found in zip(self.read, hits, strict=True)
            }
            write_json(file, run, indent=None)
        return read_json_object(file)

    def runs(self, name: str) -> dict[str, Run]:
        """{engine: run} for the three ways to decode."""
        return {
            f"{name}, {FREE}": self.run(decoding="free"),
            f"{name}, {GREEDY}": self.run(beams=1),
            name: self.run(beams=BEAMS),
        }


@dataclass(frozen=True)
class Decoded:
    """An arm that was trained and has answered the test questions. updates: of its stages together; runs:
    {engine: run}."""

    arm: Arm
    updates: int
    runs: dict[str, Run]


def hits(run: Run, test: TrainingData) -> Measured:
    """Hits@1 and Hits@10, which ir-measures calls Success."""
    from opensearch_neural.evaluation.measures import measure

    found = measure(run, test.qrels(), list(MEASURES))
    return replace(
        found,
        per_query={MEASURES[name]: values for name, values in found.per_query.items()},
        mean={MEASURES[name]: value for name, value in found.mean.items()},
    )


def fused(*runs: Run) -> Run:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) (Cormack, Clarke & Büttcher, SIGIR 2009)."""
    from opensearch_neural.evaluation.measures import rank

    result: Run = {}
    for run in runs:
        for query, found in run.items():
            scores = result.setdefault(query, {})
            for at, (document, _) in enumerate(rank(found), start=1):
                scores[document] = scores.get(document, 0.0) + 1 / (RRF_CONSTANT + at)
    return {query: dict(rank(scores)) for query, scores in result.items()}


def gold_texts(model: GenerativeModel, data: Path, test: TrainingData) -> dict[str, str]:
    """{question: the passage of its first relevant document, as stage 1 should write it}."""
    from trainers.data.loading import read_documents

    tokenizer = (model.passage or model.url)[1]
    passages = {one.id: model.settings.passage(tokenizer, one.title, one.text) for one in read_documents(data)}
    return {query: passages[next(iter(judged))] for query, judged in test.qrels().items()}


def shares(arm: Arm, data: Path, name: str, test: TrainingData) -> list[Row]:
    """Rows of where the loss arises. Of the corpus, the share of documents whose passage is another's as well, so that stage
    2 cannot tell their URLs apart. Of what stage 1 wrote: the share of passages that are in the corpus, that are a
    relevant document's, and whose title is; of the URLs that stage 2 wrote freely, the share that are a document's. And
    Hits@1 of questions whose passage is a relevant document's, another document's, and nobody's."""
    from opensearch_neural.evaluation.results import Row
    from trainers.data.loading import read_documents

    tokenizer = (arm.model.passage or arm.model.url)[1]
    passages: dict[str, set[str]] = {}
    titles: dict[str, set[str]] = {}
    for one in read_documents(data):
        passage = arm.model.settings.passage(tokenizer, one.title, one.text)
        passages.setdefault(passage, set()).add(one.id)
        titles.setdefault(title_of(passage), set()).add(one.id)
    relevant = test.qrels()
    free = arm.run(decoding="free")
    of_passage = {query: passages.get(text, set()) for query, text in arm.read.items()}
    right = {query: bool(of_passage[query] & set(relevant[query])) for query in arm.read}
    titled = [bool(titles.get(title_of(text), set()) & set(relevant[query])) for query, text in arm.read.items()]
    counted = {
        "documents whose passage is another's, too": [len(of) > 1 for of in passages.values() for _ in of],
        "generated passages in the corpus": [bool(found) for found in of_passage.values()],
        "generated passages of a relevant document": list(right.values()),
        "generated titles of a relevant document": titled,
        "freely written URLs in the corpus": [bool(free[query]) for query in arm.read],
    }
    hit = {query: bool(set(list(free[query])[:1]) & set(relevant[query])) for query in arm.read}
    for kind, chosen in (
        ("a relevant document", [query for query in arm.read if right[query]]),
        ("another document", [query for query in arm.read if of_passage[query] and not right[query]]),
        ("no document", [query for query in arm.read if not of_passage[query]]),
    ):
        if chosen:
            counted[f"Hits@1, free, where the passage is of {kind}"] = [hit[query] for query in chosen]
    return [
        Row(name, TWO, measure, sum(values) / len(values), None, None, len(values))
        for measure, values in counted.items()
    ]


def title_of(passage: str) -> str:
    """The title of a passage as stage 1 writes it, "title: … passage: …"; of one without prompts all of it."""
    return passage.partition(" passage: ")[0]


def latency(retriever: Any, queries: Sequence[str]) -> tuple[float, float]:
    """(P50, P99) in milliseconds of one query after the other, the first few untimed; on one thread."""
    import numpy as np
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
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def parameters(model: GenerativeModel) -> int:
    return sum(
        parameter.numel()
        for stage in (model.passage, model.url)
        if stage is not None
        for parameter in stage[0].parameters()
    )


def trials_of(arms: Collection[str], seeds: int) -> list[Trial]:
    return [
        *(Trial(arm) for arm in arms),
        *(Trial(arm, SEED + at) for at in range(1, seeds) for arm in REPEATED if arm in arms),
    ]


def decoding(
    data: Path, work: Path, start: Path, effort: Effort, trials: Sequence[Trial]
) -> dict[Path, Callable[[], Decoded]]:
    """Jobs (see `shared`), in the order of `trials`: train each on a set and let it answer the test questions; beside two
    stages the second one given the right passages."""
    from opensearch_neural.models.generative import PASSAGE
    from trainers.data.loading import load_training, read_documents

    test = load_training(data, split="test", name=data.name)
    queries = test.query_texts()
    corpus = [(one.id, one.url) for one in read_documents(data)]

    def decoded(trial: Trial, output: Path) -> Decoded:
        model, updates = trained(trial, data, work, start, effort)
        arm = Arm.of(model, corpus, queries, work / "runs", stage_one=output / PASSAGE)
        runs = arm.runs(trial.engine)
        if trial == Trial(TWO):
            runs |= Arm(model, corpus, gold_texts(model, data, test), work / "runs").runs(GOLD)
        return Decoded(arm, updates, runs)

    outputs = {trial: configuration(trial, data, work, start, effort).output for trial in trials}
    return {output: partial(decoded, trial, output) for trial, output in outputs.items()}


def one_set(
    data: Path,
    work: Path,
    start: Path,
    effort: Effort,
    arms: Sequence[str],
    searched: tuple[Run, tuple[float, float]],
    *,
    seeds: int = 1,
) -> list[Row]:
    """All rows of the set in `data`. work: the folder of its trainings; start: of backbones; searched: by `bm25_run`."""
    from opensearch_neural.evaluation.measures import averaged
    from opensearch_neural.evaluation.result_rows import only_differences
    from opensearch_neural.evaluation.results import Row
    from opensearch_neural.retrievers.generative import GenerativeRetriever
    from trainers.data.loading import load_training
    from trainers.data.negatives import open_retriever

    name = data.name
    test = load_training(data, split="test", name=name)
    queries = test.query_texts()
    # Questions that ask for the same document are not independent.
    rows = partial(result_rows.rows, clusters=by_article(test.qrels(), {one: one for one in test.documents.ids}))
    found: list[Row] = []
    dense = open_retriever(f"dense:{DENSE}", test.documents, cache=work / "dense")
    (of_dense,) = shared({work / "dense": partial(dense.retrieve, queries, DEPTH)})
    runs: dict[str, Run] = {MINILM: of_dense}
    runs[BM25], times = searched
    timed = list(queries.values())[:TIMED]
    found += latency_rows(name, BM25, times, len(timed))
    trials = trials_of(arms, seeds)
    for trial, of_trial in zip(trials, shared(decoding(data, work, start, effort, trials)), strict=True):
        arm, measured, updates = trial.arm, of_trial.arm, of_trial.updates
        runs |= of_trial.runs
        model = measured.model
        if trial.seed != SEED:
            continue
        found += [
            Row(name, arm, "parameters", parameters(model), None, None, 1),
            Row(name, arm, "updates", updates, None, None, 1),
        ]
        if arm in (TWO, SINGLE):
            for label, options in ((FREE, {"decoding": "free"}), (GREEDY, {"beams": 1}), ("", {"beams": BEAMS})):
                retriever = GenerativeRetriever(model, measured.urls, **options)
                engine = f"{arm}, {label}" if label else arm
                times = latency(retriever, timed)
                found += latency_rows(name, engine, times, len(timed), on=model.url[0].device.type)
        if arm == TWO:
            found += shares(measured, data, name, test)
    if TWO in runs:
        runs[FUSED] = fused(runs[BM25], runs[TWO])
    scored = {engine: hits(run, test) for engine, run in runs.items()}
    if seeds > 1:
        for arm in REPEATED:
            for how in ("", f", {GREEDY}", f", {FREE}"):
                of_seeds = [scored.get(f"{Trial(arm, SEED + at).engine}{how}") for at in range(seeds)]
                if all(of_seeds):
                    scored[f"{arm}, mean of {seeds} seeds{how}"] = averaged([one for one in of_seeds if one])
    found += rows(name, scored, baseline=None)
    for engine, baseline in compared(scored, seeds):
        pair = {baseline: scored[baseline], engine: scored[engine]}
        found += only_differences(rows(name, pair, baseline=baseline))
    return found


def compared(scored: Collection[str], seeds: int = 1) -> list[tuple[str, str]]:
    """(engine, what it is compared with) of those that were measured: each ablation with two-stage, two-stage with its
    rivals, all decoded alike; and ways to decode with each other."""
    alike = [(RANDOM, SINGLE), (GOLD, TWO), *((arm, TWO) for arm in (BARE, HALF, SPANLESS, WRITTEN))]
    for suffix in ["", *(f", seed {SEED + at}" for at in range(1, seeds)), f", mean of {seeds} seeds"]:
        alike += [(f"{TWO}{suffix}", f"{rival}{suffix}") for rival in (SINGLE, SMALL)]
    pairs = [(f"{one}{how}", f"{other}{how}") for one, other in alike for how in ("", f", {GREEDY}", f", {FREE}")]
    pairs += [(f"{TWO}{how}", other) for how in ("", f", {FREE}") for other in (BM25, MINILM)]
    pairs += [(FUSED, BM25), (f"{TWO}, {GREEDY}", f"{TWO}, {FREE}"), (TWO, f"{TWO}, {GREEDY}")]
    return [pair for pair in pairs if set(pair) <= set(scored)]


def bm25_run(
    data: Path, test: TrainingData, file: Path, connection: ConnectionSettings
) -> tuple[Run, tuple[float, float]]:
    """OpenSearch's BM25, tuned on train, and (P50, P99) of its searches in milliseconds; kept in `file`."""
    from benchmarks.local_cluster import cluster_or_node
    from benchmarks.papers.cluster_bm25 import cluster_bm25
    from benchmarks.papers.inference_free_sparse import GRID, best_settings, some_questions
    from opensearch_neural.corpus.judgements import BeirData
    from opensearch_neural.files import read_json_object, write_json
    from opensearch_neural.queries import bm25
    from opensearch_neural.retrievers.opensearch import time_queries

    if not file.exists():
        name, queries = data.name, test.query_texts()
        corpus = BeirData.load(data, "test").corpus_path
        with cluster_or_node(connection, "osn-bench-tome") as client, cluster_bm25(client, corpus) as engine:
            scores = engine.scores(some_questions(data.parent, name), GRID, measure="Success@1")
            chosen = best_settings({name: scores})[name]
            run = engine.run(queries, DEPTH, chosen)
            bodies = [bm25(text, size=DEPTH) for text in list(queries.values())[:TIMED]]
            times = time_queries(client, engine.indexes[chosen.analyzer], bodies)
        write_json(file, {"test": test.hash, "run": run, "ms": [times.p50, times.p99]}, indent=None)
    kept = read_json_object(file)
    if kept["test"] != test.hash:
        raise InputError(f"{file} holds the searches of other questions", "give another --work")
    return kept["run"], (kept["ms"][0], kept["ms"][1])


def latency_rows(name: str, engine: str, times: tuple[float, float], count: int, *, on: str = "cpu") -> list[Row]:
    """count: queries that were timed; on: the device, which stands in the measure where it is not a processor."""
    from opensearch_neural.evaluation.results import Row

    return [
        Row(name, engine, measure if on == "cpu" else f"{measure}, {on}", value, None, None, count)
        for measure, value in zip(("P50 ms", "P99 ms"), times, strict=True)
    ]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals of the issue, in its words: the first for each way to decode, the paper's free one first, and for each
    rival, the paper's comparison first: as many parameters and updates. The smaller one, which learns faster, is the harder
    rival where updates are few."""
    from benchmarks.publish import signed
    from opensearch_neural.evaluation.results import Goal

    found: list[Goal] = []
    by_key = {(row.set, row.line, row.column): row for row in rows}
    sets = list(dict.fromkeys(row.set for row in rows))
    first = {(row.set, row.line): row.value for row in rows if row.column == "Hits@1"}
    seeds = max((at for at in range(1, MOST_SEEDS + 1) if any(_of(at) in engine for _, engine in first)), default=1)
    for words, how in (
        ("decoded freely, as in the paper", f", {FREE}"),
        ("held to the corpus's URLs, greedily", f", {GREEDY}"),
        (f"held to them, {BEAMS} beams", ""),
    ):
        for rival, which in (
            (SINGLE, "of as many parameters and updates"),
            (SMALL, "of half as many parameters and as many updates"),
        ):
            rows_of = {
                name: by_key.get((name, f"{TWO}{_of(seeds)}{how}", f"Hits@1 - {rival}{_of(seeds)}{how}"))
                for name in sets
            }
            said = [f"{name}: {signed(row)}" for name, row in rows_of.items() if row is not None]
            above = [name for name, row in rows_of.items() if row is not None and (row.low or 0) > 0]
            found.append(
                Goal(
                    f"two-stage above single-stage, {which}, on one set, interval above zero (Hits@1, {words}; "
                    f"{seeds} seed{'s' * (seeds > 1)})",
                    "above it on 1 set",
                    f"{len(above)} of {len(sets)} ({'; '.join(said)})" if said else None,
                    bool(above),
                )
            )
    return found


def _of(seeds: int) -> str:
    return f", mean of {seeds} seeds" if seeds > 1 else ""


@click.command("tome")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Models and queries are kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@click.option("--only", multiple=True, type=click.Choice(SETS), help="A set; repeatable. All by default.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(ARMS), help="Repeatable. All by default.")
@click.option(
    "--ablations-on",
    "ablated",
    multiple=True,
    type=click.Choice(SETS),
    help="A set for arms other than two stages and the single ones; repeatable. All by default.",
)
@click.option("--pretraining-steps", default=4000, show_default=True, help="Updates of span corruption, each size.")
@click.option("--generator", "query_model", help="A model of `osn train doc2query`, which is then not trained here.")
@click.option("--generator-steps", default=4000, show_default=True, help="Updates of the query generator.")
@click.option("--steps", default=6000, show_default=True, help="Updates of stage 1.")
@click.option("--url-steps", default=3000, show_default=True, help="Updates of stage 2; single stages have both.")
@click.option("--batch", default=64, show_default=True, help="Examples of an update.")
@click.option("--learning-rate", default=1e-3, show_default=True, help="Of the generator and all arms.")
@click.option("--candidates", default=10, show_default=True, help="Generated queries a document.")
@click.option(
    "--spans", default=0, show_default=True, help="Random spans a document that are queries too, in all arms."
)
@click.option(
    "--documents", type=int, help="So many of each set, those that test questions ask for first.  [default: all]"
)
@click.option(
    "--dev", is_flag=True, help="Ask a fifth of the train questions, to choose settings by; none trains an arm."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    default=1,
    show_default=True,
    help="Of two stages and the single ones.",
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
    ablated: tuple[str, ...],
    pretraining_steps: int,
    query_model: str | None,
    generator_steps: int,
    steps: int,
    url_steps: int,
    batch: int,
    learning_rate: float,
    candidates: int,
    spans: int,
    documents: int | None,
    dev: bool,
    seeds: int,
    precision: Precision,
) -> None:
    """Measure model-based retrieval in two stages against one, BM25 and a dense model.

    All arms on all documents are work for a GPU; on a processor, some documents, the main arms and fewer updates. A stage 1
    writes any document's passage before it heeds the query, and begins to when it has seen each document about a hundred
    times: updates × examples of an update / documents.

    \b
    osn bench tome --data DIR --work DIR --record benchmarks/results/tome
    osn bench tome --data DIR --work DIR --only tldr --documents 150 --batch 32 --pretraining-steps 300 \\
        --generator-steps 300 --steps 700 --url-steps 350 --candidates 20 --spans 10 \\
        --arm two-stage --arm single-stage --arm "single-stage, one T5"
    """
    from benchmarks.publish import publish
    from opensearch_neural.models.directory import hash_files, locate
    from trainers.data.loading import load_training

    if candidates % 2:
        raise InputError(
            f"half of {candidates} generated queries is no whole number", "give --candidates an even number"
        )
    effort = Effort(
        pretraining_steps,
        generator_steps,
        steps,
        url_steps,
        candidates,
        spans,
        precision,
        batch_size=batch,
        learning_rate=learning_rate,
        documents=documents,
    )
    chosen = [arm for arm in ARMS if not arms or arm in arms]
    sets = [name for name in SETS if not only or name in only]
    arms_of = {name: [arm for arm in chosen if arm in REPEATED or not ablated or name in ablated] for name in sets}
    check_data(work, [data / name for name in PAIRS])
    arms_work = work / "dev" if dev else work
    held = {name: with_dev_questions(data / name, arms_work / "data") if dev else data / name for name in sets}
    if documents:
        held = {
            name: some_documents(whole, arms_work / f"{documents}-documents", documents) for name, whole in held.items()
        }
    searched: dict[str, tuple[Run, tuple[float, float]]] = {}
    for name, folder in held.items():
        # What needs a cluster and no training comes first.
        test = load_training(folder, split="test", name=name)
        file = arms_work / name / f"bm25-{documents or 'all'}.json"
        (searched[name],) = shared({file: partial(bm25_run, folder, test, file, connection)})

    def backbone_and_writer() -> str:
        pretrained(data, work, effort, LAYERS)
        return query_model or str(generator(data, work, effort))

    beginnings: dict[Path, Callable[[], object]] = {backbone(work, effort, LAYERS): backbone_and_writer}
    if any({SINGLE, RANDOM} & set(of_set) for of_set in arms_of.values()):
        beginnings[backbone(work, effort, DEEPER)] = partial(pretrained, data, work, effort, DEEPER)
    writer = str(shared(beginnings)[0])
    effort = replace(effort, writer=hash_files(locate(writer))[:8])
    start, folders = work / effort.backbones, {name: arms_work / name / effort.queries for name in sets}
    shared(
        {
            of_set / "queries.jsonl": partial(generated, writer, held[name], of_set, effort)
            for name, of_set in folders.items()
        }
    )
    jobs: dict[Path, Callable[[], Decoded]] = {}
    # What the goals are about comes first.
    for repeated in (True, False):
        for name, of_set in folders.items():
            trials = [trial for trial in trials_of(arms_of[name], seeds) if (trial.arm in REPEATED) == repeated]
            jobs |= decoding(held[name], of_set, start, effort, trials)
    shared(jobs)
    found: list[Row] = []
    for name, of_set in folders.items():
        rows = one_set(held[name], of_set, start, effort, arms_of[name], searched[name], seeds=seeds)
        label = (name if documents is None else f"{name}, {documents:,} documents") + (", dev" if dev else "")
        found += [replace(row, set=label) for row in rows]
    publish(
        found,
        goals(found),
        title="Retrieval by writing URLs: two stages, one, and a search",
        data=[data / name for name in sorted({*sets, *PAIRS})],
        seeds=[SEED + at for at in range(seeds)],
        shown=sorted({row.column for row in found}),
        record=record,
    )
