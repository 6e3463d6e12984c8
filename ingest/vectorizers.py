"""Documents → vectors: from models, or computed from other vectors. (`stored_vectors` reads them from files.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from opensearch_neural.errors import ModelError
from opensearch_neural.index.sparse_scale import drawn_ids
from opensearch_neural.models.sparse.pruning import Pruning

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opensearch_neural.corpus.documents import Document
    from opensearch_neural.index.record import IndexMeta
    from opensearch_neural.models.dense.dense_encoder import DenseEncoder
    from opensearch_neural.models.dense.quantized import QuantizedModel, Quantizer
    from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder
    from opensearch_neural.models.sparse.table_encoder import TableEncoder
    from opensearch_neural.models.vectors import SparseVectors


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of a batch of documents; any may be absent."""

    sparse: SparseVectors | None = None
    """(documents, vocabulary)"""
    dense: NDArray[np.float32] | None = None
    """(documents, vectors · dimension)"""
    codes: NDArray[np.uint8] | None = None
    """The codes of a quantized model, (documents, M)."""
    postings: NDArray[np.bool_] | None = None
    """Which of the sparse weights the postings hold, (nnz,). None: all."""


class Vectorizer(Protocol):
    """Computes or reads the vectors of documents."""

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        """Raises ModelError if one of the documents cannot be encoded."""


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """Documents [start, start + length) of a batch with their vectors, or one document that cannot be encoded."""

    start: int
    """The position of its first document in the batch."""
    length: int
    """How many documents it has."""
    vectors: Vectors | None
    """None if the document cannot be encoded."""
    error: str = ""
    """Why it cannot be encoded."""


def encode_in_parts(documents: Sequence[Document], vectorizer: Vectorizer, start: int = 0) -> Iterator[EncodedPart]:
    """The vectors of a batch, in order.

    If a model fails on one document, the others still get vectors: the batch is halved until that document is alone.
    """
    if not documents:
        return
    try:
        yield EncodedPart(start, len(documents), vectorizer.vectors(documents))
    except ModelError as error:
        if len(documents) == 1:
            yield EncodedPart(start, 1, None, error.message)
            return
        middle = len(documents) // 2
        yield from encode_in_parts(documents[:middle], vectorizer, start)
        yield from encode_in_parts(documents[middle:], vectorizer, start + middle)


@dataclass
class Encoders:
    """The models that encode; any may be absent."""

    sparse: SparseDocumentEncoder | None = None
    """Makes the weights in `sparse`."""
    dense: DenseEncoder | None = None
    """Makes the vectors in `dense`."""
    batch_size: int = 32
    """Texts in one batch of a network."""
    quantized: QuantizedModel | None = None
    """Makes `codes`."""
    reconstructed: bool = False
    """Whether the dense vectors are reconstructed from the codes."""
    prune: Pruning | None = None
    """Which terms of the sparse vectors are kept."""

    @property
    def pads(self) -> bool:
        """Whether a network pads texts to one length; encoding many texts at once, sorted by length, is faster then."""
        return any(
            each is not None and each.info.kind != "lexical" for each in (self.sparse, self.dense, self.quantized)
        )

    @cached_property
    def alike(self) -> bool:
        """Whether `quantized` encodes documents as `dense` does; they are then encoded once for both."""
        from opensearch_neural.models.dense.torch_encoder import documents_alike

        return (
            self.dense is not None and self.quantized is not None and documents_alike(self.dense, self.quantized.dense)
        )

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        contents = [document.contents for document in documents]
        sparse = None
        if self.sparse is not None:
            # The lexical model has no network, so it keeps its own, larger batches.
            size = {} if self.sparse.info.kind == "lexical" else {"batch_size": self.batch_size}
            sparse = self.sparse.encode_documents(contents, **size)
            sparse = sparse if self.prune is None else self.prune(sparse)
        dense = self.dense.encode_documents(contents, batch_size=self.batch_size) if self.dense else None
        codes = None
        if self.quantized is not None:
            if dense is not None and self.alike:
                codes = self.quantized.quantizer.encode(dense)
            else:
                codes = self.quantized.encode_documents(contents, batch_size=self.batch_size)
            if self.reconstructed:
                dense = self.quantized.quantizer.reconstruct(codes)
        return Vectors(sparse, dense, codes)


