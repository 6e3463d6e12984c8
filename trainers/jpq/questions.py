"""Training questions: which documents are relevant to each, and a batch of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from trainers.common.batches import Batch, Part
from trainers.common.sampling import Visit
from trainers.data.examples import TrainingData
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.sets import load_sets
from trainers.data.splits import hold_back, merge
from trainers.data.texts import TextStore
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.jpq.query_tower import QueryTower
from trainers.jpq.settings import JpqConfig

logger = logging.getLogger(__name__)


Rows = npt.NDArray[np.int64]


def prepare(config: JpqConfig, documents: int | None = None) -> tuple[TrainingData, list[TrainingData]]:
    """(train, dev): all train sets as one, less what `unseen` and dev ask; what is held back, and the sets of `dev`.

    documents: of each corpus so many, beside those that its questions need; all by default.
    """
    sets, dev = load_sets(config.train, config.unseen, config.dev, folder=config.folder, documents=documents)
    data = sets[0] if len(sets) == 1 else merge(sets)
    if config.selection.hold_back is not None:
        judged = [one.name for one, ranked in zip(data.sets, config.ranked, strict=True) if not ranked]
        data, held = hold_back(
            data,
            config.selection.hold_back,
            seed=config.training.seed,
            apart=config.selection.apart,
            sets=judged or None,
        )
        dev.append(held)
    for one in dev:
        data = without_leaks(data, find_leaks(data, one))
    if not len(data):
        raise InputError("nothing is left to train on: all questions are among those of dev or unseen")
    logger.info("train: %s, %d examples, %d documents", data.name, len(data), len(data.documents))
    return data, dev


def relevant_rows(data: TrainingData) -> list[Rows]:
    """For each example the rows of all documents known to be relevant to its query, or to one of the same text; copies
    of them by normalised text, too."""
    copies, queries = Copies(data.documents), data.queries.canonical().tolist()
    known: dict[int, set[int]] = {}
    for query, judged in zip(queries, data.judged, strict=True):
        known.setdefault(query, set()).update(judged.tolist())
    return [copies.of(np.array(sorted(known[queries[query]]))) for query in data.query_rows.tolist()]


class Copies:
    """Which documents have the same normalised text."""

    def __init__(self, documents: TextStore) -> None:
        self.keys = documents.canonical()
        self.order = np.argsort(self.keys, kind="stable")
        self.sorted = self.keys[self.order]

    def of(self, rows: npt.NDArray[Any]) -> Rows:
        """`rows` and all copies of them, ascending."""
        keys = np.unique(self.keys[rows])
        spans = zip(
            np.searchsorted(self.sorted, keys, "left"), np.searchsorted(self.sorted, keys, "right"), strict=True
        )
        found = np.concatenate([self.order[start:stop] for start, stop in spans])
        return np.sort(found).astype(np.int64)


class Question(NamedTuple):
    """What one example became at one visit: document rows that are relevant, and the one that the loss takes; ranked: by
    the uncompressed model's ranking."""

    example: int
    positive: int
    relevant: Rows
    ranked: bool = False


class JudgedData:
    """Each visit draws one of the judged documents."""

    def __init__(self, data: TrainingData) -> None:
        self.data, self.sets = data, data.sets
        self.relevant = relevant_rows(data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        positives = self.data.positives[visit.index]
        drawn = int(positives[visit.random().randrange(len(positives))])
        return Question(visit.index, drawn, self.relevant[visit.index])


class RankedData:
    """Each visit draws one of the uncompressed model's best documents; those that it ranks higher are no negatives.

    ranking: (examples, depth), document rows, best first, -1 where there are no more documents.
    """

    def __init__(self, data: TrainingData, ranking: Rows) -> None:
        self.data, self.sets, self.ranking = data, data.sets, ranking
        self.copies = Copies(data.documents)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        ranked = self.ranking[visit.index]
        ranked = ranked[ranked >= 0]
        at = visit.random().randrange(len(ranked))
        return Question(visit.index, int(ranked[at]), self.copies.of(ranked[: at + 1]), ranked=True)


class Questions:
    """Sets with judgements and sets without, each as it is."""

    def __init__(self, data: TrainingData, ranked: Sequence[bool], ranking: Rows) -> None:
        """ranked: of each of the data's sets; ranking: as RankedData's."""
        self.data, self.sets = data, data.sets
        self.judged_data, self.ranked_data = JudgedData(data), RankedData(data, ranking)
        self.by_ranking = np.zeros(len(data), bool)
        for one, by_ranking in zip(data.sets, ranked, strict=True):
            self.by_ranking[one.start : one.stop] = by_ranking

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        return self.ranked_data[visit] if self.by_ranking[visit.index] else self.judged_data[visit]


@dataclass
class JpqBatch(Batch):
    """Questions, and what is known of the documents for them."""

    parts: list[Part]
    """the questions' token ids"""
    positives: Tensor
    """(queries,) int64, rows of documents"""
    relevant: Tensor
    """(2, pairs) int64: (query of the batch, row of a document) that are relevant"""
    static: Tensor | None = None
    """(queries, depth) int64, rows of static negatives"""
    teacher: Tensor | None = None
    """(queries, D) float32, the start's vectors of questions whose relevant documents are its own ranking"""
    aligned: Tensor | None = None
    """(queries, D) float32, the start's vectors, which the query encoder is to stay near"""


class JpqCollate:
    """Questions to a batch."""

    def __init__(
        self,
        data: TrainingData,
        query: QueryTower,
        static: Rows | None,
        overhead: int,
        teacher: npt.NDArray[np.float32] | None = None,
        *,
        aligns: bool = False,
    ) -> None:
        """static: (examples, depth) document rows; teacher: (examples, D)."""
        self.data, self.static, self.overhead, self.teacher = data, static, overhead, teacher
        self.padding = int(query.tokenizer.pad_token_id or 0)
        self.aligns = aligns
        self.tokens = TokenCache(
            query.tokenizer, data.queries.text_at, max_length=query.max_length, prompt=query.prompt
        )

    def __call__(self, items: list[Question]) -> JpqBatch:
        examples = [one.example for one in items]
        queries = self.data.query_rows[examples].tolist()
        pairs = [np.stack([np.full(len(one.relevant), at), one.relevant]) for at, one in enumerate(items)]
        batch = JpqBatch(
            ids=[self.data.queries.ids[query] for query in queries],
            parts=padded_parts(self.tokens.rows(queries), padding=self.padding, overhead=self.overhead),
            positives=torch.tensor([one.positive for one in items]),
            relevant=torch.from_numpy(np.concatenate(pairs, axis=1)),
        )
        if self.static is not None:
            batch.static = torch.from_numpy(self.static[examples])
        # A batch is of one set: all or none of its questions are ranked.
        if self.teacher is not None and items[0].ranked:
            batch.teacher = torch.from_numpy(self.teacher[examples])
        if self.teacher is not None and self.aligns:
            batch.aligned = torch.from_numpy(self.teacher[examples])
        return batch
