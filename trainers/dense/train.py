"""`osn train dense`: bi-encoders, one vector for a query, one for a document; the score is their inner product.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import hash_files, locate, read_osn_json
from trainers.common.config import fingerprint
from trainers.common.loop import train
from trainers.common.own_loss import loss_hash, loss_noted
from trainers.common.precision import computed_in, computing_in
from trainers.common.run_folder import Trained, check_output, dev_hashes
from trainers.common.settings import FIRST, FOLDER, EncoderSettings, Role, TrainingSettings
from trainers.data.candidates import RetrievalData
from trainers.data.dev_sets import DevSet, dev_measures
from trainers.data.examples import TrainingData
from trainers.data.negatives import Mining, with_mined
from trainers.data.retrieval_batches import DrawnTexts, RetrievalCollate
from trainers.data.sets import PreparedSets, prepare, small
from trainers.data.teacher_ensemble import open_teachers
from trainers.data.teacher_scores import SiameseTeacher, Teacher, check_encoded, teachers_hash
from trainers.data.tokenized import PART_OVERHEAD
from trainers.dense.settings import DenseConfig, TwoStageSettings
from trainers.encoders.bi_encoder import BiEncoder
from trainers.encoders.tower import Encoder, load_towers, read_start

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
    # A folder, a start or a setting that is refused, is refused before data are read, and negatives mined into the folder.
    check_output(config.output, build(config).kind)
    folder, prepared = config.output / FOLDER, prepared_sets(config)
    sets = prepared.train
    if (miner := config.candidates.mine) is not None:
        depth = config.candidates.depth
        sets = [
            data
            if len(data.negatives.values)
            else with_mined(data, miner, _mined_file(folder, data, miner), Mining(depth))
            for data in sets
        ]
    settings = config.two_stage
    if settings is None:
        return train_retriever(config, sets, prepared.dev, config.output, build)
    _teachers(config, sets)  # What the second stage lacks is said before the first one trains.
    # Two stages (`query-as-context`, section 3.2; `multi-layer representations`, section 4.3.2 and appendix D): the pool of
    # the second stage holds both stages' negatives, each list cut on its own.
    train_retriever(replace(config, two_stage=None, onnx=False), sets, prepared.dev, folder / FIRST, build)
    kind = (read_osn_json(folder / FIRST) or {})["kind"]
    mined = [
        with_mined(
            data,
            f"{kind}:{folder / FIRST}",
            _mined_file(folder, data, FIRST),
            Mining(settings.depth, settings.keep),
            cache=folder / f"{data.name}.vectors",
            add=min(settings.keep or config.candidates.depth, config.candidates.depth),
        )
        for data in sets
    ]
    second = replace(config, training=second_stage(config.training, settings))
    return train_retriever(second, mined, prepared.dev, config.output, build)


def _mined_file(folder: Path, data: TrainingData, miner: str) -> Path:
    """The file of what is mined for `data`. It is named by what is withheld, too: what an earlier version mined without
    leaving it out is not taken, and not in the way."""
    return folder / f"{data.name}.{miner}{f'-{data.hash}' if len(data.withheld) else ''}.jsonl"


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
    # Retriever 2, which alone is trained with `two_stage`, draws from all of its pool.
    depth = None if config.two_stage else config.candidates.depth
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=depth)
    device, teachers = config.training.device_type, _teachers(config, sets)
    computed = computed_in(config.training.precision, device)
    chunk_size, overhead = config.training.chunk_size, PART_OVERHEAD[device]
    texts = DrawnTexts(data.parts, model, config.objective, chunk_size=chunk_size, overhead=overhead, teachers=teachers)

    def measured() -> dict[str, float]:
        with computing_in(computed, device):
            return dev_measures(dev, model.retrieve)

    return train(
        model,
        data,
        RetrievalCollate(texts),
        settings=config.training,
        output=output,
        kind=model.kind,
        config=config,
        data_hash=fingerprint(data.hash, hash_files(locate(config.start)), *loss_hash(config.objective.loss)),
        made_from=teachers_hash(teachers) | dev_hashes(dev) | loss_noted(config.objective.loss),
        start_field="start",
        evaluate=measured if dev else None,
    )


def _teachers(config: DenseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    """The teachers of each set. Raises InputError if they did not encode what queries are compared with."""
    if not config.objective.distils:
        return []
    of_sets = [
        open_teachers(settings.teachers, data, config.objective)
        for settings, data in zip(config.train, sets, strict=True)
    ]
    for data, of_set in zip(sets, of_sets, strict=True):
        for teacher in of_set:
            check_encoded(teacher, data, negatives=config.candidates.negatives, depth=config.candidates.depth)
            if config.two_stage is not None and isinstance(teacher, SiameseTeacher) and teacher.encoded is not None:
                raise InputError(
                    f"{teacher.name} encoded {len(teacher.encoded)} of the {len(data.documents)} documents of {data.name}, "
                    "but two_stage mines negatives in all of them",
                    "run osn data teach with --all-documents and another --output",
                )
    return of_sets


def rehearse(config: DenseConfig, build: Build = build) -> Trained:
    """Run all of `config` on the first rows of its data, two steps per stage; nothing is kept."""
    rows = max(32, 4 * config.training.batch_size) if config.training.batch_size <= 64 else config.training.batch_size
    with tempfile.TemporaryDirectory() as folder:
        two_stage = None if config.two_stage is None else replace(config.two_stage, steps=2)
        return train_dense(small(config, rows, output=Path(folder) / config.output.name, two_stage=two_stage), build)
