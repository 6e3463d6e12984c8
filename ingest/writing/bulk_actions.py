"""Documents with their vectors → the actions of `_bulk`, with every field as the index stores it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ingest.vectorizers import Vectorizer, Vectors, encode_in_parts
from ingest.writing.bulk import Action
from ingest.writing.short_weights import SMALLEST, shortest
from opensearch_neural.corpus.documents import MAX_ID_BYTES
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.index.mapping import NO_TOKEN, rank_features, to_bytes
from opensearch_neural.index.record import DenseMeta, IndexMeta
from opensearch_neural.queries import forward_index
from opensearch_neural.queries.multi_vector import stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.corpus.documents import Document
    from opensearch_neural.models.vectors import SparseVectors


@dataclass(slots=True)
class Prepared:
    """A batch of documents as bulk actions."""

    actions: list[Action] = field(default_factory=list)
    """The documents that can be written."""
    positions: list[int] = field(default_factory=list)
    """positions[i] is the position in the batch of the document of actions[i]."""
    unfit: dict[int, str] = field(default_factory=dict)
    """{position in the batch: why OpenSearch would refuse the document, or why it cannot be encoded}"""


def prepare_batches(batches: Sequence[Sequence[Document]], vectorizer: Vectorizer, meta: IndexMeta) -> list[Prepared]:
    """The bulk actions of each batch; all batches are encoded together."""
    together = prepare([document for batch in batches for document in batch], vectorizer, meta)
    prepared = []
    first = 0
    for batch in batches:
        places = range(first, first + len(batch))
        taken = [n for n, position in enumerate(together.positions) if position in places]
        prepared.append(
            Prepared(
                [together.actions[n] for n in taken],
                [together.positions[n] - first for n in taken],
                {position - first: reason for position, reason in together.unfit.items() if position in places},
            )
        )
        first += len(batch)
    return prepared


def prepare(documents: Sequence[Document], vectorizer: Vectorizer, meta: IndexMeta) -> Prepared:
    """The bulk actions of a batch of documents.

    A document is unfit if a model cannot encode it, or if OpenSearch would refuse its vectors (with an error that does not
    name the cause). The other documents of the batch are not affected.
    """
    prepared = Prepared()
    for part in encode_in_parts(documents, vectorizer):
        if part.vectors is None:
            prepared.unfit[part.start] = f"cannot be encoded: {part.error}"
            continue
        sparse = part.vectors.sparse
        features = None if sparse is None else _Features(sparse, part.vectors.postings, rows=meta.forward_index)
        for row in range(part.length):
            position = part.start + row
            action = _action(documents[position], part.vectors, row, features, meta)
            if isinstance(action, str):
                prepared.unfit[position] = action
            else:
                prepared.actions.append(action)
                prepared.positions.append(position)
    return prepared


def _action(
    document: Document, vectors: Vectors, row: int, features: _Features | None, meta: IndexMeta
) -> Action | str:
    """The document with its row of the vectors, or why OpenSearch would refuse it."""
    if reason := unfit_id(document.id):
        return reason
    if isinstance(document, Passage) and meta.passages is None:
        return f"it is a passage of {document.parent!r}, and the index holds whole documents"
    source = source_of(document)
    if features is not None:
        if reason := features.defect(row):
            return reason
        packed = features.packed(row)
        # Pruning may leave no postings of a document that has a row.
        source["sparse"] = features.of(row) or ({} if packed else {NO_TOKEN: 1.0})
        if packed:
            source[forward_index.FIELD] = b64encode(packed).decode()
    if vectors.dense is not None:
        assert meta.dense is not None
        if reason := unfit_vector(vectors.dense[row], meta.dense):
            return reason
        source["dense"] = stored_vector(vectors.dense[row], meta.dense)
    if vectors.codes is not None:
        source["pq"] = b64encode(vectors.codes[row]).decode()
    try:
        return Action(document.id, orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:  # an integer beyond 64 bits, a lone surrogate
        return f"cannot be written as JSON: {error}"


def source_of(document: Document) -> dict[str, Any]:
    """The document's own fields, as the index stores them."""
    source: dict[str, Any] = {}
    if document.title:
        source["title"] = document.stored("title")
    source["text"] = document.stored("text")
    if document.url is not None:
        source["url"] = document.url
    source.update(nested_by_dots(document.fields))
    if isinstance(document, Passage):
        source["parent"] = document.parent
        source["passage"] = {"number": document.number, "start": document.start, "end": document.end}
    return source


