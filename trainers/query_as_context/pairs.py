"""Passages with their context, drawn and masked at every visit, and their batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opensearch_neural.errors import InputError
from trainers.common.batches import IGNORED, CachedBatch, Part
from trainers.common.sampling import Visit
from trainers.data.masking import Ids, continuations, mask_tokens, special_ids
from trainers.data.texts import in_dev
from trainers.data.tokenized import PART_OVERHEAD, TokenCache, mask_of, pad_rows, padded_parts, padding_id
from trainers.query_as_context.passages import Passages
from trainers.query_as_context.settings import QueryAsContextConfig

logger = logging.getLogger(__name__)


class MaskedText(NamedTuple):
    """A masked text with its labels."""

    input_ids: Ids
    """(length,)"""
    labels: Ids
    """(length,), IGNORED where nothing is to be predicted"""


class MaskedPair(NamedTuple):
    """One passage with its context at one visit."""

    name: str
    """the id of the passage"""
    passage: MaskedText
    """the passage, masked"""
    context: MaskedText | None
    """the partner, masked; None if the setting `context` is "none" """
    keys: tuple[int, int]
    """Rows of a batch with a common key are not negatives of each other. The first key is of the passage: its article, or
    with the context "query" its text. The second key is of the context's text."""


@dataclass
class MaskedPart(Part):
    """Passages or contexts with masked tokens. With CoT-MAE, a passage's row also holds its context."""

    labels: Tensor
    """(rows, length) int64, IGNORED where nothing is to be predicted"""
    context_input_ids: Tensor | None = None
    """(rows, context length) int64"""
    context_attention_mask: Tensor | None = None
    """(rows, context length) int64"""
    context_labels: Tensor | None = None
    """(rows, context length) int64"""


@dataclass
class PairTargets:
    """The keys of rows that must not be negatives of each other."""

    keys: Tensor
    """(pairs, 2) int64, see `MaskedPair.keys`"""


@dataclass
class PairBatch(CachedBatch):
    """Roles: "passage", and with coCondenser "context"; equal rows are partners."""

    parts: dict[str, list[MaskedPart]]
    """{role: chunks of its rows}"""
    targets: PairTargets
    """which rows are no negatives of each other"""


