"""What the loop trains: a module that turns a batch into named loss terms, and writes itself as a model directory.

A method is one subclass. One whose loss is a sum over rows (masked LM, seq2seq) implements `forward`; one that compares
rows with each other (in-batch negatives) subclasses `grad_cache.CachedModel`, so that its batch may exceed memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from trainers.common.loop import TrainingSettings

Batch = dict[str, Any]
"""What `collate` makes: "ids" (a list of str, for messages) and tensors, or dicts and lists of tensors."""


@dataclass(slots=True)
class Losses:
    """terms: scalars with gradient, already weighted; the loss is their sum. measures: scalars to be logged, no more."""

    terms: dict[str, Tensor]
    measures: dict[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the terms."""
        return torch.stack([term.float() for term in self.terms.values()]).sum()


@dataclass(slots=True)
class Progress:
    """How far training is, in optimizer steps: for terms that are ramped up."""

    step: int = 0
    steps: int = 1

    @property
    def share(self) -> float:
        return min(1.0, self.step / max(1, self.steps))


def decay_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Optimizer groups of those that are trained: matrices, whose weights decay, and the rest, whose do not."""
    trained = [one for one in parameters if one.requires_grad]
    return [
        {"params": [one for one in trained if one.ndim > 1]},
        {"params": [one for one in trained if one.ndim <= 1], "weight_decay": 0.0},
    ]


class TrainingModel(nn.Module):
    """A method: batch in, loss terms out.

    `progress` is set by the loop before each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress()

    def forward(self, batch: Batch) -> Losses:
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write the trained model into `folder`, which exists and is empty; `osn.json` is written by the loop."""
        raise NotImplementedError

    def parameter_groups(self, settings: TrainingSettings) -> list[dict[str, Any]] | None:
        """Groups for the optimizer ({"params": …, "lr": …}) where a part has a learning rate of its own; else None."""
        return None
