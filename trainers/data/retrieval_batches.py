"""Batches of queries and documents for models that encode both: drawn examples become token ids and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trainers.common.batches import CachedBatch, Part, WholeBatchCollator
from trainers.common.objective import ObjectiveSettings, TeacherScores
from trainers.common.settings import ROLES, EncoderSettings, Role
from trainers.data.candidates import Drawn, KnownPositives
from trainers.data.examples import TrainingData
from trainers.data.teacher_ensemble import TeacherEnsemble
from trainers.data.teachers import Teacher
from trainers.data.tokenized import TokenCache, TokenIds, padded_parts, padding_id


@dataclass
class RetrievalTargets:
    """Which documents each query of a batch is compared with, and what is known of them.

    "documents" are those of all processes, as `gather` brings them together.
    """

    candidates: Tensor
    """(queries, 1 + negatives) int64, which of the documents are the query's own, the positive first"""
    lengths: Tensor
    """(own documents,) int64, in tokens"""
    excluded: Tensor
    """(queries, documents) bool, documents that are no negatives of a query"""
    teacher: TeacherScores | None = None
    """of the candidates, for distillation"""


class Tokenizing(Protocol):
    """What batches need to know of a model: how its texts become tokens."""

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


class RetrievalCollate(WholeBatchCollator):
    """Drawn examples to a batch. It sees the whole batch in every process, to know which of the gathered documents is
    which, and encodes its own share of it."""

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
        """chunk_size: rows of a part at most; overhead: what one more part costs, in tokens. teachers: of each set."""
        self.sets = list(sets)
        self.ensemble = TeacherEnsemble(sets, teachers, objective) if objective.distils else None
        self.chunk_size, self.overhead = chunk_size, overhead
        self.padding = {role: padding_id(model.tokenizers[role]) for role in ROLES}
        self.tokens = [token_caches(data, model) for data in sets]
        self.known = [KnownPositives(data) for data in sets]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> CachedBatch:
        """Roles: "query" and "document"; targets: RetrievalTargets."""
        at = items[0].at
        data, known, tokens = self.sets[at], self.known[at], self.tokens[at]
        batch = known.batch_documents(items, rank, world)
        queries = [item.query for item in batch.own]
        ids = {"query": tokens["query"].rows(queries), "document": tokens["document"].rows(batch.own_documents)}
        targets = RetrievalTargets(
            candidates=torch.from_numpy(batch.candidates),
            lengths=torch.tensor([len(document) for document in ids["document"]]),
            excluded=torch.from_numpy(batch.excluded),
        )
        if self.ensemble is not None:
            targets.teacher = self.ensemble.of_candidates(batch.own)
        return CachedBatch(
            ids=names(data, batch.own), parts={role: self.parts(role, ids[role]) for role in ROLES}, targets=targets
        )

    def parts(self, role: Role, texts: Sequence[TokenIds]) -> list[Part]:
        return padded_parts(texts, padding=self.padding[role], overhead=self.overhead, largest=self.chunk_size)


def names(data: TrainingData, items: Sequence[Drawn]) -> list[str]:
    """How messages name the examples of a batch."""
    return [f"{data.name}/{data.queries.ids[item.query]}" for item in items]
