"""Exact search over several vectors a document: its score is the largest inner product (`multi-layer-representations`,
section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from opensearch_neural.errors import InputError
from opensearch_neural.models.multi_layer import MultiVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.faiss import FaissRetriever, Vectors
from opensearch_neural.retrievers.ranking import id_order, require_positive


class MultiVectorRetriever:
    """All vectors of `vectors`, which holds some for each of `ids`, in one flat faiss index.

    The k best documents are among the k·m best vectors, m of the most that a document has: those are searched, and
    merged by document. `encode_queries` turns texts into vectors (queries, dimension).
    Raises InputError for vectors that are not finite or do not fit the ids, and for a document without any.
    """

    def __init__(
        self,
        ids: Sequence[str],
        vectors: MultiVectors,
        encode_queries: Callable[[Sequence[str]], Vectors],
        *,
        name: str = "faiss multi-vector",
    ) -> None:
        self.name = name
        self.ids = list(ids)
        if len(vectors) != len(self.ids):
            raise InputError(f"{len(self.ids)} documents but the vectors of {len(vectors)}", "encode the corpus anew")
        id_order(self.ids)
        counts = vectors.counts
        if len(counts) and counts.min() < 1:
            raise InputError(f"the document {self.ids[int(counts.argmin())]!r} has no vector")
        self._owner = np.repeat(np.arange(len(counts)), counts)
        self._most = int(counts.max(initial=1))
        self._vectors = FaissRetriever([str(at) for at in range(len(vectors.values))], vectors.values, encode_queries)

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` nearest documents of each query, those of negative similarity included."""
        require_positive(k)
        run: Run = {}
        for query, hits in self._vectors.retrieve(queries, k * self._most).items():
            scores: dict[str, float] = {}
            for vector, score in hits.items():  # best first: a document's first one is its largest
                scores.setdefault(self.ids[self._owner[int(vector)]], score)
            run[query] = dict(sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k])
        return run
