"""How a backbone without a masked-LM head becomes a sparse student that has expansions to learn from.

A cold head under FLOPS regularization silences every term that is not in the document, and a silenced ReLU gets no
gradient. So a fresh head starts as the identity (a position then lies nearest to its own token and to its kin), may be
trained to predict BM25 impacts, and its bias is set so that a given number of expansions are active.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import set_seed

from opensearch_neural.files import replaced
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.sparse import encoder as sparse_models
from trainers.common.config import fingerprint
from trainers.common.loop import train
from trainers.common.processes import main_process_first
from trainers.common.sampling import Visit
from trainers.common.settings import TrainingSettings
from trainers.data.candidates import Drawn, RetrievalData
from trainers.data.examples import TrainingData
from trainers.data.sets import PreparedSets
from trainers.encoders import backbones
from trainers.sparse.batches import collate
from trainers.sparse.calibration import calibrate
from trainers.sparse.settings import SparseConfig
from trainers.sparse.start import build, load_start
from trainers.sparse.student import KIND

logger = logging.getLogger(__name__)

CALIBRATION = 64
"""Documents by which a head's bias is set."""
IMPACT_LEARNING_RATE = 1e-4
"""Of the regression to BM25's impacts."""
WARM_UP_STEPS = ("identity", "calibrated", "impacts")
"""The folders of a warm-up, in its order."""


class _AllDocuments:
    """Documents of several sets as examples of a warm-up: a document is its own candidate."""

    def __init__(self, sets: Sequence[TrainingData]) -> None:
        self.data = RetrievalData(sets, negatives=0, depth=1)
        self.sets = tuple(
            part._replace(start=start, stop=start + len(data.documents))
            for part, data, start in zip(
                self.data.sets, sets, np.cumsum([0, *(len(data.documents) for data in sets)])[:-1].tolist(), strict=True
            )
        )

    def __len__(self) -> int:
        return self.sets[-1].stop

    def __getitem__(self, visit: Visit) -> Drawn:
        at = next(at for at, part in enumerate(self.sets) if visit.index < part.stop)
        return Drawn(at, 0, 0, visit.index - self.sets[at].start, [])


def warmed_up(config: SparseConfig, prepared: PreparedSets) -> str:
    """The model that the first stage starts from: `config.start`, or what the warm-up makes of it.

    A head that was trained is not warmed up: calibration would rescale it.
    """
    settings, folder = config.warm_up, config.folder / "warm-up"
    start_model = load_start(config.start, config.student)
    if not start_model.fresh:
        if settings.impact_steps:
            logger.warning("%s has a head that was trained: it is not warmed up", config.start)
        return config.start
    training = config.training
    made_by = fingerprint(
        settings,
        config.student,
        hash_files(locate(config.start)),
        (training.seed, training.precision),
        config.document_length if settings.expansions is not None else None,
        [data.hash for data in prepared.train],
    )
    folder = folder.with_name(f"warm-up-{made_by[:8]}")
    ready = folder / "ready"
    if (ready / "config.json").exists():
        return str(ready)
    with main_process_first():
        if not (ready / "config.json").exists():
            set_seed(config.training.seed)
            start, calibrated, impacts = (folder / name for name in WARM_UP_STEPS)
            backbones.save(start_model.model, start_model.tokenizer, start)
            _calibrated(replace(config, start=str(start)), prepared, calibrated)
            if settings.impact_steps:
                calibrated = _to_impacts(replace(config, start=str(calibrated)), prepared, impacts)
            final = load_start(calibrated, config.student)
            with replaced(ready) as beside:
                backbones.save(final.model, final.tokenizer, beside)
            for name in WARM_UP_STEPS:
                shutil.rmtree(folder / name, ignore_errors=True)
    return str(ready)


def _calibrated(config: SparseConfig, prepared: PreparedSets, output: Path) -> None:
    settings = config.warm_up
    student = build(config, [data.documents for data in prepared.train]).eval()
    if settings.expansions is not None:
        rng = np.random.default_rng([config.training.seed, 64])
        stores = [data.documents for data in prepared.train]
        chosen = [stores[at % len(stores)] for at in range(CALIBRATION)]
        texts = [store.text_at(int(rng.integers(len(store)))) for store in chosen]
        calibrate(student, texts, expansions=settings.expansions, weight=settings.weight)
    sparse_models.put_last_layer(student.model, student.head_names, student.head)
    backbones.save(student.model, student.tokenizers["document"], output)


def _to_impacts(config: SparseConfig, prepared: PreparedSets, output: Path) -> Path:
    settings = config.warm_up
    student = build(
        replace(config, document_length=settings.length), [data.documents for data in prepared.train], to_impacts=True
    )
    train(
        student,
        _AllDocuments(prepared.train),
        collate(config, prepared.train, student, teachers=[]),
        settings=_regression(config),
        output=output,
        kind=KIND,
        config=settings,
        data_hash=fingerprint([data.hash for data in prepared.train]),
    )
    return output


def _regression(config: SparseConfig) -> TrainingSettings:
    """The training settings of the regression, with device, precision and seed of the training that follows."""
    training = config.training
    return TrainingSettings(
        steps=config.warm_up.impact_steps,
        batch_size=config.warm_up.batch_size,
        learning_rate=IMPACT_LEARNING_RATE,
        precision=training.precision,
        seed=training.seed,
        device=training.device,
    )
