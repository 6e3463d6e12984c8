"""Sequence-to-sequence training, shared by span corruption, doc2query and generative retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainers.common import losses
from trainers.common.batches import IGNORED, Batch
from trainers.common.sampling import Visit
from trainers.common.training_model import Losses, TrainingModel
from trainers.data.tokenized import mask_of, pad_rows
from trainers.encoders import backbones

EVALUATION_BATCH = 32


LabelledRow = tuple[str, Sequence[int] | npt.NDArray[np.integer], Sequence[int] | npt.NDArray[np.integer]]
"""The name, the input ids and the labels of one example."""


@dataclass
class LabelledBatch(Batch):
    """Token ids, and the tokens to predict from them."""

    input_ids: Tensor
    """(rows, length) int64"""
    attention_mask: Tensor
    """(rows, length) int64, 1 at tokens and 0 at padding"""
    labels: Tensor
    """(rows, target length) int64, −100 where nothing is to be predicted"""


def collate_rows(rows: Sequence[LabelledRow], padding: int | None) -> LabelledBatch:
    """Rows as a batch; padding: the tokenizer's id for padding."""
    names, inputs, labels = zip(*rows, strict=True)
    return LabelledBatch(
        ids=list(names),
        input_ids=pad_rows(inputs, padding or 0),
        attention_mask=mask_of(inputs),
        labels=pad_rows(labels, IGNORED),
    )


class SequenceToSequence(TrainingModel):
    """Trains with the cross-entropy of the target's tokens, the mean over the tokens of a batch."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def forward(self, batch: LabelledBatch) -> Losses:
        model: Any = self.model
        output = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            # Not `labels`: with them, the model would also compute its own loss.
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels=batch.labels),
            use_cache=False,
        )
        total, count = losses.masked_lm(output.logits, batch.labels)  # (rows, target length, vocabulary)
        return Losses({"cross_entropy": total / count.clamp(min=1)})

    def export(self, folder: Path) -> None:
        backbones.save(self.model, self.tokenizer, folder)


class Batched(Protocol):
    """Training data that makes its own batches."""

    def __len__(self) -> int: ...
    def __getitem__(self, visit: Visit, /) -> Any: ...
    def collate(self, items: Sequence[Any]) -> LabelledBatch: ...


@dataclass(frozen=True)
class Some:
    """At most `most` of the examples, evenly spaced."""

    data: Batched
    """all examples, by index"""
    most: int
    """how many examples are left"""

    def __len__(self) -> int:
        return min(self.most, len(self.data))

    def __getitem__(self, visit: Visit) -> Any:
        return self.data[replace(visit, index=visit.index * len(self.data) // len(self))]

    def collate(self, items: Sequence[Any]) -> LabelledBatch:
        return self.data.collate(items)


def _batches(model: TrainingModel, data: Batched) -> Iterator[LabelledBatch]:
    """All of `data` in batches, the same at each call, on the model's device."""
    device = next(model.parameters()).device
    for start in range(0, len(data), EVALUATION_BATCH):
        visits = [Visit(at, 0, 0, 0) for at in range(start, min(start + EVALUATION_BATCH, len(data)))]
        yield data.collate([data[visit] for visit in visits]).to(device)


@torch.inference_mode()
def share_written(module: SequenceToSequence, data: Batched) -> float:
    """The share of examples whose target the model writes exactly, by greedy decoding."""
    right = 0
    for batch in _batches(module, data):
        labels, model = batch.labels, cast(Any, module.model)
        ids = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            do_sample=False,
            num_beams=1,
            max_new_tokens=labels.shape[1],
        )
        # The first token is the start token.
        written = torch.full_like(labels, IGNORED)
        written[:, : ids.shape[1] - 1] = ids[:, 1:]
        right += int(((written == labels) | (labels == IGNORED)).all(dim=1).sum())
    return right / max(len(data), 1)


def log_likelihood(model: TrainingModel, data: Batched) -> float:
    """The mean log-likelihood of the tokens to predict in all of `data`, drawn the same at each call; higher is better.

    The model's loss must be a mean over these tokens.
    """
    total, count = 0.0, 0
    for batch in _batches(model, data):
        tokens = int((batch.labels != IGNORED).sum())
        total -= float(model(batch).total.detach()) * tokens
        count += tokens
    return total / max(count, 1)
