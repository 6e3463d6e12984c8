"""Warm-up: gives a backbone without a masked-LM head a new head, with expansions to learn from.

With an untrained head, FLOPS regularization silences every term that is not in the document, and a silenced ReLU gets no
gradient. So a new head starts as the identity (a position scores its own token and similar tokens highest), and its bias is
set so that a given number of expansions are active.
"""

from __future__ import annotations

import numpy as np

from opensearch_neural.files import replaced
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.sparse import encoder as sparse_models
from trainers.common.config import fingerprint, to_dict
from trainers.common.processes import main_process_first
from trainers.data.sets import PreparedSets
from trainers.encoders import backbones
from trainers.sparse.calibration import calibrate
from trainers.sparse.settings import SparseConfig
from trainers.sparse.start import build, load_start

CALIBRATION = 64
"""Number of documents for setting a head's bias."""


def warmed_up(config: SparseConfig, prepared: PreparedSets) -> str:
    """The model that the first stage starts from: `config.start`, warmed up if it has no head.

    A trained head is not warmed up: calibration would rescale it.
    """
    if not load_start(config.start, config.student).fresh:
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
    with main_process_first():
        if not (ready / "config.json").exists():
            stores = [data.documents for data in prepared.train]
            student = build(config, stores).eval()
            if settings.expansions is not None:
                rng = np.random.default_rng([training.seed, 64])
                chosen = [stores[at % len(stores)] for at in range(CALIBRATION)]
                texts = [store.text_at(int(rng.integers(len(store)))) for store in chosen]
                calibrate(student, texts, expansions=settings.expansions, weight=settings.weight)
            sparse_models.put_last_layer(student.model, student.head_names, student.head)
            with replaced(ready) as beside:
                backbones.save(student.model, student.tokenizers["document"], beside)
    return str(ready)
