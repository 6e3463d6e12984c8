"""Masks tokens of a sequence, for BERT and for T5."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from trainers.common.batches import IGNORED

Ids = npt.NDArray[np.int64]


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

    special: (vocabulary,), True for ids that are never masked and never drawn. continuation: (vocabulary,), True for pieces
    that continue a word; if given, whole words are masked. Of n maskable tokens, round(rate · n), at least one, are chosen
    (the last word may exceed that). Of these, 10% become a random token, the share `stays` stays unchanged, and the rest
    (80% by default) become `mask_id` (Devlin et al., section 3.1).
    """
    inputs, labels = ids.copy(), np.full_like(ids, IGNORED)
    maskable = np.flatnonzero(~special[ids])
    if not len(maskable):
        return inputs, labels
    count = max(1, round(rate * len(maskable)))
    if continuation is None:
        chosen = rng.permutation(maskable)[:count]
    else:
        # A word is a maskable token that starts it and the continuations that follow without a gap.
        starts = ~continuation[ids[maskable]]
        starts[1:] |= np.diff(maskable) > 1
        starts[0] = True
        word = np.cumsum(starts) - 1
        order = rng.permutation(word[-1] + 1)
        tokens = np.cumsum(np.bincount(word)[order])
        chosen = maskable[np.isin(word, order[: np.searchsorted(tokens, count) + 1])]
    labels[chosen] = ids[chosen]
    fate = rng.random(len(chosen))
    inputs[chosen[fate < 0.9 - stays]] = mask_id
    replaced = chosen[(fate >= 0.9 - stays) & (fate < 1 - stays)]
    inputs[replaced] = rng.choice(np.flatnonzero(~special), size=len(replaced))
    return inputs, labels


def continuations(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.bool_]:
    """(vocabulary,), True for entries that continue a word: they begin with "##" (word pieces), or without "Ġ" or "▁"."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    for mark in ("Ġ", "▁"):
        if sum(token.startswith(mark) for token in tokens) > len(tokens) // 100:
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array([token.startswith("##") for token in tokens])


def special_ids(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.bool_]:
    """(vocabulary,), True for special tokens, sentinels included."""
    special = np.zeros(len(tokenizer), dtype=bool)
    special[tokenizer.all_special_ids] = True
    for token_id, token in tokenizer.added_tokens_decoder.items():
        special[token_id] |= token.special
    return special


def corrupt_spans(
    ids: Ids, *, rate: float, span_length: float, sentinels: Ids, eos_id: int, rng: np.random.Generator
) -> tuple[Ids, Ids]:
    """(inputs, targets) of T5's objective for a sequence without special tokens (Raffel et al., 3.1.4).

    Hides about rate · n tokens, in spans of span_length on average. In the inputs each span is replaced by one sentinel;
    the targets are each sentinel followed by its span, and one more sentinel. Both end with `eos_id`.
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
    """`total` as a random sum of `parts` numbers of at least 1 (at least 0 if `total` is below `parts`)."""
    if total < parts:
        return [1] * total + [0] * (parts - total)
    cuts = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1 if parts > 1 else np.empty(0, np.int64)
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(int).tolist()
