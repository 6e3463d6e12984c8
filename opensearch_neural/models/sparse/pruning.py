"""Prunes documents' sparse vectors, by the rules of OpenSearch's ingest processor `sparse_encoding`.

    vectors = Pruning.parse("max_ratio:0.1")(encoder.encode_documents(texts))

Lassance et al., "A Static Pruning Study on Sparse Neural Retrievers" (SIGIR 2023), compare such rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models.vectors import SparseVectors

if TYPE_CHECKING:
    from torch import Tensor

PruneType = Literal["top_k", "max_ratio", "alpha_mass", "abs_value"]
FILE = "pruning.json"
"""The file of a model directory with the model's own pruning: {"type", "value"}."""
_LITTLE_LESS = 1 - 1e-9
"""A factor on the wanted mass, so that rounding of the sum never adds a term."""


@dataclass(frozen=True)
class Pruning:
    """Which terms of a document are kept.

    top_k       the `value` heaviest terms
    max_ratio   terms of at least `value` × the document's largest weight
    alpha_mass  the heaviest terms that together hold the share `value` of the sum of the document's weights
    abs_value   terms of at least `value`; perhaps none

    Raises ValueError for another type, and for a value that the type does not allow.
    """

    type: PruneType
    """The rule, one of those above."""
    value: float
    """A number of terms, a share or a weight, as the rule needs."""

    def __post_init__(self) -> None:
        if self.type not in get_args(PruneType):
            raise ValueError(f"there is no pruning {self.type!r}; expected {', '.join(get_args(PruneType))}")
        if self.type == "top_k" and not (1 <= self.value < float("inf") and self.value == int(self.value)):
            raise ValueError(f"top_k takes a whole number from 1, not {self.value:g}")
        if self.type == "abs_value" and not 0 < self.value < float("inf"):
            raise ValueError(f"abs_value takes a weight above 0, not {self.value:g}")
        if self.type in ("max_ratio", "alpha_mass") and not 0 < self.value <= 1:
            raise ValueError(f"{self.type} takes a share above 0 and at most 1, not {self.value:g}")

    def __str__(self) -> str:
        return f"{self.type}:{self.value:g}"

    @classmethod
    def parse(cls, text: str) -> Pruning:
        """From a text such as "max_ratio:0.1", as in the command line and the index's record. Raises InputError."""
        type_, _, value = text.partition(":")
        try:
            return cls(type_, float(value))  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(
                f"{text!r} is no pruning: {error}", "top_k:200, max_ratio:0.1, alpha_mass:0.9 or abs_value:0.2"
            ) from None

    @classmethod
    def of_model(cls, folder: Path) -> Pruning | None:
        """The pruning of a model directory; None: all terms are kept. Raises ModelError if its file is invalid."""
        if not (folder / FILE).exists():
            return None
        content = read_json_object(folder / FILE)
        try:
            return cls(content["type"], float(content["value"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / FILE} holds no pruning: {error}") from None

    def save(self, folder: Path) -> None:
        """Write it into a model directory; it becomes part of the model's hash."""
        write_json(folder / FILE, {"type": self.type, "value": self.value})

    def __call__(self, vectors: SparseVectors) -> SparseVectors:
        """The vectors without the terms that are not kept."""
        return vectors.where(self.kept(vectors.indptr, vectors.weights))

    def kept(self, indptr: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(nnz,): which weights are kept of rows as in `SparseVectors`; of equal weights, the first are."""
        if self.type == "abs_value":
            return weights >= np.float32(self.value)
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        if self.type == "max_ratio":
            largest = np.zeros(len(indptr) - 1, weights.dtype)
            np.maximum.at(largest, rows, weights)
            return weights >= np.float32(self.value) * largest[rows]
        order = np.lexsort((-weights, rows))  # rows keep their order; within a row, the heaviest come first
        starts = indptr[:-1][rows]
        if self.type == "top_k":
            chosen = np.arange(len(weights)) - starts < self.value
        else:
            sums = np.concatenate([[0.0], np.cumsum(weights[order], dtype=np.float64)])
            before = sums[:-1] - sums[starts]
            chosen = before < self.value * _LITTLE_LESS * (sums[indptr[1:]] - sums[indptr[:-1]])[rows]
        kept = np.empty(len(weights), np.bool_)
        kept[order] = chosen
        return kept

    def dense(self, weights: Tensor) -> Tensor:
        """The same for rows with a weight for every term: (texts, vocabulary), 0 for terms that are not kept."""
        import torch

        if self.type == "abs_value":
            return torch.where(weights >= self.value, weights, 0.0)
        if self.type == "max_ratio":
            return torch.where(weights >= self.value * weights.amax(dim=1, keepdim=True), weights, 0.0)
        heaviest, at = weights.sort(dim=1, descending=True, stable=True)
        if self.type == "top_k":
            chosen = torch.arange(weights.shape[1], device=weights.device).expand_as(weights) < self.value
        else:
            sums = heaviest.detach().double().cumsum(dim=1)
            chosen = sums - heaviest.detach().double() < self.value * _LITTLE_LESS * sums[:, -1:]
        return torch.where(torch.zeros_like(chosen).scatter(1, at, chosen), weights, 0.0)
