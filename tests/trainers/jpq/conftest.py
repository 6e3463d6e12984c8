"""A tiny start, data set and configuration for JPQ's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
from jpq_setup import DOCUMENTS  # noqa: E402
from tiny import tiny_backbone, tiny_beir  # noqa: E402

from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqSet, NegativeSettings, QuantizerSettings  # noqa: E402


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny", dropout=0.1)


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny", documents=DOCUMENTS)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(backbone: Path, beir: Path, cache: Path, tmp_path: Path) -> JpqConfig:
    return JpqConfig(
        output=tmp_path / "model",
        train=[JpqSet(beir)],
        start=str(backbone),
        quantizer=QuantizerSettings(subvectors=4, rotation_iterations=1, learning_rate=1e-2),
        negatives=NegativeSettings(depth=20),
        dev=[JpqSet(beir, split="dev", name="dev")],
        training=TrainingSettings(
            steps=40, batch_size=16, learning_rate=3e-3, evaluate_every=20, log_every=5, device="cpu"
        ),
        cache=cache,
    )
