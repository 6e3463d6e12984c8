"""Passages and settings for the tests of query generation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainers.doc2query.settings import GenerationSettings

NOUNS = ["cat", "dog", "bird", "fish", "snake", "horse", "goat", "mouse"]


def passage(noun: str, number: int) -> str:
    return f"{noun} {noun} {noun} number {number} lives here"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def small(model: Path, **changes: Any) -> GenerationSettings:
    settings = GenerationSettings(str(model), candidates=2, query_length=6, passage_length=24, batch_size=2)
    return replace(settings, **changes)
