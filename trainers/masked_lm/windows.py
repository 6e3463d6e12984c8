"""A corpus as windows of tokens on disk; each visit corrupts a window anew."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.files import read_json_object, write_json
from trainers.common.config import fingerprint
from trainers.common.sampling import Visit
from trainers.data.loading import read_documents
from trainers.data.masking import Ids, continuations, corrupt_spans, mask_tokens, special_ids
from trainers.data.texts import in_dev
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import LabelledBatch, LabelledRow, collate_rows

logger = logging.getLogger(__name__)


@dataclass
class Windows:
    """Parts of documents as token ids: window i is ids[starts[i]:stops[i]], without special tokens."""

    ids: npt.NDArray[np.int32]
    """(tokens,), all documents one after the other"""
    starts: npt.NDArray[np.int64]
    """(windows,), each window's first token in `ids`"""
    stops: npt.NDArray[np.int64]
    """(windows,), the end of each window in `ids`"""
    hash: str
    """the hash of the whole corpus, train and dev"""

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
    """(train, dev): the documents as windows of at most `length` tokens, kept in `folder` and reused.

    A longer document is cut into windows of nearly equal length. A document's normalised text decides its part, so that
    copies stay together. Raises InputError for a corpus without text.
    """
    made_by = {
        "corpus": [[str(path.resolve()), *age(path)] for path in corpus],
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
        # Several processes of a distributed run may be here: each writes its own, equal files and renames them.
        beside = [path.with_name(f".{os.getpid()}-{path.name}") for path in (ids_file, file)]
        _tokenize(corpus_documents(corpus, limit), tokenizer, beside[0], beside[1], length, dev_share)
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


def age(path: Path) -> list[int]:
    """Total size and latest time of a corpus's files, which change if other content has the same name."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    stats = [file.stat() for file in files if file.is_file()]
    return [sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)]


def corpus_documents(corpus: Sequence[Path], limit: int | None) -> Iterator[Document]:
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


@dataclass
class VisitedWindows:
    """Windows that become a new example at every visit."""

    windows: Windows
    """the token ids of each window"""
    tokenizer: PreTrainedTokenizerBase
    """of the model; its padding fills shorter windows"""
    rate: float
    """the share of tokens to predict"""

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.windows.stops - self.windows.starts

    def collate(self, items: Sequence[LabelledRow]) -> LabelledBatch:
        return collate_rows(items, self.tokenizer.pad_token_id)


@dataclass
class MaskedWindows(VisitedWindows):
    """Windows between the tokenizer's first and last token, masked anew at every visit."""

    whole_word: bool
    """mask all pieces of a word together"""

    def __post_init__(self) -> None:
        ids = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id, self.tokenizer.mask_token_id)
        if None in ids:
            raise InputError(f"the tokenizer of {self.tokenizer.name_or_path} lacks a first, last or mask token")
        self.special = special_ids(self.tokenizer)
        self.continuation = continuations(self.tokenizer) if self.whole_word else None

    def __getitem__(self, visit: Visit) -> LabelledRow:
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


SPAN_LENGTH = 3.0
"""Mean number of tokens in a masked span, as in T5."""


@dataclass
class CorruptedWindows(VisitedWindows):
    """Windows with spans replaced by sentinels, anew at every visit."""

    def __post_init__(self) -> None:
        names = [f"<extra_id_{number}>" for number in range(backbones.SENTINELS)]
        ids: Any = self.tokenizer.convert_tokens_to_ids(names)
        known = [token for token in ids if token is not None and token != self.tokenizer.unk_token_id]
        if len(known) < 2:
            raise InputError(f"the tokenizer of {self.tokenizer.name_or_path} has no sentinels <extra_id_0>, …")
        self.sentinels = np.array(known, dtype=np.int64)

    def __getitem__(self, visit: Visit) -> LabelledRow:
        inputs, targets = corrupt_spans(
            self.windows[visit.index],
            rate=self.rate,
            span_length=SPAN_LENGTH,
            sentinels=self.sentinels,
            eos_id=int(self.tokenizer.eos_token_id),
            rng=visit.generator(),
        )
        return f"window {visit.index}", inputs, targets
