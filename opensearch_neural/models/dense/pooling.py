"""From the vectors of tokens to the vector of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["cls", "mean"]


def pooled(hidden: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """hidden: (rows, length, dimension), attention_mask: (rows, length) → (rows, dimension): the first token's vector, or
    the mean of those that are not padding."""
    if pooling == "cls":
        return hidden[:, 0]
    mask = attention_mask[:, :, None].to(hidden.dtype)
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
