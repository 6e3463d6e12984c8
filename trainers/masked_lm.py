"""Masked language modelling: continue it on a corpus, start it, or teach a fresh head.

    osn train mlm --output models/base --set corpus=[squad-mix,tldr] --set new.architecture=bert
    osn train mlm --output models/minilm-mlm --set corpus=[scifact] --set head_steps=500 \\
        --backbone sentence-transformers/all-MiniLM-L6-v2
    osn train mlm --output models/t5 --set corpus=[tldr] --set new.architecture=t5

BERT (Devlin et al., 2019, section 3.1): of the tokens, or whole words, that are chosen, 80% become [MASK], 10% a random
token and 10% stay. T5 (Raffel et al., 2020, section 3.1.4): spans are replaced by sentinels and are what the decoder
writes. The result is an ordinary Hugging Face directory: every other trainer takes it as its backbone.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.files import read_json_object, write_json
from trainers.common import losses
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.loop import TrainingSettings, Visit, train
from trainers.common.training_model import Batch, Losses, TrainingModel
from trainers.data.examples import read_documents
from trainers.data.texts import normalised
from trainers.encoders import backbones
from trainers.encoders.backbones import HEAD_BIAS, NewBackbone
from trainers.encoders.sequence_to_sequence import IGNORED, Row, SequenceToSequence, collate_rows, log_likelihood

logger = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]

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


# ---------------------------------------------------------------- what is corrupted, and how


def mask_tokens(
    ids: Ids,
    *,
    rate: float,
    mask_id: int,
    special: npt.NDArray[np.bool_],
    rng: np.random.Generator,
    continuation: npt.NDArray[np.bool_] | None = None,
    stays: float = 0.1,
) -> tuple[Ids, Ids]:
    """(input ids, labels) of one sequence, both (length,); labels are −100 where nothing is to be predicted.

    special: (vocabulary,), the ids that are never masked and never drawn. continuation: (vocabulary,), the pieces that
    continue a word; with it, words are masked whole. Of n maskable tokens, round(rate · n), at least one, are chosen
    (the last word may exceed that); 10% become a random token, the share `stays` stays, the others, 80%, become `mask_id`
    (Devlin et al., section 3.1).
    """
    inputs, labels = ids.copy(), np.full_like(ids, IGNORED)
    maskable = np.flatnonzero(~special[ids])
    if not len(maskable):
        return inputs, labels
    wanted = max(1, round(rate * len(maskable)))
    if continuation is None:
        chosen = rng.permutation(maskable)[:wanted]
    else:
        # A word: a maskable token that starts one, and the continuations that follow it without a gap.
        starts = ~continuation[ids[maskable]]
        starts[1:] |= np.diff(maskable) > 1
        starts[0] = True
        word = np.cumsum(starts) - 1
        order = rng.permutation(word[-1] + 1)
        taken = np.cumsum(np.bincount(word)[order])
        chosen = maskable[np.isin(word, order[: np.searchsorted(taken, wanted) + 1])]
    labels[chosen] = ids[chosen]
    fate = rng.random(len(chosen))
    inputs[chosen[fate < 0.9 - stays]] = mask_id
    replaced = chosen[(fate >= 0.9 - stays) & (fate < 1 - stays)]
    inputs[replaced] = rng.choice(np.flatnonzero(~special), size=len(replaced))
    return inputs, labels


def continuations(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.bool_]:
    """Which vocabulary entries continue a word, (vocabulary,): by "##" (word pieces), or the lack of "Ġ" or "▁"."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    for mark in ("Ġ", "▁"):
        if sum(token.startswith(mark) for token in tokens) > len(tokens) // 100:
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array([token.startswith("##") for token in tokens])


def special_ids(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.bool_]:
    """Which vocabulary entries are special tokens, sentinels included: (vocabulary,)."""
    special = np.zeros(len(tokenizer), dtype=bool)
    special[tokenizer.all_special_ids] = True
    for token_id, token in tokenizer.added_tokens_decoder.items():
        special[token_id] |= token.special
    return special


