"""What `osn train tome` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.generative import GenerativeSettings
from trainers.common.settings import LAST, TrainingSettings
from trainers.data.sets import SetSettings
from trainers.doc2query.sampling import SamplingSettings


@dataclass(slots=True)
class TomeConfig:
    """`osn train tome`.

    corpus: documents with a URL each. queries: data sets whose positives are documents of the corpus: BEIR folders, or
    files of `osn generate-queries` (their corpus is this one). unseen: sets whose questions are left out of those.
    generator: a model of `osn train doc2query`, which writes queries for every document, as `sampling` says. candidates:
    at most so many queries a document of each generated file. spans: of each document so many random spans of 4 to 24
    words are queries too, drawn anew at every visit; not in the paper (NCI has documents' parts as queries).
    stages: "both", or one of the two, the other then being trained by another call with the same output; "single": query to
    URL. backbone: the sequence-to-sequence model of both stages; url_backbone: of the second, where it is another (the
    paper's is smaller). written: stage 2 also reads the passages that stage 1 writes for so many of the queries; not in
    the paper. training, url_training: of stage 1 (or the single one) and stage 2; by default as many epochs as lead to
    about a hundred visits of each document with 20 queries each, and to fifty of each passage.
    dev_share: the part of `queries` that measures stage 1 (or the single stage) and does not train it; their documents train
    all the same. What is measured, of 200 at most: "written", the share for which the right text is written, freely, and
    the log-likelihood of its tokens; of stage 2, which learns by heart, on passages that it learns. The last state is kept
    unless `select` names one of these: what is likeliest is not what finds most. 0 measures nothing.
    """

    output: Path
    corpus: Path
    backbone: str
    queries: list[SetSettings] = field(default_factory=list)
    unseen: list[SetSettings] = field(default_factory=list)
    generator: str | None = None
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(candidates=20))
    candidates: int | None = None
    spans: int = 0
    stages: Literal["both", "passage", "url", "single"] = "both"
    url_backbone: str | None = None
    written: int = 0
    settings: GenerativeSettings = field(default_factory=GenerativeSettings)
    dev_share: float = 0.02
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=5, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    url_training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=50, learning_rate=5e-5, batch_size=128, select=LAST)
    )

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if self.spans < 0 or self.written < 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError("spans and written must not be below 0, candidates not below 1")
        if self.written and self.stages != "both":
            raise ValueError("written needs both stages in one run: stage 2 then waits for stage 1")
