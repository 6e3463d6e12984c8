"""Documents → the fields that the models add, as the JSON that `_bulk` takes."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from ingest.bulk import Action
from ingest.weights import SMALLEST, shortest
from opensearch_neural.corpus.documents import MAX_ID_BYTES
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import ModelError
from opensearch_neural.index.mapping import rank_features, to_bytes
from opensearch_neural.index.record import DenseMeta
from opensearch_neural.multi_vector import stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.corpus.documents import Document
    from opensearch_neural.models.dense_encoder import DenseEncoder
    from opensearch_neural.models.quantized import QuantizedModel, Quantizer
    from opensearch_neural.models.sparse import SparseDocumentEncoder
    from opensearch_neural.models.vectors import SparseVectors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Vectors:
    """What the models made of a batch; any may be absent.

    dense: (documents, vectors · dimension) float32; pq: (documents, M).
    """

    sparse: SparseVectors | None = None
    dense: NDArray[np.float32] | None = None
    pq: NDArray[np.uint8] | None = None


class Vectorizer(Protocol):
    """Where vectors come from: models, or files that `osn encode` wrote."""

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        """Raises ModelError when one of the documents cannot be encoded."""


@dataclass
class Encoders:
    """The models of an ingest; any may be absent (then the index serves BM25 and the others).

    reconstructed: the dense vectors are those that the codes of `pq` stand for.
    """

    sparse: SparseDocumentEncoder | None = None
    dense: DenseEncoder | None = None
    batch_size: int = 32
    pq: QuantizedModel | None = None
    reconstructed: bool = False

    @property
    def pads(self) -> bool:
        """Whether a network pads texts to one length, so that encoding many at once, sorted by length, is faster."""
        network = self.sparse is not None and self.sparse.info.kind != "lexical"
        return network or self.dense is not None or self.pq is not None

    @cached_property
    def alike(self) -> bool:
        """Whether `pq` would encode documents as `dense` does: then they are encoded once, and the codes are of that."""
        from opensearch_neural.models.dense import documents_alike

        return self.dense is not None and self.pq is not None and documents_alike(self.dense, self.pq.dense)

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        contents = [document.contents for document in documents]
        sparse = None
        if self.sparse is not None:
            # The lexical model has no network to feed, and takes what it gets.
            lexical = self.sparse.info.kind == "lexical"
            sparse = (
                self.sparse.encode_documents(contents)
                if lexical
                else self.sparse.encode_documents(contents, batch_size=self.batch_size)
            )
        dense = self.dense.encode_documents(contents, batch_size=self.batch_size) if self.dense else None
        pq = None
        if self.pq is not None and dense is not None and self.alike:
            pq = self.pq.quantizer.encode(dense)
        elif self.pq is not None:
            pq = self.pq.encode_documents(contents, batch_size=self.batch_size)
        if self.pq is not None and pq is not None and self.reconstructed:
            dense = self.pq.quantizer.reconstruct(pq)
        return Vectors(sparse, dense, pq)


@dataclass(frozen=True)
class Coding:
    """A vectorizer whose codes are made of its dense vectors."""

    vectorizer: Vectorizer
    quantizer: Quantizer

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        found = self.vectorizer.vectors(documents)
        assert found.dense is not None
        return replace(found, pq=self.quantizer.encode(found.dense))


@dataclass(frozen=True)
class Reconstructing:
    """A vectorizer whose dense vectors are what its codes stand for."""

    vectorizer: Vectorizer
    quantizer: Quantizer

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        found = self.vectorizer.vectors(documents)
        assert found.pq is not None
        return replace(found, dense=self.quantizer.reconstruct(found.pq))


@dataclass(frozen=True, slots=True)
class Unfit:
    """A document whose vectors no index would take; `position` within its batch."""

    position: int
    reason: str


@dataclass(slots=True)
class Prepared:
    """A batch as bulk actions: `positions[i]` is the place in the batch of the document of `actions[i]`."""

    actions: list[Action] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)


def prepare_batches(
    batches: Sequence[Sequence[Document]], vectorizer: Vectorizer, dense_meta: DenseMeta | None
) -> list[Prepared]:
    """The bulk actions of each batch, all batches encoded at once."""
    together = prepare([document for batch in batches for document in batch], vectorizer, dense_meta)
    prepared = []
    first = 0
    for batch in batches:
        places = range(first, first + len(batch))
        taken = [n for n, position in enumerate(together.positions) if position in places]
        prepared.append(
            Prepared(
                [together.actions[n] for n in taken],
                [together.positions[n] - first for n in taken],
                [Unfit(each.position - first, each.reason) for each in together.unfit if each.position in places],
            )
        )
        first += len(batch)
    return prepared


def prepare(documents: Sequence[Document], vectorizer: Vectorizer, dense_meta: DenseMeta | None) -> Prepared:
    """The bulk actions of a batch of documents.

    A document that a model cannot encode, or to which it gives vectors that OpenSearch would refuse (with a reason that
    names no cause), is unfit; the others of its batch are not touched by that.
    """
    prepared = Prepared()
    _prepare(documents, 0, vectorizer, dense_meta, prepared)
    return prepared


def _prepare(
    documents: Sequence[Document], offset: int, vectorizer: Vectorizer, meta: DenseMeta | None, into: Prepared
) -> None:
    if not documents:
        return
    try:
        vectors = vectorizer.vectors(documents)
    except ModelError as error:
        # One document's NaN must not cost the batch: halves, until it stands alone.
        if len(documents) == 1:
            into.unfit.append(Unfit(offset, f"cannot be encoded: {error.message}"))
            return
        middle = len(documents) // 2
        _prepare(documents[:middle], offset, vectorizer, meta, into)
        _prepare(documents[middle:], offset + middle, vectorizer, meta, into)
        return
    features = _Features(vectors.sparse) if vectors.sparse is not None else None
    for position, document in enumerate(documents):
        source = source_of(document)
        reason = unfit_id(document.id)
        if features is not None and reason is None:
            reason = features.defect(position)
            if reason is None and (row := features.row(position)):
                source["sparse"] = row
        if vectors.dense is not None and reason is None:
            assert meta is not None
            reason = unfit_vector(vectors.dense[position], meta)
            if reason is None:
                source["dense"] = stored_vector(vectors.dense[position], meta)
        if vectors.pq is not None:
            source["pq"] = b64encode(vectors.pq[position]).decode()
        if reason is None:
            try:
                into.actions.append(Action(document.id, orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY)))
                into.positions.append(offset + position)
                continue
            except TypeError as error:  # an integer beyond 64 bits, a lone surrogate
                reason = f"cannot be written as JSON: {error}"
        into.unfit.append(Unfit(offset + position, reason))


def source_of(document: Document) -> dict[str, Any]:
    """The document's own fields, as the index has them."""
    source: dict[str, Any] = {}
    if document.title:
        source["title"] = document.title
    source["text"] = document.text
    if document.url is not None:
        source["url"] = document.url
    source.update(document.fields)
    if isinstance(document, Passage):
        source["parent"] = document.parent
        source["passage"] = {"number": document.number, "start": document.start, "end": document.end}
    return source


