"""Exact dense search in memory: faiss's flat index, inner product or cosine.

Exact, so that an approximate index (HNSW on the cluster) has something to be measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import id_order, require_positive

Vectors = npt.NDArray[np.float32]


class FaissRetriever:
    """All of `vectors` (documents, dimension), one for each of `ids`, compared with every query.

    `encode_queries` turns texts into vectors (queries, dimension), as `DenseEncoder.encode_queries` does.
    Raises InputError for vectors that are not finite or do not fit the ids.
    """

    def __init__(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        encode_queries: Callable[[Sequence[str]], Vectors],
        *,
        similarity: Literal["inner_product", "cosine"] = "inner_product",
        name: str = "faiss",
    ) -> None:
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise MissingExtra("exact dense search without a cluster", "eval") from error
        if similarity not in ("inner_product", "cosine"):
            raise InputError(f"similarity must be inner_product or cosine, not {similarity!r}")
        self.name = name
        self.ids = list(ids)
        self._order = id_order(self.ids)
        self._encode_queries = encode_queries
        self._similarity = similarity
        vectors = self._checked(vectors, "document", len(self.ids))
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` nearest documents of each query, those of negative similarity included."""
        require_positive(k)
        if not queries:
            return {}
        vectors = self._checked(self._encode_queries(list(queries.values())), "query", len(queries))
        if vectors.shape[1] != self._index.d:
            raise InputError(
                f"a query vector has {vectors.shape[1]} dimensions, a document vector {self._index.d}",
                "encode both with the same model",
            )
        # scores, positions: (queries, k), best first; positions are -1 where there are fewer than k documents.
        scores, positions = self._index.search(vectors, min(k, max(1, len(self.ids))))
        run: Run = {}
        for query_id, row_scores, row in zip(queries, scores, positions, strict=True):
            found = np.flatnonzero(row >= 0)
            ranked = found[np.lexsort((self._order[row[found]], -row_scores[found]))]
            run[query_id] = {self.ids[row[at]]: float(row_scores[at]) for at in ranked}
        return run

    def _checked(self, vectors: Vectors, what: str, count: int) -> Vectors:
        checked = np.ascontiguousarray(vectors, dtype=np.float32)
        if checked.ndim != 2 or len(checked) != count:
            raise InputError(f"expected {count} {what} vectors of one dimension, got an array of shape {checked.shape}")
        if not np.isfinite(checked).all():
            row = int(np.flatnonzero(~np.isfinite(checked).all(axis=1))[0])
            raise InputError(f"the {what} vector at position {row} holds a value that is not a finite number")
        if self._similarity == "cosine":
            norms = np.linalg.norm(checked, axis=1, keepdims=True)
            # A vector of zeros has no direction: it stays as it is and scores 0 with everything.
            checked = checked / np.where(norms == 0, np.float32(1), norms)
        return checked
