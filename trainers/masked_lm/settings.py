"""The settings of `osn train mlm`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trainers.common.config import EITHER, MISSING
from trainers.common.settings import TrainingSettings
from trainers.encoders.settings import NewBackbone


@dataclass(slots=True)
class MaskedLmConfig:
    """The settings of `osn train mlm`; either `backbone` or `new` must be given, not both."""

    output: Path
    """the model directory"""
    corpus: list[Path]
    """folders or files that `osn ingest` reads too"""
    backbone: str | None = field(default=None, metadata=EITHER)
    """a directory or hub id to continue with"""
    new: NewBackbone | None = field(default=None, metadata=EITHER)
    """a new model, with a tokenizer trained on the corpus"""
    max_length: int = 256
    """tokens of a window, special ones included; a longer document is cut into windows"""
    masked: float = 0.15
    """the share of tokens to predict"""
    whole_word: bool = False
    """mask all pieces of a word together (BERT-like models only)"""
    dev_share: float = 0.01
    """the share of the documents to keep for measuring"""
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=1e-4, bucket=16))
    """batches, optimizer, precision and length of the training"""

    def __post_init__(self) -> None:
        if self.backbone != MISSING and (self.backbone is None) == (self.new is None):
            raise ValueError("expected either 'backbone', a model to continue with, or 'new', a model to be made")
        if not 0 < self.masked < 1:
            raise ValueError(f"masked must be between 0 and 1, not {self.masked}")
        self.training.check_dev_share(self.dev_share)
        if self.max_length < 8:
            raise ValueError("max_length must be at least 8")
