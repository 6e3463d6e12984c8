"""Every document scored against a sparse query: s(q, d) = Σ_t q_t · d_t (`inference-free-sparse`, eq. 5).

The document matrix is kept transposed, (vocabulary, documents): an inverted index, of which a query touches the rows of
its own tokens only. What OpenSearch answers differs by the 9 bits it keeps of a weight, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import best, id_order, require_positive

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from opensearch_neural.models.vectors import SparseVectors

# Scores of this many queries are held at once: at most queries × documents floats.
QUERY_BATCH = 64


class ExactSparseRetriever:
    """All of `documents` (one row for each of `ids`) compared with every query.

    `encode_query` turns a text into {token: weight}, as `QueryEncoder.encode` does; tokens outside the documents'
    vocabulary match nothing.
    """

    name = "exact-sparse"

    def __init__(
        self, ids: Sequence[str], documents: SparseVectors, encode_query: Callable[[str], Mapping[str, float]]
    ) -> None:
        try:
            from scipy.sparse import csr_matrix
        except ModuleNotFoundError as error:
            raise MissingExtra("exact sparse search without a cluster", "eval") from error
        self.ids = list(ids)
        self._order = id_order(self.ids)
        self._encode_query = encode_query
        self._token_ids = {token: at for at, token in enumerate(documents.vocabulary)}
        self._csr_matrix = csr_matrix
        matrix = csr_matrix(documents.to_scipy(), dtype=np.float32)
        if matrix.shape != (len(self.ids), len(self._token_ids)):
            raise InputError(
                f"expected a matrix of {len(self.ids)} documents × {len(self._token_ids)} tokens, got {matrix.shape}"
            )
        if not np.isfinite(matrix.data).all():
            raise InputError("a document vector holds a weight that is not a finite number")
        self._by_token: csr_matrix = matrix.T.tocsr()

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query; documents that score 0 are not returned."""
        require_positive(k)
        run: Run = {}
        for batch in _batches(list(queries.items()), QUERY_BATCH):
            scores = self._queries([text for _, text in batch]) @ self._by_token  # (queries, documents)
            for row, (query_id, _) in enumerate(batch):
                span = slice(scores.indptr[row], scores.indptr[row + 1])
                scoring = np.flatnonzero(scores.data[span] > 0)
                positions, values = scores.indices[span][scoring], scores.data[span][scoring]
                ranked, ranked_scores = best(values, self._order[positions], k)
                run[query_id] = {
                    self.ids[position]: score
                    for position, score in zip(positions[ranked].tolist(), ranked_scores.tolist(), strict=True)
                }
        return run

    def _queries(self, texts: Sequence[str]) -> csr_matrix:
        """The query vectors: (queries, vocabulary)."""
        indptr, token_ids, weights = [0], [], []
        for text in texts:
            for token, weight in self._encode_query(text).items():
                if token in self._token_ids:
                    token_ids.append(self._token_ids[token])
                    weights.append(weight)
            indptr.append(len(token_ids))
        shape = (len(texts), len(self._token_ids))
        return self._csr_matrix((np.array(weights, np.float32), token_ids, indptr), shape=shape)


def _batches(items: list[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
