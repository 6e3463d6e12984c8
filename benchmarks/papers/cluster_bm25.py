"""OpenSearch's BM25 as the rival of trained engines: its analyzer, k1 and b are chosen on questions of the train split."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opensearchpy import OpenSearch

    from opensearch_neural.retrievers import Run
    from trainers.data.examples import TrainingData

Analyzer = Literal["english", "standard"]
ANALYZERS: tuple[Analyzer, ...] = ("english", "standard")


class Bm25Settings(NamedTuple):
    """An analyzer with k1 and b."""

    analyzer: Analyzer
    k1: float
    b: float


@dataclass(frozen=True)
class ClusterBM25:
    """BM25 over a corpus's title and text in an index of the cluster, one for each analyzer."""

    client: OpenSearch
    indexes: Mapping[Analyzer, str]
    name: str = "BM25"

    def run(self, queries: Mapping[str, str], k: int, settings: Bm25Settings) -> Run:
        """The `k` best documents of each query."""
        from opensearch_neural.queries import bm25
        from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

        index = self.indexes[settings.analyzer]
        similarity = {"default": {"type": "BM25", "k1": settings.k1, "b": settings.b}}
        # A similarity is fixed while an index is open.
        self.client.indices.close(index=index)
        self.client.indices.put_settings(index=index, body={"index": {"similarity": similarity}})
        self.client.indices.open(index=index)
        self.client.cluster.health(index=index, wait_for_status="yellow")
        return OpenSearchRetriever(self.client, index, self.name, lambda text, size: bm25(text, size=size)).retrieve(
            queries, k
        )

    def scores(
        self, train: TrainingData, grid: tuple[Sequence[float], Sequence[float]], measure: str = "nDCG@10"
    ) -> dict[Bm25Settings, float]:
        """The measure of every analyzer, k1 and b on judged questions; grid: the values of k1, and of b."""
        from opensearch_neural.evaluation.measures import measure as measured

        found = {}
        for analyzer, k1, b in itertools.product(self.indexes, *grid):
            settings = Bm25Settings(analyzer, k1, b)
            run = self.run(train.query_texts(), 10, settings)
            found[settings] = measured(run, train.qrels(), [measure]).mean[measure]
        return found


@contextmanager
def cluster_bm25(client: OpenSearch, corpus: Path, analyzers: Sequence[Analyzer] = ANALYZERS) -> Iterator[ClusterBM25]:
    """The corpus's indexes, deleted when the block ends."""
    from ingest.corpus import CorpusSource
    from ingest.job import Job, run_job
    from ingest.settings import Writing

    suffix = uuid.uuid4().hex[:8]
    indexes: dict[Analyzer, str] = {analyzer: f"osn-bm25-{analyzer}-{suffix}" for analyzer in analyzers}
    try:
        for analyzer, index in indexes.items():
            source = CorpusSource(str(corpus))
            run_job(
                client,
                Job(source, index=index, sparse="none", analyzer=analyzer, replicas=0, writing=Writing(merge=True)),
            )
        yield ClusterBM25(client, indexes)
    finally:
        for index in indexes.values():
            client.indices.delete(index=index, params={"ignore_unavailable": "true"})
