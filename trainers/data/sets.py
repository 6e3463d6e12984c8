"""The data of a run: its train sets, without unseen and held-back questions, and its dev sets."""

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
from trainers.data.leaks import without_documents_of, without_questions_of
from trainers.data.loading import load_training
from trainers.data.splits import dev_name, fewer_documents, hold_back

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
    """the name of the set; null takes the path's"""
    format: str | None = None
    """the format of the file; null detects it by its name"""
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

    def __post_init__(self) -> None:
        check_limit(self.limit)

    @property
    def title(self) -> str:
        """The set's name, by default the path's."""
        return self.name or self.path.resolve().name.partition(".")[0]

    def first(self: Settings, rows: int) -> Settings:
        """Only the first rows, for a dry run."""
        return replace(self, limit=min(self.limit or rows, rows))

    def load(self, folder: Path | None = None) -> TrainingData:
        """Loads the data. folder: for questions that have to be generated."""
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


def check_limit(limit: int | None) -> None:
    """Raises ValueError for a limit that no example or document is below."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")


def check_teachers(train: Sequence[SetSettings], distils: bool) -> None:
    """Raises ValueError if a train set names teachers, and no term of the loss asks them."""
    named = [settings.title for settings in train if settings.teachers]
    if named and not distils:
        raise ValueError(
            f"{', '.join(named)}: teachers are named, but objective.kl and objective.margin_mse are 0: give one of them a "
            "weight"
        )


def refuse_unread(field: str, sets: Sequence[SetSettings], *names: str, why: str) -> None:
    """Raises ValueError if one of the sets that `field` of a configuration names has a setting that this training does not
    read there. names: of these settings. why: what the training does instead."""
    for name in names:
        if named := [settings.title for settings in sets if getattr(settings, name)]:
            raise ValueError(f"{field}[].{name} ({', '.join(named)}) would have no effect: {why}")


UNTAUGHT = "teachers score the training sets alone"
"""Why `teachers` of a set that is measured on, or left out, are refused."""


@dataclass(slots=True)
class DevSettings:
    """The data for dev measures."""

    hold_back: float | int | None = None
    """the share (or number) of each train set's examples to keep for measuring; null keeps none"""
    queries: int = 500
    """largest number of queries of each dev set"""
    documents: int = 2000
    """largest number of documents of each dev set"""

    def __post_init__(self) -> None:
        if self.queries < 1 or self.documents < 0:
            raise ValueError(f"queries {self.queries} must be at least 1, documents {self.documents} not below 0")


@dataclass(slots=True)
class PreparedSets:
    """The data of a run."""

    train: list[TrainingData]
    """the train sets, without held-back and unseen questions"""
    dev: list[DevSet]
    """the sets to measure on"""
    held: list[TrainingData]
    """the data from which the dev sets are drawn"""


def check_set_names(train: Sequence[SetSettings], dev: Sequence[SetSettings], selection: DevSettings) -> None:
    """Raises InputError if two train sets have the same name, or two sets to measure on, held-back parts of train among
    them."""
    refuse_same_names("train", train)
    held = [] if selection.hold_back is None else [dev_name(settings.title) for settings in train]
    refuse_same_names("dev", dev, held)


def refuse_same_names(field: str, sets: Sequence[SetSettings], held: Sequence[str] = ()) -> None:
    """Raises InputError if two of the sets that `field` of a configuration names have the same name: measures would be of
    the last one alone. held: names of parts that are held back."""
    names = [settings.title for settings in sets]
    if len(set(names)) < len(names):
        raise InputError(
            f"two {field} sets have the same name: {', '.join(names)}", f"give each its own: {field}[…].name"
        )
    if both := sorted(set(names) & set(held)):
        raise InputError(
            f"the {field} set {both[0]} has the name of a part that is held back of train",
            f"give the set another: {field}[…].name",
        )


def load_sets(
    train: Sequence[SetSettings],
    unseen: Sequence[SetSettings],
    dev: Sequence[SetSettings],
    *,
    folder: Path,
    documents: int | None = None,
) -> tuple[list[TrainingData], list[TrainingData]]:
    """(train, dev), with train free of questions of `unseen`. documents: how many to read of each corpus, besides those of
    its questions; None reads all. A set with teachers keeps all: their caches cover its whole corpus. folder: for generated
    questions. Raises InputError as `load_training` does."""

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
    """Load the data, hold back questions if asked, and remove the questions of `unseen`, dev and `held` from train. What one
    set holds back is removed from the others too: examples with its documents, and hard negatives among them.

    folder: for generated questions. documents: how many to read of each corpus, besides those of its questions; None reads
    all. held: data of another stage's dev sets.

    Raises InputError as `load_training` and `check_set_names` do.
    """
    check_set_names(train, dev, selection)
    sets, measured = load_sets(train, unseen, dev, folder=folder, documents=documents)
    if selection.hold_back is not None:
        parted = [hold_back(data, selection.hold_back, seed=seed) for data in sets]
        held_back = [part for _, part in parted]
        # Of its own set each part is apart already.
        sets = [
            without_documents_of(part, [*held_back[:at], *held_back[at + 1 :]]) for at, (part, _) in enumerate(parted)
        ]
        measured += held_back
    sets = [without_questions_of(data, (*measured, *held)) for data in sets]
    for data in sets:
        logger.info("train: %s, %d examples%s", data.name, len(data), "".join(f"; {note}" for note in data.notes))
    drawn = [dev_set(data, queries=selection.queries, documents=selection.documents, seed=seed) for data in measured]
    return PreparedSets(sets, drawn, measured)


def small(config: Config, rows: int, **changes: Any) -> Config:
    """A configuration (a dataclass) for a dry run: the first `rows` of its train sets, a few questions of its dev sets, two
    steps of each training. changes: other fields to replace."""
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
    """How much of `rows` a dry run can hold back: a small share of few is none, or less than a passage's questions."""
    if hold_back is None:
        return None
    return min(hold_back, rows // 4) if isinstance(hold_back, int) else max(hold_back, 0.25)
