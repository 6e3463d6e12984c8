"""What every training can be told: how long, how fast, in what batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trainers.common.precision import Precision

LAST = "last"
"""`TrainingSettings.select` where no measure selects."""


@dataclass(slots=True)
class TrainingSettings:
    """How long, how fast, in what batches. `steps` and `*_every` count optimizer steps."""

    steps: int | None = None
    """how many to take; null takes `epochs` instead"""
    epochs: float = 1.0
    """passes over the data"""
    batch_size: int = 32
    """examples whose vectors meet in one loss, over all processes"""
    gradient_accumulation: int = 1
    """batches a step; in-batch negatives do not reach across them"""
    chunk_size: int | None = None
    """rows encoded at a time under gradient caching, with the same gradient as without; null encodes all at once"""
    learning_rate: float = 2e-5
    """the highest"""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """how the learning rate falls after the warm-up"""
    warmup: float = 0.1
    """a share of the steps below 1, else a number of steps"""
    weight_decay: float = 0.01
    """of matrices alone"""
    max_gradient_norm: float | None = 1.0
    """longer gradients are cut to it; null cuts none"""
    precision: Precision = "float32"
    """what the network computes in; auto is bfloat16 where the hardware is faster in it, else float32"""
    activation_checkpointing: bool = False
    """compute activations again in the backward pass instead of keeping them: less memory, more time"""
    seed: int = 42
    """of everything that is drawn"""
    evaluate_every: int | None = None
    """null is a tenth of all steps"""
    save_every: int | None = None
    """null is a tenth of all steps"""
    keep: int = 2
    """checkpoints that stay"""
    log_every: int = 10
    """steps between two lines of the log"""
    select: str | None = None
    """the dev measure whose best state is kept; null takes the first measured, "last" keeps the last state"""
    patience: int | None = None
    """evaluations without a gain before training stops; null never stops early"""
    bucket: int = 1
    """batches of examples of like length within so many batches, for data that knows its lengths"""
    set_weights: list[float] | float | None = None
    """each set's share of the steps, or a power p of its size; null draws sets in proportion to their size"""
    embedding_rate: float | None = None
    """the learning rate of word embeddings, in learning rates of the rest; null is 1"""
    workers: int = 0
    """processes that make batches; 0 makes them in the training process"""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU where there is one"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "gradient_accumulation", "keep", "log_every", "bucket"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("steps", "chunk_size", "evaluate_every", "save_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.epochs <= 0 or self.learning_rate <= 0 or self.warmup < 0:
            raise ValueError("epochs and learning_rate must be above 0, warmup not below 0")
        if self.embedding_rate is not None and self.embedding_rate <= 0:
            raise ValueError(f"embedding_rate must be above 0, not {self.embedding_rate}")

    def two_steps(self, most: int | None = None) -> TrainingSettings:
        """Of a dry run: everything happens at each step. most: examples of a batch."""
        size = self.batch_size if most is None else min(self.batch_size, most)
        return replace(self, steps=2, batch_size=size, evaluate_every=1, save_every=1, log_every=1, workers=0)

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """Where a training with these settings runs on this machine."""
        import torch

        return "cuda" if self.device == "auto" and torch.cuda.is_available() else "cpu"
