"""What the loop trains: a module that turns a batch into named loss terms, and writes itself as a model directory.

A method is one subclass. One whose loss is a sum over rows (masked LM, seq2seq) implements `forward`; one that compares
rows with each other (in-batch negatives) subclasses `grad_cache.CachedModel`, so that its batch may exceed memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.common.settings import TrainingSettings


@dataclass(slots=True)
class Losses:
    """A model's loss terms and measures of a batch, scalars by name."""

    terms: dict[str, Tensor]
    """with gradient, already weighted; the loss is their sum"""
    measures: dict[str, Tensor] = field(default_factory=dict)
    """to be logged, no more"""

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the terms."""
        return torch.stack([term.float() for term in self.terms.values()]).sum()


@dataclass(slots=True)
class TrainingProgress:
    """How far training is, in optimizer steps: for terms that are ramped up."""

    step: int = 0
    """those taken"""
    steps: int = 1
    """all that are to be taken"""

    @property
    def share(self) -> float:
        """The part of the steps that is taken."""
        return self.step / self.steps


def decay_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Optimizer groups of those that are trained: matrices, whose weights decay, and the rest, whose do not."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1]},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


class TrainingModel(nn.Module):
    """A method: batch in, loss terms out.

    `progress` is set by the loop before each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress = TrainingProgress()

    def forward(self, batch: Any) -> Losses:
        """batch: the method's own `batches.Batch`, as its collator makes it."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write the trained model into `folder`, which exists and is empty; `osn.json` is written by the loop."""
        raise NotImplementedError

    def parameter_groups(self, training: TrainingSettings) -> list[dict[str, Any]] | None:
        """Groups for the optimizer ({"params": …, "lr": …}) where a part has a learning rate of its own; else None."""
        return None
