"""Teachers of different kinds, looked up in training.

A siamese teacher (dense, sparse) can score every pair of a batch, in-batch negatives included; a cross-encoder the pairs
it was shown. Here are raw scores; an ensemble normalizes each teacher's per query and adds them (`teacher_ensemble`).

A cache names model and data by hash, and is refused where they are not those of the training run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json_object
from trainers.data.embedding_cache import FORMAT, read_sparse, read_vectors
from trainers.data.examples import TrainingData

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TeacherKind = Literal["dense", "sparse", "cross-encoder"]
KINDS: tuple[TeacherKind, ...] = ("dense", "sparse", "cross-encoder")
LEXICAL = "lexical"
Scores = npt.NDArray[np.float32]
DocumentIds = Sequence[str] | Sequence[Sequence[str]]
OnMissing = Literal["refuse", "nan"]
"""What to do with pairs that a cache does not have."""


class Teacher(Protocol):
    """Scores of pairs, from a cache."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> TeacherKind: ...

    def scores(self, query_ids: Sequence[str], document_ids: DocumentIds) -> Scores:
        """The teacher's scores, (queries, candidates), higher is better.

        document_ids: one list for all queries, (candidates,), or each query's own, (queries, candidates).
        Raises InputError for ids that the data does not have, ModelError for pairs that the cache does not have; with
        missing "nan" both are NaN.
        """
        ...


def open_teacher(folder: str | Path, data: TrainingData, *, missing: OnMissing = "refuse") -> Teacher:
    """The teacher that `teach` cached in `folder`, for the same queries and documents as `data` has.

    missing: what becomes of pairs that a cross-encoder was not shown, and of documents that the data does not have. Raises
    ModelError, with the hashes, where the cache is of other texts, is unfinished, or is broken.
    """
    folder = Path(folder)
    file = folder / "teacher.json"
    if not file.exists():
        unfinished = folder.is_dir() and any(folder.iterdir())
        state = "is not finished" if unfinished else "is no teacher's cache"
        raise ModelError(f"{folder} {state} (it has no teacher.json)", "make it, or go on with it: osn data teach")
    record = read_json_object(file)
    if record.get("format") != FORMAT or record.get("kind") not in KINDS:
        raise ModelError(f"{file}: expected format {FORMAT} and one of the kinds {', '.join(KINDS)}")
    for what, store in (("queries", data.queries), ("documents", data.documents)):
        cached = record.get(what, {})
        if cached.get("hash") != store.hash:
            raise ModelError(
                f"{folder} holds scores for other {what} than {data.name} has: {cached.get('rows')} of them with hash "
                f"{cached.get('hash')}, where the data has {len(store)} with hash {store.hash}",
                f"osn data teach {record['model']['name']} DATA --output ANOTHER_FOLDER",
            )
    name, kind = record["model"]["name"], record["kind"]
    if kind == "dense":
        queries = read_vectors(folder / "queries.npy", len(data.queries))
        documents = read_vectors(folder / "documents.npy", len(data.documents))
        return DenseTeacher(name, data, queries, documents, missing)
    if kind == "sparse":
        of_queries = read_sparse(folder / "queries", data.queries).to_scipy()
        of_documents = read_sparse(folder / "documents", data.documents).to_scipy()
        return SparseTeacher(name, data, of_queries, of_documents, missing)
    return PairTeacher.read(name, data, folder, missing)


class _Siamese:
    """Any pair can be scored: all pairs of the batch are, and each query's own are taken out of these."""

    data: TrainingData
    missing: OnMissing

    def scores(self, query_ids: Sequence[str], document_ids: DocumentIds) -> Scores:
        queries = np.array([self.data.queries.row(query) for query in query_ids], dtype=np.int64)
        own, flat = _candidates(document_ids, len(query_ids))
        store = self.data.documents
        absent = [self.missing == "nan" and document not in store for document in flat]
        rows = [0 if gone else store.row(document) for document, gone in zip(flat, absent, strict=True)]
        documents, at = np.unique(np.array(rows, np.int64), return_inverse=True)
        scores = np.where(absent, np.nan, self._all_pairs(queries, documents)[:, at])
        if not own:
            return scores
        places = np.arange(len(flat)).reshape(len(query_ids), -1)
        return np.take_along_axis(scores, places, axis=1)

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        raise NotImplementedError


