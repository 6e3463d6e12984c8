"""A tiny T5 and documents for the tests of query generation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from doc2query_setup import NOUNS, passage

from trainers.data.texts import TextStore
from trainers.encoders import backbones
from trainers.encoders.backbones import new_backbone, train_tokenizer
from trainers.encoders.settings import NewBackbone


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    texts = [f"{passage(noun, 1)} what is a {noun}" for noun in NOUNS]
    tokenizer = train_tokenizer(texts * 3, "byte-level", 460)
    torch.manual_seed(0)
    model = new_backbone(NewBackbone("t5", layers=1, hidden=32, heads=2, dropout=0.0), tokenizer)
    # Larger weights than usual, so that an untrained model is not indifferent between tokens.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    backbones.save(model, tokenizer, folder)
    return folder


@pytest.fixture
def documents() -> TextStore:
    return TextStore((f"d{i}", passage(NOUNS[i % len(NOUNS)], i) + " indeed" * (i % 3)) for i in range(10))
