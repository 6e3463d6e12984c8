"""Batches for the sparse student: queries as weighted vocabulary entries (or as token ids), documents as token ids,
teachers' scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opensearch_neural.retrievers.bm25 import BM25Retriever
from trainers.common.batches import WholeBatchCollator
from trainers.data.candidates import Drawn
from trainers.data.examples import TrainingData
from trainers.data.retrieval_batches import DrawnTexts, names
from trainers.data.teacher_scores import Teacher
from trainers.data.tokenized import PART_OVERHEAD
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import SparseConfig
from trainers.sparse.student import SparseBatch, SparsePart, SparseStudent, SparseTargets
from trainers.sparse.tiled_head import VocabularySample, sample_entries


class SparseCollate(WholeBatchCollator):
    """Makes batches of drawn examples. Their vocabulary entries are the query tokens and a sample of the others, or all."""

    def __init__(
        self,
        config: SparseConfig,
        sets: Sequence[TrainingData],
        student: SparseStudent,
        *,
        teachers: Sequence[Sequence[Teacher]] = (),
    ) -> None:
        """Batches for `student`, with the student's IDF or each set's own."""
        objective, training = config.objective, config.training
        overhead = PART_OVERHEAD[training.device_type]
        self.texts = DrawnTexts(
            sets, student, objective, chunk_size=training.chunk_size, overhead=overhead, teachers=teachers
        )
        self.settings, self.seed = student.settings, training.seed
        self.ordinary_entries, self.vocabulary_size = student.ordinary_entries, len(student.head.weight)
        self.all_pairs, self.encodes_queries = objective.all_pairs, student.encodes_queries
        self.idf = [student.first_lexicon.idf] * len(sets)
        if config.student.idf == "own":
            tokenizer, size = student.tokenizers["document"], self.vocabulary_size
            self.idf = [Lexicon.of([data.documents], tokenizer, size, config.student).idf for data in sets]
        self.bm25: list[BM25Retriever] = []
        if objective.base == "bm25":
            settings = asdict(config.bm25)
            self.bm25 = [BM25Retriever(data.documents.ids, data.documents.values(), **settings) for data in sets]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> SparseBatch:
        at, texts = items[0].at, self.texts
        data, tokens, idf = texts.sets[at], texts.tokens[at], self.idf[at]
        batch = texts.known[at].batch_documents(items, rank, world)
        query_tokens = [np.unique(ids) for ids in tokens["query"].rows([item.query for item in items])]
        share = len(batch.own)
        own_query_tokens = query_tokens[rank * share : (rank + 1) * share]
        document_tokens = [np.unique(ids) for ids in tokens["document"].rows(batch.documents)]
        entries, entry_counts = self._sampled(items, [ids[idf[ids] > 0] for ids in query_tokens])
        targets = SparseTargets(
            query=torch.from_numpy(_at_entries(own_query_tokens, entries, idf)),
            candidates=torch.from_numpy(batch.candidates),
            excluded=torch.from_numpy(batch.excluded),
            present=torch.from_numpy(_at_entries(document_tokens, entries, np.ones(len(idf), dtype=bool))),
            entry_counts=torch.from_numpy(entry_counts),
        )
        if len(entries) < self.vocabulary_size:
            targets.entries = torch.from_numpy(entries)
        if self.bm25:
            scores = self.bm25[at].scores([data.queries.text_at(item.query) for item in batch.own])
            targets.base = torch.from_numpy(np.stack([of_query[batch.documents] for of_query in scores]))
        if texts.ensemble is not None and self.all_pairs:
            ids = data.documents.ids
            # Other known positives, and copies of the positive, are not candidates.
            targets.teacher = texts.ensemble.of_documents(
                batch.own, [ids[row] for row in batch.documents], excluded=targets.excluded
            )
        elif texts.ensemble is not None:
            targets.teacher = texts.ensemble.of_candidates(batch.own)
        documents = texts.parts("document", tokens["document"].rows(batch.own_documents))
        parts = {"document": [SparsePart(**vars(part), entries=targets.entries) for part in documents]}
        if self.encodes_queries:
            queries = texts.parts("query", tokens["query"].rows([item.query for item in batch.own]))
            parts["query"] = [SparsePart(**vars(part)) for part in queries]
        return SparseBatch(ids=names(data, batch.own), parts=parts, targets=targets)

    def _sampled(self, items: Sequence[Drawn], queries: Sequence[npt.NDArray[Any]]) -> VocabularySample:
        if self.settings.head == "full":
            size = self.vocabulary_size
            return VocabularySample(np.arange(size), np.ones(size, dtype=np.float32))
        of_queries = np.intersect1d(np.concatenate(queries), self.ordinary_entries)
        # The batch is the seed: the sample is the same in every process and in a resumed run.
        rng = np.random.default_rng([self.seed, items[0].at, *(item.query for item in items)])
        return sample_entries(of_queries, self.ordinary_entries, self.settings.columns, rng)


def _at_entries(
    texts: Sequence[npt.NDArray[Any]], entries: npt.NDArray[np.int64], values: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """(texts, entries): the value, from `values` (vocabulary,), of each entry that is in the text, else 0. `entries`
    ascends."""
    result = np.zeros((len(texts), len(entries)), dtype=values.dtype)
    for row, ids in enumerate(texts):
        place = np.minimum(np.searchsorted(entries, ids), len(entries) - 1)
        there = entries[place] == ids
        result[row, place[there]] = values[ids[there]]
    return result
