"""Inference-free learned sparse retrieval: documents become weighted word pieces, a query is its word pieces alone.

    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --config inference-free-sparse --output models/sparse      the paper's recipe, both stages
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: first-sentence}]' --output models/sparse

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`): a SPLADE-doc
student (section 3), IDF inside the matching function (4.1), an ensemble of heterogeneous teachers (4.2), pre-training
and fine-tuning (5.1). The result loads in `SparseEncoder(path)` and in `models.sparse.load_sparse`.

The regularizer's weight is small and ramped up late, expansions are logged, and a backbone without a masked-LM head is
warmed up (`sparse_warm_up` says why). As an extension, `student.revive` lets a share of the gradient through to silenced
terms that it would raise.

The residual student goes beyond the paper: a document's weight of t is its BM25 impact, known at ingest, plus what is
learned. It starts as BM25 over word pieces and adds.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from opensearch_neural.errors import InputError
from opensearch_neural.idf import load_idf
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.loop import Trained, check_output, is_main_process, main_process_first, train
from trainers.common.schedules import FOLDER, with_mined
from trainers.common.training_model import TrainingModel
from trainers.data.examples import TrainingData
from trainers.data.negatives import check_spec
from trainers.data.teachers import LEXICAL, PairTeacher, Teacher, cache_name, open_teacher, teach
from trainers.dense import DenseConfig, Prepared, RetrievalData, prepare, rehearsed
from trainers.sparse.batches import collate
from trainers.sparse.dev_measures import BASELINES, DevRetrieval
from trainers.sparse.settings import STUDENT, SparseCandidates, SparseConfig, StageSettings
from trainers.sparse.student import KIND, SparseStudent, build
from trainers.sparse.warm_up import warmed_up

logger = logging.getLogger(__name__)

DRY_RUN_DOCUMENTS = 200
"""Of each corpus in a dry run, beside those that its questions need."""
LEAST_KNOWN = 0.5
"""Of the hard negatives that are drawn, the share that a cross-encoder must have scored."""


def train_stage(
    config: SparseConfig,
    prepared: Prepared,
    *,
    output: Path,
    lexicon: Sequence[Mapping[str, str]] | None = None,
    miner: Path | None = None,
    whole: SparseConfig | None = None,
) -> Trained:
    """One stage of `config` on prepared data, written to `output`.

    lexicon: the texts whose statistics weigh queries' tokens, by default those of the stage. miner: the model that
    candidates.mine "student" means. whole: the configuration that the stage ends.
    """
    sets = mined(config, prepared.train, miner)
    student = build(config, [one.documents for one in sets] if lexicon is None else lexicon)
    dev = DevRetrieval(student, prepared.dev) if prepared.dev else None

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, SparseStudent)
        assert dev is not None
        return dev.measures(current)

    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=config.candidates.depth)
    return train(
        student,
        data,
        collate(config, sets, student, teachers=teachers(config, sets)),
        settings=config.training,
        output=output,
        kind=KIND,
        # What lies in the run's own folders is told by its content: a run may be moved, and go on.
        config=whole or replace(config, start=_within(config.start, config.folder, output)),
        data_hash=fingerprint(data.hash, student.lexicon.encoder.info.hash, hash_files(locate(config.start))),
        evaluate=None if dev is None else measured,
        # Before λ has its whole weight, a state is better on dev and several times as large.
        best_from=config.regularization.whole_from,
    )


def _within(start: str, *folders: Path) -> str:
    """A path without the one of `folders` that it lies in."""
    for folder in folders:
        if Path(start).is_relative_to(folder):
            return str(Path(start).relative_to(folder))
    return start


def teachers(config: SparseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    """Each set's teachers: the folders it names, or the stage's models, whose scores are computed where they are not."""
    objective = config.objective
    if not objective.distils:
        return [[] for _ in sets]
    settings_of = {(one.name or one.path.resolve().name.partition(".")[0]): one for one in config.train}
    found: list[list[Teacher]] = []
    for one in sets:
        folders = list(settings_of[one.name].teachers) if one.name in settings_of else []
        if not folders:
            for name in objective.teachers:
                depth = config.candidates.depth
                folder = config.folder / "teachers" / one.name / cache_name(name, one, depth=depth)
                with main_process_first():
                    teach(name, one, output=folder, depth=depth)
                folders.append(folder)
        if objective.teacher_weights is not None and folders and len(folders) != len(objective.teacher_weights):
            raise InputError(
                f"{one.name} has {len(folders)} teachers, "
                f"objective.teacher_weights {len(objective.teacher_weights)} weights"
            )
        if not folders and objective.all_pairs:
            raise InputError(
                f"{one.name} has no teacher that could score all pairs of a batch",
                "name objective.teachers, or set objective.all_pairs to false",
            )
        if not folders and not len(one.score_values):
            raise InputError(
                f"{one.name} has no teacher and no scores to distil",
                "name objective.teachers, or train on the labels alone: objective.kl 0 and objective.info_nce 1",
            )
        found.append([open_teacher(folder, one, missing="nan") for folder in folders])
        for teacher in found[-1]:
            check_known(teacher, one, config.candidates)
    return found


def check_known(teacher: Teacher, data: TrainingData, candidates: SparseCandidates) -> None:
    """Raises InputError where a cross-encoder scored hardly any of the negatives that are drawn."""
    if not isinstance(teacher, PairTeacher):
        return
    known = drawn = 0
    for example in data.examples[:: max(1, len(data) // 1000)]:
        negatives = example.negatives[: candidates.depth]
        known += int(np.isfinite(teacher.scores([example.query_id], [list(negatives)])).sum()) if negatives else 0
        drawn += len(negatives)
    logger.info("%s scored %d of %d hard negatives looked at of %s", teacher.name, known, drawn, data.name)
    if known < LEAST_KNOWN * drawn:
        raise InputError(
            f"{teacher.name} scored {known} of the {drawn} hard negatives that {data.name} draws from: its cache is of "
            "other negatives",
            "osn teach with the same --negatives and --depth, or name it in objective.teachers to have it done",
        )


def mined(config: SparseConfig, sets: Sequence[TrainingData], miner: Path | None = None) -> list[TrainingData]:
    """The sets with hard negatives, mined where queries have too few; left out is what the consistency filter says.

    miner: the model that "student" means.
    """
    candidates, spec = config.candidates, config.candidates.mine
    if spec is None:
        return list(sets)
    name, made_by = spec, spec
    if spec == STUDENT:
        assert miner is not None
        name, made_by = f"sparse:{miner}", hash_files(miner)
    slug = f"{spec.partition(':')[0]}-{fingerprint(made_by, candidates.depth, candidates.consistency)[:6]}"
    found: list[TrainingData] = []
    for one in sets:
        fewest = int(np.diff(one.negatives.offsets).min(initial=candidates.negatives))
        if fewest >= candidates.negatives and candidates.consistency is None:
            found.append(one)
            continue
        vectors = config.folder / "negatives" / f"{one.name}.{slug}-{one.documents.hash}.vectors"
        more = with_mined(
            one,
            name,
            config.folder / "negatives" / f"{one.name}.{slug}-{one.hash}.jsonl",
            depth=candidates.depth,
            cache=None if spec == "bm25" else vectors,
            add=len(one.negatives.values) > 0,
            consistency=candidates.consistency,
        )
        for note in more.notes[len(one.notes) :]:
            logger.info("%s: %s", one.name, note)
        found.append(more)
    if not any(len(one) for one in found):
        raise InputError(
            f"the consistency filter leaves no query: {spec} finds no positive in its top {candidates.consistency}",
            "raise candidates.consistency, or mine with a better retriever",
        )
    return found


def train_sparse(config: SparseConfig, *, documents: int | None = None) -> Trained:
    """The whole schedule: warm-up, the miner where one is asked for, pre-training, fine-tuning.

    IDF is frozen over the stages: that of the last one's documents. Interrupted at any point, the same call goes on:
    stages that are done are not repeated. documents: of each corpus so many, beside those that its questions need.
    """
    check_output(config.output, KIND)
    stage, folder = config.pretraining, config.folder
    mines = [one.candidates.mine for one in (stage, config) if one is not None]
    if stage is None and STUDENT in mines:
        raise InputError(
            "candidates.mine is student: that is the student trained without pre-training, and there is no pretraining",
            "name another miner, or a pretraining",
        )
    for one in (stage, config):
        if one is not None:
            check_names(one)
    if config.student.idf not in ("train", "own", "none"):
        load_idf(config.student.idf)
    prepared = prepare(_as_dense(config), folder=folder, documents=documents)
    warm = config.stage(config, config.output, warmed_up(config, prepared))
    if stage is None:
        return train_stage(warm, prepared, output=config.output, whole=config)
    pretraining = _as_dense(config.stage(stage, config.output, warm.start))
    before = prepare(pretraining, folder=folder, documents=documents, held=prepared.held)
    miner, first = (config.output / FOLDER / name for name in ("miner", "pretrained"))
    if STUDENT in mines:
        mine = "bm25" if config.candidates.mine == STUDENT else config.candidates.mine
        train_stage(replace(warm, candidates=replace(config.candidates, mine=mine)), prepared, output=miner)
    lexicon = [one.documents for one in prepared.train]
    train_stage(config.stage(stage, first, warm.start), before, output=first, lexicon=lexicon, miner=miner)
    last = config.stage(config, config.output, str(first))
    return train_stage(last, prepared, output=config.output, miner=miner, whole=config)


def check_names(stage: StageSettings) -> None:
    """Raises InputError and ModelError for a miner or teacher that cannot be had, before anything is computed."""
    mine = stage.candidates.mine
    if mine is not None and mine != STUDENT:
        check_spec(mine)
    for name in stage.objective.teachers:
        if name != LEXICAL:
            locate(name)


def _as_dense(config: SparseConfig) -> DenseConfig:
    """What `bi_encoder.prepare` reads of a configuration: data sets and how dev is drawn."""
    return DenseConfig(
        output=config.output,
        train=list(config.train),
        dev=list(config.dev),
        unseen=list(config.unseen),
        selection=config.selection,
        training=config.training,
    )


def rehearse(config: SparseConfig) -> Trained:
    """Everything that `config` asks, on the first rows of its data, two steps a stage, nothing kept."""

    def rows_of(stage: StageSettings) -> int:
        return max(32, 2 * stage.training.batch_size)

    def small(stage: StageSettings) -> dict[str, Any]:
        rows = rows_of(stage)
        return {
            "train": [replace(one, limit=min(one.limit or rows, rows)) for one in stage.train],
            # A miner of two steps finds hardly anything: its filter would leave nothing to train on.
            "candidates": replace(stage.candidates, consistency=None),
            "training": replace(stage.training, steps=2, evaluate_every=1, save_every=1, log_every=1),
        }

    with tempfile.TemporaryDirectory() as folder:
        before = config.pretraining
        warm_up = config.warm_up
        return train_sparse(
            replace(
                config,
                **small(config),
                output=Path(folder) / config.output.name,
                cache=None,
                pretraining=None if before is None else replace(before, **small(before)),
                dev=[replace(one, limit=min(one.limit or 8, 8)) for one in config.dev],
                selection=replace(
                    config.selection,
                    queries=8,
                    documents=64,
                    hold_back=rehearsed(config.selection.hold_back, rows_of(config)),
                ),
                warm_up=replace(
                    warm_up,
                    masked_lm_steps=min(2, warm_up.masked_lm_steps),
                    impact_steps=min(2, warm_up.impact_steps),
                ),
            ),
            documents=DRY_RUN_DOCUMENTS,
        )


@click.command("sparse")
@config_options(SparseConfig, shortcuts=backbone_option("start"))
def sparse_command(config: SparseConfig, dry_run: bool) -> None:
    """Train an inference-free sparse model: documents are encoded, queries only tokenized.

    \b
    osn train sparse --config inference-free-sparse --print-config
    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: title}]' --set student.residual=true

    Prints dev measures, sparsity, and what presence and BM25 over word pieces give without training. Stopped at any
    point, the same command goes on.
    """
    trained = rehearse(config) if dry_run else train_sparse(config)
    if not is_main_process():
        return
    kept = "" if trained.best_step is None else f", the state after step {trained.best_step} kept"
    place = "nothing kept (dry run)" if dry_run else str(config.output)
    click.echo(f"{place}: {trained.steps} steps{kept}")
    for name, value in trained.measures.items():
        if not name.startswith(tuple(f"start {one}" for one in BASELINES)):  # They are the same at the end.
            click.echo(f"{name:>40}  {value:.4f}")
