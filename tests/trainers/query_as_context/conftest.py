"""A tiny backbone and corpus for the tests of query-as-context pre-training."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from query_as_context_setup import write_corpus  # noqa: E402
from tiny import tiny_backbone  # noqa: E402

from trainers.encoders import backbones  # noqa: E402


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a masked-LM head, four layers."""
    folder = tmp_path_factory.mktemp("backbone")
    model, tokenizer, _ = backbones.masked_language_model(tiny_backbone(folder / "bare", layers=4))
    backbones.save(model, tokenizer, folder / "mlm")
    return folder / "mlm"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "articles.jsonl")
