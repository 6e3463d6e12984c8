"""The configuration of a tiny bi-encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import WORDS

from trainers.common.settings import EncoderSettings, TrainingSettings
from trainers.data.settings import SetSettings
from trainers.dense.settings import DenseConfig

TEXTS = ["bab dek", "fin gol kuz lab mek nin pol ruz", "sab", " ".join(WORDS[:50])]


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> DenseConfig:
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [SetSettings(beir)],
        "encoder": EncoderSettings(query_length=16, document_length=32),
        "training": TrainingSettings(steps=20, batch_size=8, learning_rate=3e-3, evaluate_every=10, log_every=5),
    }
    return DenseConfig(**(plain | changes))
