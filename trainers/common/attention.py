"""Attention in bfloat16 on a processor: matrix products and a softmax.

torch's fused kernel takes several times as long there, most of all its backward pass. transformers' "eager" adds a float32
mask, and so converts every score to float32 and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import eager_mask

NAME = "bfloat16-products"
MODELS = ("bert", "distilbert", "electra", "roberta", "t5", "xlm-roberta")
"""Model types without shared keys, whose attention adds no more than a mask and a position bias."""


def attention_by_products(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """softmax(query · keyᵀ · scaling + bias + mask) · value, in the precision of `query`.

    query, key, value: (batch, heads, length, size). attention_mask, position_bias: are added to the scores.
    Returns (batch, length, heads, size), and None in place of attention weights.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    for added in (position_bias, attention_mask):
        if added is not None:
            # Masks hold float32's lowest number, which is -inf in bfloat16: softmax of a fully masked row would be NaN.
            scores = scores.add_(added.clamp(min=torch.finfo(scores.dtype).min).to(scores.dtype))
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=dropout > 0)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention_by_products)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def fast_attention(model: nn.Module) -> Iterator[None]:
    """Inside, the models in `model` that would use torch's fused attention use `attention_by_products`."""
    # A model, the models inside it, and a copied layer (in a Condenser head) may each have their own configuration.
    changed = {
        id(config): config
        for module in model.modules()
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig)
        and config.model_type in MODELS
        and config._attn_implementation == "sdpa"
    }
    for config in changed.values():
        config._attn_implementation = NAME
    try:
        yield
    finally:
        for config in changed.values():
            config._attn_implementation = "sdpa"