def corrupt_spans(
    ids: Ids, *, rate: float, span_length: float, sentinels: Ids, eos_id: int, rng: np.random.Generator
) -> tuple[Ids, Ids]:
    """(inputs, targets) of T5's objective for one sequence of tokens without special ones (Raffel et al., 3.1.4).

    About rate · n tokens in spans of span_length on average; in the inputs each span is one sentinel, the targets are
    each sentinel followed by its span, and one more sentinel. Both end with `eos_id`.
    """
    length = len(ids)
    noise = min(max(round(length * rate), 1), max(length - 1, 1))
    spans = min(max(round(noise / span_length), 1), len(sentinels) - 1, max(length - noise, 1))
    noise_lengths = _partition(noise, spans, rng)
    kept_lengths = _partition(length - noise, spans, rng)
    inputs: list[Ids] = []
    targets: list[Ids] = []
    at = 0
    for number, (kept, hidden) in enumerate(zip(kept_lengths, noise_lengths, strict=True)):
        inputs += [ids[at : at + kept], sentinels[number : number + 1]]
        targets += [sentinels[number : number + 1], ids[at + kept : at + kept + hidden]]
        at += kept + hidden
    end = np.array([eos_id], dtype=np.int64)
    return np.concatenate([*inputs, end]), np.concatenate([*targets, sentinels[spans : spans + 1], end])


def _partition(total: int, parts: int, rng: np.random.Generator) -> list[int]:
    """`total` as a random sum of `parts` numbers of at least 1 (of at least 0 where there are not enough)."""
    if total < parts:
        return [1] * total + [0] * (parts - total)
    cuts = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1 if parts > 1 else np.empty(0, np.int64)
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(int).tolist()


# ---------------------------------------------------------------- the corpus as windows of tokens


@dataclass
class Windows:
    """Parts of documents as token ids: window i is ids[starts[i]:stops[i]], without special tokens."""

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    hash: str

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.starts[index] : self.stops[index]].astype(np.int64)


def tokenize_corpus(
    corpus: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    length: int,
    dev_share: float,
    limit: int | None = None,
) -> tuple[Windows, Windows]:
    """(train, dev): the documents as windows of at most `length` tokens, kept in `folder` and reused from there.

    A longer document becomes windows of nearly equal length. Which part a document falls into goes by its normalised
    text, so that repeated ones stay together. Raises InputError for a corpus without text.
    """
    made_by = {
        "corpus": [[str(path.resolve()), *_age(path)] for path in corpus],
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16],
        "length": length,
        "dev_share": dev_share,
        "limit": limit,
    }
    name = f"tokens-{fingerprint(made_by)}"
    record, file = folder / f"{name}.json", folder / f"{name}.npz"
    ids_file = folder / f"{name}.ids"
    if not record.exists():
        logger.info("tokenizing %s", ", ".join(map(str, corpus)))
        folder.mkdir(parents=True, exist_ok=True)
        # Every process of a distributed run may be here: each writes its own files, which are equal, and renames them.
        beside = [path.with_name(f".{os.getpid()}-{path.name}") for path in (ids_file, file)]
        _tokenize(_documents(corpus, limit), tokenizer, beside[0], beside[1], length, dev_share)
        digest = hashlib.sha256()
        for path in beside:
            with path.open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
        for path, target in zip(beside, (ids_file, file), strict=True):
            path.replace(target)
        write_json(record, {**made_by, "hash": digest.hexdigest()[:16]})
    data_hash = str(read_json_object(record)["hash"])
    with np.load(file, allow_pickle=False) as arrays:
        parts = {part: (arrays[f"{part}_starts"], arrays[f"{part}_stops"]) for part in ("train", "dev")}
    if not len(parts["train"][0]):
        raise InputError(f"{', '.join(map(str, corpus))}: no document holds a token to train on")
    tokens = np.memmap(ids_file, dtype=np.int32, mode="r")
    train_part, dev_part = (Windows(tokens, *parts[part], data_hash) for part in ("train", "dev"))
    logger.info("%d windows to train on, %d of dev, %d tokens", len(train_part), len(dev_part), len(tokens))
    return train_part, dev_part


