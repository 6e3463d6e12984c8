"""Batches and models for JPQ's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")

from trainers.common.sampling import Visit  # noqa: E402
from trainers.jpq.jpq_model import JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation  # noqa: E402
from trainers.jpq.questions import JpqBatch, JpqCollate, TrainingQuestions  # noqa: E402

DOCUMENTS = 280


def batch_of(ready: Preparation, count: int = 8, teacher: Any = None) -> JpqBatch:
    data = TrainingQuestions(ready.data, (False,) * len(ready.data.sets))
    items = [data[Visit(index, 0, 0, 7)] for index in range(count)]
    aligns = ready.config.alignment > 0
    return JpqCollate(ready.data, ready.model.query, 16, teacher=teacher, aligns=aligns)(items)


def moved(model: JpqModel, seed: int = 3) -> JpqModel:
    """`model` with scoring centroids that are no longer those that code."""
    torch.manual_seed(seed)
    with torch.no_grad():
        model.scoring += 0.3 * torch.randn_like(model.scoring)
    return model


def replace_scoring(model: JpqModel) -> Any:
    return replace(model.quantizer, scoring=model.scoring.detach().numpy())
