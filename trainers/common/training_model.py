"""The module that the loop trains: it turns a batch into named loss terms, and writes itself as a model directory.

A method is one subclass. If its loss is a sum over rows (masked LM, seq2seq), it implements `forward`. If its loss compares
rows with each other (in-batch negatives), it subclasses `grad_cache.CachedModel`, so that its batch may exceed memory.
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
    """Loss terms and measures of a batch, scalars by name."""

    terms: dict[str, Tensor]
    """with gradient, already weighted; the loss is their sum"""
    measures: dict[str, Tensor] = field(default_factory=dict)
    """only logged"""

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the terms."""
        return torch.stack([term.float() for term in self.terms.values()]).sum()


@dataclass(slots=True)
class TrainingProgress:
    """How far training is, in optimizer steps: for terms whose weight rises during training."""

    step: int = 0
    """steps done"""
    steps: int = 1
    """all steps of the training"""

    @property
    def share(self) -> float:
        """The share of the steps that is done."""
        return self.step / self.steps


def decay_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Optimizer groups of the trained parameters: matrices, with weight decay, and the others, without."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1]},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


class TrainingModel(nn.Module):
    """A method: batch in, loss terms out.

    The loop sets `progress` before each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress = TrainingProgress()

    def forward(self, batch: Any) -> Losses:
        """batch: the method's own `batches.Batch`, as its collator makes it."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write the trained model into `folder`, which exists and is empty; the loop writes `osn.json`."""
        raise NotImplementedError

    def parameter_groups(self, training: TrainingSettings) -> list[dict[str, Any]] | None:
        """Optimizer groups ({"params": …, "lr": …}) if a part has a learning rate of its own; else None."""
        return None