def _age(path: Path) -> list[int]:
    """Size and time of a corpus file, or of the files of a folder: another corpus under a name is another one."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    stats = [file.stat() for file in files if file.is_file()]
    return [sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)]


def _documents(corpus: Sequence[Path], limit: int | None) -> Iterator[Document]:
    return itertools.chain.from_iterable(read_documents(path, limit=limit) for path in corpus)


def _tokenize(
    documents: Iterator[Document],
    tokenizer: PreTrainedTokenizerBase,
    ids_file: Path,
    file: Path,
    length: int,
    dev_share: float,
) -> None:
    bounds = {"train": (array("q"), array("q")), "dev": (array("q"), array("q"))}
    at = 0
    encode = tokenizer.backend_tokenizer.encode_batch_fast
    with ids_file.open("wb") as target:
        while batch := [document.contents for document in itertools.islice(documents, 1000)]:
            for text, encoding in zip(batch, encode(batch, add_special_tokens=False), strict=True):
                tokens = np.array(encoding.ids, dtype=np.int32)
                target.write(tokens.tobytes())
                starts, stops = bounds["dev" if in_dev(text, dev_share) else "train"]
                windows = -(-len(tokens) // length)
                edges = np.linspace(0, len(tokens), windows + 1).round().astype(np.int64) + at
                starts.extend(edges[:-1].tolist() if windows else [])
                stops.extend(edges[1:].tolist() if windows else [])
                at += len(tokens)
    arrays = {
        f"{part}_{edge}": np.array(values, dtype=np.int64)
        for part, both in bounds.items()
        for edge, values in zip(("starts", "stops"), both, strict=True)
    }
    np.savez(file, allow_pickle=False, **arrays)


def in_dev(text: str, share: float) -> bool:
    """Whether a text is of the part that measures: always the same for one text, `share` of all of them."""
    digest = hashlib.blake2b(normalised(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


# ---------------------------------------------------------------- models and batches


@dataclass
class MaskedWindows:
    """Windows between the tokenizer's first and last token, masked anew at every visit."""

    windows: Windows
    tokenizer: PreTrainedTokenizerBase
    rate: float
    whole_word: bool

    def __post_init__(self) -> None:
        ids = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id, self.tokenizer.mask_token_id)
        if None in ids:
            raise InputError(f"the tokenizer of {self.tokenizer.name_or_path} lacks a first, last or mask token")
        self.special = special_ids(self.tokenizer)
        self.continuation = continuations(self.tokenizer) if self.whole_word else None

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.windows.stops - self.windows.starts

    def __getitem__(self, visit: Visit) -> Row:
        tokenizer = self.tokenizer
        ids = np.concatenate([[tokenizer.cls_token_id], self.windows[visit.index], [tokenizer.sep_token_id]])
        inputs, labels = mask_tokens(
            ids,
            rate=self.rate,
            mask_id=int(tokenizer.mask_token_id),
            special=self.special,
            rng=visit.generator(),
            continuation=self.continuation,
        )
        return f"window {visit.index}", inputs, labels

    def collate(self, items: Sequence[Row]) -> Batch:
        return collate_rows(items, self.tokenizer.pad_token_id)


@dataclass
class CorruptedWindows:
    """Windows with spans replaced by sentinels, anew at every visit."""

    windows: Windows
    tokenizer: PreTrainedTokenizerBase
    rate: float
    span_length: float

    def __post_init__(self) -> None:
        names = [f"<extra_id_{number}>" for number in range(backbones.SENTINELS)]
        ids: Any = self.tokenizer.convert_tokens_to_ids(names)
        known = [one for one in ids if one is not None and one != self.tokenizer.unk_token_id]
        if len(known) < 2:
            raise InputError(f"the tokenizer of {self.tokenizer.name_or_path} has no sentinels <extra_id_0>, …")
        self.sentinels = np.array(known, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.windows.stops - self.windows.starts

    def __getitem__(self, visit: Visit) -> Row:
        inputs, targets = corrupt_spans(
            self.windows[visit.index],
            rate=self.rate,
            span_length=self.span_length,
            sentinels=self.sentinels,
            eos_id=int(self.tokenizer.eos_token_id),
            rng=visit.generator(),
        )
        return f"window {visit.index}", inputs, targets

    def collate(self, items: Sequence[Row]) -> Batch:
        return collate_rows(items, self.tokenizer.pad_token_id)


class MaskedLanguageModel(TrainingModel):
    """Cross-entropy at the masked positions; the head's large product is made for these positions only."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, head_only: bool = False) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self._positions: Tensor | None = None
        output: Any = model.get_output_embeddings()
        output.register_forward_pre_hook(self._at_masked_positions)
        if head_only:
            model.requires_grad_(False)
            for parameter in backbones.head_parameters(model):
                parameter.requires_grad_(True)

    def _at_masked_positions(self, module: Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # 15% of the positions are predicted: the others' logits, most of the work of a small model, are not needed.
        return None if self._positions is None else (arguments[0][self._positions],)

    def forward(self, batch: Batch) -> Losses:
        labels = batch["labels"]
        self._positions = labels != IGNORED
        try:
            logits = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        finally:
            positions, self._positions = self._positions, None
        wanted = labels[positions]  # (masked,), as logits are (masked, vocabulary)
        total, count = losses.masked_lm(logits, wanted)
        correct = (logits.argmax(dim=-1) == wanted).float().sum()
        count = count.clamp(min=1)
        return Losses({"masked_lm": total / count}, {"accuracy": correct / count})

    def export(self, folder: Path) -> None:
        backbones.save(self.model, self.tokenizer, folder)


# ---------------------------------------------------------------- the command


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
            text for document in _documents(config.corpus, each) for text in (document.contents, document.url or "")
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
