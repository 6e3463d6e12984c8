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
    gated: bool = False
    """Whether the feed-forward part has a third matrix, for its gate (Shazeer 2020, "GLU Variants Improve Transformer")."""

    @property
    def layer_weights(self) -> int:
        """The weights of a layer's matrices: four square ones of attention, and two or three of the feed-forward part."""
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.intermediate


def multiply_adds(size: NetworkSize, tokens: int) -> int:
    """The multiply-adds with which a network of `size` reads one document of `tokens` tokens, special ones included.

    Matrix products alone are counted; norms, activations and biases cost little beside them. In each layer: one for each
    weight and token, and for each pair of tokens a score and a sum. Then the head: a square projection, and one product for
    each token of the vocabulary.
    """
    layer = size.layer_weights + 2 * tokens * size.hidden
    head = size.hidden**2 + size.hidden * size.vocabulary
    return tokens * (size.layers * layer + head)
