"""What `osn paper tome` measures: runs of each way to decode an arm, the loss in each stage, the time of a query; and all of
a set, beside the rivals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.cluster_bm25 import best_settings, cluster_bm25, corpus_of, tuning_questions
from benchmarks.experiment import JudgedSet, compared, facts, kept, shared
from benchmarks.local_cluster import cluster_or_node
from benchmarks.papers.tome.training import BARE, HALF, RANDOM, SEED, SINGLE, SMALL, SPANLESS, TWO, Trainings
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.evaluation.measures import Measured, rank
from opensearch_neural.evaluation.results import MeasuredEngine, Row
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import MINILM, hash_files
from opensearch_neural.models.generative.generative_model import GenerativeModel
from opensearch_neural.models.generative.settings import PASSAGE
from opensearch_neural.models.generative.url_trie import CorpusUrls
from opensearch_neural.queries import bm25
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.generative import GenerativeRetriever
from opensearch_neural.retrievers.opensearch import Latencies, time_queries
from trainers.common.config import fingerprint
from trainers.data.loading import load_training, read_documents
from trainers.data.negatives import open_retriever

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


@dataclass
class Decoder:
    """A model over a corpus, with the input of its last stage for each test question."""

    model: GenerativeModel
    """The trained stages."""
    corpus: DocumentUrls
    """The URLs that it may write, and their documents."""
    read: dict[str, str]
    """{question: input of the last stage}: the passage that stage 1 wrote; for a single stage, the question's text."""
    folder: Path
    """Keeps decoded runs."""

    @classmethod
    def of(
        cls, model: GenerativeModel, corpus: DocumentUrls, queries: Mapping[str, str], folder: Path, *, stage_one: Path
    ) -> Decoder:
        """The decoder for `queries`. stage_one: the directory of the model's first stage, unused for a single stage"""
        if model.passage is None:
            return cls(model, corpus, dict(queries), folder)

        def write() -> dict[str, str]:
            return dict(zip(queries, model.stage_two_inputs(list(queries.values())), strict=True))

        made_of = fingerprint(hash_files(stage_one), dict(queries), model.settings)
        return cls(model, corpus, kept(folder / f"passages-{made_of}.json", write), folder)

    @cached_property
    def urls(self) -> CorpusUrls:
        return self.model.index_urls(self.corpus)

    def retriever(self, way: str) -> Any:
        return GenerativeRetriever(self.model, self.urls, **WAYS[way])

    def run(self, way: str) -> Run:
        """The hits for each input of the last stage."""
        retriever = self.retriever(way)

        def decode() -> Run:
            hits = retriever.decode(list(self.read.values()))
            return {
                query: {retriever.urls.ids[row]: score for row, score in of_query[:DEPTH]}
                for query, of_query in zip(self.read, hits, strict=True)
            }

        run: Run = kept(self.folder / f"{fingerprint(retriever.name, self.read, DEPTH)}.json", decode)
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


def losses(decoder: Decoder, data: Path, test: JudgedSet) -> dict[str, float]:
    """The loss in each stage: the share of stage 1's passages that are in the corpus, and that are a relevant document's;
    and the share of stage 2's freely written URLs that are a document's."""
    documents_of: dict[str, set[str]] = {}
    for document, passage in passages_of(decoder.model, data):
        documents_of.setdefault(passage, set()).add(document)
    written = {query: documents_of.get(text, set()) for query, text in decoder.read.items()}
    free = decoder.run(FREE)
    return {
        "generated passages in the corpus": fmean(map(bool, written.values())),
        "generated passages of a relevant document": fmean(
            bool(documents & test.qrels[query].keys()) for query, documents in written.items()
        ),
        "freely written URLs in the corpus": fmean(bool(free[query]) for query in decoder.read),
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


@dataclass(frozen=True)
class Decoded:
    """A trained arm and its answers to the test questions."""

    decoder: Decoder
    """The arm's model over the corpus."""
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
