"""Texts in padded batches, and vectors of documents: dense ones, and sparse ones as compressed rows over a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import MissingExtra

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DenseVectors = NDArray[np.float32]
"""(texts, dimension); with several vectors per text, (texts, vectors, dimension)"""


def batches_by_length(
    texts: Sequence[Sequence[int]], batch_size: int, pad_id: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """(positions of texts, their ids (batch, length), mask (batch, length)) of texts of similar length, which need little
    padding. The longest texts come first, so that too little memory shows at once.

    texts: the token ids of each; pad_id: the id that fills shorter texts, at their ends
    """
    lengths = np.array([len(ids) for ids in texts], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        mask = np.arange(max(1, lengths[batch[0]])) < lengths[batch, None]
        ids = np.full(mask.shape, pad_id, dtype=np.int64)
        ids[mask] = np.concatenate([texts[at] for at in batch])
        yield batch, ids, mask


@dataclass(frozen=True, slots=True)
class SparseVectors:
    """Rows of (token, weight): row i is at indptr[i]:indptr[i + 1] of the arrays; weights are finite and above 0."""

    indptr: NDArray[np.int64]
    """(n + 1,)"""
    token_ids: NDArray[np.int32]
    """(nnz,)"""
    weights: NDArray[np.float32]
    """(nnz,)"""
    vocabulary: list[str]
    """Tokens by id."""

    @staticmethod
    def of_rows(rows: Iterable[Mapping[str, float]], vocabulary: list[str]) -> SparseVectors:
        """From rows of {token: weight}, such as queries; tokens outside the vocabulary score nothing and are left out."""
        ids = {token: at for at, token in enumerate(vocabulary)}
        known = [{ids[token]: weight for token, weight in row.items() if token in ids} for row in rows]
        return SparseVectors(
            np.cumsum([0, *map(len, known)], dtype=np.int64),
            np.array([token for row in known for token in row], dtype=np.int32),
            np.array([weight for row in known for weight in row.values()], dtype=np.float32),
            vocabulary,
        )

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, i: int) -> dict[str, float]:
        """{token: weight} of document i, the body of a `rank_features` field."""
        start, end = self.indptr[i], self.indptr[i + 1]
        vocabulary = self.vocabulary
        ids, weights = self.token_ids[start:end].tolist(), self.weights[start:end].tolist()
        return {vocabulary[id_]: weight for id_, weight in zip(ids, weights, strict=True)}

    def rows(self) -> Iterator[dict[str, float]]:
        return (self.row(i) for i in range(len(self)))

    def to_scipy(self) -> csr_matrix:
        """A (documents, vocabulary) matrix that shares this memory."""
        try:
            from scipy.sparse import csr_matrix
        except ModuleNotFoundError:
            raise MissingExtra("comparing sparse vectors without a cluster", "eval") from None
        return csr_matrix((self.weights, self.token_ids, self.indptr), shape=(len(self), len(self.vocabulary)))

    def take(self, order: NDArray[np.int64]) -> SparseVectors:
        """The rows in another order: row i of the result is row order[i] of these vectors."""
        lengths = np.diff(self.indptr)[order]
        indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
        picked = np.repeat(self.indptr[:-1][order], lengths) + within
        return SparseVectors(indptr, self.token_ids[picked], self.weights[picked], self.vocabulary)

    def where(self, mask: NDArray[np.bool_]) -> SparseVectors:
        """The same rows with only some of the weights. mask: (nnz,), True for weights to keep"""
        indptr = np.concatenate([[0], np.cumsum(mask)])[self.indptr].astype(np.int64)
        return SparseVectors(indptr, self.token_ids[mask], self.weights[mask], self.vocabulary)

    @staticmethod
    def concat(parts: Sequence[SparseVectors], vocabulary: list[str] | None = None) -> SparseVectors:
        """The rows of all parts, one after the other. vocabulary: needed only if `parts` may be empty"""
        if not parts:
            empty = np.zeros(0)
            ids, weights = empty.astype(np.int32), empty.astype(np.float32)
            return SparseVectors(np.zeros(1, dtype=np.int64), ids, weights, vocabulary or [])
        offsets = np.cumsum([0, *(part.indptr[-1] for part in parts)])
        starts = [part.indptr[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
        return SparseVectors(
            np.concatenate([*starts, offsets[-1:]]).astype(np.int64),
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.weights for part in parts]),
            parts[0].vocabulary,
        )
