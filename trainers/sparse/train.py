"""`osn train sparse`: from settings to a model directory.

    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --config inference-free-sparse --output models/sparse      the paper's recipe, both stages
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: first-sentence}]' --output models/sparse

The result loads in `SparseEncoder(path)` and in `models.sparse.load_sparse`.

    command.sparse_command    the configuration; --try first chooses settings (leave_one_out)
    train_sparse              warm-up, then the stages: miner, pre-training, fine-tuning
    prepare                   files → TrainingData: queries, documents, judgements, negatives of a set (data.sets)
    train_stage               negatives, student, teachers, batches of a stage → common.loop.train
    RetrievalData             TrainingData → drawn examples: a query with its positive and negatives (data.candidates)
    SparseCollate             drawn examples → token ids, IDF of queries, teachers' scores (batches)
    SparseStudent.encode      token ids → the weights of documents
    SparseStudent.loss_terms  weights → scores → the terms of the loss
    objective_terms           scores, teachers' scores → the objective's terms (common.objective, common.losses)
    cached_backward           terms → gradients, part by part of a batch (common.grad_cache)

The regularizer's weight is small and grows late, expansions are logged, and a backbone without a masked-LM head is
warmed up (`warm_up` says why). As an extension, `student.revive` passes a share of the gradient to silenced terms if it
raises their weight.

Search adds the index's own BM25 to the student's score (engine bm25-sparse). With `objective.base: bm25` the loss compares
that sum; dev measures include it in any case.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import has_own_code, hash_files, locate
from opensearch_neural.models.sparse.encoder import KIND
from opensearch_neural.models.sparse.idf import load_idf
from trainers.common.config import fingerprint
from trainers.common.loop import train
from trainers.common.own_loss import loss_hash, loss_noted
from trainers.common.run_folder import QUESTIONS_FILE, RUN, Trained, check_output, dev_hashes
from trainers.common.settings import FOLDER, ROLES
from trainers.data.candidates import RetrievalData
from trainers.data.sets import PreparedSets, prepare, small
from trainers.data.teacher_scores import teachers_hash
from trainers.sparse.batches import SparseCollate
from trainers.sparse.settings import STUDENT, SparseConfig, Stage
from trainers.sparse.stage_data import check_names, mined, teachers
from trainers.sparse.start import build, check_start, start_table, warn_of_what_is_left, with_settings_of_start
from trainers.sparse.student_measures import DevRetrieval
from trainers.sparse.warm_up import warmed_up

DRY_RUN_DOCUMENTS = 200
"""Documents of each corpus in a dry run, in addition to those of its questions."""


def train_sparse(config: SparseConfig, *, documents: int | None = None, trust_remote_code: bool = False) -> Trained:
    """The whole schedule: warm-up, the miner if the settings name one, pre-training, fine-tuning.

    All stages use the same IDF, of the last stage's documents; fine-tuning trains on a table that pre-training trained.
    After an interruption, the same call continues; finished stages are not repeated. documents: how many to read of each
    corpus, besides those of its questions; None reads all. trust_remote_code: whether the start's own code may run; the
    trained model has it too.
    """
    check_output(config.output, KIND)
    refuse_early(config, trust_remote_code=trust_remote_code)
    config = with_settings_of_start(config.with_lengths())
    warn_of_what_is_left(config.start, config.student)
    check_start(config, trust_remote_code=trust_remote_code)
    fine_tuning_sets = prepared_sets(config, documents=documents)
    start = warmed_up(config, fine_tuning_sets, trust_remote_code=trust_remote_code)
    train_one = partial(train_stage, trust_remote_code=trust_remote_code)
    if config.pretraining is None:
        return train_one(config.fine_tuning_run(start), fine_tuning_sets, output=config.output, whole=config)
    miner, pretrained = (config.output / FOLDER / name for name in ("miner", "pretrained"))
    pretraining = config.pretraining_run(start, pretrained)
    pretraining_sets = prepared_sets(pretraining, documents=documents, other=fine_tuning_sets)
    if STUDENT in _miners(config):
        mine = "bm25" if config.candidates.mine == STUDENT else config.candidates.mine
        not_pretrained = replace(config.fine_tuning_run(start), candidates=replace(config.candidates, mine=mine))
        train_one(not_pretrained, fine_tuning_sets, output=miner)
    of_fine_tuning = [data.documents for data in fine_tuning_sets.train]
    train_one(pretraining, pretraining_sets, output=pretrained, lexicon=of_fine_tuning, miner=miner)
    fine_tuning = config.fine_tuning_run(str(pretrained))
    if config.student.idf_rate:
        fine_tuning = replace(fine_tuning, student=replace(config.student, idf="start"))
    return train_one(fine_tuning, fine_tuning_sets, output=config.output, miner=miner, whole=config)


def refuse_early(config: SparseConfig, *, trust_remote_code: bool) -> None:
    """Raises what a later step would raise after hours: InputError or ModelError for a miner, a teacher, a start or a table
    that cannot be found or used."""
    miners = _miners(config)
    if config.pretraining is None and STUDENT in miners:
        raise InputError(
            "candidates.mine is student, the student trained without pre-training, but no pretraining is configured",
            "name another miner, or configure pretraining",
        )
    for stage in config.stages:
        check_names(stage)
    # Fetched with its code, if that may run: later steps find the same folder.
    start = locate(config.start, code=trust_remote_code)
    if STUDENT in miners and trust_remote_code and has_own_code(start):
        raise InputError(
            f"candidates.mine is student, and {config.start} has code of its own: the models that mine are loaded without",
            "name another miner, such as bm25",
        )
    if config.student.idf == "start":
        start_table(config.start)
    elif config.student.idf not in ("train", "own", "none"):
        load_idf(config.student.idf)


def _miners(config: SparseConfig) -> list[str | None]:
    return [stage.candidates.mine for stage in config.stages]


def train_stage(
    config: SparseConfig,
    prepared: PreparedSets,
    *,
    output: Path,
    lexicon: Sequence[Mapping[str, str]] | None = None,
    miner: Path | None = None,
    whole: SparseConfig | None = None,
    trust_remote_code: bool = False,
) -> Trained:
    """Train a run of one stage on prepared data, and write it to `output`.

    lexicon: the texts whose statistics weight query tokens, by default the stage's documents. miner: the model that
    candidates.mine "student" means. whole: the whole configuration, if this is its last stage. trust_remote_code: whether
    the start's own code may run.
    """
    sets = mined(config, prepared.train, miner)
    stores = [data.documents for data in sets] if lexicon is None else lexicon
    student = build(config, stores, trust_remote_code=trust_remote_code)
    dev = DevRetrieval(student, prepared.dev, config.bm25) if prepared.dev else None
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=config.candidates.depth)
    taught = teachers(config, sets)

    def measures() -> dict[str, float]:
        assert dev is not None
        measured = dev.measures()
        dev.note_questions(output / RUN / QUESTIONS_FILE)
        return measured

    return train(
        student,
        data,
        SparseCollate(config, sets, student, teachers=taught),
        settings=config.training,
        output=output,
        kind=KIND,
        # A start in the run's own folders is named relative to them: a moved run can continue.
        config=whole or replace(config, start=_within(config.start, config.folder, output)),
        data_hash=fingerprint(
            data.hash,
            student.lexicon.encoder.info.hash,
            hash_files(locate(config.start)),
            *loss_hash(config.objective.loss),
            # Earlier versions had another BM25. Such a run is not continued with this one in its loss.
            *(["BM25 by analyzer"] if config.objective.base else []),
            # Earlier versions read no prompts. Such a run is not continued with prompts, as they change the hash.
            *filter(None, map(student.encoder_settings.prompt, ROLES)),
        ),
        made_from=teachers_hash(taught) | dev_hashes(prepared.dev) | loss_noted(config.objective.loss),
        start_field="start",
        evaluate=None if dev is None else measures,
        # Until λ has its full weight, states score better on dev, but their vectors are several times as large.
        best_from=config.regularization.full_weight_from,
        baselines=() if dev is None else dev.baselines,
    )


def prepared_sets(
    config: SparseConfig, *, documents: int | None = None, other: PreparedSets | None = None
) -> PreparedSets:
    """The data of the last stage of `config`; documents, other: see `prepare`. The consistency filter is applied before a
    set's limit: see `mined`."""
    filtered = config.candidates.consistency is not None
    return prepare(
        [
            replace(settings, limit=None) if filtered and settings.questions is None else settings
            for settings in config.train
        ],
        dev=config.dev,
        unseen=config.unseen,
        selection=config.selection,
        seed=config.training.seed,
        folder=config.folder,
        documents=documents,
        other=other,
    )


