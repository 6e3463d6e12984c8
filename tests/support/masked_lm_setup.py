"""Sentences and windows for the tests of masked language modelling."""

from __future__ import annotations

import random

import numpy as np

from trainers.encoders import backbones
from trainers.masked_lm.windows import Windows

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts that repeat one word or two: any of them tells a hidden one, which is soon learnt."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(rng.sample(WORDS, 2), [20, 1], k=rng.randrange(10, 25))) for _ in range(count)]


def windows_of(texts: list[str], tokenizer: backbones.PreTrainedTokenizerBase) -> Windows:
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    stops = np.cumsum([len(row) for row in rows])
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return Windows(ids, np.concatenate([[0], stops[:-1]]), stops, "0" * 16)
