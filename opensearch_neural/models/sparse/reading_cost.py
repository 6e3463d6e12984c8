"""What reading a document costs a sparse model, from the sizes of its network; no torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkSize:
    """The sizes of a transformer like BERT with a masked-LM head, by the names of config.json."""

    layers: int
    """num_hidden_layers"""
    hidden: int
    """hidden_size"""
    intermediate: int
    """intermediate_size"""
    vocabulary: int
    """vocab_size"""


def multiply_adds(size: NetworkSize, tokens: int) -> int:
    """The multiply-adds with which a network of `size` reads one document of `tokens` tokens, special ones included.

    Matrix products alone are counted; norms, activations and biases cost little beside them. In each layer: four square
    projections of attention, two matrices of the feed-forward part, and for each pair of tokens a score and a sum. Then the
    head: a square projection, and one product for each token of the vocabulary.
    """
    layer = 4 * size.hidden**2 + 2 * size.hidden * size.intermediate + 2 * tokens * size.hidden
    head = size.hidden**2 + size.hidden * size.vocabulary
    return tokens * (size.layers * layer + head)
