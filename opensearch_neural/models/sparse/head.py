"""The sparse head of a masked language model, pooled tile by tile, without logits of (batch, length, vocabulary) in memory.

SPLADE's document vector is max over positions l of log(1 + ReLU(h_l · w_v + b_v)) for every vocabulary entry v (Formal
et al., "SPLADE v2", section 3.1). Both functions are monotone and b_v does not depend on l, so

    max_l log(1 + ReLU(h_l · w_v + b_v)) = log(1 + ReLU(b_v + max_l h_l · w_v))

and only the largest product of each (document, v) has to be kept. A tile of the vocabulary is multiplied and reduced while
it is in the processor's cache. Logarithms are computed only for the few weights above 0.

Everywhere: hidden (batch, length, size), mask (batch, length) with 1 for tokens and 0 for padding, weight
(vocabulary, size), bias (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TILE = 2048
"""Vocabulary entries per tile: with ROWS, a tile of products is 16 MB of float32, the fastest size measured on CPU."""
ROWS = 2048
"""Token positions per tile, or those of one document if it is longer."""
GPU_ROWS = 32_768
"""ROWS on a GPU."""
SHARE_WORTH_SCREENING = 0.1
"""If a screen leaves more than this share of entries possible, all products are computed instead."""


def largest_logits(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, screen: Screen | None = None) -> Tensor:
    """max(0, max over positions of h · w + b): (batch, vocabulary), in hidden's precision.

    With a screen most of the work is done in fewer bits, and the result is as exact: coarse products only decide which
    entries of a document may be above 0; these, a few hundred of 30,000 in a trained model, are computed again in full
    precision. An entry is left out only if it is proven to be 0.
    """
    import torch

    possible = None if screen is None else screen.possible(hidden, mask, bias)
    if possible is None or possible.float().mean() > SHARE_WORTH_SCREENING:
        return (_largest_products(hidden, mask, weight) + bias).relu_()
    logits = torch.zeros(possible.shape, dtype=hidden.dtype, device=hidden.device)
    for document, entries in enumerate(possible):
        columns = entries.nonzero().squeeze(1)
        tokens = hidden[document][mask[document].bool()]
        logits[document, columns] = ((tokens @ weight[columns].T).amax(dim=0) + bias[columns]).relu_()
    return logits


class Screen(Protocol):
    """The head's weights in fewer bits, with a bound on the products' error."""

    def possible(self, hidden: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        """(batch, vocabulary) of bool: False only where max over positions of h · w + b is surely at most 0."""


class Bfloat16Screen:
    """For matrix units that multiply bfloat16: a GPU, or AMX.

    Both factors and the result are rounded to 8 bits, 2⁻⁸ each, so by Cauchy-Schwarz
    |coarse − exact| ≤ 3 · 2⁻⁸ · |w| · |h|; a fourth 2⁻⁸ covers sums split between units.
    """

    def __init__(self, weight: Tensor) -> None:
        import torch

        self.coarse = weight.to(torch.bfloat16)
        self.norms = weight.norm(dim=1)

    def possible(self, hidden: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        import torch

        margin = torch.outer(hidden.norm(dim=2).amax(dim=1), self.norms) * 2**-6  # (batch, vocabulary)
        raised = bias + margin
        tokens = hidden.to(self.coarse.dtype)
        possible = _largest_above_0(tokens, mask, self.coarse) + raised > 0
        # Entries with large biases may be above 0 even if their products are negative; a trained model has few.
        unsure = (raised.amax(dim=0) > 0).nonzero().squeeze(1)
        possible[:, unsure] = _largest_products(tokens, mask, self.coarse[unsure]) + raised[:, unsure] > 0
        return possible


class Int8Screen:
    """For processors that multiply 8-bit integers (VNNI): four times the products of float32.

    w is rounded to 127 steps of its largest component, h to 127 steps of its document's largest. For the rounded ŵ and ĥ,
    h · w − ĥ · ŵ = (h − ĥ) · w + ĥ · (w − ŵ), so |coarse − exact| ≤ |h − ĥ| · |w| + |ĥ| · |w − ŵ|: all four are known.
    """

    def __init__(self, weight: Tensor) -> None:
        self.coarse, self.scale = _int8(weight, weight.abs().amax(dim=1, keepdim=True))
        self.norms = weight.norm(dim=1)
        self.lost = (weight - self.coarse * self.scale).norm(dim=1)

    def possible(self, hidden: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        import torch

        tokens = _padded_by_first(hidden, mask)
        coarse, scale = _int8(tokens, tokens.abs().amax(dim=(1, 2), keepdim=True))
        lost = (tokens - coarse * scale).norm(dim=2).amax(dim=1)
        length = tokens.norm(dim=2).amax(dim=1)
        # The last term is float32's own rounding, of these norms and of the exact products.
        margin = torch.outer(lost, self.norms) + torch.outer(length + lost, self.lost + 1e-5 * self.norms)
        largest = torch.empty((len(hidden), len(self.coarse)), dtype=torch.int32, device=hidden.device)
        for documents, entries in _tiles(hidden, self.coarse):
            products = torch._int_mm(coarse[documents].flatten(0, 1), self.coarse[entries].T)
            largest[documents, entries] = products.view(-1, hidden.shape[1], products.shape[1]).amax(dim=1)
        return largest * scale[:, 0] * self.scale[:, 0] + margin + bias > 0


def best_screen(weight: Tensor) -> Screen | None:
    """The screen that makes the head's products cheaper on the device of `weight`; None if there is none."""
    import torch

    if weight.is_cuda:
        return Bfloat16Screen(weight) if torch.cuda.is_bf16_supported() else None
    if weight.device.type != "cpu":
        return None
    if torch.cpu._is_amx_tile_supported():
        return Bfloat16Screen(weight)
    return Int8Screen(weight) if torch.cpu._is_vnni_supported() else None


