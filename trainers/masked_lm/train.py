"""TODO."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opensearch_neural.errors import InputError
from trainers.common.config import backbone_option, config_options
from trainers.common.loop import train
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import TrainingModel
from trainers.encoders import backbones
from trainers.encoders.backbones import HEAD_BIAS, NewBackbone
from trainers.encoders.sequence_to_sequence import SequenceToSequence, log_likelihood
from trainers.masked_lm.model import MaskedLanguageModel
from trainers.masked_lm.windows import CorruptedWindows, MaskedWindows, Windows, corpus_documents, tokenize_corpus

logger = logging.getLogger(__name__)


TOKENIZER_SAMPLE = 100_000
"""Documents that a new tokenizer is trained on, the first of each corpus in turn."""


@dataclass(slots=True)
class MaskedLmConfig:
    """`osn train mlm`.

    corpus: folders or files that `osn ingest` reads too. backbone: a directory or hub id to continue with; or new: a
    model to be made, with a tokenizer trained on the corpus. max_length: tokens of a window, special ones included;
    a longer document is cut into windows. masked: the share of tokens to be predicted. whole_word: pieces of a word
    are masked together (BERT-like only). span_length: mean length of a masked span (T5 only). head_bias, head_steps:
    for an encoder without a head, where its output bias starts, and how many steps train the head alone before
    everything, at head_learning_rate. dev_share: the part of the documents that measures and does not train.
    """

    output: Path
    corpus: list[Path]
    backbone: str | None = None
    new: NewBackbone | None = None
    max_length: int = 256
    masked: float = 0.15
    whole_word: bool = False
    span_length: float = 3.0
    head_bias: float = HEAD_BIAS
    head_steps: int = 0
    head_learning_rate: float = 1e-3
    dev_share: float = 0.01
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=1e-4, bucket=16))

    def __post_init__(self) -> None:
        if (self.backbone is None) == (self.new is None):
            raise ValueError("expected either 'backbone', a model to continue with, or 'new', one to be made")
        if not 0 < self.masked < 1:
            raise ValueError(f"masked must be between 0 and 1, not {self.masked}")
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if self.max_length < 8 or self.span_length < 1:
            raise ValueError("max_length must be at least 8, span_length at least 1")


def run(config: MaskedLmConfig, *, limit: int | None = None) -> Path:
    """Train as `config` says; the model directory. limit: documents read of each corpus (for a dry run)."""
    working = config.output / ".training"
    torch.manual_seed(config.training.seed)
    model, tokenizer, fresh = _starting_point(config, working, limit)
    spans = bool(model.config.is_encoder_decoder)
    around = 1 if spans else 2  # special tokens about a window
    train_windows, dev_windows = tokenize_corpus(
        config.corpus,
        tokenizer,
        working,
        length=config.max_length - around,
        dev_share=config.dev_share,
        limit=limit,
    )

    def data(windows: Windows) -> MaskedWindows | CorruptedWindows:
        if spans:
            return CorruptedWindows(windows, tokenizer, config.masked, config.span_length)
        return MaskedWindows(windows, tokenizer, config.masked, config.whole_word)

    def evaluate(training_model: TrainingModel) -> dict[str, float]:
        return {"log_likelihood": log_likelihood(training_model, data(dev_windows))}

    training_data = data(train_windows)
    measured = evaluate if len(dev_windows) else None
    head = working / "head"
    if config.head_steps and not spans and not (config.output / "osn.json").exists():
        if not fresh:
            logger.info(
                "the backbone brings its own head: it is trained alone for %d steps all the same", config.head_steps
            )
        settings = replace(config.training, steps=config.head_steps, learning_rate=config.head_learning_rate)
        train(
            MaskedLanguageModel(model, tokenizer, head_only=True),
            training_data,
            training_data.collate,
            settings=settings,
            output=head,
            kind="masked-lm",
            config=config,
            data_hash=train_windows.hash,
        )
        model, _, _ = backbones.masked_language_model(head)
    train(
        SequenceToSequence(model, tokenizer) if spans else MaskedLanguageModel(model, tokenizer),
        training_data,
        training_data.collate,
        settings=config.training,
        output=config.output,
        kind="sequence-to-sequence" if spans else "masked-lm",
        config=config,
        data_hash=train_windows.hash,
        evaluate=measured,
    )
    shutil.rmtree(head, ignore_errors=True)
    return config.output


def _starting_point(
    config: MaskedLmConfig, working: Path, limit: int | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, bool]:
    """(model, tokenizer, whether its masked-LM head is fresh)."""
    if config.backbone is not None:
        if backbones.is_sequence_to_sequence(config.backbone):
            return *backbones.sequence_to_sequence(config.backbone), False
        return backbones.masked_language_model(config.backbone, head_bias=config.head_bias)
    new = config.new
    assert new is not None
    folder = working / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        # Kept, since a run that goes on must not depend on training the tokenizer to the same result again.
        pieces = new.pieces or ("wordpiece" if new.architecture == "bert" else "byte-level")
        if new.architecture == "t5" and pieces != "byte-level":
            raise InputError("a T5 needs sentinels and exact texts", "leave new.pieces out, or set it to byte-level")
        each = TOKENIZER_SAMPLE if limit is None else min(limit, TOKENIZER_SAMPLE)
        texts = (
            text
            for document in corpus_documents(config.corpus, each)
            for text in (document.contents, document.url or "")
        )
        tokenizer = backbones.train_tokenizer(texts, pieces, new.vocabulary, positions=new.positions)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            tokenizer.save_pretrained(beside)
            folder.mkdir(exist_ok=True)
            # tokenizer.json last: its presence says that the others are there.
            for file in sorted(Path(beside).iterdir(), key=lambda file: file.name == "tokenizer.json"):
                file.replace(folder / file.name)
    tokenizer = backbones.load_tokenizer(folder)
    return backbones.new_backbone(new, tokenizer), tokenizer, True


@click.command("mlm")
@config_options(MaskedLmConfig, shortcuts=backbone_option("backbone"))
def mlm_command(config: MaskedLmConfig, dry_run: bool) -> None:
    """Train a masked language model (BERT-like) or by span corruption (T5) on a corpus.

    Continues a backbone (`backbone`), or makes a small one with a tokenizer of its own (`new`). Interrupted, the same
    command goes on.

    \b
    osn train mlm --output models/base --set "corpus=[squad-mix, tldr]" --set new.layers=4
    osn train mlm --config mlm.yaml --set training.steps=20000
    """
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            settings = replace(config.training, steps=2, batch_size=min(config.training.batch_size, 4), workers=0)
            run(
                replace(config, output=Path(folder), head_steps=min(config.head_steps, 2), training=settings),
                limit=200,
            )
        click.echo("dry run: two steps taken, nothing kept")
        return
    click.echo(run(config))
