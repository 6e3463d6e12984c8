"""From drawn examples to token ids and targets: what all collators share (`DrawnTexts`), and the collator of models that
encode queries and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trainers.common.batches import CachedBatch, Part, WholeBatchCollator
from trainers.common.objective import TeacherScores
from trainers.common.settings import ROLES, EncoderSettings, ObjectiveSettings, Role
from trainers.data.candidates import Drawn, KnownPositives
from trainers.data.examples import TrainingData
from trainers.data.teacher_ensemble import TeacherEnsemble
from trainers.data.teacher_scores import Teacher
from trainers.data.tokenized import TokenCache, TokenIds, padded_parts, padding_id


@dataclass
class RetrievalTargets:
    """The documents that each query of a batch is compared with, and their labels.

    "documents" are the documents of all processes, in the order of `gather`.
    """

    candidates: Tensor
    """(queries, 1 + negatives) int64, the rows of the query's own documents, the positive first"""
    lengths: Tensor
    """(own documents,) int64, lengths in tokens"""
    excluded: Tensor
    """(queries, documents) bool, True for documents that must not count as negatives of a query"""
    teacher: TeacherScores | None = None
    """scores of the candidates, for distillation; else None"""


class Tokenizing(Protocol):
    """The part of a model that batches need: how it tokenizes texts."""

    tokenizers: dict[Role, PreTrainedTokenizerBase]
    encoder_settings: EncoderSettings


def token_caches(data: TrainingData, model: Tokenizing) -> dict[Role, TokenCache]:
    """The token ids of a set's queries and documents, as `model` reads them."""
    text_at = {"query": data.queries.text_at, "document": data.documents.text_at}
    return {
        role: TokenCache(
            model.tokenizers[role],
            text_at[role],
            max_length=model.encoder_settings.length(role),
            prompt=model.encoder_settings.prompt(role),
        )
        for role in ROLES
    }


class DrawnTexts:
    """What collators of drawn examples need of each set: its token ids, its known positives, its teachers' scores."""

    def __init__(
        self,
        sets: Sequence[TrainingData],
        model: Tokenizing,
        objective: ObjectiveSettings,
        *,
        chunk_size: int | None,
        overhead: int,
        teachers: Sequence[Sequence[Teacher]] = (),
    ) -> None:
        """chunk_size: the most rows in a part; overhead: the cost of one more part, in tokens; teachers: a list per set."""
        self.sets = list(sets)
        self.tokens = [token_caches(data, model) for data in sets]
        self.known = [KnownPositives(data) for data in sets]
        self.ensemble = TeacherEnsemble(sets, teachers, objective) if objective.distils else None
        """None: no term of the loss asks teachers"""
        self._padding = {role: padding_id(model.tokenizers[role]) for role in ROLES}
        self._chunk_size, self._overhead = chunk_size, overhead

    def parts(self, role: Role, texts: Sequence[TokenIds]) -> list[Part]:
        return padded_parts(texts, padding=self._padding[role], overhead=self._overhead, largest=self._chunk_size)


class RetrievalCollate(WholeBatchCollator):
    """Makes a batch of drawn examples. Every process sees the whole batch, to know the order of the gathered documents, but
    encodes only its share."""

    def __init__(self, texts: DrawnTexts) -> None:
        self.texts = texts

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> CachedBatch:
        """Roles: "query" and "document"; targets: RetrievalTargets."""
        at, texts = items[0].at, self.texts
        tokens = texts.tokens[at]
        batch = texts.known[at].batch_documents(items, rank, world)
        queries = [item.query for item in batch.own]
        ids = {"query": tokens["query"].rows(queries), "document": tokens["document"].rows(batch.own_documents)}
        targets = RetrievalTargets(
            candidates=torch.from_numpy(batch.candidates),
            lengths=torch.tensor([len(document) for document in ids["document"]]),
            excluded=torch.from_numpy(batch.excluded),
        )
        if texts.ensemble is not None:
            targets.teacher = texts.ensemble.of_candidates(batch.own)
        parts: dict[str, list[Part]] = {role: texts.parts(role, ids[role]) for role in ROLES}
        return CachedBatch(ids=names(texts.sets[at], batch.own), parts=parts, targets=targets)


def names(data: TrainingData, items: Sequence[Drawn]) -> list[str]:
    """The names of examples in messages."""
    return [f"{data.name}/{data.queries.ids[item.query]}" for item in items]