def _int8(values: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """(values as numbers of steps, size of a step): `largest` is 127 steps and broadcasts with `values`."""
    import torch

    step = (largest / 127).clamp(min=torch.finfo(values.dtype).tiny)
    return (values / step).round().to(torch.int8), step


def summed_activations(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, *, double_log: bool) -> Tensor:
    """Σ over positions of log(1 + ReLU(h · w + b)): (batch, vocabulary); SPLADE v1's pooling."""
    import torch

    pooled = torch.empty((hidden.shape[0], weight.shape[0]), dtype=hidden.dtype, device=hidden.device)
    for documents, entries in _tiles(hidden, weight):
        logits = hidden[documents] @ weight[entries].T + bias[entries]
        pooled[documents, entries] = (activated(logits, double_log=double_log) * mask[documents, :, None]).sum(dim=1)
    return pooled


def activated(logits: Tensor, *, double_log: bool) -> Tensor:
    """log(1 + ReLU(x)), or with double_log log(1 + log(1 + ReLU(x))) (Shen et al. 2025, "Exploring ℓ0
    Sparsification for Inference-free Sparse Retrievers")."""
    once = logits.relu().log1p()
    return once.log1p() if double_log else once


def _largest_above_0(hidden: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """max(0, max over positions of h · w) of bfloat16: (batch, vocabulary).

    Read as integers, the bits of bfloat16 numbers keep the order of numbers that are not negative, and stay negative for
    negative numbers. Processors find the largest integer nine times as fast.
    """
    import torch

    return _largest_products(hidden, mask, weight, torch.int16).clamp_(min=0).view(hidden.dtype)


def _largest_products(hidden: Tensor, mask: Tensor, weight: Tensor, read_as: torch.dtype | None = None) -> Tensor:
    """max over positions of h · w: (batch, vocabulary). read_as: the type by which the bits of products are compared."""
    import torch

    tokens = _padded_by_first(hidden, mask)
    largest = torch.empty((hidden.shape[0], weight.shape[0]), dtype=read_as or hidden.dtype, device=hidden.device)
    for documents, entries in _tiles(hidden, weight):
        products = tokens[documents] @ weight[entries].T  # of autocast's type, where that is on, and not of `hidden`'s
        largest[documents, entries] = (products.view(read_as) if read_as else products).amax(dim=1)
    return largest


def _padded_by_first(hidden: Tensor, mask: Tensor) -> Tensor:
    """`hidden` with padding replaced by the first token, which changes no maximum: cheaper than masking products."""
    import torch

    return torch.where(mask.bool()[:, :, None], hidden, hidden[:, :1])


def _tiles(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of documents and of vocabulary entries whose products fit ROWS × TILE."""
    rows = GPU_ROWS if hidden.is_cuda else ROWS
    documents = max(1, rows // hidden.shape[1])
    for start in range(0, hidden.shape[0], documents):
        for first in range(0, weight.shape[0], TILE):
            yield slice(start, start + documents), slice(first, first + TILE)
