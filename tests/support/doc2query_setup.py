"""Passages and settings for the tests of query generation."""

from __future__ import annotations

import json
from pathlib import Path

from trainers.doc2query.settings import Sampling

NOUNS = ["cat", "dog", "bird", "fish", "snake", "horse", "goat", "mouse"]


def passage(noun: str, number: int) -> str:
    return f"{noun} {noun} {noun} number {number} lives here"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SMALL = Sampling(candidates=2, query_length=6, passage_length=24, batch_size=2)
