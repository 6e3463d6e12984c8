"""Training questions: their relevant documents, and batches of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from trainers.common.batches import Batch, Part
from trainers.common.sampling import Visit
from trainers.data.candidates import KnownPositives
from trainers.data.examples import TrainingData
from trainers.data.leaks import without_questions_of
from trainers.data.sets import load_sets
from trainers.data.splits import hold_back, merge, withholding
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.jpq.query_tower import QueryTower
from trainers.jpq.settings import JpqConfig

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]
"""Rows of documents in a `TextStore`."""


def load_data(config: JpqConfig, documents: int | None = None) -> tuple[TrainingData, list[TrainingData]]:
    """(train, dev). train: all train sets merged, without the questions of `unseen` and dev; it withholds the documents of
    held-back questions if these are to be apart. dev: the sets of `dev`, then the held-back questions.

    documents: how many to read of each corpus, besides those of its questions; None reads all.
    """
    sets, dev = load_sets(config.train, config.unseen, config.dev, folder=config.folder, documents=documents)
    data = sets[0] if len(sets) == 1 else merge(sets)
    if config.selection.hold_back is not None:
        judged = [part.name for part, ranked in zip(data.sets, config.ranked, strict=True) if not ranked]
        data, held_back = hold_back(
            data,
            config.selection.hold_back,
            seed=config.training.seed,
            apart=config.selection.apart,
            sets=judged or None,
        )
        if config.selection.apart == "documents" and config.lambda_rank:  # Without LambdaRank there are no negatives.
            data = withholding(data, [held_back])
        dev.append(held_back)
    data = without_questions_of(data, dev)
    if not len(data):
        raise InputError("nothing is left to train on: all questions are among those of dev or unseen")
    logger.info("train: %s, %d examples, %d documents", data.name, len(data), len(data.documents))
    return data, dev


def relevant_rows(data: TrainingData) -> list[Rows]:
    """For each example, the rows of all documents judged relevant to its query or a query with the same text, and of
    their copies."""
    positives = KnownPositives(data)
    return [data.documents.copies(positives.known(query)) for query in data.query_rows.tolist()]


def own_rows(data: TrainingData) -> list[Rows]:
    """For each example, the row of the document that its query is, as in ArguAna and Quora; empty for most."""
    own = data.own_documents
    return [np.array([own[query]] if query in own else [], np.int64) for query in data.query_rows.tolist()]


class Question(NamedTuple):
    """An example at one visit; documents are rows."""

    example: int
    """its row in the data"""
    positive: int
    """the document that was drawn as positive"""
    relevant: Rows
    """documents that must not be negatives, with the positive and, if the query is a document itself, that document"""
    ranked: bool
    """whether relevance comes from the uncompressed model's ranking"""


class TrainingQuestions:
    """The training examples; each visit draws a relevant document.

    In a judged set it is one of the judged documents. In a ranked set it is one of the uncompressed model's best;
    documents that this model ranks higher are then not negatives.
    """

    def __init__(self, data: TrainingData, ranked: Sequence[bool], ranking: Rows | None = None) -> None:
        """ranked: one value per set of the data. ranking: (examples, depth) document rows, best first, -1 beyond the last
        document; needed if any set is ranked."""
        self.data, self.sets, self.ranking = data, data.sets, ranking
        self.judged, self.own = relevant_rows(data), own_rows(data)
        self.by_ranking = np.zeros(len(data), bool)
        for part, by_ranking in zip(data.sets, ranked, strict=True):
            self.by_ranking[part.start : part.stop] = by_ranking

    def __len__(self) -> int:
        return len(self.data)

    def no_negatives(self, *, asked_only: bool) -> Rows:
        """The rows of documents that are no negatives of any question: those that the data withholds, and if `asked_only`
        all that no question is about, by judgement or ranking."""
        if not asked_only:
            return self.data.withheld
        about = [*self.judged]
        if self.ranking is not None:
            best = self.ranking[self.by_ranking]
            about.append(self.data.documents.copies(best[best >= 0]))
        not_asked = np.ones(len(self.data.documents), bool)
        not_asked[np.concatenate(about)] = False
        not_asked[self.data.withheld] = True
        return np.flatnonzero(not_asked)

    def __getitem__(self, visit: Visit) -> Question:
        index = visit.index
        if not self.by_ranking[index]:
            positives = self.data.positives[index]
            drawn = int(positives[visit.random().randrange(len(positives))])
            return Question(index, drawn, np.union1d(self.judged[index], self.own[index]), ranked=False)
        assert self.ranking is not None
        best = self.ranking[index]
        best = best[best >= 0]
        at = visit.random().randrange(len(best))
        relevant = self.data.documents.copies(best[: at + 1])
        return Question(index, int(best[at]), np.union1d(relevant, self.own[index]), ranked=True)


@dataclass
class JpqBatch(Batch):
    """Questions and their relevant documents."""

    parts: list[Part]
    """the questions' token ids"""
    positives: Tensor
    """(queries,) int64, the row of each question's positive document"""
    relevant: Tensor
    """(2, pairs) int64, relevant pairs: query of the batch, row of the document"""
    teacher: Tensor | None = None
    """(queries, D) float32, the start's vectors of the questions if relevance comes from its ranking; else None"""
    aligned: Tensor | None = None
    """(queries, D) float32, the start's vectors of the questions, the target of alignment; None without alignment"""


class JpqCollate:
    """Makes a batch of questions."""

    def __init__(
        self,
        data: TrainingData,
        query: QueryTower,
        overhead: int,
        *,
        teacher: npt.NDArray[np.float32] | None = None,
        aligns: bool = False,
    ) -> None:
        """overhead: the cost of one more part, in tokens. teacher: (examples, D), the start's vectors of the questions.
        aligns: whether the loss has the alignment term."""
        self.data, self.overhead, self.teacher, self.aligns = data, overhead, teacher, aligns
        self.padding = int(query.tokenizer.pad_token_id or 0)
        self.tokens = TokenCache(
            query.tokenizer, data.queries.text_at, max_length=query.max_length, prompt=query.prompt
        )

    def __call__(self, items: list[Question]) -> JpqBatch:
        examples = [item.example for item in items]
        queries = self.data.query_rows[examples].tolist()
        pairs = [np.stack([np.full(len(item.relevant), at), item.relevant]) for at, item in enumerate(items)]
        taught = None if self.teacher is None else torch.from_numpy(self.teacher[examples])
        return JpqBatch(
            ids=[self.data.queries.ids[query] for query in queries],
            parts=padded_parts(self.tokens.rows(queries), padding=self.padding, overhead=self.overhead),
            positives=torch.tensor([item.positive for item in items]),
            relevant=torch.from_numpy(np.concatenate(pairs, axis=1)),
            # A batch is from one set: all of its questions are ranked, or none.
            teacher=taught if items[0].ranked else None,
            aligned=taught if self.aligns else None,
        )
