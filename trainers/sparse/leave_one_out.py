"""Chooses settings for unseen sets: each train set is left out of training in turn, and measured on.

    osn train sparse --config my.yaml --try regularization.weight=0.002 --try 'student.revive=0.1; training.steps=1800' \\
        --output models/sparse

A set's own held-back questions favour settings that fit that set's documents and judgements. Here the model measured on a
set is trained only on the others, and its last state counts, so that selecting a state does not use the set either.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.provenance import clean_argument
from opensearch_neural.evaluation.results import Row, Summary, read_facts
from opensearch_neural.evaluation.significance import interval, mean_interval
from trainers.common.config import fingerprint, load_config
from trainers.common.run_folder import QUESTIONS_FILE, Trained, history
from trainers.common.settings import FOLDER, LAST, TEACHER_SCALE
from trainers.doc2query.question_sets import QuestionSet
from trainers.sparse.settings import SparseConfig, SparseObjective, Stage
from trainers.sparse.student_measures import BASELINES, SUM
from trainers.sparse.trials_table import TERMS

logger = logging.getLogger(__name__)

AS_CONFIGURED = "as configured"
NOT_TRAINED = "not trained"
MEASURE = "nDCG@10"
START = "start "
"""What the measures of the model before it was trained begin with."""


@dataclass(frozen=True)
class Trial:
    """Settings, and what a model trained with them gains on each set left out."""

    name: str
    """its own name, or the changed settings"""
    config: SparseConfig
    """all settings"""
    measures: dict[str, dict[str, float]]
    """{set: dev measures on it, by a model trained on the other sets}"""
    states: dict[str, list[dict[str, float]]]
    """{set: {question: gain} of each state that was measured on it}; no state if an earlier version trained the model"""

    @property
    def gains(self) -> dict[str, float]:
        """{set: nDCG@10 of BM25 + sparse, minus nDCG@10 of BM25}"""
        return {name: gain(measures) for name, measures in self.measures.items()}

    @property
    def mean(self) -> float:
        return fmean(self.gains.values())

    def questions(self, left: str) -> dict[str, float]:
        """{question: gain} on a set: of the last state whose mean gain is the trial's. Empty if there is none."""
        matching = (
            state
            for state in reversed(self.states[left])
            if math.isclose(fmean(state.values()), self.gains[left], abs_tol=1e-9)
        )
        return next(matching, {})


def gain(measures: dict[str, float]) -> float:
    """nDCG@10 of BM25 + sparse, minus nDCG@10 of BM25"""
    return measures[f"{SUM} {MEASURE}"] - measures[f"{BASELINES[-1]} {MEASURE}"]


def trials(config: SparseConfig, tries: Sequence[str], train: Callable[[SparseConfig], Trained]) -> list[Trial]:
    """Trials of the unchanged configuration and of each of `tries`: "FIELD=VALUE; FIELD=VALUE", or "NAME: FIELD=VALUE".

    Every set of `config.train` is left out once; a trial may train on more sets. Trainings are stored in a folder of the
    output; finished ones are not repeated. Raises InputError for a single train set, two sets of one name, a trial that
    lacks a set or changes bm25, two trials of one name, and invalid settings.
    """
    sets = [settings.set_name for settings in config.train]
    if len(sets) < 2 or len(set(sets)) < len(sets):
        raise InputError(
            f"train names {', '.join(sets)}: --try needs several sets with different names",
            "add sets to train, or give a set another name (name:)",
        )
    if config.student.queries == "network":
        raise InputError(
            "--try measures BM25 + sparse, which no search does with student.queries network", "omit --try"
        )
    configs = [(AS_CONFIGURED, config), *((trial_name(text), changed(config, text)) for text in tries)]
    names = [name for name, _ in configs]
    for name, trial_config in configs:
        if name == NOT_TRAINED or names.count(name) > 1:
            raise InputError(
                f"--try {name}: two lines of the table would have this name", "use another name: 'NAME: FIELD=VALUE'"
            )
        if trial_config.bm25 != config.bm25:
            raise InputError(
                f"--try {name}: gains over different BM25s cannot be compared",
                "give bm25 in the configuration, or with --set",
            )
        if missing := [left.set_name for left in config.train if left not in trial_config.train]:
            raise InputError(
                f"--try {name}: all trials must leave out the same sets, and train lacks {', '.join(missing)}",
                "name in train all sets of the configuration, as they are there, and then the further ones",
            )
        for left in config.train:  # what cannot be left out is refused before anything is trained
            leaving_out(trial_config, left)
    tried = [
        Trial(name, trial_config, *on_sets_left_out(trial_config, config.train, train))
        for name, trial_config in configs
    ]
    for trial in tried:
        if old := [left for left in trial.measures if not trial.questions(left)]:
            logger.warning(
                "%s, without %s: an earlier version trained it and kept no question's measures, so its gains have no "
                "interval; to train it again, remove its folder in %s",
                trial.name,
                ", ".join(old),
                folder(config),
            )
    return tried


def trial_name(text: str) -> str:
    """The name of a trial: NAME of "NAME: FIELD=VALUE", else its settings, without paths of this machine."""
    name, settings = _parted(text)
    return name or clean_argument(settings)


def _parted(text: str) -> tuple[str, str]:
    """(name, settings) of "NAME: FIELD=VALUE; FIELD=VALUE"; without a name, it is empty."""
    name, colon, settings = text.partition(":")
    return (name.strip(), settings.strip()) if colon and "=" not in name else ("", text.strip())


