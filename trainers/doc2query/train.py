"""TODO."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from trainers.common.config import backbone_option, config_options
from trainers.common.loop import train
from trainers.common.sampling import Visit
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import TrainingModel
from trainers.data.examples import TrainingData
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.loading import load_training
from trainers.data.splits import hold_back, merge
from trainers.doc2query.copying import Copying, copying_of, fitted
from trainers.doc2query.sampling import COPYING, KIND
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import LabelledBatch, Row, SequenceToSequence, collate_rows, log_likelihood


@dataclass(slots=True)
class Doc2QueryConfig:
    """`osn train doc2query`.

    data: training data as `load_training` reads it, of `split`. unseen: sets whose questions, of `unseen_split`, are left
    out of it: a generator that has read test questions writes them. backbone: a T5 or another sequence-to-sequence model,
    by directory or hub id; a BERT-like encoder is taken twice, to read and to write. prefix: what is put before every
    passage (and by `osn generate-queries` again). passage_length, query_length: in tokens, special ones included.
    dev_share: the part of the pairs, split by document, that measures and does not train. copying: fit the weight of the
    passage's words on it; not in docT5query.
    """

    output: Path
    data: list[Path]
    backbone: str
    split: str = "train"
    unseen: list[Path] = field(default_factory=list)
    unseen_split: str = "test"
    prefix: str = ""
    passage_length: int = 384
    query_length: int = 64
    dev_share: float = 0.02
    copying: bool = True
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=4, learning_rate=3e-4, batch_size=32, bucket=16)
    )

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")


@dataclass
class Pairs:
    """Passage to query: one positive of the example, drawn at each visit."""

    data: TrainingData
    tokenizer: PreTrainedTokenizerBase
    prefix: str
    passage_length: int
    query_length: int

    @property
    def sets(self) -> Any:
        return self.data.sets

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each example's first passage: enough to put like with like."""
        first = self.data.positives.values[self.data.positives.offsets[:-1]]
        return self.data.documents.sizes()[first]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Row:
        example = self.data.example(visit.index)
        passage = self.data.documents[visit.random().choice(example.positives)]
        inputs = self.tokenizer(self.prefix + passage, truncation=True, max_length=self.passage_length)["input_ids"]
        target = self.tokenizer(text_target=example.query, truncation=True, max_length=self.query_length)["input_ids"]
        return example.query_id, inputs, target

    def collate(self, items: Sequence[Row]) -> LabelledBatch:
        return collate_rows(items, self.tokenizer.pad_token_id)


def run(config: Doc2QueryConfig, *, limit: int | None = None) -> Path:
    """Train as `config` says; the model directory. limit: examples of each data set (for a dry run)."""
    torch.manual_seed(config.training.seed)
    if backbones.is_sequence_to_sequence(config.backbone):
        model, tokenizer = backbones.sequence_to_sequence(config.backbone)
    else:
        model, tokenizer = backbones.encoder_decoder(config.backbone)
    sets = [load_training(path, split=config.split, limit=limit) for path in config.data]
    for path in config.unseen:
        other = load_training(path, split=config.unseen_split)
        sets = [without_leaks(one, find_leaks(one, other)) for one in sets]
    data = merge(sets) if len(sets) > 1 else sets[0]
    dev: TrainingData | None = None
    if config.dev_share:
        share = max(config.dev_share, 1 / len(data))
        data, dev = hold_back(data, share, seed=config.training.seed)

    def pairs(part: TrainingData) -> Pairs:
        return Pairs(part, tokenizer, config.prefix, config.passage_length, config.query_length)

    copying: Copying | None = None
    if config.copying and dev is not None:
        copying = copying_of(data.documents, tokenizer, config.passage_length)

    def evaluate(training_model: TrainingModel) -> dict[str, float]:
        assert dev is not None
        if copying is None:
            return {"log_likelihood": log_likelihood(training_model, pairs(dev))}
        weight, likelihood = fitted(training_model.model, pairs(dev), copying)
        return {"log_likelihood": likelihood, COPYING: weight}

    train(
        SequenceToSequence(model, tokenizer),
        pairs(data),
        pairs(data).collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=config,
        data_hash=data.hash,
        evaluate=evaluate if dev is not None else None,
    )
    return config.output


@click.command("doc2query")
@config_options(Doc2QueryConfig, shortcuts=backbone_option("backbone"))
def doc2query_command(config: Doc2QueryConfig, dry_run: bool) -> None:
    """Train a model that writes queries for passages, on pairs of both.

    Interrupted, the same command goes on.

    \b
    osn train doc2query --backbone models/t5 --set "data=[squad-mix]" --output models/doc2query
    """
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            settings = replace(config.training, steps=2, batch_size=min(config.training.batch_size, 4), workers=0)
            run(replace(config, output=Path(folder), training=settings), limit=50)
        click.echo("dry run: two steps taken, nothing kept")
        return
    click.echo(run(config))
