"""One pre-training: pairs, model, training, and the loss on held-back pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint
from trainers.common.grad_cache import in_order
from trainers.common.loop import train
from trainers.common.run_folder import Trained
from trainers.common.sampling import Visit
from trainers.data.dev_measures import DevSet, dev_measures
from trainers.query_as_context.model import CoCondenser, ContextModel, build
from trainers.query_as_context.pairs import ContextPairs, usable_rows
from trainers.query_as_context.passages import Passages
from trainers.query_as_context.settings import QueryAsContextConfig

KIND = "masked-lm"

EVALUATION_PAIRS = 32
"""Pairs in a batch for measuring."""


def pretrain(config: QueryAsContextConfig, passages: Passages, dev: Sequence[DevSet]) -> Trained:
    """One pre-training of `config.backbone`, written to `config.output`.

    Keeps the state with the least loss on held-back passages; `training.select` can name another measure.
    """
    model = build(config)
    train_rows, dev_rows = usable_rows(passages, config)
    pairs, held = (ContextPairs(passages, model.tokenizer, config, rows) for rows in (train_rows, dev_rows))

    def measured() -> dict[str, float]:
        terms = held_back_loss(model, held) if len(held) else {}
        measures = {"objective": -sum(terms.values())} if terms else {}
        measures |= {name: -value for name, value in terms.items()}
        return measures | (dev_measures(dev, model.dense().retrieve) if dev else {})

    # Earlier and later steps write other folders and do not change the weights here.
    alone = replace(config, retriever=None, condenser=None, test=[], cache=None)
    return train(
        model,
        pairs,
        pairs.collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=alone,
        data_hash=fingerprint(passages.hash, hash_files(locate(config.backbone))),
        start_field="backbone",
        evaluate=measured if len(held) or dev else None,
    )


def held_back_loss(model: ContextModel, pairs: ContextPairs) -> dict[str, float]:
    """The terms of the loss over all of `pairs`, in batches of EVALUATION_PAIRS; draws and masks are the same at each call.

    Only the main process measures: nothing is gathered from the others.
    """
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    # Shuffled, so that a batch has passages of many articles, as in training: those of one article exclude each other.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    for start in range(0, len(pairs), EVALUATION_PAIRS):
        visits = [Visit(index, 0, 0, 0) for index in order[start : start + EVALUATION_PAIRS]]
        batch = pairs.collate([pairs[visit] for visit in visits]).to(device)
        vectors: dict[str, Tensor] = {}
        for role, parts in batch.parts.items():
            encoded = [model.encode(role, part) for part in parts]
            vectors[role] = in_order([rows.vectors for rows in encoded], [part.position for part in parts])
            for rows in encoded:
                for name, total in rows.sums.items():
                    sums[name] = sums.get(name, 0.0) + float(total)
                    counts[name] = counts.get(name, 0.0) + float(rows.counts[name])
        if isinstance(model, CoCondenser) and model.compares:
            both, keys = torch.cat([vectors["passage"], vectors["context"]]), batch.targets.keys
            contrastive = model.compared(both, both, keys, keys, first=0).terms["contrastive"]
            sums["contrastive"] = sums.get("contrastive", 0.0) + len(visits) * float(contrastive)
            counts["contrastive"] = counts.get("contrastive", 0.0) + len(visits)
    return {name: total / max(counts[name], 1) for name, total in sums.items()}
