"""The settings of `osn train tome`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.generative.settings import GenerativeSettings
from trainers.common.settings import LAST, TrainingSettings
from trainers.data.settings import SetSettings, refuse_unread
from trainers.doc2query.settings import GenerationSettings


@dataclass(slots=True)
class TomeConfig:
    """The settings of `osn train tome`.

    With the default epochs, stage 1 sees each document about a hundred times, with 20 queries each, and stage 2 sees each
    passage fifty times.

    There are two measures: "written", the share of at most 200 texts for which free decoding writes the right target, and
    the log-likelihood of its tokens. For stage 1 the texts are held-back queries; stage 2 memorizes, so they are passages
    of its training. The last state is kept unless `select` names one of these measures, because the most likely state does
    not find the most.
    """

    output: Path
    """the model directory"""
    corpus: Path
    """the corpus; each document has a URL"""
    backbone: str
    """directory or hub id of the sequence-to-sequence model that both stages start from"""
    queries: list[SetSettings] = field(default_factory=list)
    """data sets whose positives are documents of the corpus: BEIR folders, or files of `osn data generate-queries` for it"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets whose questions are removed from `queries`"""
    generation: GenerationSettings = field(default_factory=lambda: GenerationSettings(candidates=20))
    """the generator of queries for every document; without `model` none are generated"""
    candidates: int | None = None
    """the first N queries of a document from each generated file; null takes all"""
    spans: int = 0
    """number of random spans of each document, of 4 to 24 words, that serve as queries, drawn anew at every visit; not in
    the paper (NCI uses parts of documents as queries)"""
    stages: Literal["both", "passage", "url", "single"] = "both"
    """with "passage" or "url", a second run with the same output trains the other stage; "single" is query to URL"""
    url_backbone: str | None = None
    """the model that stage 2 starts from (smaller in the paper); null takes `backbone`"""
    settings: GenerativeSettings = field(default_factory=GenerativeSettings)
    """the inputs and targets of both stages"""
    dev_share: float = 0.02
    """the share of `queries` to measure stage 1 with, not trained on (their documents are); 0 measures nothing"""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=5, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """the training of stage 1, or of the single stage"""
    url_training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=50, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    """the training of stage 2"""

    def __post_init__(self) -> None:
        why = "the texts to write are the loss, and nothing else is compared"
        for name, sets in (("queries", self.queries), ("unseen", self.unseen)):
            refuse_unread(name, sets, "negatives", "teachers", why=why)
        for training in (self.training, self.url_training):
            training.check_dev_share(self.dev_share)
        if self.spans < 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError("spans must be at least 0, candidates at least 1")

    @property
    def single(self) -> bool:
        """Whether the model has a single stage, from query to URL."""
        return self.stages == "single"
