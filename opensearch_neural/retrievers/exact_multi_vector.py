"""Exact search over several vectors per document; its score is the largest inner product (`multi-layer-representations`,
section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import InputError
from opensearch_neural.models.dense.multi_layer import MultiVectors
from opensearch_neural.models.vectors import DenseVectors
from opensearch_neural.retrievers.faiss import FaissRetriever

QUERIES = 256
"""Queries searched at a time; each has many hits to merge."""


class MultiVectorRetriever(FaissRetriever):
    """Searches all vectors of `vectors`, which has one or more for each of `ids`, in one flat faiss index.

    The k best documents are among the k·m best vectors, where m is the largest number of vectors of a document. So k·m
    vectors are searched, and merged by document. `encode_queries` turns texts into vectors (queries, dimension).
    Raises InputError for vectors that are not finite or do not fit the ids, and for a document without vectors.
    """

    name = "faiss multi-vector"

    def __init__(
        self, ids: Sequence[str], vectors: MultiVectors, encode_queries: Callable[[Sequence[str]], DenseVectors]
    ) -> None:
        if len(vectors) != len(ids):
            raise InputError(f"{len(ids)} documents but the vectors of {len(vectors)}", "encode the corpus again")
        counts = vectors.counts
        if len(counts) and counts.min() < 1:
            raise InputError(f"the document {ids[int(counts.argmin())]!r} has no vector")
        # (vectors,): the document of each vector.
        self._owner = np.repeat(np.arange(len(counts)), counts)
        self._most = int(counts.max(initial=1))
        self._search(ids, self._flat(vectors.values, len(self._owner)), encode_queries)

    def _nearest(self, vectors: DenseVectors, k: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for start in range(0, len(vectors), QUERIES):
            for positions, scores in super()._nearest(vectors[start : start + QUERIES], k * self._most):
                # A document's first hit is its best vector.
                documents, first = np.unique(self._owner[positions], return_index=True)
                yield documents, scores[first]
