"""What `osn train query-as-context` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.corpus.documents import Document
from trainers.common.precision import Precision
from trainers.common.schedules import FOLDER
from trainers.common.settings import TrainingSettings
from trainers.data.sets import DevSettings, SetSettings
from trainers.dense import DenseConfig

Variant = Literal["cocondenser", "cot-mae"]

Context = Literal["query", "random-passage", "mixed", "none"]


@dataclass(slots=True)
class CorpusSettings:
    """Documents, and which of them make an article: those of one "title", of one "url" (up to its #), or each "document" by
    itself, as one without title or URL does anyway. queries: a file of `osn generate-queries` for the passages of this
    corpus; generator: a model that writes them here, instead of generation.model."""

    path: Path
    name: str | None = None
    article: Literal["title", "url", "document"] = "title"
    queries: Path | None = None
    generator: str | None = None
    limit: int | None = None

    @property
    def title(self) -> str:
        return self.name or self.path.resolve().name.partition(".")[0]

    def key(self, document: Document) -> str:
        """Which article a document belongs to."""
        found = {"title": document.title.strip(), "url": (document.url or "").partition("#")[0], "document": ""}
        return found[self.article] or f"{self.title}/{document.id}"


@dataclass(slots=True)
class GenerationSettings:
    """Queries written for the passages (section 3.1): `candidates` a passage, sampled from the `top_k` likeliest tokens that
    have the mass `top_p`. model: of `osn train doc2query`, or any sequence-to-sequence directory or hub id. What is None is
    as that model was trained."""

    model: str | None = None
    candidates: int = 5
    top_k: int = 25
    top_p: float = 0.95
    copying: float | None = None
    query_length: int | None = None
    passage_length: int | None = None
    prefix: str | None = None
    batch_size: int = 32
    seed: int = 42
    precision: Precision = "float32"


@dataclass(slots=True)
class MaskingSettings:
    """The shares of masked tokens, of whole words; None is the variant's own: 15% everywhere for coCondenser, 30% of the
    passage and 45% of the context for CoT-MAE."""

    passage: float | None = None
    context: float | None = None
    whole_word: bool = True

    def __post_init__(self) -> None:
        if any(share is not None and not 0 < share < 1 for share in (self.passage, self.context)):
            raise ValueError(f"passage {self.passage} and context {self.context} are shares between 0 and 1")

    def share(self, variant: Variant, role: Literal["passage", "context"]) -> float:
        own = {"cocondenser": (0.15, 0.15), "cot-mae": (0.3, 0.45)}[variant]
        given = self.passage if role == "passage" else self.context
        return own[role == "context"] if given is None else given


@dataclass(slots=True)
class QueryAsContextConfig:
    """`osn train query-as-context`.

    backbone: a BERT-like directory or hub id. context: what a passage is paired with; "mixed" is a query or a random
    passage, each half of the time; "none" leaves the pair out (masked LM, with the Condenser head: Condenser pre-training).
    unseen: sets (test splits) whose relevant documents, and the articles that these belong to, train nothing.
    passage_length, query_length: tokens, special ones included. titles: passages begin with their document's title.
    least_passages: articles of fewer in a corpus are left out. candidates: of the queries of a passage the first so many.
    layers: of the Condenser head, or of the decoder. middle: whose tokens the head reads; None is the middle layer.
    dev_share: the part of the articles that measures and does not train. dev: sets whose questions are searched for with
    the model as it stands. condenser: pre-training with context "none" before, for a backbone that had none.
    retriever: the fine-tuning afterwards (`osn train dense`), from this checkpoint whatever its `start` says.
    test: sets that every step's model is measured on, over their whole corpus. cache: where passages and queries lie.
    """

    output: Path
    corpora: list[CorpusSettings]
    backbone: str
    variant: Variant = "cocondenser"
    context: Context = "query"
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    unseen: list[SetSettings] = field(default_factory=list)
    passage_length: int = 144
    query_length: int = 64
    titles: bool = False
    least_passages: int = 1
    candidates: int | None = None
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    layers: int = 2
    middle: int | None = None
    temperature: float = 1.0
    dev_share: float = 0.01
    dev: list[SetSettings] = field(default_factory=list)
    selection: DevSettings = field(default_factory=DevSettings)
    condenser: TrainingSettings | None = None
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=1e-4, batch_size=128))
    retriever: DenseConfig | None = None
    test: list[SetSettings] = field(default_factory=list)
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ValueError("corpora names no corpus")
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if min(self.passage_length, self.query_length) < 8 or min(self.layers, self.least_passages) < 1:
            raise ValueError("passage_length and query_length are at least 8, layers and least_passages at least 1")
        if self.temperature <= 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError(f"temperature {self.temperature} and candidates {self.candidates} must be above 0")
        if self.variant == "cot-mae" and self.condenser is not None:
            raise ValueError("condenser is a step before coCondenser: CoT-MAE has no Condenser head")
        own = self.output / FOLDER
        if self.retriever is not None and (
            _inside(self.retriever.output, self.output) or _inside(self.output, self.retriever.output)
        ):
            raise ValueError("retriever.output must be another folder than output, neither inside the other")
        if _inside(self.folder, self.output) and not _inside(self.folder, own):
            raise ValueError(f"cache must not be inside output ({own} is, where none is given)")
        written_here = any(corpus.queries is None for corpus in self.corpora)
        if self.asks and written_here and (self.candidates or 0) > self.generation.candidates:
            raise ValueError(f"candidates is {self.candidates}, but generation.candidates {self.generation.candidates}")

    @property
    def folder(self) -> Path:
        """Of passages and queries."""
        return self.cache or self.output / FOLDER

    @property
    def asks(self) -> bool:
        """Whether queries are contexts."""
        return self.context in ("query", "mixed")


def _inside(one: Path, other: Path) -> bool:
    """Whether a folder is another one, or lies in it."""
    return one.absolute().is_relative_to(other.absolute())
