"""The architecture and sizes of a backbone that is made anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.common.settings import check_dropout

Pieces = Literal["wordpiece", "byte-level"]


@dataclass(frozen=True, slots=True)
class NewBackbone:
    """The architecture and sizes of a new model."""

    architecture: Literal["bert", "t5"] = "bert"
    """ "bert": an encoder; "t5": an encoder and a decoder"""
    layers: int = 4
    """layers; a T5 has as many in the decoder"""
    hidden: int = 256
    """the dimension of hidden states; feed-forward layers have four times as many"""
    heads: int = 4
    """attention heads; they divide `hidden`"""
    vocabulary: int = 16_000
    """entries of the tokenizer's vocabulary"""
    pieces: Pieces | None = None
    """the kind of tokenizer; null is "wordpiece" for BERT and "byte-level" for T5"""
    positions: int = 512
    """the longest text in tokens"""
    dropout: float = 0.1
    """the share of activations that training sets to zero"""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocabulary", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        check_dropout(self.dropout)