def nested_by_dots(fields: dict[str, Any]) -> dict[str, Any]:
    """Turn fields with names such as `a.b` into objects: {"a": {"b": …}}.

    An index treats both alike, unless `a` is a flat object. A name with dots stays if the record has another value under `a`
    that is in the way.
    """
    nested = {name: value for name, value in fields.items() if "." not in name}
    if len(nested) == len(fields):
        return fields
    for name, value in fields.items():
        if "." in name:
            tree = value
            for part in reversed(name.split(".")):
                tree = {part: tree}
            nested = _joined(nested, tree) or {**nested, name: value}
    return nested


def _joined(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any] | None:
    """Both trees as one; None if they have different values at the same place."""
    joined = dict(tree)
    for name, value in more.items():
        if name in tree:
            below = tree[name]
            value = _joined(below, value) if isinstance(below, dict) and isinstance(value, dict) else None
            if value is None:
                return None
        joined[name] = value
    return joined


class _Features:
    """The `sparse` fields of a batch, checked together, and, with `rows`, its rows of the forward index.

    postings: which of the weights the postings hold, (nnz,); None: all.
    """

    def __init__(self, vectors: SparseVectors, postings: NDArray[np.bool_] | None, *, rows: bool) -> None:
        self.vectors = vectors
        weights = vectors.weights
        with np.errstate(invalid="ignore"):
            # 0 and subnormal float32 weights add nothing to a score, but OpenSearch would refuse the whole document for
            # them: they are left out. Other weights that are not positive are a defect of the model.
            self.kept = weights >= SMALLEST
            self.searched = self.kept if postings is None else self.kept & postings
            self.wrong = ~np.isfinite(weights) | (weights < 0)
        self.short = np.zeros(len(weights))
        usable = self.kept & ~self.wrong
        self.short[usable] = shortest(weights[usable])
        self.hashes: NDArray[np.int32] | None = None
        if rows:
            each, places = np.unique(vectors.token_ids, return_inverse=True)
            self.hashes = forward_index.hashes_of(vectors.vocabulary[id] for id in each.tolist())[places]

    def defect(self, row: int) -> str | None:
        """Why OpenSearch would refuse these rank features, or None."""
        start, end = self.vectors.indptr[row], self.vectors.indptr[row + 1]
        vocabulary = self.vectors.vocabulary
        if self.wrong[start:end].any():
            at = start + int(np.argmax(self.wrong[start:end]))
            token, weight = vocabulary[self.vectors.token_ids[at]], self.vectors.weights[at]
            return f"the sparse model gave the token {token!r} the weight {weight}; weights must be finite and positive"
        return None

    def of(self, row: int) -> dict[str, float]:
        places, vocabulary = self._places(row, self.searched), self.vectors.vocabulary
        ids, weights = self.vectors.token_ids[places].tolist(), self.short[places].tolist()
        return rank_features({vocabulary[id]: weight for id, weight in zip(ids, weights, strict=True)})

    def packed(self, row: int) -> bytes:
        """The row of the forward index; empty without a forward index, and for a document without tokens."""
        if self.hashes is None:
            return b""
        places = self._places(row, self.kept)
        return forward_index.packed(self.hashes[places], self.vectors.weights[places])

    def _places(self, row: int, chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """The positions of a row's chosen tokens."""
        start, end = self.vectors.indptr[row], self.vectors.indptr[row + 1]
        return start + np.flatnonzero(chosen[start:end])


def unfit_id(id: str) -> str | None:
    """Why OpenSearch would refuse the whole request for this id, or None. Readers refuse such ids themselves."""
    try:
        size = len(id.encode("utf-8"))
    except UnicodeEncodeError:
        return "the id holds half a surrogate pair"
    if 0 < size <= MAX_ID_BYTES:
        return None
    return f"the id is {size} bytes long in UTF-8; OpenSearch takes 1 to {MAX_ID_BYTES}"


def stored_vector(vector: NDArray[np.float32], meta: DenseMeta) -> Any:
    """A document's row (vectors · dimension,) as the index's field stores it."""
    numbers = to_bytes(vector, meta.scale) if meta.type == "byte" else vector.astype(np.float32, copy=False)
    return stored(numbers.reshape(meta.vectors, -1)) if meta.vectors > 1 else numbers


def unfit_vector(vector: NDArray[np.float32], meta: DenseMeta) -> str | None:
    """Why a document's row (vectors · dimension,) cannot be indexed, or None."""
    if not np.isfinite(vector).all():
        return "the dense model gave a vector with NaN or infinite components"
    if meta.normalized and not vector.reshape(meta.vectors, -1).any(axis=1).all():
        return "the dense model gave a vector of zeros, which has no direction to compare"
    return None