class ContextPairs:
    """Passages with their context, drawn and masked anew at every visit."""

    def __init__(
        self, passages: Passages, tokenizer: PreTrainedTokenizerBase, config: QueryAsContextConfig, rows: Sequence[int]
    ) -> None:
        self.passages, self.tokenizer, self.config, self.rows = passages, tokenizer, config, rows
        self.members = passages.members()
        self.special = special_ids(tokenizer)
        self.continuation = continuations(tokenizer)
        self.passage_tokens = TokenCache(tokenizer, passages.texts.text_at, max_length=config.passage_length)
        self.query_tokens = TokenCache(tokenizer, passages.queries.text_at, max_length=config.query_length)
        self.same_text = passages.texts.canonical
        self.same_query = passages.queries.canonical

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, visit: Visit) -> MaskedPair:
        row, rng = self.rows[visit.index], visit.generator()
        # If training pairs passages of one article, they are not negatives of each other; else they are.
        key = int(self.same_text[row] if self.config.context == "query" else self.passages.articles[row])
        passage = self._masked(self.passage_tokens, row, "passage", rng)
        context, same = self._context(row, rng)
        return MaskedPair(self.passages.texts.ids[row], passage, context, (key, same))

    def _context(self, row: int, rng: np.random.Generator) -> tuple[MaskedText | None, int]:
        """A context, and a key that contexts with the same text share: several passages may have the same question."""
        context = self.config.context
        if context == "none":
            return None, -1
        if context == "query" or (context == "mixed" and rng.random() < 0.5):
            query = int(rng.choice(self.passages.candidates[row]))
            return self._masked(self.query_tokens, query, "context", rng), int(self.same_query[query])
        others = self.members[int(self.passages.articles[row])]
        other = int(rng.choice(others[self.same_text[others] != self.same_text[row]]))
        same = len(self.same_query) + int(self.same_text[other])
        return self._masked(self.passage_tokens, other, "context", rng), same

    def _masked(
        self, tokens: TokenCache, row: int, role: Literal["passage", "context"], rng: np.random.Generator
    ) -> MaskedText:
        assert self.tokenizer.mask_token_id is not None
        inputs, labels = mask_tokens(
            tokens.rows([row])[0].astype(np.int64),
            rate=self.config.masking.share(self.config.variant, role),
            mask_id=int(self.tokenizer.mask_token_id),
            special=self.special,
            rng=rng,
            continuation=self.continuation,
            # CoT-MAE's decoder must not read the tokens that it is to predict from the passage's CLS (section 2).
            stays=0.0 if role == "context" and self.config.variant == "cot-mae" else 0.1,
        )
        return MaskedText(inputs, labels)

    def collate(self, items: Sequence[MaskedPair]) -> PairBatch:
        """coCondenser: passages and contexts are separate rows; CoT-MAE: a passage's row also holds its context."""
        passages = [item.passage for item in items]
        contexts = [item.context for item in items if item.context is not None]
        parts = {"passage": self._parts(passages)}
        if contexts and self.config.variant == "cocondenser":
            parts["context"] = self._parts(contexts)
        elif contexts:
            for part in parts["passage"]:
                self._add_contexts(part, contexts)
        return PairBatch(
            ids=[item.name for item in items],
            parts=parts,
            targets=PairTargets(keys=torch.tensor([item.keys for item in items])),
        )

    def _parts(self, texts: Sequence[MaskedText]) -> list[MaskedPart]:
        parts = padded_parts(
            [text.input_ids.astype(np.int32) for text in texts],
            padding=padding_id(self.tokenizer),
            overhead=PART_OVERHEAD[self.config.training.device_type],
            largest=self.config.training.chunk_size,
        )
        return [
            MaskedPart(
                part.input_ids,
                part.attention_mask,
                part.position,
                labels=pad_rows([texts[at].labels for at in part.position.tolist()], IGNORED),
            )
            for part in parts
        ]

    def _add_contexts(self, part: MaskedPart, contexts: Sequence[MaskedText]) -> None:
        """Add the contexts of a part's passages to the part."""
        of_part = [contexts[row] for row in part.position.tolist()]
        inputs = [context.input_ids for context in of_part]
        part.context_input_ids = pad_rows(inputs, padding_id(self.tokenizer))
        part.context_attention_mask = mask_of(inputs)
        part.context_labels = pad_rows([context.labels for context in of_part], IGNORED)


def usable_rows(passages: Passages, config: QueryAsContextConfig) -> tuple[list[int], list[int]]:
    """(train, dev): rows of passages that have the required context, split by article. Raises InputError if none has."""
    counts = np.bincount(passages.articles, minlength=len(passages.keys))
    usable = counts[passages.articles] >= config.least_passages
    if config.context in ("random-passage", "mixed"):
        different = np.unique(np.stack([passages.articles, passages.texts.canonical]), axis=1)
        usable &= np.bincount(different[0], minlength=len(passages.keys))[passages.articles] >= 2
    if config.uses_queries:
        usable &= np.diff(passages.candidates.offsets) > 0
    held_back = np.array([in_dev(key, config.dev_share) for key in passages.keys], dtype=bool)
    of_dev = held_back[passages.articles]
    rows = np.flatnonzero(usable & ~of_dev).tolist(), np.flatnonzero(usable & of_dev).tolist()
    left_out = len(passages.texts) - len(rows[0]) - len(rows[1])
    logger.info(
        "context %s: %d passages to train on, %d of dev, %d without context", config.context, *map(len, rows), left_out
    )
    if not rows[0]:
        raise InputError(
            f"no passage has a context ({config.context})",
            "random passages need articles of at least two different passages (corpora[…].article), queries a generator",
        )
    return rows
