"""The settings of `osn train mlr`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from opensearch_neural.errors import InputError
from opensearch_neural.models.dense.multi_layer import Selection, VectorSource
from trainers.common.settings import EncoderSettings
from trainers.dense.settings import DenseConfig

PoolingStrategy = Literal["multi-vector", "self-contrastive", "average", "scalar-mix"]
SEVERAL: tuple[PoolingStrategy, ...] = ("multi-vector", "self-contrastive")
"""Pooling strategies that compare several vectors of a document in training."""
CHOICES = ("last", "first", "uniform")
DEFAULT_LAYERS = "last:2"
DEFAULT_COUNT = 8


@dataclass(slots=True)
class RepresentationSettings:
    """Which vectors a document has, and how they are pooled."""

    source: VectorSource = "layers"
    """ "layers": one vector from each of `layers`; "first-tokens": of the last layer's first `count` tokens (ME-BERT);
    "tokens": of all its tokens (ColBERT-style)"""
    layers: list[int] | str = DEFAULT_LAYERS
    """layer numbers from 1, which must include the last; or last:M, first:M, uniform:M (M layers) or all"""
    count: int = DEFAULT_COUNT
    """number of tokens, for source first-tokens"""
    pooling: PoolingStrategy = "self-contrastive"
    """ "multi-vector" keeps and searches all vectors; "self-contrastive" keeps the last layer's vector; "average" and
    "scalar-mix" pool all into one"""
    regularization: float = 0.1
    """λ of L_con + λ·L_reg, for self-contrastive pooling"""

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):
            if re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", self.layers):
                self.layers = [int(number) for number in self.layers.split(",")]
            else:
                _parsed(self.layers)
        if self.source != "layers" and self.layers != DEFAULT_LAYERS:
            raise ValueError(
                f"layers {self.layers}: source {self.source} uses the last layer's tokens only; omit layers"
            )
        if self.source != "first-tokens" and self.count != DEFAULT_COUNT:
            raise ValueError(f"count {self.count} would have no effect: it is for source first-tokens")
        if self.count < 1 or not 0 <= self.regularization < math.inf:
            raise ValueError(
                f"count {self.count} must be at least 1, regularization {self.regularization} finite and at least 0"
            )
        if self.source == "tokens" and self.pooling == "scalar-mix":
            raise ValueError("scalar-mix learns one weight for each vector; with source tokens their number varies")


@dataclass(slots=True)
class MlrConfig(DenseConfig):
    """The settings of `osn train mlr`: the settings of `osn train dense`, and the vectors of documents."""

    encoder: EncoderSettings = field(default_factory=lambda: EncoderSettings(tied=False))
    """lengths, pooling and prompts; the two towers are separate"""
    representation: RepresentationSettings = field(default_factory=RepresentationSettings)
    """the vectors of a document"""


def _parsed(layers: str) -> tuple[str, int]:
    """("last", 2) of "last:2"; ("last", 0) of "all", where 0 stands for every layer."""
    if layers == "all":
        return "last", 0
    match = re.fullmatch(rf"({'|'.join(CHOICES)}):([1-9]\d*)", layers)
    if not match:
        raise ValueError(f"layers {layers!r}: expected numbers, all, or {':M, '.join(CHOICES)}:M, M from 1")
    return match[1], int(match[2])


def chosen_layers(layers: Sequence[int] | str, depth: int) -> tuple[int, ...]:
    """The numbers of the layers, ascending; they include the last layer, `depth`.

    Of 12 layers, "last:4" is 9 to 12, "first:4" is 1, 2, 3 and 12, "uniform:4" is 3, 6, 9, 12 (MLR, table 1). Raises
    InputError for more layers than the backbone has, or if the last layer is missing.
    """
    if not isinstance(layers, str):
        return Selection("layers", "cls", depth, tuple(sorted(layers))).layers
    choice, number = _parsed(layers)
    number = number or depth
    if number > depth:
        raise InputError(f"representation.layers is {layers}, but the backbone has {depth} layers")
    if choice == "last":
        return tuple(range(depth - number + 1, depth + 1))
    if choice == "first":
        return (*range(1, number), depth)
    return tuple(round(depth * at / number) for at in range(1, number + 1))
