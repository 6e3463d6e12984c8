"""Dense search in memory with faiss, over whole vectors (flat) or over codes of M bytes per vector (PQ).

It is exact, so that an approximate index (HNSW on the cluster) can be compared with it. For codes, a faster scan can first
choose the codes to score, if requested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import InputError, MissingExtra, ModelError, ZeroVector
from opensearch_neural.models.vectors import DenseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import Ranking, require_positive

if TYPE_CHECKING:
    from opensearch_neural.models.dense.quantized import Codes, Quantizer

_SCAN_BLOCK = 1 << 14
"""Documents whose vectors are in memory at a time."""
MATRIX_FROM = 20
"""The fewest queries that faiss compares in one matrix product; fewer are compared one by one."""


class FaissRetriever:
    """Compares every query with all `vectors` (documents, dimension), one for each of `ids`.

    `encode_queries` turns texts into vectors (queries, dimension), as `DenseEncoder.encode_queries` does.
    Raises InputError for vectors that are not finite or do not fit the ids.
    """

    name = "faiss"

    def __init__(
        self, ids: Sequence[str], vectors: DenseVectors, encode_queries: Callable[[Sequence[str]], DenseVectors]
    ) -> None:
        self._search(ids, self._flat(vectors, len(ids)), encode_queries)

    def _flat(self, vectors: DenseVectors, count: int) -> Any:
        """A flat index of `count` vectors."""
        faiss = import_faiss("exact dense search without a cluster")
        checked = self._checked(vectors, "document", count)
        index = faiss.IndexFlatIP(checked.shape[1])
        index.add(checked)
        return index

    def _search(self, ids: Sequence[str], index: Any, encode_queries: Callable[[Sequence[str]], DenseVectors]) -> None:
        self._documents = Ranking(ids)
        self._index = index
        self._encode_queries = encode_queries

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` nearest documents of each query, even with negative similarity."""
        require_positive(k)
        if not queries:
            return {}
        nearest = self._nearest(self._query_vectors(queries), k)
        return {query: self._documents.best(*hits, k) for query, hits in zip(queries, nearest, strict=True)}

    def _nearest(self, vectors: DenseVectors, k: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(documents' positions, scores) for each query vector: the `k` best, and all that tie with the k-th."""
        total = self._index.ntotal
        # (queries, k + 1), best first; positions are -1 if fewer are found.
        for vector, scores, positions in zip(
            vectors, *self._index.search(vectors, max(1, min(k + 1, total))), strict=True
        ):
            while len(scores) < total and positions[-1] >= 0 and scores[-1] == scores[k - 1]:
                (scores,), (positions,) = self._index.search(vector[np.newaxis], min(2 * len(scores), total))
            filled = positions >= 0
            yield positions[filled], scores[filled]

    def _query_vectors(self, queries: Mapping[str, str]) -> DenseVectors:
        vectors = self._checked(self._encode_queries(list(queries.values())), "query", len(queries))
        if vectors.shape[1] != self._index.d:
            raise InputError(
                f"a query vector has {vectors.shape[1]} dimensions, a document vector {self._index.d}",
                "encode both with the same model",
            )
        return vectors

    def _checked(self, vectors: DenseVectors, what: str, count: int) -> DenseVectors:
        checked = np.ascontiguousarray(vectors, dtype=np.float32)
        if checked.ndim != 2 or len(checked) != count:
            raise InputError(f"expected {count} {what} vectors of equal length, got an array of shape {checked.shape}")
        if not np.isfinite(checked).all():
            row = int(np.flatnonzero(~np.isfinite(checked).all(axis=1))[0])
            raise InputError(f"the {what} vector at position {row} holds a value that is not a finite number")
        return checked


class QuantizedRetriever(FaissRetriever):
    """Scores all `codes` (documents, M), one for each of `ids`, by look-ups (asymmetric distance computation).

    `encode_queries` is as for FaissRetriever: whole vectors, not rotated. A query vector of zeros raises InputError.
    """

    name = "pq"

    def __init__(
        self,
        ids: Sequence[str],
        codes: Codes,
        quantizer: Quantizer,
        encode_queries: Callable[[Sequence[str]], DenseVectors],
        *,
        name: str = "pq",
    ) -> None:
        if len(codes) != len(ids):
            raise InputError(f"{len(ids)} documents but {len(codes)} codes", "encode the corpus again")
        self.name = name
        self._search(ids, quantized_index(quantizer, codes), encode_queries)

    @classmethod
    def read(
        cls, file: Path, quantizer: Quantizer, encode_queries: Callable[[Sequence[str]], DenseVectors]
    ) -> QuantizedRetriever:
        """Read the files of `osn encode --faiss FILE`. Raises InputError if they cannot be read, ModelError if the codes
        belong to another model."""
        faiss = import_faiss("searching faiss's index")
        try:
            index = faiss.read_index(str(file))
            ids = json.loads(file.with_name(f"{file.name}.ids.json").read_text(encoding="utf-8"))
            inner = faiss.downcast_index(index.index)
            exact = faiss.downcast_index(inner.refine_index) if hasattr(inner, "refine_index") else inner
            centroids = faiss.vector_to_array(exact.pq.centroids)
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise InputError(
                f"{file} cannot be read as an index of codes: {reason}", "`osn encode --faiss` writes one"
            ) from None
        if not np.array_equal(centroids, quantizer.scoring.ravel()):
            raise ModelError(f"the codes in {file} belong to another quantized model", "encode the corpus again")
        if index.ntotal != len(ids):
            raise InputError(f"{file} holds {index.ntotal} codes for {len(ids)} documents", "encode the corpus again")
        self = cls.__new__(cls)
        self._search(ids, index, encode_queries)
        return self

    def _checked(self, vectors: DenseVectors, what: str, count: int) -> DenseVectors:
        checked = super()._checked(vectors, what, count)
        if len(zeros := np.flatnonzero(~checked.any(axis=1))):
            raise ZeroVector(f"the {what} vector at position {zeros[0]} is all zeros, which ranks nothing")
        return checked


def quantized_index(quantizer: Quantizer, codes: Codes, *, candidates: int | None = None) -> Any:
    """A faiss index (a rotation, then PQ by inner product) that scores codes as `Quantizer.table` does.

    codes: (documents, M), from `Quantizer.encode`. candidates: codes to score per requested document, chosen by a fast
    scan; None: all. The scan is faster for many documents (a million, not ten thousand), takes M more bytes per document,
    and is not exact.

    The index holds the scoring centroids, and faiss's own `add` would code documents with these. So to add documents, code
    them with the quantizer and make a new index. Raises InputError for codes of another M, for fewer than 1 candidate, and
    for a scan of codes of one byte.
    """
    faiss = import_faiss("a faiss index")
    d, m = quantizer.dimension, quantizer.subvectors
    if codes.ndim != 2 or codes.shape[1] != m or codes.dtype != np.uint8:
        raise InputError(f"expected codes of {m} bytes (uint8), got {codes.dtype} of shape {codes.shape}")
    if candidates is not None and candidates < 1:
        raise InputError(f"candidates must be at least 1, not {candidates}")
    if candidates is not None and m < 2:
        raise InputError("a scan needs codes of at least 2 bytes", "leave candidates out: all codes are scored then")
    index = faiss.IndexPQ(d, m, 8, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(quantizer.scoring.ravel(), index.pq.centroids)
    index.is_trained = True
    index.add_sa_codes(np.ascontiguousarray(codes))
    if candidates is not None:
        scan = _scan(quantizer, codes)
        index = _owning(faiss.IndexRefine(scan, index), scan, index)
        index.own_refine_index = True
        index.k_factor = candidates
    rotation = faiss_rotation(quantizer)
    return _owning(faiss.IndexPreTransform(rotation, index), rotation, index)


def _scan(quantizer: Quantizer, codes: Codes) -> Any:
    """An index that scores nearly as `Quantizer.table` does, in registers (PQ of 4 bits, "fast scan").

    Each of a part's 256 centroids is approximated by the sum of one of 16 vectors and one of 16 others, which local search
    quantization chooses. So each part has two codes of 4 bits, and the query repeats every part.
    """
    faiss = import_faiss("a faiss index")
    d, m = quantizer.dimension, quantizer.subvectors
    width = d // m
    halves = np.empty((m, 2, 16, width), np.float32)
    numbers = np.empty((m, len(quantizer.scoring[0]), 2), np.uint8)
    for part, centroids in enumerate(quantizer.scoring):
        split = faiss.LocalSearchQuantizer(width, 2, 4)
        split.train(centroids)
        both = split.compute_codes(centroids)[:, 0]
        halves[part] = faiss.vector_to_array(split.codebooks).reshape(2, 16, width)
        numbers[part] = np.stack([both & 15, both >> 4], axis=1)
    scan = faiss.IndexPQFastScan(2 * d, 2 * m, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(halves.ravel(), scan.pq.centroids)
    scan.is_trained = True
    parts = np.arange(m)
    for start in range(0, len(codes), _SCAN_BLOCK):
        chosen = numbers[parts, codes[start : start + _SCAN_BLOCK]]  # (block, M, 2)
        # faiss codes these vectors again; the nearest vector of each half is the half itself.
        scan.add(halves[parts[:, None], [0, 1], chosen].reshape(len(chosen), -1))
    twice = faiss.LinearTransform(d, 2 * d, False)
    by_part = np.eye(d, dtype=np.float32).reshape(m, 1, width, d)
    faiss.copy_array_to_vector(np.repeat(by_part, 2, axis=1).ravel(), twice.A)
    twice.is_trained = True
    return _owning(faiss.IndexPreTransform(twice, scan), twice, scan)


def _owning(index: Any, *parts: Any) -> Any:
    """`index`, made the owner of its parts, which it frees; Python no longer does."""
    index.own_fields = True
    for part in parts:
        part.this.disown()
    return index


def faiss_rotation(quantizer: Quantizer) -> Any:
    """The quantizer's rotation as a faiss transform before an index."""
    faiss, d = import_faiss("a faiss index"), quantizer.dimension
    rotation = faiss.LinearTransform(d, d, False)
    faiss.copy_array_to_vector(quantizer.rotation.ravel(), rotation.A)
    rotation.is_trained = True
    return rotation


def import_faiss(feature: str) -> Any:
    """The module. Raises MissingExtra if it is not installed."""
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise MissingExtra(feature, "eval") from error
    # Since 1.15 (threshold 128,000), faiss compares even many queries one by one, over ten times slower than in a matrix
    # product.
    faiss.cvar.distance_compute_blas_threshold = MATRIX_FROM
    return faiss
