"""Teachers of different kinds, read from caches during training.

A siamese teacher (dense, sparse) can score every pair of a batch, also in-batch negatives, if it encoded the documents: all,
or those that queries are compared with. A cross-encoder can score only the pairs that it scored before. Scores here are raw;
an ensemble normalizes each teacher's per query and adds them (`teacher_ensemble`).

A cache records the hashes of model and data; a cache for other data than the training run's is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object
from trainers.common.config import fingerprint
from trainers.data.embedding_cache import FORMAT, read_sparse, read_vectors
from trainers.data.examples import TrainingData
from trainers.data.texts import TextStore

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TeacherKind = Literal["dense", "sparse", "cross-encoder"]
KINDS: tuple[TeacherKind, ...] = ("dense", "sparse", "cross-encoder")
LEXICAL = "lexical"
ENCODED = "encoded.npy"
"""The file of a cache with the rows of the documents that it holds, ascending; a cache without it holds all."""
Scores = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass
class Teacher(ABC):
    """Scores of pairs, from a cache."""

    name: str
    """the model's, as in the cache"""
    data: TrainingData
    """the pairs' texts"""
    hash: str
    """of the model, its settings and the texts that its cache was made of"""

    @abstractmethod
    def scores(self, query_ids: Sequence[str], document_ids: Sequence[str]) -> Scores:
        """The teacher's scores of all pairs, (queries, documents), higher is better.

        NaN for pairs that are not in the cache and, from a siamese teacher, for documents that it did not encode or that are
        not in its data. Raises InputError for other unknown ids.
        """


def open_teacher(folder: str | Path, data: TrainingData) -> Teacher:
    """The teacher that `teach` cached in `folder`, for the same queries and documents as `data` has.

    Raises ModelError if the cache is for other texts (the message names the hashes), unfinished, or broken.
    """
    folder = Path(folder)
    file = folder / "teacher.json"
    if not file.exists():
        unfinished = folder.is_dir() and any(folder.iterdir())
        state = "is not finished" if unfinished else "is not a teacher's cache"
        raise ModelError(f"{folder} {state} (it has no teacher.json)", "make or continue it with osn data teach")
    record = read_json_object(file)
    if record.get("format") != FORMAT or record.get("kind") not in KINDS:
        raise ModelError(f"{file}: expected format {FORMAT} and one of the kinds {', '.join(KINDS)}")
    stores = {"queries": data.queries, "documents": data.documents}
    for what, store in stores.items():
        cached = record.get(what, {})
        if cached.get("hash") != store.hash:
            raise ModelError(
                f"{folder} holds scores for other {what} than {data.name} has: {cached.get('rows')} with hash "
                f"{cached.get('hash')}, but the data has {len(store)} with hash {store.hash}",
                f"osn data teach {record['model']['name']} DATA --output ANOTHER_FOLDER",
            )
    name, kind = record["model"]["name"], record["kind"]
    # The name may be a folder, which may have been moved since.
    made_of = fingerprint({**record, "model": record["model"]["hash"]})
    if kind == "cross-encoder":
        return PairTeacher.read(name, data, folder, made_of)
    encoded: Rows | None = None
    if (candidates := record.get("candidates")) is not None:
        encoded, stores["documents"] = _encoded(folder, data, candidates["hash"])
    vectors: list[Any]
    if kind == "dense":
        vectors = [read_vectors(folder / f"{what}.npy", len(store)) for what, store in stores.items()]
    else:
        vectors = [read_sparse(folder / what, store).to_scipy() for what, store in stores.items()]
    queries, documents = vectors
    return SiameseTeacher(name, data, made_of, queries, documents, encoded)


def _encoded(folder: Path, data: TrainingData, hash: str) -> tuple[Rows, TextStore]:
    """(rows of the documents that a cache holds, these documents). hash: of these documents, as the cache says."""
    file = folder / ENCODED
    try:
        rows = np.load(file, allow_pickle=False)
        documents = data.documents.at(rows.tolist())
    except (OSError, EOFError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "make the cache again") from None
    if documents.hash != hash:
        raise ModelError(f"{file} names other documents than {folder / 'teacher.json'}", "make the cache again")
    return rows, documents


def teachers_hash(teachers: Sequence[Sequence[Teacher]]) -> dict[str, str]:
    """{"teachers": a hash of the teachers of each set}; {} where there are none."""
    hashes = [[teacher.hash for teacher in of_set] for of_set in teachers]
    return {"teachers": fingerprint(hashes)} if any(hashes) else {}


