"""What `osn train tome` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.generative_settings import GenerativeSettings
from trainers.common.settings import LAST, TrainingSettings
from trainers.data.sets import SetSettings
from trainers.doc2query.settings import GenerationSettings


@dataclass(slots=True)
class TomeConfig:
    """Everything that `osn train tome` can be told.

    By default the epochs lead to about a hundred visits of each document with 20 queries each in stage 1, and to fifty
    visits of each passage in stage 2.

    Measured, of 200 texts at most, are "written", the share for which the right text is written freely, and the
    log-likelihood of its tokens: of stage 1 on queries held back, of stage 2, which learns by heart, on passages that it
    learns. The last state is kept unless `select` names one of these measures: what is likeliest is not what finds most.
    """

    output: Path
    """the model directory"""
    corpus: Path
    """documents with a URL each"""
    backbone: str
    """the sequence-to-sequence model of both stages"""
    queries: list[SetSettings] = field(default_factory=list)
    """data sets whose positives are documents of the corpus: BEIR folders, or files of `osn data generate-queries` for it"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets whose questions are left out of `queries`"""
    generation: GenerationSettings = field(default_factory=lambda: GenerationSettings(candidates=20))
    """what writes queries for every document, if `model` is named"""
    candidates: int | None = None
    """at most so many queries a document of each generated file; null takes all"""
    spans: int = 0
    """of each document so many random spans of 4 to 24 words are queries too, drawn anew at every visit; not in the paper
    (NCI has documents' parts as queries)"""
    stages: Literal["both", "passage", "url", "single"] = "both"
    """with "passage" and "url" another call, of the same output, trains the other stage; "single" is query to URL"""
    url_backbone: str | None = None
    """the model of stage 2, which in the paper is smaller; null is `backbone`"""
    written: int = 0
    """stage 2 also reads the passages that stage 1 writes for so many of the queries; not in the paper"""
    settings: GenerativeSettings = field(default_factory=GenerativeSettings)
    """what both stages read and write"""
    dev_share: float = 0.02
    """the part of `queries` that measures stage 1 and does not train it; their documents train all the same; 0 measures
    nothing"""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=5, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """of stage 1, or of the single one"""
    url_training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=50, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """of stage 2"""

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if self.spans < 0 or self.written < 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError("spans and written must not be below 0, candidates not below 1")
        if self.written and self.stages != "both":
            raise ValueError("written needs both stages in one run: stage 2 then waits for stage 1")

    @property
    def single(self) -> bool:
        """Whether the model has a single stage, from query to URL."""
        return self.stages == "single"
