"""Pooling: turns the vectors of tokens into the vector of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["cls", "mean"]


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """The poolings ("cls", "mean", "max", …) that the configuration of a sentence-transformers Pooling names.

    Before version 6 each was a field of its own: pooling_mode_cls_token, pooling_mode_mean_tokens, ….
    """
    modes = config.get("pooling_mode") or [key for key in config if key.startswith("pooling_mode_") and config[key]]
    modes = [modes] if isinstance(modes, str) else modes
    return [str(mode).removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for mode in modes]


def pooled(hidden: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """(rows, dimension): the first token's vector ("cls"), or the mean over tokens without padding ("mean").

    hidden: (rows, length, dimension); attention_mask: (rows, length)
    """
    if pooling == "cls":
        return hidden[:, 0]
    mask = attention_mask[:, :, None].to(hidden.dtype)
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
