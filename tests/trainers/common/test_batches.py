"""Batches: what a model gets is on its device, whatever a method's dataclasses hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from trainers.common.batches import CachedBatch, Part  # noqa: E402


@dataclass
class Targets:
    scores: Tensor
    taught: Tensor | None = None


def test_every_tensor_of_a_batch_moves_and_nothing_else_changes() -> None:
    part = Part(torch.ones(2, 3), torch.ones(2, 3), torch.arange(2))
    batch = CachedBatch(ids=["a", "b"], parts={"query": [part, part]}, targets=Targets(torch.zeros(2)))
    moved = batch.to(torch.device("meta"))
    parts = moved.parts["query"]
    tensors = [moved.targets.scores, *(tensor for part in parts for tensor in vars(part).values())]
    assert len(tensors) == 7 and all(tensor.device.type == "meta" for tensor in tensors)
    assert (type(moved), type(moved.targets), moved.ids) == (CachedBatch, Targets, ["a", "b"])
    assert moved.targets.taught is None
    assert batch.targets.scores.device.type == "cpu"
