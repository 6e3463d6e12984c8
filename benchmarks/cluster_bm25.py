"""OpenSearch's BM25 as the rival of trained engines: its analyzer, k1 and b are chosen on questions of the train split."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from benchmarks.experiment import kept
from benchmarks.local_cluster import ingested, judged_result
from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models, NewIndex, Writing
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured, Qrels
from opensearch_neural.queries import bm25
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from trainers.common.config import fingerprint
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

Analyzer = Literal["english", "standard"]
ANALYZERS: tuple[Analyzer, ...] = ("english", "standard")
GRID = ((0.6, 0.9, 1.2, 1.6, 2.0), (0.3, 0.5, 0.75, 0.9))
"""Values of k1, and of b, to try."""
TUNING_QUERIES = 400
"""Most questions of a train split that choose them."""

S = TypeVar("S", bound=tuple[Any, ...])


class Bm25Settings(NamedTuple):
    """An analyzer with k1 and b."""

    analyzer: Analyzer
    """How the index splits texts into words."""
    k1: float
    """How slowly repeated words saturate, from 0."""
    b: float
    """How much long documents are discounted, from 0 to 1."""

    @property
    def similarity(self) -> dict[str, Any]:
        """The index setting `similarity`."""
        return {"default": {"type": "BM25", "k1": self.k1, "b": self.b}}


@dataclass(frozen=True)
class ClusterBM25:
    """BM25 over a corpus's title and text in an index of the cluster, one for each analyzer."""

    client: OpenSearch
    """A client of the cluster that holds the indexes."""
    indexes: Mapping[Analyzer, str]
    """{analyzer: the index whose texts it analyzed}"""

    def run(self, queries: Mapping[str, str], k: int, settings: Bm25Settings) -> Run:
        """The `k` best documents of each query."""
        return self.retriever(settings).retrieve(queries, k)

    def retriever(self, settings: Bm25Settings) -> OpenSearchRetriever:
        """BM25 with these settings, until the next call."""
        index = self.indexes[settings.analyzer]
        # A similarity is fixed while an index is open.
        self.client.indices.close(index=index)
        self.client.indices.put_settings(index=index, body={"index": {"similarity": settings.similarity}})
        self.client.indices.open(index=index)
        self.client.cluster.health(index=index, wait_for_status="yellow")
        return OpenSearchRetriever(self.client, index, "BM25", lambda text, size: bm25(text, size=size))

    def measure(
        self, queries: Mapping[str, str], qrels: Qrels, settings: Bm25Settings, measures: Iterable[str]
    ) -> Measured:
        """The measures with these settings; see `judged_result`."""
        index, retriever = self.indexes[settings.analyzer], self.retriever(settings)
        return judged_result(self.client, index, retriever, queries, qrels, measures).measured

    def scores(self, train: TrainingData, measure: str = "nDCG@10") -> dict[Bm25Settings, float]:
        """The measure of every analyzer, k1 and b of GRID on judged questions."""
        scores, queries, qrels = {}, train.query_texts(), train.qrels()
        for analyzer, k1, b in itertools.product(self.indexes, *GRID):
            settings = Bm25Settings(analyzer, k1, b)
            scores[settings] = self.measure(queries, qrels, settings, [measure]).mean[measure]
        return scores


@contextmanager
def cluster_bm25(client: OpenSearch, corpus: Path, analyzers: Sequence[Analyzer] = ANALYZERS) -> Iterator[ClusterBM25]:
    """The corpus's indexes, deleted when the block ends."""

    def job(analyzer: Analyzer) -> Job:
        new_index, writing = NewIndex(analyzer=analyzer, replicas=0), Writing(merge=True)
        return Job(CorpusSource(str(corpus)), models=Models(sparse="none"), new_index=new_index, writing=writing)

    with ExitStack() as stack:
        indexes = {analyzer: stack.enter_context(ingested(client, job(analyzer))) for analyzer in analyzers}
        yield ClusterBM25(client, indexes)


# ------------------------------------------------ the choice of k1 and b


def corpus_of(folder: Path) -> Path:
    """The file of a BEIR folder's documents."""
    return BeirData.load(folder, "test").corpus_path


def tuning_questions(folder: Path) -> TrainingData:
    """Questions of a BEIR folder's train split, evenly taken."""
    train = load_training(folder, split="train", name=folder.name)
    return train.take(range(0, len(train), -(-len(train) // TUNING_QUERIES)))


def tuned_on_train(
    folders: Mapping[str, Path], kept_in: Path, settings: Callable[..., S], scores: Callable[[Path], Mapping[S, float]]
) -> dict[str, S]:
    """For each set the settings that are best on its train questions, and under "" those best on average.

    folders: {set: its BEIR folder}; scores: folder → {settings: score}, measured once for this grid and kept in `kept_in`.
    Raises InputError if there is no set.
    """
    if not folders:
        raise InputError("no set has a train split to tune BM25 on", "add one that has qrels/train.tsv")

    def of_set(name: str) -> dict[S, float]:
        file = kept_in / f"{name}-{fingerprint([GRID, TUNING_QUERIES])}.json"
        content = kept(file, lambda: [[list(tried), score] for tried, score in scores(folders[name]).items()])
        return {settings(*tried): score for tried, score in content}

    return best_settings({name: of_set(name) for name in folders})


def best_settings(scores: Mapping[str, Mapping[S, float]]) -> dict[str, S]:
    """For each set the settings with the best score, and under "" those best on average."""
    best = {name: max(of_set, key=lambda tried: of_set[tried]) for name, of_set in scores.items()}
    everywhere = next(iter(scores.values()))
    best[""] = max(everywhere, key=lambda tried: sum(of_set[tried] for of_set in scores.values()))
    logger.info("chosen on train: %s", best)
    return best


def tuned_bm25(client: OpenSearch, folders: Mapping[str, Path], kept_in: Path) -> dict[str, Bm25Settings]:
    """The analyzer, k1 and b of the cluster's BM25, chosen on the train splits of BEIR folders; see `tuned_on_train`."""

    def scores(folder: Path) -> dict[Bm25Settings, float]:
        with cluster_bm25(client, corpus_of(folder)) as engine:
            return engine.scores(tuning_questions(folder))

    return tuned_on_train(folders, kept_in, Bm25Settings, scores)
