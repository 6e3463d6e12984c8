"""Warm-up: gives a backbone without a masked-LM head a new head, with expansions to learn from.

With an untrained head, FLOPS regularization silences every term that is not in the document, and a silenced ReLU gets no
gradient. So a new head starts as the identity (a position scores its own token and similar tokens highest), and its bias is
set so that a given number of expansions are active.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint, to_dict
from trainers.common.processes import main_process_first
from trainers.data.sets import PreparedSets
from trainers.data.tokenized import TokenCache, padded_parts, padding_id
from trainers.encoders import backbones
from trainers.sparse.settings import SparseConfig
from trainers.sparse.start import build, load_start
from trainers.sparse.student import SparseStudent
from trainers.sparse.tiled_head import trained_logits

logger = logging.getLogger(__name__)

CALIBRATION = 64
"""Number of documents for setting a head's bias."""


def warmed_up(config: SparseConfig, prepared: PreparedSets, *, trust_remote_code: bool = False) -> str:
    """The model that the first stage starts from: `config.start`, warmed up if it has no head.

    A trained head is not warmed up: calibration would rescale it. trust_remote_code and errors: as in `load_start`.
    """
    _, _, fresh = load_start(config.start, config.student, trust_remote_code=trust_remote_code)
    if not fresh:
        return config.start
    settings, training = config.warm_up, config.training
    made_by = fingerprint(
        # Settings of a removed regression are included, so that the names of older warm-ups stay valid.
        {"impact_steps": 0, "batch_size": 32, "length": 128, **to_dict(settings)},
        config.student,
        hash_files(locate(config.start)),
        (training.seed, training.precision),
        config.document_length if settings.expansions is not None else None,
        [data.hash for data in prepared.train],
    )
    ready = config.folder / f"warm-up-{made_by[:8]}" / "ready"
    # Trainings that share a cache may come here at once.
    with main_process_first(), locked(ready, done=ready / "config.json"):
        if not (ready / "config.json").exists():
            stores = [data.documents for data in prepared.train]
            student = build(config, stores, trust_remote_code=trust_remote_code).eval()
            if settings.expansions is not None:
                rng = np.random.default_rng([training.seed, 64])
                chosen = [stores[at % len(stores)] for at in range(CALIBRATION)]
                texts = [store.text_at(int(rng.integers(len(store)))) for store in chosen]
                calibrate(student, texts, expansions=settings.expansions, weight=settings.weight)
            with replaced(ready) as beside:
                student.save_network(beside)
    return str(ready)


@torch.no_grad()
def calibrate(student: SparseStudent, texts: Sequence[str], *, expansions: float, weight: float | None) -> None:
    """Set the head's bias so that documents have `expansions` active terms outside their text, on average, and its scale so
    that the largest of them has the weight `weight`, on average. Both change the model's own parameters.

    Raises InputError if the head has no bias, or the model's outputs are not numbers."""
    if not student.has_bias:
        raise InputError(
            "the output layer of the start has no bias, by which a new head is calibrated",
            "choose another start, or set warm_up.expansions to null",
        )
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
        logits = trained_logits(hidden, mask, student.head.weight, student.head.bias.clamp(min=-high / 2) + high) - high
        logits.scatter_(1, part.input_ids.to(device), -torch.inf)
        outside.append(logits[:, ordinary].cpu())
    logits = torch.cat(outside)
    if logits.isnan().any():
        raise InputError("the outputs of the start are not numbers", "its weights are damaged: choose another start")
    finite = torch.isfinite(logits).sum(dim=1).float().mean()
    values = logits[torch.isfinite(logits)]
    threshold = float(np.quantile(values.numpy(), 1 - min(0.5, expansions / float(finite))))
    student.head.bias[ordinary] -= threshold
    factor = 1.0
    if weight is not None:
        largest = (logits.amax(dim=1) - threshold).clamp(min=1e-6)
        # log(1 + factor · logit) = weight, for the mean document.
        factor = math.expm1(math.expm1(weight) if student.settings.double_log else weight) / float(largest.mean())
        student.head.bias[ordinary] *= factor
        scaled = backbones.last_normalization(student.model)
        for parameter in scaled.parameters():  # ModernBERT's norms have no bias.
            parameter.mul_(factor)
    logger.info(
        "head: logits lowered by %.3g, scaled by %.3g: %g expansions per document", threshold, factor, expansions
    )