def check_encoded(teacher: Teacher, data: TrainingData, *, negatives: int, depth: int) -> None:
    """Raises InputError if training may compare a query with a document that a siamese teacher did not encode.

    negatives, depth: how many negatives are drawn, from how many of the hardest, as in `candidates.sample_candidates`.
    """
    if not isinstance(teacher, SiameseTeacher) or teacher.encoded is None:
        return
    encoded = f"{teacher.name} encoded {len(teacher.encoded)} of the {len(data.documents)} documents of {data.name}"
    few = int((np.diff(data.negatives.offsets).clip(max=depth) < negatives).sum())
    if few:
        raise InputError(
            f"{encoded}, but {few} queries have fewer than {negatives} hard negatives, and random documents are drawn for "
            "them",
            "run osn data teach with --all-documents and another --output, or lower candidates.negatives",
        )
    drawn = [rows[:depth] for rows in data.negatives] if negatives else []
    missing = np.setdiff1d(np.concatenate([data.positives.values, *drawn]), teacher.encoded)
    if len(missing):
        raise InputError(
            f"{encoded}, and not {len(missing)} others that queries are compared with, such as "
            f"{data.documents.ids[missing[0]]!r}: its cache is for other negatives",
            "run osn data teach with the same --negatives and a --depth of candidates.depth, or with --all-documents, and "
            "another --output",
        )


@dataclass
class SiameseTeacher(Teacher):
    """Inner products of cached vectors. Any pair of encoded texts can be scored."""

    queries: npt.NDArray[Any] | csr_matrix
    """(queries, dimension)"""
    documents: npt.NDArray[Any] | csr_matrix
    """(encoded documents, dimension)"""
    encoded: Rows | None = None
    """(encoded documents,), their rows in `data.documents`, ascending; None: all documents are encoded"""

    def scores(self, query_ids: Sequence[str], document_ids: Sequence[str]) -> Scores:
        queries = np.array([self.data.queries.row(query) for query in query_ids], dtype=np.int64)
        store = self.data.documents
        rows = np.array([store.row(document) if document in store else -1 for document in document_ids], dtype=np.int64)
        if self.encoded is None:
            absent = rows < 0
        else:
            # From here on, rows of `self.documents`.
            document_rows, rows = rows, np.searchsorted(self.encoded, rows).clip(max=len(self.encoded) - 1)
            absent = self.encoded[rows] != document_rows
        documents, at = np.unique(np.where(absent, 0, rows), return_inverse=True)
        products = self.queries[queries].astype(np.float32) @ self.documents[documents].astype(np.float32).T
        scores = products if isinstance(products, np.ndarray) else products.toarray()
        return np.where(absent, np.nan, scores[:, at])


@dataclass
class PairTeacher(Teacher):
    """A cross-encoder's scores of pairs. Query row i has the entries indptr[i] to indptr[i + 1] of the other arrays."""

    indptr: npt.NDArray[np.int64]
    """(queries + 1,)"""
    documents: npt.NDArray[np.int32]
    """(pairs,), document rows, ascending for each query"""
    values: npt.NDArray[np.float32]
    """(pairs,), the scores"""

    @classmethod
    def read(cls, name: str, data: TrainingData, folder: Path, hash: str) -> PairTeacher:
        try:
            with np.load(folder / "pairs.npz", allow_pickle=False) as pairs:
                arrays = (pairs["indptr"], pairs["documents"], pairs["scores"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{folder / 'pairs.npz'} cannot be read: {error}", "make the cache again") from None
        return cls(name, data, hash, *arrays)

    def scores(self, query_ids: Sequence[str], document_ids: Sequence[str]) -> Scores:
        document_rows = np.array([self.data.documents.row(document) for document in document_ids], dtype=np.int32)
        scores = np.full((len(query_ids), len(document_rows)), np.nan, dtype=np.float32)
        for at, query in enumerate(query_ids):
            row = self.data.queries.row(query)
            span = slice(self.indptr[row], self.indptr[row + 1])
            known = self.documents[span]
            if not len(known):
                continue
            place = np.minimum(np.searchsorted(known, document_rows), len(known) - 1)
            scored = known[place] == document_rows
            scores[at, scored] = self.values[span][place[scored]]
        return scores
