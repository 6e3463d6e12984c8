"""Passages with their context, drawn and masked at every visit, and batches of them."""

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
from trainers.common.batches import CachedBatch, Part
from trainers.common.sampling import Visit
from trainers.data.masking import Ids, continuations, mask_tokens, special_ids
from trainers.data.texts import in_dev
from trainers.data.tokenized import PART_OVERHEAD, TokenCache, padded_parts, padding_id
from trainers.encoders.sequence_to_sequence import IGNORED
from trainers.query_as_context.passages import Passages
from trainers.query_as_context.settings import QueryAsContextConfig

logger = logging.getLogger(__name__)


class Drawn(NamedTuple):
    """What one passage became at one visit: (input ids, labels) of it and of its context. keys: of the passage (its article,
    with the context "query" its text) and of the context's text; rows of a batch that have a key in common are no negatives
    of each other."""

    name: str
    passage: tuple[Ids, Ids]
    context: tuple[Ids, Ids] | None
    keys: tuple[int, int]


@dataclass
class LabelledPart(Part):
    """Passages or contexts with masked tokens; with CoT-MAE a passage's row has its context beside it."""

    labels: Tensor
    """(rows, length) int64, −100 where nothing is masked"""
    context_input_ids: Tensor | None = None
    """(rows, context length) int64"""
    context_attention_mask: Tensor | None = None
    """(rows, context length) int64"""
    context_labels: Tensor | None = None
    """(rows, context length) int64"""


@dataclass
class PairTargets:
    """What keeps rows apart that are no negatives of each other."""

    keys: Tensor
    """(pairs, 2) int64, see `Drawn.keys`"""


@dataclass
class PairBatch(CachedBatch):
    """Roles: "passage", and with coCondenser "context", row by row partners."""

    parts: dict[str, list[LabelledPart]]
    targets: PairTargets


class Pairs:
    """Passages with their context, drawn and masked anew at every visit."""

    def __init__(
        self, passages: Passages, tokenizer: PreTrainedTokenizerBase, config: QueryAsContextConfig, rows: Sequence[int]
    ) -> None:
        self.passages, self.tokenizer, self.config, self.rows = passages, tokenizer, config, rows
        self.members = passages.members()
        self.special = special_ids(tokenizer)
        self.continuation = continuations(tokenizer) if config.masking.whole_word else None
        self.passage_tokens = TokenCache(tokenizer, passages.texts.text_at, max_length=config.passage_length)
        self.query_tokens = TokenCache(tokenizer, passages.queries.text_at, max_length=config.query_length)
        self.same_text = passages.texts.canonical()
        self.same_query = passages.queries.canonical()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, visit: Visit) -> Drawn:
        row, rng = self.rows[visit.index], visit.generator()
        # A passage of the same article is related where such pairs are learned from; elsewhere it is a negative.
        key = int(self.same_text[row] if self.config.context == "query" else self.passages.articles[row])
        passage = self._masked(self.passage_tokens, row, "passage", rng)
        context, same = self._context(row, rng)
        return Drawn(self.passages.texts.ids[row], passage, context, (key, same))

    def _context(self, row: int, rng: np.random.Generator) -> tuple[tuple[Ids, Ids] | None, int]:
        """A context, and a number that contexts of the same text share: one question may have been written for several
        passages."""
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
    ) -> tuple[Ids, Ids]:
        assert self.tokenizer.mask_token_id is not None
        return mask_tokens(
            tokens.rows([row])[0].astype(np.int64),
            rate=self.config.masking.share(self.config.variant, role),
            mask_id=int(self.tokenizer.mask_token_id),
            special=self.special,
            rng=rng,
            continuation=self.continuation,
            # What its decoder is to predict from the passage's CLS, it must not read (section 2).
            stays=0.0 if role == "context" and self.config.variant == "cot-mae" else 0.1,
        )

    def collate(self, items: Sequence[Drawn]) -> PairBatch:
        """coCondenser: passages and contexts are rows of their own; CoT-MAE: a passage's row has its context with it."""
        passages = [one.passage for one in items]
        contexts = [one.context for one in items if one.context is not None]
        parts = {"passage": self._parts(passages)}
        if contexts and self.config.variant == "cocondenser":
            parts["context"] = self._parts(contexts)
        elif contexts:
            for part in parts["passage"]:
                self._add_contexts(part, contexts)
        return PairBatch(
            ids=[one.name for one in items],
            parts=parts,
            targets=PairTargets(keys=torch.tensor([one.keys for one in items])),
        )

    def _parts(self, rows: Sequence[tuple[Ids, Ids]]) -> list[LabelledPart]:
        parts = padded_parts(
            [inputs.astype(np.int32) for inputs, _ in rows],
            padding=padding_id(self.tokenizer),
            overhead=PART_OVERHEAD[self.config.training.device_type],
            largest=self.config.training.chunk_size,
        )
        return [
            LabelledPart(
                part.input_ids,
                part.attention_mask,
                part.position,
                labels=_filled([rows[at][1] for at in part.position.tolist()], part.input_ids.shape[1]),
            )
            for part in parts
        ]

    def _add_contexts(self, part: LabelledPart, contexts: Sequence[tuple[Ids, Ids]]) -> None:
        at = part.position.tolist()
        (together,) = padded_parts(
            [contexts[one][0].astype(np.int32) for one in at], padding=padding_id(self.tokenizer), overhead=1 << 40
        )
        # One part, which is in order of length: back to the order of the passages.
        order = torch.argsort(together.position)
        part.context_input_ids = together.input_ids[order]
        part.context_attention_mask = together.attention_mask[order]
        part.context_labels = _filled([contexts[one][1] for one in at], together.input_ids.shape[1])


def _filled(labels: Sequence[Ids], width: int) -> Tensor:
    filled = np.full((len(labels), width), IGNORED, dtype=np.int64)
    for at, row in enumerate(labels):
        filled[at, : len(row)] = row
    return torch.from_numpy(filled)


def usable_rows(passages: Passages, config: QueryAsContextConfig) -> tuple[list[int], list[int]]:
    """(train, dev): the passages that have the context asked for, split by article. Raises InputError for none at all."""
    counts = np.bincount(passages.articles, minlength=len(passages.keys))
    usable = counts[passages.articles] >= config.least_passages
    if config.context in ("random-passage", "mixed"):
        different = np.unique(np.stack([passages.articles, passages.texts.canonical()]), axis=1)
        usable &= np.bincount(different[0], minlength=len(passages.keys))[passages.articles] >= 2
    if config.asks:
        usable &= np.diff(passages.candidates.offsets) > 0
    held = np.array([in_dev(key, config.dev_share) for key in passages.keys], dtype=bool)
    of_dev = held[passages.articles]
    rows = np.flatnonzero(usable & ~of_dev).tolist(), np.flatnonzero(usable & of_dev).tolist()
    left_out = len(passages.texts) - len(rows[0]) - len(rows[1])
    logger.info(
        "context %s: %d passages to train on, %d of dev, %d without one", config.context, *map(len, rows), left_out
    )
    if not rows[0]:
        raise InputError(
            f"no passage has a context ({config.context})",
            "random passages need articles of two different ones at least (corpora[…].article), queries a generator",
        )
    return rows
