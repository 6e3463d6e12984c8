"""Corpora, queries and models for the tests of query-as-context pre-training."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from tiny import WORDS  # noqa: E402

from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.loading import text_store  # noqa: E402
from trainers.query_as_context.context_models import ContextModel  # noqa: E402
from trainers.query_as_context.pairs import ContextPairs, usable_rows  # noqa: E402
from trainers.query_as_context.passages import read_passages, write_passages  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings, QueryAsContextConfig  # noqa: E402

MASK = 4  # [MASK] of the tiny tokenizer; [PAD], [UNK], [CLS], [SEP] are 0 to 3


def write_corpus(
    path: Path, *, articles: int = 12, passages: int = 3, seed: int = 0, words: Sequence[str] = WORDS
) -> Path:
    """Documents of one article each: `passages` sentences of 10 words, a line each, words that the article prefers."""
    drawn = random.Random(seed)
    with path.open("w") as file:
        for number in range(articles):
            own = drawn.sample(words, min(12, len(words)))
            text = "\n".join(" ".join(drawn.choices(own, k=10)) for _ in range(passages))
            file.write(json.dumps({"_id": f"d{number}", "title": f"Article {number}", "text": text}) + "\n")
    return path


def settings(corpus: Path, backbone: Path, output: Path, **changes: Any) -> QueryAsContextConfig:
    config = QueryAsContextConfig(
        output=output,
        corpora=[CorpusSettings(corpus)],
        backbone=str(backbone),
        passage_length=12,
        query_length=8,
        layers=1,
        dev_share=0.2,
        context="random-passage",
        training=TrainingSettings(steps=4, batch_size=8, learning_rate=1e-3, device="cpu"),
    )
    return replace(config, **changes)


def write_queries(config: QueryAsContextConfig, path: Path, *, words: int = 3, candidates: int = 2) -> Path:
    """Queries of the passages' own words, as `osn data generate-queries` writes them."""
    (file,) = write_passages(config)
    texts = text_store(file)
    with path.open("w") as target:
        target.write(json.dumps({"osn": "generated-queries", "format": 1, "documents": texts.hash}) + "\n")
        for identifier, text in texts.items():
            queries = [" ".join(text.split()[at : at + words]) for at in range(candidates)]
            line = {"_id": identifier, "queries": [{"text": one} for one in queries]}
            target.write(json.dumps(line) + "\n")
    return path


def with_queries(config: QueryAsContextConfig, path: Path) -> QueryAsContextConfig:
    file = write_queries(config, path)
    return replace(config, context="query", corpora=[replace(config.corpora[0], queries=file)])


def pairs_of(config: QueryAsContextConfig, model: ContextModel) -> ContextPairs:
    passages = read_passages(config)
    return ContextPairs(passages, model.tokenizer, config, usable_rows(passages, config)[0])


def batch_of(pairs: ContextPairs, count: int = 6) -> Any:
    return pairs.collate([pairs[Visit(at, 0, 0, 1)] for at in range(count)])


def model_of(model: ContextModel) -> Any:
    return model.model


def bert_of(model: ContextModel) -> Any:
    return model.model.bert
