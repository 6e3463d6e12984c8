"""The settings of training data: data sets, what is held back of them, and the candidates of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from trainers.common.settings import DISTILLATION, TEACHER_SCALE, ObjectiveSettings
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training, name_of

Settings = TypeVar("Settings", bound="SetSettings")
Apart = Literal["documents", "questions"]
"""What a held-back part does not share with train: its documents and questions, or only its questions."""


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
    def set_name(self) -> str:
        """The set's name, by default the path's."""
        return self.name or name_of(self.path)

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
    """Raises ValueError for a limit below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")


def check_training(
    train: Sequence[SetSettings],
    objective: ObjectiveSettings,
    negatives: int,
    *,
    drawn_from: Mapping[str, bool] | None,
    teachers: bool = False,
    all_pairs: bool = False,
) -> None:
    """Raises ValueError for training sets, a loss and a number of hard negatives that do not go together.

    drawn_from: {setting that only says which negatives there are to draw from: whether it is set}; None if such settings
    have another use. teachers: whether the objective names models. all_pairs: whether distillation compares all documents
    of a batch.
    """
    if not train:
        raise ValueError("train names no data set")
    if objective.distils and negatives < 1 and not all_pairs:
        raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")
    if negatives < 1 and drawn_from is not None:
        choices = {**drawn_from, "train[].negatives": any(settings.negatives is not None for settings in train)}
        if without_effect := [name for name, is_set in choices.items() if is_set]:
            raise ValueError(
                f"no hard negatives are drawn, so {' and '.join(without_effect)} would have no effect: "
                "candidates.negatives must be at least 1"
            )
    taught = [settings.set_name for settings in train if settings.teachers]
    if taught and not objective.distils:
        weights = " and ".join(f"objective.{name}" for name in DISTILLATION)
        raise ValueError(f"{', '.join(taught)}: teachers are named, but {weights} are 0: give one of them a weight")
    of_teachers = {
        "teacher_weights": objective.teacher_weights is not None,
        "teacher_scale": objective.teacher_scale != TEACHER_SCALE,
        "normalize_teachers": not objective.normalize_teachers,
    }
    unread = [f"objective.{name}" for name, is_set in of_teachers.items() if is_set]
    if unread and objective.distils and not teachers and not taught:
        raise ValueError(
            f"{' and '.join(unread)} would have no effect: no train set has teachers, and scores that come with the data "
            "are compared as they are"
        )


def refuse_unread(field: str, sets: Sequence[SetSettings], *names: str, why: str) -> None:
    """Raises ValueError if one of the sets that `field` of a configuration names has a setting that this training does not
    read there. names: of these settings. why: what the training does instead."""
    for name in names:
        if set_names := [settings.set_name for settings in sets if getattr(settings, name)]:
            raise ValueError(f"{field}[].{name} ({', '.join(set_names)}) would have no effect: {why}")


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
class CandidateSettings:
    """The documents that a query is compared with, in addition to its positive."""

    negatives: int = 0
    """hard negatives of a query, drawn at each visit; random documents if there are too few"""
    depth: int = 200
    """negatives are drawn from this many of the hardest"""
    mine: Literal["bm25"] | None = None
    """the retriever that mines negatives if the data has none; null mines nothing"""

    def __post_init__(self) -> None:
        check_candidates(self.negatives, self.depth)


def check_candidates(negatives: int, depth: int) -> None:
    """Raises ValueError for numbers of negatives that cannot be drawn."""
    if negatives < 0 or depth < 1:
        raise ValueError(f"negatives {negatives} and depth {depth}: expected at least 0 and 1")
