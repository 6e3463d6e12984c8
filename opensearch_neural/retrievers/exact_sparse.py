"""Scores every document for a sparse query: s(q, d) = Σ_t q_t · d_t (`inference-free-sparse`, eq. 5).

The document matrix is stored transposed, (vocabulary, documents), as an inverted index: a query only reads the rows of its
own tokens. OpenSearch's scores differ only because it stores weights with 9 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from opensearch_neural.errors import InputError
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import Ranking, require_positive

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Scores of this many queries are in memory at once: at most queries × documents floats.
QUERY_BATCH = 64


class ExactSparseRetriever:
    """Compares every query with all `documents`, one row for each of `ids`.

    `encode_query` turns a text into {token: weight}, as `QueryEncoder.encode` does; tokens outside the documents'
    vocabulary match nothing.
    """

    name = "exact-sparse"

    def __init__(
        self, ids: Sequence[str], documents: SparseVectors, encode_query: Callable[[str], Mapping[str, float]]
    ) -> None:
        self._documents = Ranking(ids)
        self._encode_query = encode_query
        self._vocabulary = documents.vocabulary
        if len(documents) != len(ids):
            raise InputError(f"expected vectors of {len(ids)} documents, got {len(documents)}")
        if not np.isfinite(documents.weights).all():
            raise InputError("a document vector holds a weight that is not a finite number")
        self._by_token: csr_matrix = documents.to_scipy().astype(np.float32).T.tocsr()

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query; documents that score 0 are not returned."""
        require_positive(k)
        run: Run = {}
        items = list(queries.items())
        for start in range(0, len(items), QUERY_BATCH):
            batch = items[start : start + QUERY_BATCH]
            query_vectors = SparseVectors.of_rows((self._encode_query(text) for _, text in batch), self._vocabulary)
            scores = query_vectors.to_scipy() @ self._by_token  # (queries, documents)
            for row, (query_id, _) in enumerate(batch):
                span = slice(scores.indptr[row], scores.indptr[row + 1])
                scoring = scores.data[span] > 0
                run[query_id] = self._documents.best(scores.indices[span][scoring], scores.data[span][scoring], k)
        return run
