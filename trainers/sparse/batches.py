"""Batches for the sparse student: queries as weighted entries of the vocabulary (or as token ids), documents as
token ids, teachers' scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensearch_neural.retrievers.bm25 import BM25Retriever
from trainers.common.batches import WholeBatchCollator
from trainers.data.candidates import Drawn, KnownPositives
from trainers.data.examples import TrainingData
from trainers.data.retrieval_batches import token_caches
from trainers.data.teacher_ensemble import TeacherEnsemble
from trainers.data.teachers import Teacher
from trainers.data.tokenized import PART_OVERHEAD, padded_parts, padding_id
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import SparseConfig
from trainers.sparse.student import SparseBatch, SparsePart, SparseStudent, SparseTargets
from trainers.sparse.tiled_head import VocabularySample, sample_entries


class SparseCollate(WholeBatchCollator):
    """Drawn examples to a batch. The vocabulary's entries in it are the batch's query tokens and a sample of the
    others, or all."""

    def __init__(
        self,
        sets: Sequence[TrainingData],
        student: SparseStudent,
        *,
        lexicons: Sequence[Lexicon],
        teachers: Sequence[Sequence[Teacher]],
        chunk_size: int | None,
        overhead: int,
        seed: int,
    ) -> None:
        """chunk_size: rows of a part at most; overhead: what one more part costs, in tokens."""
        objective = student.objective
        self.sets, self.lexicons, self.seed = list(sets), list(lexicons), seed
        self.chunk_size, self.overhead = chunk_size, overhead
        self.ensemble: TeacherEnsemble | None = None
        if objective.distils:
            self.ensemble = TeacherEnsemble(sets, teachers, objective)
        self.all_pairs = objective.all_pairs
        self.padding = padding_id(student.tokenizers["document"])
        self.tokens = [token_caches(data, student) for data in sets]
        self.known = [KnownPositives(data) for data in sets]
        self.ordinary_entries, self.vocabulary_size = student.ordinary_entries, len(student.head.weight)
        self.settings, self.encodes_queries = student.settings, student.encodes_queries
        self.bm25: list[Bm25OfSet] = []
        if objective.base == "bm25":
            self.bm25 = [Bm25OfSet(data) for data in sets]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> SparseBatch:
        at = items[0].at
        data, tokens, idf = self.sets[at], self.tokens[at], self.lexicons[at].idf
        batch = self.known[at].batch_documents(items, rank, world)
        query_tokens = [np.unique(ids) for ids in tokens["query"].rows([item.query for item in items])]
        share = len(batch.own)
        own_query_tokens = query_tokens[rank * share : (rank + 1) * share]
        document_tokens = [np.unique(ids) for ids in tokens["document"].rows(batch.documents)]
        entries, shares = self._sampled(items, [ids[idf[ids] > 0] for ids in query_tokens])
        targets = SparseTargets(
            query=torch.from_numpy(_at_entries(own_query_tokens, entries, idf)),
            candidates=torch.from_numpy(batch.candidates),
            excluded=torch.from_numpy(batch.excluded),
            present=torch.from_numpy(_at_entries(document_tokens, entries, np.ones(len(idf), dtype=bool))),
            shares=torch.from_numpy(shares),
        )
        if len(entries) < self.vocabulary_size:
            targets.entries = torch.from_numpy(entries)
        if self.bm25:
            targets.base = torch.from_numpy(self.bm25[at].scores([item.query for item in batch.own], batch.documents))
        if self.ensemble is not None and self.all_pairs:
            names = data.documents.ids
            # Other known positives, and second copies, are no candidates.
            targets.teacher = self.ensemble.of_documents(
                batch.own, [names[row] for row in batch.documents], excluded=targets.excluded
            )
        elif self.ensemble is not None:
            targets.teacher = self.ensemble.of_candidates(batch.own)
        parts = {"document": self._parts(tokens["document"].rows(batch.own_documents), targets.entries)}
        if self.encodes_queries:
            parts["query"] = self._parts(tokens["query"].rows([item.query for item in batch.own]), None)
        return SparseBatch(
            ids=[f"{data.name}/{data.queries.ids[item.query]}" for item in batch.own],
            parts=parts,
            targets=targets,
        )

    def _parts(self, texts: Sequence[npt.NDArray[np.int32]], entries: Tensor | None) -> list[SparsePart]:
        parts = padded_parts(texts, padding=self.padding, overhead=self.overhead, largest=self.chunk_size)
        return [SparsePart(part.input_ids, part.attention_mask, part.position, entries) for part in parts]

    def _sampled(self, items: Sequence[Drawn], queries: Sequence[npt.NDArray[Any]]) -> VocabularySample:
        if self.settings.head == "full":
            size = self.vocabulary_size
            return VocabularySample(np.arange(size), np.ones(size, dtype=np.float32))
        wanted = np.intersect1d(np.concatenate(queries), self.ordinary_entries)
        # The same in every process, and in a run that goes on: the batch is the seed.
        rng = np.random.default_rng([self.seed, items[0].at, *(item.query for item in items)])
        return sample_entries(wanted, self.ordinary_entries, self.settings.columns, rng)


class Bm25OfSet:
    """BM25 of a set's queries and documents by row, as an index of these documents scores them (`retrievers.bm25`)."""

    def __init__(self, data: TrainingData) -> None:
        self._queries = data.queries
        self._bm25 = BM25Retriever(data.documents.ids, data.documents.values())

    def scores(self, queries: Sequence[int], documents: Sequence[int]) -> npt.NDArray[np.float32]:
        """(queries, documents)."""
        texts = [self._queries.text_at(row) for row in queries]
        rows = np.asarray(documents, dtype=np.int64)
        return np.stack([scores[rows] for scores in self._bm25.scores(texts)])


def _at_entries(
    texts: Sequence[npt.NDArray[Any]], entries: npt.NDArray[np.int64], values: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """(texts, entries): of each entry that a text holds its value in `values`, (vocabulary,); of the others 0. Entries
    ascend."""
    result = np.zeros((len(texts), len(entries)), dtype=values.dtype)
    for row, ids in enumerate(texts):
        place = np.minimum(np.searchsorted(entries, ids), len(entries) - 1)
        there = entries[place] == ids
        result[row, place[there]] = values[ids[there]]
    return result


def collate(
    config: SparseConfig, sets: Sequence[TrainingData], student: SparseStudent, *, teachers: Sequence[Sequence[Teacher]]
) -> SparseCollate:
    """Batches for `student`, whose IDF is the student's, or each set's own."""
    size, tokenizer = len(student.head.weight), student.tokenizers["document"]
    own = config.student.idf == "own"
    return SparseCollate(
        sets,
        student,
        lexicons=[
            Lexicon.of([data.documents], tokenizer, size, config.student) if own else student.lexicon for data in sets
        ],
        teachers=teachers,
        chunk_size=config.training.chunk_size,
        overhead=PART_OVERHEAD[config.training.device_type],
        seed=config.training.seed,
    )
