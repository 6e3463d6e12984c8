"""`osn train doc2query`: trains a model that writes queries for passages, on pairs of both.

    osn train doc2query --backbone models/t5 --set data=[squad-mix] --output models/doc2query

docT5query (Nogueira & Lin, 2019): a sequence-to-sequence model reads a passage and writes a query. A small generator's
queries are often fluent but unrelated to the passage: `passage_words.py` makes the passage's words more likely, by a weight
that training fits on held-back pairs and records in osn.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from opensearch_neural.encodable import encodable
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.loop import train
from trainers.common.run_folder import check_output
from trainers.common.sampling import Visit
from trainers.data.examples import TrainingData
from trainers.data.leaks import without_questions_of
from trainers.data.loading import TRAIN, load_training
from trainers.data.splits import hold_back, merge
from trainers.doc2query.generate import KIND
from trainers.doc2query.passage_words import Copying, copying_of, fitted
from trainers.doc2query.settings import COPYING, Doc2QueryConfig
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import (
    LabelledBatch,
    LabelledRow,
    SequenceToSequence,
    collate_rows,
    log_likelihood,
)

REHEARSED = 50
"""Examples of each data set in a dry run."""


@dataclass
class QueryPairs:
    """Passage to query: each visit draws one positive of the example as the passage."""

    data: TrainingData
    """the examples, with their positives as passages"""
    tokenizer: PreTrainedTokenizerBase
    """of the generator, for passages and queries"""
    config: Doc2QueryConfig
    """lengths and prefix of the texts"""

    @property
    def sets(self) -> Any:
        return self.data.sets

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each example's first passage: precise enough for bucketing by length."""
        first = self.data.positives.values[self.data.positives.offsets[:-1]]
        return self.data.documents.sizes()[first]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> LabelledRow:
        example, config = self.data.example(visit.index), self.config
        passage = encodable(config.prefix + self.data.documents[visit.random().choice(example.positives)])
        query = encodable(example.query)
        inputs = self.tokenizer(passage, truncation=True, max_length=config.passage_length)["input_ids"]
        target = self.tokenizer(text_target=query, truncation=True, max_length=config.query_length)["input_ids"]
        return example.query_id, inputs, target

    def collate(self, items: Sequence[LabelledRow]) -> LabelledBatch:
        return collate_rows(items, self.tokenizer.pad_token_id)


def read_data(config: Doc2QueryConfig, limit: int | None = None) -> tuple[TrainingData, TrainingData | None]:
    """(train, dev): the pairs without the questions of `unseen`, split by document. limit: examples of each set."""

    def split(path: Path, name: str) -> str:
        return name if path.is_dir() else TRAIN  # Only a BEIR folder has splits.

    sets = [load_training(path, split=split(path, config.split), limit=limit) for path in config.data]
    unseen = [load_training(path, split=split(path, "test")) for path in config.unseen]
    sets = [without_questions_of(data, unseen) for data in sets]
    data = merge(sets) if len(sets) > 1 else sets[0]
    if not config.dev_share:
        return data, None
    return hold_back(data, config.dev_share, seed=config.training.seed)


def train_doc2query(config: Doc2QueryConfig, *, limit: int | None = None) -> Path:
    """Train as `config` says; returns the model directory. limit: examples of each data set (for a dry run)."""
    check_output(config.output, KIND)
    torch.manual_seed(config.training.seed)
    if backbones.is_sequence_to_sequence(config.backbone):
        model, tokenizer = backbones.sequence_to_sequence(config.backbone)
    else:
        model, tokenizer = backbones.encoder_decoder(config.backbone)
    backbones.check_lengths(model, read=config.passage_length, written=config.query_length)
    data, dev = read_data(config, limit)
    pairs = QueryPairs(data, tokenizer, config)
    copying: Copying | None = None
    if config.copying and dev is not None:
        copying = copying_of(data.documents, tokenizer, config.passage_length)

    generator = SequenceToSequence(model, tokenizer)

    def evaluate() -> dict[str, float]:
        assert dev is not None
        dev_pairs = QueryPairs(dev, tokenizer, config)
        if copying is None:
            return {"log_likelihood": log_likelihood(generator, dev_pairs)}
        weight, likelihood = fitted(generator.model, dev_pairs, copying)
        return {"log_likelihood": likelihood, COPYING: weight}

    train(
        generator,
        pairs,
        pairs.collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=config,
        data_hash=data.hash,
        made_from={"start": hash_files(locate(config.backbone))},
        start_field="backbone",
        evaluate=evaluate if dev is not None else None,
    )
    return config.output


def rehearse(config: Doc2QueryConfig) -> None:
    """Two steps on the first rows of each data set; nothing is kept."""
    # Passages may have many questions each, which are held back together.
    dev_share = max(config.dev_share, 0.5) if config.dev_share else 0.0
    with tempfile.TemporaryDirectory() as folder:
        tried = replace(config, output=Path(folder), dev_share=dev_share, training=config.training.two_steps(4))
        train_doc2query(tried, limit=REHEARSED)
