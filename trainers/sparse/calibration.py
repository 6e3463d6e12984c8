"""Sets the head's bias and scale before training, for a given number and weight of active expansions."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from trainers.data.tokenized import TokenCache, padded_parts, padding_id
from trainers.encoders import backbones
from trainers.sparse.student import SparseStudent
from trainers.sparse.tiled_head import largest_logits

logger = logging.getLogger(__name__)


@torch.no_grad()
def calibrate(student: SparseStudent, texts: Sequence[str], *, expansions: float, weight: float | None) -> None:
    """Set the head's bias so that documents have `expansions` active terms outside their text, on average, and its scale so
    that the largest of them has the weight `weight`, on average. Both change the model's own parameters."""
    tokenizer, device = student.tokenizers["document"], student.head.weight.device
    rows = TokenCache(tokenizer, texts.__getitem__, max_length=student.encoder_settings.document_length).rows(
        range(len(texts))
    )
    high = 1e3  # Larger than any logit, so that no logit is cut off at 0.
    ordinary = torch.from_numpy(student.ordinary_entries).to(device)
    outside: list[Tensor] = []
    for part in padded_parts(rows, padding=padding_id(tokenizer), overhead=0, largest=8):
        hidden = student.model(
            input_ids=part.input_ids.to(device), attention_mask=part.attention_mask.to(device)
        ).logits
        mask = part.attention_mask.to(device)
        logits = largest_logits(hidden, mask, student.head.weight, student.head.bias.clamp(min=-high / 2) + high) - high
        logits.scatter_(1, part.input_ids.to(device), -torch.inf)
        outside.append(logits[:, ordinary].cpu())
    logits = torch.cat(outside)
    if logits.isnan().any():
        raise InputError("the outputs of the start are not numbers", "its weights are damaged: choose another start")
    held = torch.isfinite(logits).sum(dim=1).float().mean()
    kept = logits[torch.isfinite(logits)]
    threshold = float(np.quantile(kept.numpy(), 1 - min(0.5, expansions / float(held))))
    student.head.bias[ordinary] -= threshold
    factor = 1.0
    if weight is not None:
        largest = (logits.amax(dim=1) - threshold).clamp(min=1e-6)
        # log(1 + factor · logit) = weight, for the mean document.
        factor = math.expm1(math.expm1(weight) if student.settings.double_log else weight) / float(largest.mean())
        student.head.bias[ordinary] *= factor
        scaled = backbones.last_normalization(student.model)
        for parameter in (scaled.weight, scaled.bias):
            parameter.mul_(factor)
    logger.info(
        "head: logits lowered by %.3g, scaled by %.3g: %g expansions per document", threshold, factor, expansions
    )
