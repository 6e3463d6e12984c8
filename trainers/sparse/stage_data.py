"""The data of a stage: hard negatives, mined if there are too few, and teachers' scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint
from trainers.common.processes import main_process_first
from trainers.data.examples import TrainingData
from trainers.data.negatives import Mining, check_spec, with_mined
from trainers.data.splits import fewer_documents
from trainers.data.teach import Teaching, cache_name, teach
from trainers.data.teacher_ensemble import check_weights, open_teachers
from trainers.data.teacher_scores import LEXICAL, PairTeacher, Teacher, check_encoded, open_teacher
from trainers.sparse.settings import STUDENT, BM25Settings, SparseCandidates, SparseConfig, StageSettings

logger = logging.getLogger(__name__)
LEAST_KNOWN = 0.5
"""The least share of the drawn hard negatives that a cross-encoder must have scored."""


def mined(config: SparseConfig, sets: Sequence[TrainingData], miner: Path | None = None) -> list[TrainingData]:
    """The sets with hard negatives, mined if queries have too few, without the queries that the consistency filter rejects.

    miner: the model that "student" means. A set's limit counts the queries that the filter keeps.
    """
    candidates, spec = config.candidates, config.candidates.mine
    if spec is None:
        return list(sets)
    if spec == "bm25" and config.bm25.analyzer != BM25Settings().analyzer:
        spec = f"bm25:{config.bm25.analyzer}"
    name, made_by = spec, spec
    if spec == STUDENT:
        assert miner is not None
        name, made_by = f"sparse:{miner}", hash_files(miner)
    # For a corpus with made questions, the limit is a number of documents.
    limits = {settings.set_name: settings.limit for settings in config.train if settings.questions is None}
    kind = spec.partition(":")[0]
    slug = f"{kind}-{fingerprint(made_by, candidates.depth, candidates.consistency)[:6]}"
    result: list[TrainingData] = []
    for data in sets:
        fewest = int(np.diff(data.negatives.offsets).min(initial=candidates.negatives))
        if fewest >= candidates.negatives and candidates.consistency is None:
            result.append(data)
            continue
        vectors = config.folder / "negatives" / f"{data.name}.{slug}-{data.documents.hash}.vectors"

        def mine(part: TrainingData, vectors: Path = vectors) -> TrainingData:
            return with_mined(
                part,
                name,
                config.folder / "negatives" / f"{part.name}.{slug}-{part.hash}.jsonl",
                Mining(candidates.depth, consistency=candidates.consistency),
                cache=None if kind == "bm25" else vectors,
                add=len(part.negatives.values) > 0,
            )

        limit = limits.get(data.name) if candidates.consistency is not None else None
        more = mine(data) if limit is None else first_left(data, limit, mine)
        for note in more.notes[len(data.notes) :]:
            logger.info("%s: %s", data.name, note)
        result.append(more)
    if not any(len(data) for data in sets):
        raise InputError("nothing is left to train on", "its questions are all in `unseen` or dev")
    if not any(len(data) for data in result):
        raise InputError(
            f"the consistency filter keeps no query: {spec} finds no positive in its top {candidates.consistency}",
            "raise candidates.consistency, or mine with a better retriever",
        )
    return result


def first_left(data: TrainingData, limit: int, mine: Callable[[TrainingData], TrainingData]) -> TrainingData:
    """The first `limit` examples that mining keeps; mines a prefix of `data` that doubles until it suffices."""
    size = 2 * limit
    while True:
        left = mine(data if size >= len(data) else data.take(range(size)))
        if len(left) >= limit or size >= len(data):
            return left.take(range(min(limit, len(left))))
        size *= 2


def teachers(config: SparseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    """Each set's teachers: the folders that it names, or the stage's models; missing scores are computed."""
    objective = config.objective
    if not objective.distils:
        return []
    settings_of = {settings.set_name: settings for settings in config.train}
    result: list[list[Teacher]] = []
    for data in sets:
        folders = settings_of[data.name].teachers if data.name in settings_of else []
        of_set = open_teachers(folders, data, objective)
        if not folders:
            check_weights(len(objective.teachers), data, objective)
            of_set = [_taught(name, data, config) for name in objective.teachers]
        if not of_set and objective.all_pairs:
            raise InputError(
                f"{data.name} has no teacher that could score all pairs of a batch",
                "name objective.teachers, or set objective.all_pairs to false",
            )
        if not of_set and not len(data.score_values):
            raise InputError(
                f"{data.name} has no teacher and no scores to distil",
                "name objective.teachers, or train on the labels alone: objective.kl 0 and objective.info_nce 1",
            )
        for teacher in of_set:
            check_encoded(teacher, data, negatives=config.candidates.negatives, depth=config.candidates.depth)
            check_known(teacher, data, config.candidates)
        result.append(of_set)
    return result


def _taught(name: str, data: TrainingData, config: SparseConfig) -> Teacher:
    """A model's scores for a set, computed if missing. If queries are compared with less than half of the corpus, only that
    part is encoded."""
    depth = config.candidates.depth
    needed = data if name == LEXICAL else with_candidates_alone(data, config.candidates)
    folder = config.folder / "teachers" / data.name / cache_name(name, needed, depth=depth)
    with main_process_first():
        teach(name, needed, teaching=Teaching(depth=depth), output=folder)
    return open_teacher(folder, needed)


def with_candidates_alone(data: TrainingData, candidates: SparseCandidates) -> TrainingData:
    """`data` without the documents that are no query's candidate, if these are more than half; else `data`.

    A query's candidates are the documents that its examples name, of the hard negatives the first `candidates.depth`. A
    query with too few hard negatives gets random ones of all documents, so then all documents stay. They also stay if they
    are at most twice as many as the candidates: encoding all of them costs at most twice as much, and other trainings on the
    set, whatever negatives they draw, find the scores in the same folder.
    """
    examples = range(len(data))
    negatives = [data.negatives[index][: candidates.depth].tolist() for index in examples]
    if min(map(len, negatives), default=0) < candidates.negatives:
        return data
    few = fewer_documents(data.take(examples, negatives=negatives), 0)
    return few if 2 * len(few.documents) < len(data.documents) else data


def check_known(teacher: Teacher, data: TrainingData, candidates: SparseCandidates) -> None:
    """Raises InputError if a cross-encoder scored hardly any of the negatives that are drawn."""
    if not isinstance(teacher, PairTeacher):
        return
    known = drawn = 0
    for index in range(0, len(data), max(1, len(data) // 1000)):
        example = data.example(index)
        negatives = example.negatives[: candidates.depth]
        known += int(np.isfinite(teacher.scores([example.query_id], list(negatives))).sum()) if negatives else 0
        drawn += len(negatives)
    logger.info("%s scored %d of %d hard negatives looked at of %s", teacher.name, known, drawn, data.name)
    if known < LEAST_KNOWN * drawn:
        raise InputError(
            f"{teacher.name} scored {known} of the {drawn} hard negatives that {data.name} draws from: its cache is for "
            "other negatives",
            "run osn data teach with the same --negatives and --depth, or name it in objective.teachers to have it done",
        )


def check_names(stage: StageSettings) -> None:
    """Raises InputError or ModelError for a miner or teacher that cannot be found, before anything is computed."""
    mine = stage.candidates.mine
    if mine is not None and mine != STUDENT:
        check_spec(mine)
    for name in stage.objective.teachers:
        if name != LEXICAL:
            locate(name)
