"""Bi-encoders: one vector for a query, one for a document; the score is their inner product.

    osn train dense --set 'train=[{path: squad-mix}]' --output models/dense
    osn train dense --config dense.yaml --set training.batch_size=256 --set training.chunk_size=32
    osn train dense --config query-as-context-retriever --output models/retriever    a paper's recipe, two stages

Covers DPR (in-batch negatives and one BM25 negative, "Dense Passage Retrieval" by Karpukhin et al. 2020), the
fine-tuning of `query-as-context` (section 3.2 and 4.2: retriever 1, mined negatives, retriever 2, both from the same
start), and distillation from teachers. The result loads in `SentenceTransformer(path)`.

    train_dense           settings → data (data.sets.prepare) → negatives, if there are none → one stage or two
    train_retriever       start → BiEncoder → examples (RetrievalData) → batches (RetrievalCollate) → common.loop.train
    BiEncoder.loss_terms  vectors of a batch → terms of the loss (common.objective)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.models.directory import hash_files, locate, read_osn_json
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.loop import train
from trainers.common.objective import ObjectiveSettings
from trainers.common.own_loss import LOSS_OPTION, loss_hash
from trainers.common.precision import computed_in, computing_in
from trainers.common.run_folder import FIRST, FOLDER, Trained, dev_hashes, tell
from trainers.common.settings import EncoderSettings, Role, TrainingSettings
from trainers.data.candidates import CandidateSettings, RetrievalData, refuse_without_negatives
from trainers.data.dev_measures import DevSet, dev_measures
from trainers.data.examples import TrainingData
from trainers.data.negatives import with_mined
from trainers.data.retrieval_batches import RetrievalCollate
from trainers.data.sets import (
    UNTAUGHT,
    DevSettings,
    PreparedSets,
    SetSettings,
    check_teachers,
    prepare,
    refuse_unread,
    small,
)
from trainers.data.teacher_ensemble import open_teachers
from trainers.data.teachers import Teacher, teachers_hash
from trainers.data.tokenized import PART_OVERHEAD
from trainers.encoders.bi_encoder import BiEncoder
from trainers.encoders.tower import Encoder, load_towers, read_start

# ------------------------------------------------ settings


@dataclass(slots=True)
class TwoStageSettings:
    """Retriever 2: the same start as retriever 1, trained on the original negatives and those that retriever 1 mines."""

    depth: int = 200
    """negatives are mined from this many of retriever 1's best documents"""
    keep: int | None = None
    """mined negatives to keep for each query; null keeps all"""
    learning_rate: float | None = None
    """learning rate of the second stage; null takes the first stage's"""
    epochs: float | None = None
    """epochs of the second stage; null takes the first stage's"""
    steps: int | None = None
    """optimizer steps of the second stage; null takes the first stage's"""

    def __post_init__(self) -> None:
        if self.depth < 1 or (self.keep is not None and self.keep < 1):
            raise ValueError(f"depth {self.depth} and keep {self.keep} must be at least 1")
        for name in ("learning_rate", "epochs", "steps"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, or null to take the first stage's, not {value}")


@dataclass(slots=True)
class DenseConfig:
    """The settings of `osn train dense`."""

    output: Path
    """the model directory to write"""
    train: list[SetSettings]
    """training sets; each batch is from one set"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """directory or hub id of the transformer to start from"""
    dev: list[SetSettings] = field(default_factory=list)
    """sets to measure on while training"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets (such as test splits) whose questions are removed from train"""
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    two_stage: TwoStageSettings | None = None
    """a second retriever, trained on the negatives that the first one mines; null trains only the first"""
    selection: DevSettings = field(default_factory=DevSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    onnx: bool = False
    """also write ONNX files, which encode without torch"""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.objective.distils and self.candidates.negatives < 1:
            raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")
        if self.candidates.negatives < 1:
            refuse_without_negatives(
                {
                    "two_stage": self.two_stage is not None,
                    "candidates.mine": self.candidates.mine is not None,
                    "train[].negatives": any(settings.negatives is not None for settings in self.train),
                }
            )
        check_teachers(self.train, self.objective.distils)
        refuse_unread("dev", self.dev, "teachers", why=UNTAUGHT)
        refuse_unread("unseen", self.unseen, "teachers", why=UNTAUGHT)
        self.training.check_measured(bool(self.dev) or self.selection.hold_back is not None)


# ------------------------------------------------ the model


Build = Callable[[Any], BiEncoder]
"""(configuration) → the untrained model, the same at each call."""


def towers(config: DenseConfig) -> tuple[dict[Role, Encoder], dict[Role, PreTrainedTokenizerBase], EncoderSettings]:
    """The start of `config`: encoders, tokenizers, and the settings completed from the start. Raises ModelError and
    InputError as `read_start` and `load_towers` do."""
    set_seed(config.training.seed)
    return load_towers(read_start(config.start), config.encoder)


def build(config: DenseConfig) -> BiEncoder:
    """The untrained bi-encoder. Raises as `towers` does."""
    encoders, tokenizers, settings = towers(config)
    return BiEncoder(encoders, tokenizers, settings, config.objective, onnx=config.onnx)


# ------------------------------------------------ training


def train_dense(config: DenseConfig, build: Build = build) -> Trained:
    """The whole schedule: mine if asked, train, and with `two_stage` mine with that retriever and train a second one.

    build: makes the model; other methods with the same schedule pass their own. After an interruption, the same call
    continues. Intermediate results are in `config.output/.stages`.
    """
    folder, prepared = config.output / FOLDER, prepared_sets(config)
    sets = prepared.train
    if (miner := config.candidates.mine) is not None:
        depth = config.candidates.depth
        sets = [
            data
            if len(data.negatives.values)
            else with_mined(data, miner, folder / f"{data.name}.{miner}.jsonl", depth=depth)
            for data in sets
        ]
    settings = config.two_stage
    if settings is None:
        return train_retriever(config, sets, prepared.dev, config.output, build)
    # Two stages (`query-as-context`, section 3.2; `multi-layer representations`, section 4.3.2 and appendix D): the pool of
    # the second stage holds both stages' negatives.
    train_retriever(replace(config, two_stage=None, onnx=False), sets, prepared.dev, folder / FIRST, build)
    kind = (read_osn_json(folder / FIRST) or {})["kind"]
    mined = [
        with_mined(
            data,
            f"{kind}:{folder / FIRST}",
            folder / f"{data.name}.{FIRST}.jsonl",
            depth=settings.depth,
            keep=settings.keep,
            cache=folder / f"{data.name}.vectors",
            add=True,
        )
        for data in sets
    ]
    second = replace(config, training=second_stage(config.training, settings))
    return train_retriever(second, mined, prepared.dev, config.output, build)


def second_stage(training: TrainingSettings, settings: TwoStageSettings) -> TrainingSettings:
    """`training` with the second stage's changes."""
    return replace(
        training,
        learning_rate=settings.learning_rate or training.learning_rate,
        epochs=settings.epochs or training.epochs,
        steps=settings.steps or (None if settings.epochs else training.steps),
    )


def prepared_sets(config: DenseConfig) -> PreparedSets:
    """The data that `config` names. Raises InputError as `prepare` does."""
    return prepare(
        config.train,
        dev=config.dev,
        unseen=config.unseen,
        selection=config.selection,
        seed=config.training.seed,
        folder=config.output / FOLDER,
    )


def train_retriever(
    config: DenseConfig, sets: Sequence[TrainingData], dev: Sequence[DevSet], output: Path, build: Build = build
) -> Trained:
    """One retriever from `config.start` on `sets`, written to `output`."""
    model = build(config)
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=config.candidates.depth)
    device, teachers = config.training.device_type, _teachers(config, sets)
    computed = computed_in(config.training.precision, device)
    collate = RetrievalCollate(
        data.parts,
        model,
        config.objective,
        chunk_size=config.training.chunk_size,
        overhead=PART_OVERHEAD[device],
        teachers=teachers,
    )

    def measured() -> dict[str, float]:
        with computing_in(computed, device):
            return dev_measures(dev, model.retrieve)

    return train(
        model,
        data,
        collate,
        settings=config.training,
        output=output,
        kind=model.kind,
        config=config,
        data_hash=fingerprint(data.hash, hash_files(locate(config.start)), *loss_hash(config.objective.loss)),
        made_from=teachers_hash(teachers) | dev_hashes(dev),
        start_field="start",
        evaluate=measured if dev else None,
    )


def _teachers(config: DenseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    if not config.objective.distils:
        return []
    return [
        open_teachers(settings.teachers, data, config.objective)
        for settings, data in zip(config.train, sets, strict=True)
    ]


def rehearse(config: DenseConfig, build: Build = build) -> Trained:
    """Run all of `config` on the first rows of its data, two steps per stage; nothing is kept."""
    rows = max(32, 4 * config.training.batch_size) if config.training.batch_size <= 64 else config.training.batch_size
    with tempfile.TemporaryDirectory() as folder:
        two_stage = None if config.two_stage is None else replace(config.two_stage, steps=2)
        return train_dense(small(config, rows, output=Path(folder) / config.output.name, two_stage=two_stage), build)


# ------------------------------------------------ the command


@click.command("dense")
@config_options(DenseConfig, shortcuts=backbone_option("start") | LOSS_OPTION)
def dense(config: DenseConfig, dry_run: bool) -> None:
    """Train a bi-encoder (one vector per text) on questions and the passages that answer them.

    \b
    osn train dense --set 'train=[{path: squad-mix}]' --set selection.hold_back=0.02 --output models/dense
    osn train dense --config dense.yaml --print-config

    It prints the dev measures before and after. If it is stopped, run the same command again to continue.
    """
    tell(config.output, rehearse(config) if dry_run else train_dense(config), dry_run)
