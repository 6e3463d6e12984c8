"""`osn train mlm`: masked language modelling (BERT-like) or span corruption (T5) on a corpus.

    osn train mlm --output models/base --set corpus=[squad-mix,tldr] --set new.architecture=bert
    osn train mlm --output models/minilm-mlm --set corpus=[scifact] --backbone sentence-transformers/all-MiniLM-L6-v2
    osn train mlm --output models/t5 --set corpus=[tldr] --set new.architecture=t5

BERT (Devlin et al., 2019, section 3.1): of the chosen tokens or whole words, 80% become [MASK], 10% a random token, and 10%
stay unchanged. T5 (Raffel et al., 2020, section 3.1.4): sentinels replace spans, and the decoder writes the spans. The
result is an ordinary Hugging Face directory, which every other trainer takes as its backbone.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.pretrained import load_tokenizer
from trainers.common import losses
from trainers.common.batches import IGNORED
from trainers.common.loop import train
from trainers.common.run_folder import check_output
from trainers.common.training_model import Losses, TrainingModel
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import LabelledBatch, SequenceToSequence, log_likelihood
from trainers.encoders.settings import NewBackbone
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.masked_lm.windows import CorruptedWindows, MaskedWindows, Windows, age, corpus_documents, tokenize_corpus

KIND = "masked-lm"
TOKENIZER_SAMPLE = 100_000
"""A new tokenizer is trained on this many first documents of each corpus."""
REHEARSED = 200
"""Documents of each corpus in a dry run."""


class MaskedLmTraining(TrainingModel):
    """Cross-entropy at the masked positions; the head's large product is computed only for them."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self._positions: Tensor | None = None
        output: Any = model.get_output_embeddings()
        output.register_forward_pre_hook(self._at_masked_positions)

    def _at_masked_positions(self, module: Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # Only the masked positions (15%) need logits, which are most of the work of a small model.
        return None if self._positions is None else (arguments[0][self._positions],)

    def forward(self, batch: LabelledBatch) -> Losses:
        labels = batch.labels
        self._positions = labels != IGNORED
        try:
            logits = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        finally:
            positions, self._positions = self._positions, None
        targets = labels[positions]  # (masked,), as logits are (masked, vocabulary)
        total, count = losses.masked_lm(logits, targets)
        correct = (logits.argmax(dim=-1) == targets).float().sum()
        count = count.clamp(min=1)
        return Losses({"masked_lm": total / count}, {"accuracy": correct / count})

    def export(self, folder: Path) -> None:
        backbones.save(self.model, self.tokenizer, folder)


def train_masked_lm(config: MaskedLmConfig, *, limit: int | None = None) -> Path:
    """Train as `config` says; returns the model directory. limit: documents read of each corpus (for a dry run)."""
    spans = _learns_from_spans(config)
    kind = "sequence-to-sequence" if spans else KIND
    check_output(config.output, kind)
    working = config.output / ".training"
    torch.manual_seed(config.training.seed)
    model, tokenizer = _starting_point(config, working, limit)
    backbones.check_length(model, "max_length", config.max_length)
    if spans and config.whole_word:
        raise InputError("whole_word would have no effect: a T5 learns from spans of tokens", "leave it out")
    special_tokens = 1 if spans else 2  # per window
    train_windows, dev_windows = tokenize_corpus(
        config.corpus,
        tokenizer,
        working,
        length=config.max_length - special_tokens,
        dev_share=config.dev_share,
        limit=limit,
    )

    def corrupted(windows: Windows) -> MaskedWindows | CorruptedWindows:
        if spans:
            return CorruptedWindows(windows, tokenizer, config.masked)
        return MaskedWindows(windows, tokenizer, config.masked, config.whole_word)

    training_model = SequenceToSequence(model, tokenizer) if spans else MaskedLmTraining(model, tokenizer)

    def evaluate() -> dict[str, float]:
        return {"log_likelihood": log_likelihood(training_model, corrupted(dev_windows))}

    data = corrupted(train_windows)
    train(
        training_model,
        data,
        data.collate,
        settings=config.training,
        output=config.output,
        kind=kind,
        config=config,
        data_hash=train_windows.hash,
        made_from=None if config.backbone is None else {"start": hash_files(locate(config.backbone))},
        start_field="backbone",
        evaluate=evaluate if len(dev_windows) else None,
    )
    return config.output


def _learns_from_spans(config: MaskedLmConfig) -> bool:
    """Whether the model is sequence-to-sequence, such as a T5: it writes the masked spans."""
    if config.new is not None:
        return config.new.architecture == "t5"
    assert config.backbone is not None
    return backbones.is_sequence_to_sequence(config.backbone)


def _starting_point(
    config: MaskedLmConfig, working: Path, limit: int | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if config.backbone is not None:
        if _learns_from_spans(config):
            return backbones.sequence_to_sequence(config.backbone)
        return backbones.masked_language_model(config.backbone)[:2]
    assert config.new is not None
    tokenizer = load_tokenizer(_new_tokenizer(config, config.new, working / "tokenizer", limit))
    return backbones.new_backbone(config.new, tokenizer), tokenizer


def _new_tokenizer(config: MaskedLmConfig, new: NewBackbone, folder: Path, limit: int | None) -> Path:
    """A tokenizer trained on the corpus, in `folder`.

    It is kept, so that a resumed run does not have to train an identical tokenizer. One that was made with other settings
    is replaced, and until a run began also one of other content.
    """
    pieces = new.pieces or ("wordpiece" if new.architecture == "bert" else "byte-level")
    sample = TOKENIZER_SAMPLE if limit is None else min(limit, TOKENIZER_SAMPLE)
    made_with = f"{pieces} {new.vocabulary} {new.positions} {sample} {', '.join(map(str, config.corpus))}\n"
    content = f"{[age(path) for path in config.corpus]}\n"
    note = folder / "made_with.txt"
    if (folder / "tokenizer.json").exists():
        # Earlier versions kept no note: there the run that is continued has the same settings.
        begun = (folder.parent / "run.json").exists()
        kept = note.read_text() if note.exists() else made_with if begun else ""
        if kept == made_with + content or (begun and kept.startswith(made_with)):
            return folder
        shutil.rmtree(folder)
    if new.architecture == "t5" and pieces != "byte-level":
        raise InputError("a T5 needs sentinels and exact texts", "leave new.pieces out, or set it to byte-level")
    texts = (
        text for document in corpus_documents(config.corpus, sample) for text in (document.contents, document.url or "")
    )
    tokenizer = backbones.train_tokenizer(texts, pieces, new.vocabulary, positions=new.positions)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        tokenizer.save_pretrained(beside)
        (Path(beside) / note.name).write_text(made_with + content)
        folder.mkdir(exist_ok=True)
        # tokenizer.json last: if it exists, the folder is complete.
        for file in sorted(Path(beside).iterdir(), key=lambda file: file.name == "tokenizer.json"):
            file.replace(folder / file.name)
    return folder


def rehearse(config: MaskedLmConfig) -> None:
    """Two steps on the first documents of each corpus; nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        tried = replace(config, output=Path(folder), training=config.training.two_steps(4))
        train_masked_lm(tried, limit=REHEARSED)
