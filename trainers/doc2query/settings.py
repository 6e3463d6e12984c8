"""The settings of `osn train doc2query`, and of sampling."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import click

from opensearch_neural.commands.option_groups import setting
from opensearch_neural.errors import InputError
from opensearch_neural.models import directory
from trainers.common.precision import PRECISIONS, Precision
from trainers.common.settings import TrainingSettings

COPYING = "copying"
"""The name of the measure in osn.json that holds the fitted weight of the passage's words."""


@dataclass(slots=True)
class Doc2QueryConfig:
    """The settings of `osn train doc2query`."""

    output: Path
    """the model directory"""
    data: list[Path]
    """training data in any form that `load_training` reads"""
    backbone: str
    """directory or hub id of a sequence-to-sequence model, or of a BERT-like encoder, which is then the decoder too"""
    split: str = "train"
    """the split of `data`"""
    unseen: list[Path] = field(default_factory=list)
    """sets whose test questions are removed from training: otherwise the generator might write them"""
    prefix: str = ""
    """text before every passage, in training and in `osn data generate-queries`"""
    passage_length: int = 384
    """tokens read of a passage, special ones included"""
    query_length: int = 64
    """tokens of a query, special ones included"""
    dev_share: float = 0.02
    """the share of the pairs, split by document, to keep for measuring"""
    copying: bool = True
    """fit the weight of the passage's words on that share (see passage_words.py); docT5query does not"""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=4, learning_rate=3e-4, batch_size=32, bucket=16)
    )
    """batches, optimizer, precision and length of the training"""

    def __post_init__(self) -> None:
        self.training.check_dev_share(self.dev_share)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How queries are sampled for a passage (see `GenerationSettings`). Equal settings give equal queries."""

    candidates: int = 5
    """queries for each passage"""
    top_k: int = 25
    """sample from the k most likely tokens"""
    top_p: float = 0.95
    """sample from the fewest tokens with this total probability"""
    temperature: float = 1.0
    """divides the logarithms of probabilities before sampling"""
    copying: float = 0.0
    """extra weight of the passage's own words (see passage_words.py)"""
    query_length: int = 64
    """the most tokens of a query"""
    passage_length: int = 384
    """tokens read of a passage"""
    prefix: str = ""
    """text before each passage"""
    batch_size: int = 32
    """passages in a batch"""
    seed: int = 42
    """the same seed gives the same queries"""

    def __post_init__(self) -> None:
        if min(self.candidates, self.top_k, self.query_length, self.passage_length, self.batch_size) < 1:
            raise InputError("candidates, top_k, query_length, passage_length and batch_size must be at least 1")
        if self.copying < 0:
            raise InputError(f"copying must be 0 or more, not {self.copying}")
        if not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise InputError(f"top_p must be in (0, 1] and temperature above 0: {self.top_p}, {self.temperature}")


DEFAULTS = Sampling()
"""What is sampled if neither the settings nor a model's training say otherwise."""


@dataclass(slots=True)
class GenerationSettings:
    """A generator, and how queries are sampled from it (`query-as-context-pretraining`, section 3.1)."""

    model: str | None = setting(None, "A sequence-to-sequence model: directory or hub id.", required=True)
    """a model of `osn train doc2query`, or any sequence-to-sequence directory or hub id"""
    candidates: int = setting(DEFAULTS.candidates, "Queries for each passage.")
    """queries for each passage"""
    top_k: int = setting(DEFAULTS.top_k, "Sample from the k most likely tokens.")
    """sample from the k most likely tokens"""
    top_p: float = setting(DEFAULTS.top_p, "Sample from the fewest tokens with this total probability.")
    """sample from the fewest tokens with this total probability"""
    temperature: float = setting(DEFAULTS.temperature, "Sampling temperature.")
    """sampling temperature"""
    copying: float | None = setting(
        None, "Extra weight of the passage's own words.  [default: the fitted weight, or 0]", type=float
    )
    """extra weight of the passage's own words (see passage_words.py); null takes the fitted weight, or 0"""
    query_length: int | None = setting(
        None, f"Most tokens of a query.  [default: the training's, or {DEFAULTS.query_length}]", type=int
    )
    """the most tokens of a query; null takes the training's, or 64"""
    passage_length: int | None = setting(
        None, f"Tokens to read of a passage.  [default: the training's, or {DEFAULTS.passage_length}]", type=int
    )
    """tokens read of a passage; null takes the training's, or 384"""
    prefix: str | None = setting(None, "Text before each passage.  [default: the training's, or nothing]")
    """text before each passage; null takes the training's, or nothing"""
    batch_size: int = setting(DEFAULTS.batch_size, "Passages in a batch.")
    """passages in a batch"""
    seed: int = setting(DEFAULTS.seed, "The same seed gives the same queries.", type=click.IntRange(min=0))
    """the same seed gives the same queries"""
    precision: Precision = setting("float32", "Precision of the network.", type=click.Choice(PRECISIONS))
    """the number format of the network; auto is bfloat16 if the hardware is faster with it"""

    @property
    def generator(self) -> str:
        """The name of the generator. Raises InputError if there is none."""
        if self.model is None:
            raise InputError("no query generator is named", "--set generation.model=MODEL (osn train doc2query)")
        return self.model

    def sampling(self) -> Sampling:
        """These settings; null fields take the values of the model's training."""
        info = directory.read_osn_json(directory.locate(self.generator)) or {}
        trained, measured = info.get("training", {}), info.get("measures", {})
        known = {name: trained[name] for name in ("query_length", "passage_length", "prefix") if name in trained}
        # The weight is a measure: the training's setting `copying` only says whether to fit it.
        known |= {COPYING: measured[COPYING]} if COPYING in measured else {}
        settings = {each.name: getattr(self, each.name) for each in fields(Sampling)}
        return Sampling(**known | {name: value for name, value in settings.items() if value is not None})
