"""What all trainer tests share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def pytest_configure() -> None:
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        # Models here are so small that a second thread costs more than it does.
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def word_pieces() -> PreTrainedTokenizerBase:
    """A tokenizer of word pieces."""
    from masked_lm_setup import sentences

    from trainers.encoders.backbones import train_tokenizer

    return train_tokenizer(sentences(50), "wordpiece", 60)


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerBase:
    """A tokenizer that gives every text back."""
    from masked_lm_setup import sentences

    from trainers.encoders.backbones import train_tokenizer

    urls = [f"https://en.wikipedia.org/wiki/Topic_{number}" for number in range(30)]
    return train_tokenizer([*sentences(50), *urls], "byte-level", 600)


@pytest.fixture(scope="session")
def headless(tmp_path_factory: pytest.TempPathFactory, word_pieces: PreTrainedTokenizerBase) -> Path:
    """A BERT encoder as all-MiniLM-L6-v2 is one: without a masked-LM head."""
    import torch

    from trainers.encoders import backbones
    from trainers.encoders.settings import NewBackbone

    folder = tmp_path_factory.mktemp("headless")
    torch.manual_seed(3)
    new = NewBackbone(layers=1, hidden=16, heads=2)
    backbones.save(backbones.new_backbone(new, word_pieces).bert, word_pieces, folder)
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer of three layers, without a masked-LM head."""
    from tiny import tiny_backbone

    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny", layers=3)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with judgements on 60 documents."""
    from tiny import tiny_beir

    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny")