def changed(config: SparseConfig, text: str) -> SparseConfig:
    """`config` with "FIELD=VALUE; FIELD=VALUE" applied, with or without a name before it.

    Raises InputError for a field or value that does not fit.
    """
    overrides = [part.strip() for part in _parted(text)[1].split(";") if part.strip()]
    try:
        return load_config(SparseConfig, None, overrides, defaults=config)
    except InputError as error:
        raise InputError(error.message.replace("--set", "--try"), error.remedy) from None


def on_sets_left_out(
    config: SparseConfig, sets: Sequence[QuestionSet], train: Callable[[SparseConfig], Trained]
) -> tuple[dict[str, dict[str, float]], dict[str, list[dict[str, float]]]]:
    """The measures and states of a `Trial` on each of `sets`."""
    measures: dict[str, dict[str, float]] = {}
    states: dict[str, list[dict[str, float]]] = {}
    for left in sets:
        others = leaving_out(config, left)
        measures[left.set_name] = train(others).measures
        states[left.set_name] = [
            {question: of_set[SUM][question] - bm25 for question, bm25 in of_set[BASELINES[-1]].items()}
            for line in history(others.output, QUESTIONS_FILE)
            for of_set in line.values()
        ]
        logger.info("without %s: %+.4f on it", left.set_name, gain(measures[left.set_name]))
    return measures, states


def leaving_out(config: SparseConfig, left: QuestionSet) -> SparseConfig:
    """`config` without the set `left`, on which the last state is measured.

    If the length is given in epochs, it is also measured on the way; those measures choose nothing."""

    def others(stage: Stage, stage_name: str) -> Stage:
        kept = [at for at, settings in enumerate(stage.train) if sources(settings).isdisjoint(sources(left))]
        if not kept:
            raise InputError(
                f"{stage_name} has only sets of the corpus of {left.set_name}: without them nothing is left to train on",
                f"add sets of other corpora to {stage_name}",
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
        output=place / left.set_name,
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
    return {path.resolve() for place in files(settings) for path in (place, *place.glob("corpus.jsonl*"))}


def files(settings: QuestionSet) -> list[Path]:
    """The set's path, and its corpus if that is named."""
    return [path for path in (settings.path, settings.corpus) if path is not None]


def chosen(tried: Sequence[Trial]) -> Trial:
    """The trial with the best mean over the sets; of equals the first, so the configured settings win a tie."""
    return max(tried, key=lambda trial: trial.mean)


def result(tried: Sequence[Trial]) -> Summary:
    """Rows of each trial: its gain on each set and in their mean, how much that is above the gain of the model before
    training and above that of the first trial, and how many terms a document has. The model before training comes first, if
    the trainings measured it."""
    config, before = tried[0].config, not_trained(tried[0])
    rivals = [*before, tried[0]]
    rows = [row for at, trial in enumerate([*before, *tried]) for row in _rows(trial, rivals[:at])]
    data = read_facts(sorted({path for trial in tried for left in trial.config.train for path in files(left)}))
    return Summary.of_this_run(title="Settings, on sets left out", data=data, seeds=[config.training.seed], rows=rows)


def not_trained(trial: Trial) -> list[Trial]:
    """The model before the trainings of `trial`; none if they did not measure it."""
    before = {
        left: {name.removeprefix(START): value for name, value in measures.items() if name.startswith(START)}
        for left, measures in trial.measures.items()
    }
    is_measured = all(TERMS in measures for measures in before.values())
    return [replace(trial, name=NOT_TRAINED, measures=before)] if is_measured else []


def _rows(trial: Trial, rivals: Sequence[Trial]) -> list[Row]:
    queries = trial.config.selection.queries or 0
    gains = Row("", SUM, MEASURE, 0.0, None, None, queries, BASELINES[-1], kind="difference", variant=trial.name)
    questions = {left: trial.questions(left) for left in trial.measures}
    rows = _on_sets(gains, trial.gains, {left: [*of_set.values()] for left, of_set in questions.items()})
    for rival in rivals:
        above = {left: value - rival.gains[left] for left, value in trial.gains.items()}
        paired: dict[str, list[float]] = {}
        for left, ours in questions.items():
            theirs = rival.questions(left)
            same = ours.keys() == theirs.keys()  # a trial may have other settings of `selection`
            paired[left] = [ours[question] - theirs[question] for question in ours] if same else []
        rows += _on_sets(replace(gains, baseline=SUM, baseline_variant=rival.name), above, paired)
    terms = replace(gains, measure=TERMS, baseline="", kind="value")
    return rows + _on_sets(terms, {left: measures[TERMS] for left, measures in trial.measures.items()}, {})


def _on_sets(row: Row, values: Mapping[str, float], questions: Mapping[str, Sequence[float]]) -> list[Row]:
    """`row` for each set and for their mean.

    values: {set: its value}; questions: {set: the values of its questions}, which the intervals are over. Without them there
    is no interval.
    """
    rows = []
    for name, value in values.items():
        of_set = questions.get(name, [])
        low, high = interval(of_set) or (None, None)
        rows.append(replace(row, set=name, value=value, low=low, high=high, n=len(of_set) or row.n))
    mean = replace(row, set=f"mean of {len(values)} sets", value=fmean(values.values()), sets=len(values))
    if all(of_set.low is not None for of_set in rows):
        low, high = mean_interval([questions[name] for name in values])
        mean = replace(mean, low=low, high=high)
    return [*rows, replace(mean, n=sum(of_set.n for of_set in rows))]
