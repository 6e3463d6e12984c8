"""Chooses settings for unseen sets: each train set is left out of training in turn, and measured on.

    osn train sparse --config my.yaml --try regularization.weight=0.002 --try 'student.revive=0.1; training.steps=1800' \\
        --output models/sparse

A set's own held-back questions favour settings that fit that set's documents and judgements. Here the model measured on a
set is trained only on the others, and its last state counts, so that selecting a state does not use the set either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row, Summary, read_facts
from trainers.common.config import fingerprint, load_config
from trainers.common.run_folder import Trained
from trainers.common.settings import FOLDER, LAST, TEACHER_SCALE
from trainers.doc2query.question_sets import QuestionSet
from trainers.sparse.settings import SparseConfig, SparseObjective, Stage
from trainers.sparse.student_measures import BASELINES, SUM

logger = logging.getLogger(__name__)

AS_CONFIGURED = "as configured"
NOT_TRAINED = "not trained"
MEASURE = "nDCG@10"
TERMS = "active terms"


@dataclass(frozen=True)
class Trial:
    """Settings, and what a model trained with them gains on each set left out."""

    name: str
    """the changed settings, as a title"""
    config: SparseConfig
    """all settings"""
    measures: dict[str, dict[str, float]]
    """{set: dev measures on it, by a model trained on the other sets}"""

    @property
    def gains(self) -> dict[str, float]:
        """{set: nDCG@10 of BM25 + sparse, minus nDCG@10 of BM25}"""
        return {name: gain(measures) for name, measures in self.measures.items()}

    @property
    def mean(self) -> float:
        return fmean(self.gains.values())


def gain(measures: dict[str, float], of: str = "") -> float:
    """nDCG@10 of BM25 + sparse, minus nDCG@10 of BM25. of: "start " for the model before it was trained"""
    return measures[f"{of}{SUM} {MEASURE}"] - measures[f"{of}{BASELINES[-1]} {MEASURE}"]


def trials(config: SparseConfig, tries: Sequence[str], train: Callable[[SparseConfig], Trained]) -> list[Trial]:
    """Trials of the unchanged configuration and of each of `tries`, "FIELD=VALUE; FIELD=VALUE".

    Every set of `config.train` is left out once. Trainings are stored in a folder of the output; finished ones are not
    repeated. Raises InputError for a single train set, two sets of one name, and invalid settings.
    """
    names = [settings.title for settings in config.train]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"train names {', '.join(names)}: --try needs several sets with different names",
            "add sets to train, or give a set another name (name:)",
        )
    if config.student.queries == "network":
        raise InputError(
            "--try measures BM25 + sparse, which no search does with student.queries network", "omit --try"
        )
    wanted = {AS_CONFIGURED: config} | {text: changed(config, text) for text in tries}
    for name, trial in wanted.items():
        if name != AS_CONFIGURED and trial.train != config.train:
            raise InputError(f"--try {name}: all trials must leave out the same sets", "do not change train")
    for trial in wanted.values():  # what cannot be left out is refused before anything is trained
        for left in trial.train:
            leaving_out(trial, left)
    return [Trial(name, trial, on_sets_left_out(trial, train)) for name, trial in wanted.items()]


def changed(config: SparseConfig, text: str) -> SparseConfig:
    """`config` with "FIELD=VALUE; FIELD=VALUE" applied. Raises InputError for a field or value that does not fit."""
    overrides = [part.strip() for part in text.split(";") if part.strip()]
    try:
        return load_config(SparseConfig, None, overrides, defaults=config)
    except InputError as error:
        raise InputError(error.message.replace("--set", "--try"), error.remedy) from None


def on_sets_left_out(config: SparseConfig, train: Callable[[SparseConfig], Trained]) -> dict[str, dict[str, float]]:
    """{set: dev measures on it, by a model trained on the other sets}"""
    measures: dict[str, dict[str, float]] = {}
    for left in config.train:
        measures[left.title] = train(leaving_out(config, left)).measures
        logger.info("without %s: %+.4f on it", left.title, gain(measures[left.title]))
    return measures


def leaving_out(config: SparseConfig, left: QuestionSet) -> SparseConfig:
    """`config` without the set `left`, on which the last state is measured.

    If the length is given in epochs, it is also measured on the way; those measures choose nothing."""

    def others(stage: Stage, title: str) -> Stage:
        kept = [at for at, settings in enumerate(stage.train) if sources(settings).isdisjoint(sources(left))]
        if not kept:
            raise InputError(
                f"{title} has only sets of the corpus of {left.title}: without them nothing is left to train on",
                f"add sets of other corpora to {title}",
            )
        weights = stage.training.set_weights
        if isinstance(weights, list) and len(weights) == len(stage.train):
            weights = [weights[at] for at in kept]
        training = replace(stage.training, set_weights=weights, select=LAST, patience=None)
        train = [stage.train[at] for at in kept]
        return replace(stage, train=train, objective=_as_read(stage.objective, train), training=training)

    fine_tuning = others(config, "train")
    measured = replace(left, teachers=[])  # no teacher scores what is measured on
    place = folder(config) / fingerprint(replace(config, output=Path("output"), cache=None))
    return replace(
        fine_tuning,
        output=place / left.title,
        cache=config.folder,
        pretraining=None if config.pretraining is None else others(config.pretraining, "pretraining.train"),
        dev=[measured],
        unseen=[*config.unseen, measured],
        selection=replace(config.selection, hold_back=None),
        training=replace(fine_tuning.training, evaluate_every=config.training.steps),
    )


def folder(config: SparseConfig) -> Path:
    """Where the trainings and the result of `--try` are kept."""
    return config.output / FOLDER / "leave-one-out"


def _as_read(objective: SparseObjective, train: Sequence[QuestionSet]) -> SparseObjective:
    """`objective` without what these sets do not read of it, and a configuration of them would be refused for."""
    if not objective.distils:
        return objective
    if all(settings.teachers for settings in train):
        return replace(objective, teachers=[])
    if not objective.teachers and not any(settings.teachers for settings in train):
        return replace(objective, teacher_weights=None, teacher_scale=TEACHER_SCALE, normalize_teachers=True)
    return objective


def sources(settings: QuestionSet) -> set[Path]:
    """The files and folders that hold a set's texts, a BEIR folder's corpus among them: sets of one corpus share one."""
    named = [path for path in (settings.path, settings.corpus) if path is not None]
    return {path.resolve() for place in named for path in (place, *place.glob("corpus.jsonl*"))}


def chosen(tried: Sequence[Trial]) -> Trial:
    """The trial with the best mean over the sets; of equals the first, so the configured settings win a tie."""
    return max(tried, key=lambda trial: trial.mean)


def gains_table(tried: Sequence[Trial]) -> str:
    """A line for each trial: mean gain in points, gain on each set, number of sets where it beats the first trial."""
    sets = list(tried[0].gains)
    lines = ["gain of BM25 + sparse over BM25 in points of nDCG@10, on each set by a model that was not trained on it:"]
    for trial in tried:
        each = ", ".join(f"{name} {100 * trial.gains[name]:.2f}" for name in sets)
        above = sum(trial.gains[name] > tried[0].gains[name] for name in sets)
        note = "" if trial is tried[0] else f"; above {tried[0].name} on {above} of {len(sets)}"
        lines.append(f"{100 * trial.mean:>7.2f}  {trial.name}  ({each}{note})")
    return "\n".join(lines)


def result(tried: Sequence[Trial]) -> Summary:
    """The gain of each trial on each set and in their mean, and how many terms a document has; first of the model as it
    was before the trainings, if they measured it."""
    config, before = tried[0].config, tried[0].measures
    models = [(trial.name, trial.measures, "") for trial in tried]
    if all(f"start {TERMS}" in own for own in before.values()):
        models = [(NOT_TRAINED, before, "start "), *models]
    rows = [row for name, measures, of in models for row in _rows(name, measures, of, config)]
    data = read_facts(sorted({path for left in config.train for path in (left.path, left.corpus) if path is not None}))
    return Summary.of_this_run(title="Settings, on sets left out", data=data, seeds=[config.training.seed], rows=rows)


def _rows(name: str, measures: dict[str, dict[str, float]], of: str, config: SparseConfig) -> list[Row]:
    """of: as `gain` takes it"""
    queries, rows = config.selection.queries or 0, []
    gains = Row("", SUM, MEASURE, 0.0, None, None, queries, BASELINES[-1], kind="difference", variant=name)
    terms = Row("", SUM, TERMS, 0.0, None, None, queries, variant=name)
    for row, values in (
        (gains, {left: gain(own, of) for left, own in measures.items()}),
        (terms, {left: own[f"{of}{TERMS}"] for left, own in measures.items()}),
    ):
        rows += [replace(row, set=left, value=value) for left, value in values.items()]
        rows.append(replace(row, set=f"mean of {len(values)} sets", value=fmean(values.values()), sets=len(values)))
    return rows