def _within(start: str, *folders: Path) -> str:
    """`start` relative to the first of `folders` that contains it; unchanged if none does."""
    for folder in folders:
        if Path(start).is_relative_to(folder):
            return str(Path(start).relative_to(folder))
    return start


def rehearse(config: SparseConfig, *, trust_remote_code: bool = False) -> Trained:
    """Run all of `config` on the first rows of its data, two steps per stage; nothing is kept. trust_remote_code: as in
    `train_sparse`."""

    def of_stage(stage: Stage, **changes: Any) -> Stage:
        # A miner trained for two steps finds hardly anything: the consistency filter would leave nothing to train on.
        candidates = replace(stage.candidates, consistency=None)
        if candidates.negatives < 1:  # Then the filter alone uses what is mined.
            candidates = replace(candidates, mine=None)
            stage = replace(
                stage, train=[replace(settings, negatives=None) for settings in stage.train], candidates=candidates
            )
        return small(stage, max(32, 2 * stage.training.batch_size), candidates=candidates, **changes)

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / config.output.name
        pretraining = None if config.pretraining is None else of_stage(config.pretraining)
        tried = of_stage(config, output=output, cache=None, pretraining=pretraining)
        return train_sparse(tried, documents=DRY_RUN_DOCUMENTS, trust_remote_code=trust_remote_code)
