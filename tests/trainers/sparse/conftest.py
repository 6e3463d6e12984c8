"""Fixtures of sparse tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import WORDS, tiny_backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture
def worded(tmp_path: Path) -> Path:
    """A corpus without judgements, of words that the tiny backbone knows."""
    path = tmp_path / "docs.jsonl"
    records = [
        {
            "_id": f"w{at}",
            "title": " ".join(WORDS[at : at + 3]),
            "text": f"{' '.join(WORDS[at : at + 5])}. {' '.join(WORDS[20 + at : 40 + at])}",
        }
        for at in range(16)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
