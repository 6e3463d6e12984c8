"""The sparse head of a masked language model, pooled tile by tile: logits of (batch, length, vocabulary) never exist.

SPLADE's document vector is max over positions l of log(1 + ReLU(h_l · w_v + b_v)) for every vocabulary entry v (Formal
et al., "SPLADE v2", section 3.1). Both functions are monotone and b_v does not depend on l, so

    max_l log(1 + ReLU(h_l · w_v + b_v)) = log(1 + ReLU(b_v + max_l h_l · w_v))

and only the largest product of each (document, v) has to be kept. A tile of the vocabulary is multiplied, reduced while
it is in the processor's cache, and forgotten; logarithms are taken of the few weights above 0.

Everywhere: hidden (batch, length, size), mask (batch, length) with 1 for tokens and 0 for padding, weight
(vocabulary, size), bias (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TILE = 2048
"""Vocabulary entries at once: with ROWS, a tile of products is 16 MB of float32, the fastest of those measured on CPU."""
ROWS = 2048
"""Token positions at once, or one document's where that is longer."""
GPU_ROWS = 32_768
SHARE_WORTH_SCREENING = 0.1


def largest_logits(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, max over positions of h · w + b): (batch, vocabulary), in hidden's precision."""
    return (_largest_products(hidden, mask, weight) + bias).relu_()


def largest_logits_screened(
    hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, coarse: Tensor, norms: Tensor
) -> Tensor:
    """The result of `largest_logits`, with most of the work done in bfloat16; no value is less exact for it.

    coarse: weight in bfloat16; norms (vocabulary,): the length of each of its rows. The coarse products only decide
    which entries of a document may be above 0; those, a few hundred of 30,000 in a trained model, are computed again in
    full. An entry is left out only where that is proven: both factors and the result are rounded to 8 bits, 2⁻⁸ each,
    so by Cauchy-Schwarz |coarse − exact| ≤ 3 · 2⁻⁸ · |w| · |h|; a fourth 2⁻⁸ covers sums split between units.
    """
    import torch

    margin = torch.outer(hidden.norm(dim=2).amax(dim=1), norms) * 2**-6  # (batch, vocabulary)
    raised = bias + margin
    tokens = hidden.to(coarse.dtype)
    possible = _largest_above_0(tokens, mask, coarse) + raised > 0
    # Entries that a negative product too may leave above 0: those of large biases, few in a trained model.
    unsure = (raised.amax(dim=0) > 0).nonzero().squeeze(1)
    possible[:, unsure] = _largest_products(tokens, mask, coarse[unsure]) + raised[:, unsure] > 0
    if possible.float().mean() > SHARE_WORTH_SCREENING:
        return largest_logits(hidden, mask, weight, bias)
    logits = torch.zeros(possible.shape, dtype=hidden.dtype, device=hidden.device)
    for document, entries in enumerate(possible):
        columns = entries.nonzero().squeeze(1)
        tokens = hidden[document][mask[document].bool()]
        logits[document, columns] = ((tokens @ weight[columns].T).amax(dim=0) + bias[columns]).relu_()
    return logits


def summed_activations(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, *, double_log: bool) -> Tensor:
    """Σ over positions of log(1 + ReLU(h · w + b)): (batch, vocabulary); SPLADE v1's pooling."""
    import torch

    pooled = torch.empty((hidden.shape[0], weight.shape[0]), dtype=hidden.dtype, device=hidden.device)
    for documents, entries in _tiles(hidden, weight):
        logits = hidden[documents] @ weight[entries].T + bias[entries]
        pooled[documents, entries] = (activated(logits, double_log=double_log) * mask[documents, :, None]).sum(dim=1)
    return pooled


def activated(logits: Tensor, *, double_log: bool) -> Tensor:
    """log(1 + ReLU(x)), or with double_log log(1 + log(1 + ReLU(x))) (Geng et al., "Exploring ℓ0 Sparsification")."""
    once = logits.relu().log1p()
    return once.log1p() if double_log else once


def _largest_above_0(hidden: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """max(0, max over positions of h · w) of bfloat16: (batch, vocabulary).

    The bits of a bfloat16 read as an integer are in the order of the numbers where these are not negative, and negative
    where they are. Processors find the largest of integers nine times as fast.
    """
    import torch

    tokens = _padded_by_first(hidden, mask)
    largest = torch.empty((hidden.shape[0], weight.shape[0]), dtype=torch.int16, device=hidden.device)
    for documents, entries in _tiles(hidden, weight):
        largest[documents, entries] = (tokens[documents] @ weight[entries].T).view(torch.int16).amax(dim=1)
    return largest.clamp_(min=0).view(hidden.dtype)


def _largest_products(hidden: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """max over positions of h · w: (batch, vocabulary)."""
    import torch

    tokens = _padded_by_first(hidden, mask)
    largest = torch.empty((hidden.shape[0], weight.shape[0]), dtype=hidden.dtype, device=hidden.device)
    for documents, entries in _tiles(hidden, weight):
        largest[documents, entries] = (tokens[documents] @ weight[entries].T).amax(dim=1)
    return largest


def _padded_by_first(hidden: Tensor, mask: Tensor) -> Tensor:
    """Padding repeats the first token, which no maximum sees: cheaper than masking products."""
    import torch

    return torch.where(mask.bool()[:, :, None], hidden, hidden[:, :1])


def _tiles(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of documents and of vocabulary entries whose products fit ROWS × TILE."""
    rows = GPU_ROWS if hidden.is_cuda else ROWS
    documents = max(1, rows // hidden.shape[1])
    for start in range(0, hidden.shape[0], documents):
        for first in range(0, weight.shape[0], TILE):
            yield slice(start, start + documents), slice(first, first + TILE)