class _Features:
    """The `sparse` fields of a batch, checked at once."""

    def __init__(self, vectors: SparseVectors) -> None:
        self.vectors = vectors
        weights = vectors.weights
        with np.errstate(invalid="ignore"):
            # 0 and what a float32 can only hold as a subnormal add nothing to a score, and OpenSearch refuses the whole
            # document for them: they are left out. Anything else that is not positive is a defect of the model.
            self.kept = weights >= SMALLEST
            self.wrong = ~np.isfinite(weights) | (weights < 0)
        self.short = np.zeros(len(weights))
        usable = self.kept & ~self.wrong
        self.short[usable] = shortest(weights[usable])

    def defect(self, row: int) -> str | None:
        """Why OpenSearch would refuse these rank features, or None."""
        start, end = self.vectors.indptr[row], self.vectors.indptr[row + 1]
        vocabulary = self.vectors.vocabulary
        if self.wrong[start:end].any():
            at = start + int(np.argmax(self.wrong[start:end]))
            token, weight = vocabulary[self.vectors.token_ids[at]], self.vectors.weights[at]
            return f"the sparse model gave the token {token!r} the weight {weight}; weights must be finite and positive"
        return None

    def row(self, row: int) -> dict[str, float]:
        start, end = self.vectors.indptr[row], self.vectors.indptr[row + 1]
        kept = self.kept[start:end]
        vocabulary = self.vectors.vocabulary
        ids, weights = self.vectors.token_ids[start:end][kept].tolist(), self.short[start:end][kept].tolist()
        return rank_features({vocabulary[id]: weight for id, weight in zip(ids, weights, strict=True)})


def unfit_id(id: str) -> str | None:
    """Why OpenSearch would refuse the whole request for this id, or None. Readers refuse such ids themselves."""
    size = len(id.encode("utf-8", "surrogatepass"))
    if 0 < size <= MAX_ID_BYTES:
        return None
    return f"the id is {size} bytes long in UTF-8; OpenSearch takes 1 to {MAX_ID_BYTES}"


def stored_vector(vector: NDArray[np.float32], meta: DenseMeta) -> Any:
    """A document's row (vectors · dimension,) as the index's field takes it."""
    numbers = to_bytes(vector, meta.scale) if meta.type == "byte" else vector.astype(np.float32, copy=False)
    return stored(numbers.reshape(meta.vectors, -1)) if meta.vectors > 1 else numbers


def unfit_vector(vector: NDArray[np.float32], meta: DenseMeta) -> str | None:
    """Why a document's row (vectors · dimension,) cannot be indexed, or None."""
    if not np.isfinite(vector).all():
        return "the dense model gave a vector with NaN or infinite components"
    if meta.normalized and not vector.reshape(meta.vectors, -1).any(axis=1).all():
        return "the dense model gave a vector of zeros, which has no direction to compare"
    return None
