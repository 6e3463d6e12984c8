"""Attention in bfloat16 on a processor: matrix products and a softmax.

torch's fused kernel takes several times as long there, its backward above all; transformers' "eager" adds a mask in
float32, and so makes of every score a float32 number and back.
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
"""The model types whose attention has neither shared keys nor more than a mask and a position bias."""


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

    query, key, value: (batch, heads, length, size). attention_mask, position_bias: to be added to scores.
    Returns (batch, length, heads, size), and no weights.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    for added in (position_bias, attention_mask):
        if added is not None:
            # float32's lowest number, with which masks are made, is -inf in bfloat16: a row that is all masked has none.
            scores = scores.add_(added.clamp(min=torch.finfo(scores.dtype).min).to(scores.dtype))
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=dropout > 0)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention_by_products)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def fast_attention(model: nn.Module) -> Iterator[None]:
    """Inside, the models in `model` that would use torch's fused attention use `attention_by_products`."""
    # A model, the models inside it, and a copied layer, of a Condenser head say, may have a configuration each.
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
