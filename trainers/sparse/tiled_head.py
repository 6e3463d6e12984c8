"""The sparse head in training: pooled tile by tile, forward and backward, for the whole vocabulary or a sample of it.

SPLADE's weight of the vocabulary entry v is activated(max_l h_l · w_v + b_v), see `models.sparse.head`. Its gradient
reaches only the position of the maximum of each (document, entry), and only if the weight is above 0: some hundred of
30,522 entries in a trained document. So the forward pass keeps no logits but the largest of each pair, and the backward
pass finds the positions again, for the few entries that have a gradient.

Inference-free scoring needs still less. s(q, d) reads the entries of the queries' tokens, some hundred in a batch. The
other entries matter only to the FLOPS regularizer, a sum over entries (`inference-free-sparse`, eq. 3), which a uniform
sample of them estimates without bias: `sample_entries`, `flops`.

Shapes everywhere: hidden (documents, length, size), mask (documents, length) with 1 for tokens, weight (vocabulary, size),
bias (vocabulary,), entries (sampled,) ids of the vocabulary or None for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensearch_neural.models.sparse import head as sparse_head

PAIRS = 8192
"""(document, entry) pairs whose gradient is propagated at once: their rows of `weight` take 12 MB at size 384."""


def trained_logits(
    hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, entries: Tensor | None = None, *, revive: float = 0.0
) -> Tensor:
    """`sparse_head.largest_logits` for training: max(0, max over positions of h · w + b), with gradients of hidden, weight
    and bias: (documents, entries).

    If several positions share the maximum, one of them gets the gradient, as in torch's `max`. revive: the share of its
    gradient that a silenced pair gets if that raises it; with 0, the true gradient, a silenced pair stays silent.
    """
    logits: Tensor = _TrainedLogits.apply(hidden, mask, weight, bias, entries, revive)
    return logits


def activation(logits: Tensor, *, double_log: bool) -> Tensor:
    """log(1 + x), or log(1 + log(1 + x)), of the output of `trained_logits`; without another ReLU, whose gradient at 0
    would be 0."""
    once = logits.log1p()
    return once.log1p() if double_log else once


class _TrainedLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, entries: Tensor | None, revive: float
    ) -> Tensor:
        rows = weight if entries is None else weight[entries]
        offsets = bias if entries is None else bias[entries]
        logits = sparse_head.largest_logits(hidden, mask, rows.to(hidden.dtype), offsets.to(hidden.dtype))
        ctx.revive = revive
        ctx.save_for_backward(hidden, mask, weight, entries, logits)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, mask, weight, entries, logits = ctx.saved_tensors
        silenced = ctx.revive * gradients[0].clamp(max=0) if ctx.revive else 0
        gradient = torch.where(logits > 0, gradients[0], silenced)
        documents, at = gradient.nonzero(as_tuple=True)
        values = gradient[documents, at].to(weight.dtype)
        ids = at if entries is None else entries[at]
        positions = _positions(hidden, mask, weight, documents, ids)
        size = hidden.shape[2]
        tokens = hidden.reshape(-1, size)
        rows = documents * hidden.shape[1] + positions
        of_hidden = torch.zeros_like(tokens, dtype=weight.dtype)
        # Frozen weights need no gradient of their size.
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[2] else None
        for start in range(0, len(rows), PAIRS):
            part = slice(start, start + PAIRS)
            share = values[part, None]
            of_hidden.index_add_(0, rows[part], share * weight[ids[part]])
            if of_weight is not None:
                of_weight.index_add_(0, ids[part], share * tokens[rows[part]])
        of_bias = torch.zeros_like(weight[:, 0]).index_add_(0, ids, values)
        return of_hidden.view(hidden.shape).to(hidden.dtype), None, of_weight, of_bias, None, None


def _positions(hidden: Tensor, mask: Tensor, weight: Tensor, documents: Tensor, ids: Tensor) -> Tensor:
    """The position of the largest product of each (document, entry); `documents` ascends; ids: the entries' ids."""
    positions = torch.empty_like(documents)
    ends = torch.bincount(documents, minlength=len(hidden)).cumsum(0).tolist()
    start = 0
    for document, end in enumerate(ends):
        if end > start:
            products = weight[ids[start:end]].to(hidden.dtype) @ hidden[document].T
            products.masked_fill_(~mask[document].bool(), -torch.inf)
            positions[start:end] = products.argmax(dim=1)
        start = end
    return positions


# ------------------------------------------------ a sample of the vocabulary


class VocabularySample(NamedTuple):
    """The entries of the vocabulary to compute."""

    entries: npt.NDArray[np.int64]
    """(entries,), ascending, without repetition"""
    entry_counts: npt.NDArray[np.float32]
    """(entries,), how many entries each represents in a sum over the vocabulary: 1, or 1/p if drawn with probability p"""


def sample_entries(
    needed: npt.NDArray[np.integer[Any]], among: npt.NDArray[np.integer[Any]], count: int, rng: np.random.Generator
) -> VocabularySample:
    """All of `needed`, and `count` of the others in `among`, drawn uniformly without replacement.

    Σ_j entry_counts_j · f_j over the returned entries has the expectation Σ_j f_j over all of `among`, for any f that does
    not depend on the draw. FLOPS and its gradient are such sums.
    """
    certain = np.unique(needed).astype(np.int64)
    others = np.setdiff1d(among, certain, assume_unique=True)
    drawn = rng.choice(others, size=min(count, len(others)), replace=False)
    entries = np.concatenate([certain, drawn])
    entry_counts = np.ones(len(entries), dtype=np.float32)
    entry_counts[len(certain) :] = len(others) / max(1, len(drawn))
    order = np.argsort(entries)
    return VocabularySample(entries[order], entry_counts[order])
