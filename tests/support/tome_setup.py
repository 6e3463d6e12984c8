"""A configuration for TOME's tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from opensearch_neural.models.generative.settings import GenerativeSettings  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.settings import SetSettings  # noqa: E402
from trainers.tome.settings import TomeConfig  # noqa: E402

SMALL = GenerativeSettings(query_length=16, passage_length=8, title_length=4, url_length=24)
ANIMALS = ["cat", "dog", "bird", "fish", "snake", "horse", "goat", "mouse"]


def config_for(output: Path, zoo: Path, t5: Path, steps: int = 2, **changes: object) -> TomeConfig:
    training = TrainingSettings(steps=steps, batch_size=16, learning_rate=1e-2, warmup=5, evaluate_every=1000)
    return replace(
        TomeConfig(
            output=output,
            corpus=zoo,
            backbone=str(t5),
            queries=[SetSettings(zoo)],
            settings=GenerativeSettings(query_length=16, passage_length=8, title_length=4, url_length=24),
            dev_share=0.0,
            training=training,
            url_training=training,
        ),
        **changes,  # type: ignore[arg-type]
    )
