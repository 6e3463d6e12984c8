"""The data of a run: its train sets, without unseen and held-back questions, and its dev sets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from opensearch_neural.errors import InputError
from trainers.common.settings import TrainingSettings
from trainers.data.dev_sets import DevSet, dev_set
from trainers.data.examples import TrainingData
from trainers.data.leaks import without_documents_of, without_questions_of
from trainers.data.settings import DevSettings, SetSettings
from trainers.data.splits import dev_name, fewer_documents, hold_back, withholding

logger = logging.getLogger(__name__)

Config = TypeVar("Config")


@dataclass(slots=True)
class PreparedSets:
    """The data of a run."""

    train: list[TrainingData]
    """the train sets, without held-back and unseen questions, and without held-back documents as negatives"""
    dev: list[DevSet]
    """the sets to measure on"""
    measured: list[TrainingData]
    """the data from which the dev sets are drawn"""
    held_back: list[TrainingData]
    """those of them that were parts of train sets"""


def check_set_names(train: Sequence[SetSettings], dev: Sequence[SetSettings], selection: DevSettings) -> None:
    """Raises InputError if two train sets have the same name, or two of the sets to measure on: those of `dev`, and the
    held-back parts of train."""
    refuse_same_names("train", train)
    held_back = [] if selection.hold_back is None else [dev_name(settings.set_name) for settings in train]
    refuse_same_names("dev", dev, held_back)


def refuse_same_names(field: str, sets: Sequence[SetSettings], held_back: Sequence[str] = ()) -> None:
    """Raises InputError if two sets of the configuration's `field` have the same name: only the last one's measures would
    remain. held_back: names of the parts of train that are held back."""
    names = [settings.set_name for settings in sets]
    if len(set(names)) < len(names):
        raise InputError(
            f"two {field} sets have the same name: {', '.join(names)}", f"give each its own: {field}[…].name"
        )
    if both := sorted(set(names) & set(held_back)):
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
    other: PreparedSets | None = None,
) -> PreparedSets:
    """Load the data, hold back questions if asked, and remove the questions of `unseen` and dev from train. What one set
    holds back is removed from the others too: examples with its documents, and hard negatives among them. Nor are such
    documents mined or drawn as negatives of any set.

    folder: for generated questions. documents: how many to read of each corpus, besides those of its questions; None reads
    all. other: another stage's data, whose dev questions and held-back documents are kept out of this stage, too.

    Raises InputError as `load_training` and `check_set_names` do.
    """
    check_set_names(train, dev, selection)
    sets, measured = load_sets(train, unseen, dev, folder=folder, documents=documents)
    held_back: list[TrainingData] = []
    if selection.hold_back is not None:
        parted = [hold_back(data, selection.hold_back, seed=seed) for data in sets]
        held_back = [part for _, part in parted]
        # Each part is already apart from the held-back part of its own set.
        sets = [
            without_documents_of(part, [*held_back[:at], *held_back[at + 1 :]]) for at, (part, _) in enumerate(parted)
        ]
        measured += held_back
    elsewhere = PreparedSets([], [], [], []) if other is None else other
    sets = [without_documents_of(data, elsewhere.held_back) for data in sets]
    if withheld := [*held_back, *elsewhere.held_back]:
        sets = [withholding(data, withheld) for data in sets]
    sets = [without_questions_of(data, (*measured, *elsewhere.measured)) for data in sets]
    for data in sets:
        logger.info("train: %s, %d examples%s", data.name, len(data), "".join(f"; {note}" for note in data.notes))
    drawn = [dev_set(data, queries=selection.queries, documents=selection.documents, seed=seed) for data in measured]
    return PreparedSets(sets, drawn, measured, held_back)


def small(config: Config, rows: int, **changes: Any) -> Config:
    """A configuration (a dataclass) for a dry run: the first `rows` of its train sets, a few questions of its dev sets, two
    steps of each training. changes: other fields to replace."""
    smaller: dict[str, Any] = {}
    for field in fields(config):  # type: ignore[arg-type]
        name, value = field.name, getattr(config, field.name)
        if isinstance(value, TrainingSettings):
            smaller[name] = value.two_steps()
        elif isinstance(value, DevSettings):
            smaller[name] = replace(value, queries=8, documents=64, hold_back=rehearsed(value.hold_back, rows))
        elif name in ("train", "dev", "test"):
            smaller[name] = [settings.first(rows if name == "train" else 8) for settings in value]
    changed: Config = replace(config, **smaller | changes)  # type: ignore[type-var]
    return changed


def rehearsed(hold_back: float | int | None, rows: int) -> float | int | None:
    """What a dry run of `rows` holds back: a number of at most a quarter of them, or a share of at least a quarter."""
    if hold_back is None:
        return None
    return min(hold_back, rows // 4) if isinstance(hold_back, int) else max(hold_back, 0.25)
