"""The settings of `osn train tome`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.generative.settings import GenerativeSettings
from trainers.common.settings import LAST, TrainingSettings
from trainers.data.sets import SetSettings
from trainers.doc2query.settings import GenerationSettings


@dataclass(slots=True)
class TomeConfig:
    """The settings of `osn train tome`.

    With the default epochs, stage 1 sees each document about a hundred times, with 20 queries each, and stage 2 sees each
    passage fifty times.

    Two measures are taken on at most 200 texts: "written", the share for which free decoding writes the right text, and the
    log-likelihood of its tokens. For stage 1 the texts are queries held back; stage 2 learns by heart, so they are passages
    that it learns. The last state is kept unless `select` names one of these measures: the likeliest state does not find
    the most.
    """

    output: Path
    """the model directory"""
    corpus: Path
    """the corpus; each document has a URL"""
    backbone: str
    """the sequence-to-sequence model of both stages"""
    queries: list[SetSettings] = field(default_factory=list)
    """data sets whose positives are documents of the corpus: BEIR folders, or files of `osn data generate-queries` for it"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets whose questions are removed from `queries`"""
    generation: GenerationSettings = field(default_factory=lambda: GenerationSettings(candidates=20))
    """the generator of queries for every document, if its `model` is named"""
    candidates: int | None = None
    """the most queries of a document from each generated file; null takes all"""
    spans: int = 0
    """how many random spans of each document, of 4 to 24 words, are queries too, drawn anew at every visit; not in the paper
    (NCI uses parts of documents as queries)"""
    stages: Literal["both", "passage", "url", "single"] = "both"
    """with "passage" or "url", a second run with the same output trains the other stage; "single" is query to URL"""
    url_backbone: str | None = None
    """the model of stage 2 (smaller in the paper); null is `backbone`"""
    settings: GenerativeSettings = field(default_factory=GenerativeSettings)
    """what both stages read and write"""
    dev_share: float = 0.02
    """the share of `queries` that measures stage 1 and does not train it (their documents do train); 0 measures nothing"""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=5, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """the training of stage 1, or of the single stage"""
    url_training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=50, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """the training of stage 2"""

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        for training in (self.training, self.url_training):
            training.check_measured(self.dev_share > 0)
        if self.spans < 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError("spans must not be below 0, candidates not below 1")

    @property
    def single(self) -> bool:
        """Whether the model has a single stage, from query to URL."""
        return self.stages == "single"
