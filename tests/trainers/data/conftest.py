"""Fixtures of data tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_files import beir


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    documents = {"d1": "cats purr", "d2": "dogs bark", "d3": "birds sing", "d4": "Cats purr!", "d5": "fish swim"}
    queries = {"q1": "what purrs", "q2": "what barks", "q3": "what sings", "q4": "what swims"}
    qrels = {
        "train": [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d3", 0), ("q3", "d3", 1)],
        "test": [("q4", "d5", 1), ("q3", "d3", 1)],
    }
    return beir(tmp_path / "animals", documents, queries, qrels)
