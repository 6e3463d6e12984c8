"""Batches for the sparse student: queries as weighted columns, documents as token ids, what teachers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainers.common.training_model import Batch
from trainers.data.examples import TrainingData
from trainers.data.teachers import Teacher
from trainers.data.texts import TextStore
from trainers.dense import PART_OVERHEAD, Drawn, RetrievalCollate, unique_documents
from trainers.sparse.settings import SparseConfig
from trainers.sparse.student import Lexicon, SparseStudent
from trainers.sparse.tiled_head import sample_columns


class _ImpactRows:
    """The impacts of a store's documents by row, each weighed when it is first asked for."""

    def __init__(self, lexicon: Lexicon, documents: TextStore) -> None:
        self.lexicon, self.documents = lexicon, documents
        self._rows: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = {}

    def dense(self, rows: Sequence[int], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(rows, columns); columns ascend."""
        missing = [row for row in dict.fromkeys(rows) if row not in self._rows]
        if missing:
            found = self.lexicon.impacts([self.documents.text_at(row) for row in missing])
            for at, row in enumerate(missing):
                span = slice(found.indptr[at], found.indptr[at + 1])
                self._rows[row] = (found.indices[span], found.data[span])
        result = np.zeros((len(rows), len(columns)), dtype=np.float32)
        for at, row in enumerate(rows):
            ids, weights = self._rows[row]
            place, there = _places(columns, ids)
            result[at, place[there]] = weights[there]
        return result


def _places(
    columns: npt.NDArray[np.int64], ids: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each of `ids` stands among ascending `columns`, and whether it does."""
    place = np.minimum(np.searchsorted(columns, ids), len(columns) - 1)
    return place, columns[place] == ids


class SparseCollate(RetrievalCollate):
    """A bi-encoder's batches with queries as weighted columns: those of the batch's query tokens and a sample, or all."""

    def __init__(
        self,
        sets: Sequence[TrainingData],
        model: SparseStudent,
        *,
        lexicons: Sequence[Lexicon],
        teachers: Sequence[Sequence[Teacher]],
        chunk_size: int | None,
        overhead: int,
        seed: int,
    ) -> None:
        super().__init__(sets, model, model.objective, chunk_size=chunk_size, overhead=overhead, teachers=teachers)
        self.lexicons, self.seed = list(lexicons), seed
        self.all_columns, self.size = model.columns, len(model.head.weight)
        self.student, self.to_impacts = model.student, model.to_impacts
        self.all_pairs = model.objective.all_pairs and model.objective.distils and not model.to_impacts
        self.impacts = [_ImpactRows(lexicon, one.documents) for lexicon, one in zip(lexicons, sets, strict=True)]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> Batch:
        batch = super().__call__(items, rank, world)
        at, share = items[0].at, len(items) // world
        queries = [np.unique(ids) for ids in self.tokens[at]["query"].rows([one.query for one in items])]
        idf = self.lexicons[at].idf
        documents = [row for r in range(world) for row in unique_documents(items[r * share : (r + 1) * share])]
        pieces = [np.unique(ids) for ids in self.tokens[at]["document"].rows(documents)]
        columns, shares = self._columns(items, [ids[idf[ids] > 0] for ids in queries], pieces)
        query = np.zeros((share, len(columns)), dtype=np.float32)
        for row, ids in enumerate(queries[rank * share : (rank + 1) * share]):
            place, there = _places(columns, ids)
            query[row, place[there]] = idf[ids[there]]
        present = np.zeros((len(documents), len(columns)), dtype=bool)
        for row, ids in enumerate(pieces):
            place, there = _places(columns, ids)
            present[row, place[there]] = True
        targets = batch["targets"]
        targets |= {
            "query": torch.from_numpy(query),
            "present": torch.from_numpy(present),
            "shares": torch.from_numpy(shares),
        }
        if self.student.residual or self.to_impacts:
            targets["impacts"] = torch.from_numpy(self.impacts[at].dense(documents, columns))
        if self.all_pairs:
            names = self.sets[at].documents.ids
            own = items[rank * share : (rank + 1) * share]
            teacher, known = self.ensemble(at, own, [names[row] for row in documents])
            # Other known positives, and second copies, are no candidates.
            targets |= {"teacher": teacher, "known": known & ~targets["excluded"]}
        batch["parts"].pop("query")
        if len(columns) < self.size:
            for part in batch["parts"]["document"]:
                part["columns"] = torch.from_numpy(columns)
        return batch

    def _columns(
        self, items: Sequence[Drawn], queries: Sequence[npt.NDArray[Any]], pieces: Sequence[npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        if self.student.head == "full":
            return np.arange(self.size), np.ones(self.size, dtype=np.float32)
        wanted = np.concatenate([*queries, *pieces]) if self.to_impacts else np.concatenate(queries)
        wanted = np.intersect1d(wanted, self.all_columns)
        # The same in every process, and in a run that goes on: the batch is the seed.
        rng = np.random.default_rng([self.seed, items[0].at, *(one.query for one in items)])
        return sample_columns(wanted, self.all_columns, self.student.columns, rng)

    def _teacher_scores(self, at: int, own: Sequence[Drawn]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        if self.all_pairs or self.to_impacts:
            return np.zeros((len(own), 1), np.float32), np.ones((len(own), 1), bool)
        return super()._teacher_scores(at, own)


def collate(
    config: SparseConfig,
    sets: Sequence[TrainingData],
    student: SparseStudent,
    *,
    teachers: Sequence[Sequence[Teacher]],
) -> SparseCollate:
    """Batches for `student`, whose IDF is the student's, or each set's own."""
    size, tokenizer = len(student.head.weight), student.tokenizers["document"]
    own = config.student.idf == "own"
    cuda = torch.cuda.is_available() and config.training.device == "auto"
    return SparseCollate(
        sets,
        student,
        lexicons=[
            Lexicon.of([one.documents], tokenizer, size, config.student) if own else student.lexicon for one in sets
        ],
        teachers=teachers,
        chunk_size=config.training.chunk_size,
        overhead=PART_OVERHEAD["cuda" if cuda else "cpu"],
        seed=config.training.seed,
    )
