"""A corpus and a tokenizer for the tests of masked language modelling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from masked_lm_setup import sentences


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [{"_id": str(i), "text": text, "url": f"https://x.org/{i}"} for i, text in enumerate(sentences(200))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
