"""What `osn paper tome` measures for an arm: runs of each way to decode, the loss in each stage, and the time of a query."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.experiment import JudgedSet, kept
from opensearch_neural.evaluation.measures import Measured, rank
from opensearch_neural.models.directory import hash_files
from opensearch_neural.models.generative.model import GenerativeModel
from opensearch_neural.models.generative.url_trie import CorpusUrls
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.generative import GenerativeRetriever
from opensearch_neural.retrievers.opensearch import Latencies
from trainers.common.config import fingerprint
from trainers.data.loading import read_documents

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


@dataclass
class Decoder:
    """A model over a corpus, with the input of its last stage for each test question."""

    model: GenerativeModel
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
