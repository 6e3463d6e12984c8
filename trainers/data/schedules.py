"""Schedules: values that change over the steps of a run, and runs that follow one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opensearch_neural.models.directory import read_osn_json
from trainers.common.processes import main_process_first
from trainers.common.run_folder import Trained
from trainers.common.settings import TrainingSettings
from trainers.data.examples import TrainingData
from trainers.data.negatives import mine, open_retriever
from trainers.data.negatives_file import with_negatives

FOLDER = ".stages"
"""Where intermediate results lie in an output directory; hidden, since they are no part of the model."""
FIRST = "retriever-1"
"""What the first of two stages trains, there."""

TrainRetriever = Callable[[Literal[1, 2], Sequence[TrainingData], Path], Trained]
"""(stage, train sets, output) → a model directory at `output` whose kind names a retriever ("dense", "multi-layer"; see
`open_retriever`), trained from the start that both stages share."""


@dataclass(slots=True)
class TwoStageSettings:
    """Retriever 2 from the same start as retriever 1, on what that one mines beside the original negatives."""

    depth: int = 200
    """of how many of retriever 1's best documents negatives are mined"""
    keep: int | None = None
    """how many mined ones stay; null keeps all"""
    learning_rate: float | None = None
    """of the second stage; null takes the first's"""
    epochs: float | None = None
    """of the second stage; null takes the first's"""
    steps: int | None = None
    """of the second stage; null takes the first's"""


def quadratic_ramp(step: int, *, steps: int) -> float:
    """min(1, step / steps)²: how the weight of FLOPS regularization grows (Formal et al. 2021, "SPLADE v2").

    At full weight from the first step it would silence all terms before any has learned to be useful.
    """
    return 1.0 if steps < 1 else min(1.0, step / steps) ** 2


def two_stage(
    sets: Sequence[TrainingData], train_retriever: TrainRetriever, output: Path, settings: TwoStageSettings
) -> Trained:
    """Retriever 1 → its negatives → retriever 2 at `output` (`query-as-context`, section 3.2; `multi-layer
    representations`, section 4.3.2 and appendix D: the pool of the second stage holds both stages' negatives).

    Interrupted at any point, the same call goes on: each training resumes, mining too, and what is done is not repeated.
    """
    folder = output / FOLDER
    first = folder / FIRST
    train_retriever(1, sets, first)
    kind = (read_osn_json(first) or {})["kind"]
    mined = [
        with_mined(
            data,
            f"{kind}:{first}",
            folder / f"{data.name}.{FIRST}.jsonl",
            depth=settings.depth,
            keep=settings.keep,
            cache=folder / f"{data.name}.vectors",
            add=True,
        )
        for data in sets
    ]
    return train_retriever(2, mined, output)


def second_stage(training: TrainingSettings, settings: TwoStageSettings) -> TrainingSettings:
    """`training` with what the second stage changes."""
    return replace(
        training,
        learning_rate=settings.learning_rate or training.learning_rate,
        epochs=settings.epochs or training.epochs,
        steps=settings.steps or training.steps,
    )


def with_mined(
    data: TrainingData,
    retriever: str,
    file: Path,
    *,
    depth: int,
    keep: int | None = None,
    cache: Path | None = None,
    add: bool = False,
    consistency: int | None = None,
) -> TrainingData:
    """`data` with hard negatives that `retriever` (see `open_retriever`) finds, mined into `file` where they are not yet.

    add: beside the negatives it has. consistency: queries without a positive among the top N are left out. With
    several processes, the first one mines while the others wait.
    """
    with main_process_first():
        engine = open_retriever(retriever, data.documents, cache=cache)
        mine(data, engine, output=file, depth=depth, keep=keep, consistency=consistency)
    return with_negatives(data, file, add=add)
