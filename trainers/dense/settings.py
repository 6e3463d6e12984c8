"""The settings of `osn train dense`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trainers.common.settings import EncoderSettings, ObjectiveSettings, TrainingSettings
from trainers.data.settings import (
    UNTAUGHT,
    CandidateSettings,
    DevSettings,
    SetSettings,
    check_training,
    refuse_unread,
)


@dataclass(slots=True)
class TwoStageSettings:
    """Retriever 2: the same start as retriever 1, trained on the original negatives (those that retriever 1 drew from) and
    on those that retriever 1 mines."""

    depth: int = 200
    """negatives are mined from this many of retriever 1's best documents"""
    keep: int | None = None
    """negatives to keep for each query, of the mined ones and as many of the original ones; null keeps all"""
    learning_rate: float | None = None
    """learning rate of the second stage; null takes the first stage's"""
    epochs: float | None = None
    """epochs of the second stage; null takes the first stage's"""
    steps: int | None = None
    """optimizer steps of the second stage; null takes the first stage's"""

    def __post_init__(self) -> None:
        if self.depth < 1 or (self.keep is not None and self.keep < 1):
            raise ValueError(f"depth {self.depth} and keep {self.keep} must be at least 1")
        for name in ("learning_rate", "epochs", "steps"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, or null to take the first stage's, not {value}")


@dataclass(slots=True)
class DenseConfig:
    """The settings of `osn train dense`."""

    output: Path
    """the model directory to write"""
    train: list[SetSettings]
    """training sets; each batch is from one set"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """directory or hub id of the transformer to start from"""
    dev: list[SetSettings] = field(default_factory=list)
    """sets to measure on while training"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets (such as test splits) whose questions are removed from train"""
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    """lengths, pooling and prompts of the two towers"""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """the terms of the loss and their weights"""
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    """the negatives of each query"""
    two_stage: TwoStageSettings | None = None
    """a second retriever, trained on the negatives that the first one mines; null trains only the first"""
    selection: DevSettings = field(default_factory=DevSettings)
    """how many questions and documents measure the states"""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """batches, optimizer, precision and length of the training"""
    onnx: bool = False
    """also write ONNX files, which encode without torch"""

    def __post_init__(self) -> None:
        drawn_from = {"two_stage": self.two_stage is not None, "candidates.mine": self.candidates.mine is not None}
        check_training(self.train, self.objective, self.candidates.negatives, drawn_from=drawn_from)
        refuse_unread("dev", self.dev, "teachers", why=UNTAUGHT)
        refuse_unread("unseen", self.unseen, "teachers", why=UNTAUGHT)
        self.training.check_measured(bool(self.dev) or self.selection.hold_back is not None)
