"""The data of a run: its train sets, without what is unseen or held back, and its dev sets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from opensearch_neural.errors import InputError
from trainers.common.settings import TrainingSettings
from trainers.data.dev_measures import DevSet, dev_set
from trainers.data.examples import TrainingData
from trainers.data.leaks import without_questions_of
from trainers.data.loading import load_training
from trainers.data.splits import fewer_documents, hold_back

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound="SetSettings")
Config = TypeVar("Config")


@dataclass(slots=True)
class SetSettings:
    """A data set, as `load_training` takes it."""

    path: Path
    """a BEIR folder, DPR's .json, triples .tsv, or .jsonl"""
    split: str = "train"
    """the split of a BEIR folder"""
    name: str | None = None
    """the name of the set; null is the path's"""
    format: str | None = None
    """the format of the file; null is by its name"""
    corpus: Path | None = None
    """the documents of triples by id, or of generated queries"""
    queries: Path | None = None
    """the queries of triples by id"""
    negatives: Path | None = None
    """a file of hard negatives by `osn data mine`"""
    limit: int | None = None
    """the first N examples; null takes all"""
    teachers: list[Path] = field(default_factory=list)
    """folders of `osn data teach` for this set, in the order of objective.teacher_weights"""

    @property
    def title(self) -> str:
        """The set's name, by default the path's."""
        return self.name or self.path.resolve().name.partition(".")[0]

    def first(self: Settings, rows: int) -> Settings:
        """The first rows alone, for a dry run."""
        return replace(self, limit=min(self.limit or rows, rows))

    def load(self, folder: Path | None = None) -> TrainingData:
        """folder: for results that have to be computed for the set."""
        return load_training(
            self.path,
            split=self.split,
            negatives=self.negatives,
            corpus=self.corpus,
            queries=self.queries,
            format=self.format,
            limit=self.limit,
            name=self.name,
        )


def check_teachers(train: Sequence[SetSettings], distils: bool) -> None:
    """Raises ValueError if a train set names teachers, and no term of the loss asks them."""
    named = [settings.title for settings in train if settings.teachers]
    if named and not distils:
        raise ValueError(
            f"{', '.join(named)}: teachers are named, but objective.kl and objective.margin_mse are 0: give one of them a "
            "weight"
        )


@dataclass(slots=True)
class DevSettings:
    """What a training measures on."""

    hold_back: float | int | None = None
    """the share (or number) of each train set's examples that is kept for measuring"""
    queries: int = 500
    """the most queries of each dev set"""
    documents: int = 2000
    """the most documents of each dev set"""


@dataclass(slots=True)
class PreparedSets:
    """The data of a run."""

    train: list[TrainingData]
    """the train sets, without what is held back or unseen"""
    dev: list[DevSet]
    """the sets to measure on"""
    held: list[TrainingData]
    """all questions from which the dev sets are drawn"""


def load_sets(
    train: Sequence[SetSettings],
    unseen: Sequence[SetSettings],
    dev: Sequence[SetSettings],
    *,
    folder: Path,
    documents: int | None = None,
) -> tuple[list[TrainingData], list[TrainingData]]:
    """(train, dev), questions of `unseen` left out of train. documents: how many to read of each corpus, besides those that
    its questions need; all by default. A set with teachers keeps all: their caches are of its whole corpus. folder: for
    generated questions. Raises InputError as `load_training` does."""

    def load(settings: SetSettings) -> TrainingData:
        data = settings.load(folder)
        return data if documents is None or settings.teachers else fewer_documents(data, documents)

    sets = [load(settings) for settings in train]
    others = [settings.load(folder) for settings in unseen]
    sets = [without_questions_of(data, others) for data in sets]
    return sets, [load(settings) for settings in dev]


def prepare(
    train: Sequence[SetSettings],
    *,
    dev: Sequence[SetSettings],
    unseen: Sequence[SetSettings],
    selection: DevSettings,
    seed: int,
    folder: Path,
    documents: int | None = None,
    held: Sequence[TrainingData] = (),
) -> PreparedSets:
    """Load the data, remove from train what `unseen` asks, hold back dev if none is named, check for leaks.

    folder: for generated questions. documents: how many to read of each corpus, besides those that its questions need; all
    by default. held: questions of another stage's dev sets, which are removed from train too.

    Raises InputError as `load_training` does, and where two train sets have the same name.
    """
    sets, measured = load_sets(train, unseen, dev, folder=folder, documents=documents)
    names = [data.name for data in sets]
    if len(set(names)) < len(names):
        raise InputError(f"two train sets have the same name: {', '.join(names)}", "give each its own: train[…].name")
    if selection.hold_back is not None:
        parted = [hold_back(data, selection.hold_back, seed=seed) for data in sets]
        sets = [part for part, _ in parted]
        measured += [part for _, part in parted]
    sets = [without_questions_of(data, (*measured, *held)) for data in sets]
    for data in sets:
        logger.info("train: %s, %d examples%s", data.name, len(data), "".join(f"; {note}" for note in data.notes))
    drawn = [dev_set(data, queries=selection.queries, documents=selection.documents, seed=seed) for data in measured]
    return PreparedSets(sets, drawn, measured)


def small(config: Config, rows: int, **changes: Any) -> Config:
    """A configuration (a dataclass) for a dry run: the first `rows` of its train sets, some questions of those that are
    measured, two steps of each training. changes: fields with other values."""
    made: dict[str, Any] = {}
    for name in (each.name for each in fields(config)):  # type: ignore[arg-type]
        value = getattr(config, name)
        if isinstance(value, TrainingSettings):
            made[name] = value.two_steps()
        elif isinstance(value, DevSettings):
            made[name] = replace(value, queries=8, documents=64, hold_back=rehearsed(value.hold_back, rows))
        elif name in ("train", "dev", "test"):
            made[name] = [settings.first(rows if name == "train" else 8) for settings in value]
    changed: Config = replace(config, **made | changes)  # type: ignore[type-var]
    return changed


def rehearsed(hold_back: float | int | None, rows: int) -> float | int | None:
    """As much of `rows` as a dry run can hold back: of few, a small share is none, or less than one passage's questions."""
    if hold_back is None:
        return None
    return min(hold_back, rows // 4) if isinstance(hold_back, int) else max(hold_back, 0.25)