@dataclass(frozen=True)
class Changed:
    """A vectorizer whose vectors are changed."""

    vectorizer: Vectorizer
    """Makes the vectors before the change."""
    change: Callable[[Vectors], Vectors]
    """Called with the vectors of each batch; returns those to write."""

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        return self.change(self.vectorizer.vectors(documents))


def pruned(vectors: Vectors, prune: Pruning) -> Vectors:
    """The vectors with pruned sparse vectors."""
    return vectors if vectors.sparse is None else replace(vectors, sparse=prune(vectors.sparse))


def coded(vectors: Vectors, quantizer: Quantizer) -> Vectors:
    """The vectors with codes of the dense vectors."""
    assert vectors.dense is not None
    return replace(vectors, codes=quantizer.encode(vectors.dense))


def reconstructed(vectors: Vectors, quantizer: Quantizer) -> Vectors:
    """The vectors with dense vectors reconstructed from the codes."""
    assert vectors.codes is not None
    return replace(vectors, dense=quantizer.reconstruct(vectors.codes))


@dataclass
class PostingsPruned:
    """A vectorizer that chooses the part of each sparse vector for the postings: the tokens that can add most to a score."""

    vectorizer: Vectorizer
    """Makes the whole vectors."""
    prune: Pruning
    """The rule of the choice."""
    query_weights: Mapping[str, float]
    """{token: its weight in a query}"""
    _factors: NDArray[np.float32] | None = None
    """(vocabulary,)"""

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        import numpy as np

        vectors = self.vectorizer.vectors(documents)
        sparse = vectors.sparse
        if sparse is None:
            return vectors
        if self._factors is None:
            self._factors = np.array([self.query_weights.get(token, 1.0) for token in sparse.vocabulary], np.float32)
        added = sparse.weights * self._factors[sparse.token_ids]
        return replace(vectors, postings=self.prune.kept(sparse.indptr, added))


def for_index(vectorizer: Vectorizer, meta: IndexMeta, query: TableEncoder | None) -> Vectorizer:
    """The vectorizer for writing an index with this record. query: the query encoder of its sparse model."""
    if meta.prune_postings is None or query is None:
        return vectorizer
    return PostingsPruned(vectorizer, Pruning.parse(meta.prune_postings), query.weights)


@dataclass
class NotingLargest:
    """A vectorizer that notes the largest weight of each token in its vectors, as the index stores weights, and a sample of
    its documents."""

    vectorizer: Vectorizer
    """Makes the vectors, which are passed on unchanged."""
    larger: Callable[[dict[str, float]], None] | None = None
    """Called with the weights that are larger than before, before `vectors` returns."""
    drawn: list[str] = field(default_factory=list)
    """The ids of the sample (`sparse_scale.drawn_ids`)."""
    _vocabulary: list[str] = field(default_factory=list)
    """Tokens by id, from the first batch."""
    _weights: NDArray[np.float32] | None = None
    """(vocabulary,)"""

    @property
    def largest(self) -> dict[str, float]:
        """{token: its largest weight} of all tokens that occurred."""
        return {} if self._weights is None else self._named(self._weights.nonzero()[0], self._weights)

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        vectors = self.vectorizer.vectors(documents)
        self.drawn = drawn_ids((document.id for document in documents), self.drawn)
        if vectors.sparse is not None:
            self._note(vectors.sparse)
        return vectors

    def _note(self, sparse: SparseVectors) -> None:
        import numpy as np

        if self._weights is None:
            self._vocabulary, self._weights = sparse.vocabulary, np.zeros(len(sparse.vocabulary), np.float32)
        # `rank_features` cuts off the lower 15 bits of a weight, and refuses weights that are not finite.
        stored = (np.ascontiguousarray(sparse.weights, np.float32).view(np.uint32) & 0xFFFF8000).view(np.float32)
        weights = self._weights.copy()
        np.maximum.at(weights, sparse.token_ids, np.where(np.isfinite(stored), stored, 0))
        if self.larger is not None and (ids := (weights > self._weights).nonzero()[0]).size:
            self.larger(self._named(ids, weights))
        self._weights = weights

    def _named(self, ids: NDArray[np.int64], weights: NDArray[np.float32]) -> dict[str, float]:
        return {self._vocabulary[id]: weight for id, weight in zip(ids.tolist(), weights[ids].tolist(), strict=True)}