@dataclass
class DenseTeacher(_Siamese):
    """Inner products of cached vectors: (queries, dimension) and (documents, dimension), memory-mapped."""

    name: str
    data: TrainingData
    queries: npt.NDArray[Any]
    documents: npt.NDArray[Any]
    missing: OnMissing = "refuse"
    kind: TeacherKind = "dense"

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        return self.queries[queries].astype(np.float32) @ self.documents[documents].astype(np.float32).T


@dataclass
class SparseTeacher(_Siamese):
    """Inner products of cached sparse vectors: (queries, vocabulary) and (documents, vocabulary)."""

    name: str
    data: TrainingData
    queries: csr_matrix
    documents: csr_matrix
    missing: OnMissing = "refuse"
    kind: TeacherKind = "sparse"

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        product = self.queries[queries] @ self.documents[documents].T
        return np.asarray(product.toarray(), dtype=np.float32)


@dataclass
class PairTeacher:
    """A cross-encoder's scores: for query row i, documents[indptr[i]:indptr[i + 1]] (rows, ascending) and their scores."""

    name: str
    data: TrainingData
    indptr: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    missing: OnMissing = "refuse"
    kind: TeacherKind = "cross-encoder"

    @classmethod
    def read(cls, name: str, data: TrainingData, folder: Path, missing: OnMissing) -> PairTeacher:
        try:
            with np.load(folder / "pairs.npz", allow_pickle=False) as pairs:
                arrays = (pairs["indptr"], pairs["documents"], pairs["scores"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{folder / 'pairs.npz'} cannot be read: {error}", "make the cache again") from None
        return cls(name, data, *arrays, missing)

    def scores(self, query_ids: Sequence[str], document_ids: DocumentIds) -> Scores:
        own, flat = _candidates(document_ids, len(query_ids))
        rows = np.array([self.data.documents.row(document) for document in flat], dtype=np.int32)
        wanted = rows.reshape(len(query_ids), -1) if own else np.broadcast_to(rows, (len(query_ids), len(rows)))
        scores = np.full(wanted.shape, np.nan, dtype=np.float32)
        for at, query in enumerate(query_ids):
            row = self.data.queries.row(query)
            span = slice(self.indptr[row], self.indptr[row + 1])
            known = self.documents[span]
            if not len(known):
                continue
            place = np.minimum(np.searchsorted(known, wanted[at]), len(known) - 1)
            held = known[place] == wanted[at]
            scores[at, held] = self.values[span][place[held]]
        absent = np.argwhere(np.isnan(scores))
        if len(absent) and self.missing == "refuse":
            query, document = query_ids[absent[0][0]], self.data.documents.ids[wanted[tuple(absent[0])]]
            raise ModelError(
                f"{self.name} was not shown {len(absent)} of these {scores.size} pairs, first: query {query!r} with "
                f"document {document!r}",
                "make the cache with the same --negatives and at least the depth that training draws from; a "
                "cross-encoder cannot score in-batch negatives",
            )
        return scores


def _candidates(document_ids: DocumentIds, queries: int) -> tuple[bool, list[str]]:
    """Whether each query has its own candidates, and all ids in one list."""
    if not len(document_ids) or isinstance(document_ids[0], str):
        return False, list(document_ids)  # type: ignore[arg-type]
    if len(document_ids) != queries or len({len(row) for row in document_ids}) != 1:
        raise ValueError(f"expected one list of candidates for each of {queries} queries, all of one length")
    return True, [document for row in document_ids for document in row]
