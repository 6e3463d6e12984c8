"""Turns texts into token ids, and token ids into tensors with little padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opensearch_neural.encodable import encodable
from trainers.common.batches import Part

TokenIds = npt.NDArray[np.int32]
TokenRow = npt.NDArray[np.integer] | Sequence[int]

MULTIPLE = 8
"""Lengths are rounded up to a multiple of this: matrix kernels run at full speed on such shapes."""


PART_OVERHEAD = {"cpu": 16, "cuda": 8192}
"""The cost of one more part of a batch, in tokens: calls and a gradient of all word vectors; large on a GPU, which idles."""


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id for padding; 0 if the tokenizer has none, because the mask hides padding."""
    identifier = tokenizer.pad_token_id
    return int(identifier) if isinstance(identifier, int) else 0


class TokenCache:
    """The token ids of texts by row, special tokens included; each text is tokenized at its first use."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, text_at: Callable[[int], str], *, max_length: int, prompt: str = ""
    ) -> None:
        self.tokenizer, self.text_at = tokenizer, text_at
        self.max_length, self.prompt = max_length, prompt
        self._ids: dict[int, TokenIds] = {}

    def rows(self, rows: Sequence[int]) -> list[TokenIds]:
        """The token ids of each of `rows`, each at most `max_length` long."""
        missing = list(dict.fromkeys(row for row in rows if row not in self._ids))
        if missing:
            texts = [encodable(self.prompt + self.text_at(row)) for row in missing]
            encoded = self.tokenizer(
                texts,
                truncation=True,
                max_length=self.max_length,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            for row, ids in zip(missing, encoded["input_ids"], strict=True):
                self._ids[row] = np.asarray(ids, dtype=np.int32)
        return [self._ids[row] for row in rows]


def text_parts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    tokens: int,
    prompt: str = "",
    overhead: int = 0,
) -> list[Part]:
    """`texts` as parts to encode, of at most `tokens` tokens with padding; overhead: as in `padded_parts`."""
    cache = TokenCache(tokenizer, texts.__getitem__, max_length=max_length, prompt=prompt)
    rows = cache.rows(range(len(texts)))
    largest = max(1, tokens // max((len(ids) for ids in rows), default=1))
    return padded_parts(rows, padding=padding_id(tokenizer), overhead=overhead, largest=largest)


def padded_parts(texts: Sequence[TokenIds], *, padding: int, overhead: int, largest: int | None = None) -> list[Part]:
    """`texts` in parts of similar length, each padded to its longest text, cut so that the total cost is least.

    padding: the id for padding; overhead: the cost of one more part, in tokens (a forward pass without rows); largest: the
    most rows in a part. The cut does not affect the vectors of the texts.
    """
    lengths = np.array([_rounded(len(ids)) for ids in texts])
    order = np.argsort(-lengths, kind="stable")
    return [_part([texts[at] for at in rows], rows, padding) for rows in _cut(order, lengths[order], overhead, largest)]


def _cut(
    order: npt.NDArray[np.intp], lengths: npt.NDArray[np.int64], overhead: int, largest: int | None
) -> list[npt.NDArray[np.intp]]:
    """Cuts `order` so that the sum of rows · longest + overhead over parts is least; lengths descend."""
    # A cut can save cost only where the length changes, so few places need a look.
    starts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist()]
    ends = [*starts[1:], len(order)]
    # cheapest[j]: least cost of the texts before starts[j]; last[j]: where the last part of that cut starts.
    cheapest = [0.0] + [float("inf")] * len(starts)
    last = [0] * (len(starts) + 1)
    for j in range(len(starts)):
        for i in range(j + 1):
            cost = cheapest[i] + (ends[j] - starts[i]) * int(lengths[starts[i]]) + overhead
            if cost < cheapest[j + 1]:
                cheapest[j + 1], last[j + 1] = cost, i
    pieces: list[npt.NDArray[np.intp]] = []
    j = len(starts)
    while j > 0:
        i = last[j]
        pieces.append(order[starts[i] : ends[j - 1]])
        j = i
    pieces.reverse()
    if largest is None:
        return pieces
    return [part for piece in pieces for part in np.array_split(piece, -(-len(piece) // largest))]


def _part(texts: Sequence[TokenIds], rows: npt.NDArray[np.intp], padding: int) -> Part:
    return Part(pad_rows(texts, padding), mask_of(texts), torch.from_numpy(rows.astype(np.int64)))


def pad_rows(rows: Sequence[TokenRow], value: int) -> Tensor:
    """Rows of different lengths as one tensor, (rows, length), padded with `value` to the longest length, rounded up."""
    padded = np.full((len(rows), _rounded(max(map(len, rows), default=0))), value, dtype=np.int64)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    return torch.from_numpy(padded)


def mask_of(rows: Sequence[TokenRow]) -> Tensor:
    """1 at a row's own values in `pad_rows`, 0 at padding."""
    return pad_rows([np.ones(len(row), dtype=np.int64) for row in rows], 0)


def _rounded(length: int) -> int:
    return max(1, -(-length // MULTIPLE)) * MULTIPLE
