"""A tiny sparse student, its configuration and a batch of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny import WORDS

from trainers.common.sampling import Visit
from trainers.common.settings import TrainingSettings
from trainers.data.candidates import RetrievalData
from trainers.doc2query.question_sets import QuestionSet
from trainers.sparse.batches import SparseCollate
from trainers.sparse.settings import (
    RegularizationSettings,
    SparseCandidates,
    SparseConfig,
    SparseObjective,
    StudentSettings,
    WarmUpSettings,
)
from trainers.sparse.stage_data import teachers
from trainers.sparse.start import build
from trainers.sparse.student import SparseBatch, SparseStudent
from trainers.sparse.warm_up import calibrate

SMALL = StudentSettings(document_length=32, query_length=16, columns=16)
TEXTS = ["bab dek fin", "gol kuz lab mek nin pol ruz", "sab sab sab", " ".join(WORDS[:50]), ""]


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> SparseConfig:
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [QuestionSet(beir)],
        "student": StudentSettings(document_length=32, query_length=16, columns=16),
        "warm_up": WarmUpSettings(expansions=5),
        "objective": SparseObjective(info_nce=1.0, kl=0.0),
        "candidates": SparseCandidates(negatives=1, mine=None),
        "regularization": RegularizationSettings(weight=1e-3),
        "document_length": 32,
        "training": TrainingSettings(steps=4, batch_size=8, learning_rate=3e-3, evaluate_every=4, log_every=2),
    }
    return SparseConfig(**(plain | changes))


def student(config: SparseConfig) -> SparseStudent:
    """The untrained student, every weight moved so that one that export forgets shows, some hundred terms active."""
    model = build(config, [config.train[0].load().documents]).eval()
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    calibrate(model, TEXTS[:2], expansions=10, weight=0.5)
    return model


def batch_of(config: SparseConfig, model: SparseStudent, size: int = 6) -> SparseBatch:
    sets = [config.train[0].load()]
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=10)
    made = SparseCollate(config, sets, model, teachers=teachers(config, sets))
    return made([data[Visit(index, 0, 0, 1)] for index in range(size)])
