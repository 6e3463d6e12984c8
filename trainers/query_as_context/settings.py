"""The settings of `osn train query-as-context`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.corpus.documents import Document
from trainers.common.settings import FOLDER, TrainingSettings
from trainers.data.loading import name_of
from trainers.data.settings import DevSettings, SetSettings, check_limit, refuse_unread
from trainers.dense.settings import DenseConfig
from trainers.doc2query.settings import GenerationSettings

PretrainingVariant = Literal["cocondenser", "cot-mae"]
Context = Literal["query", "random-passage", "mixed", "none"]


@dataclass(slots=True)
class CorpusSettings:
    """A corpus, and the way its documents form articles."""

    path: Path
    """a folder or file that `osn ingest` reads too"""
    name: str | None = None
    """the name of the corpus; null takes the file's"""
    article: Literal["title", "url", "document"] = "title"
    """an article is all documents with the same "title", all with the same "url" up to #, or each "document"; a document
    without title or URL is an article of its own"""
    queries: Path | None = None
    """a file of `osn data generate-queries` for the passages of this corpus"""
    generator: str | None = None
    """a model that writes queries for this corpus; null takes generation.model"""
    limit: int | None = None
    """the first N documents; null takes all"""

    def __post_init__(self) -> None:
        check_limit(self.limit)

    @property
    def corpus_name(self) -> str:
        """The corpus's name, by default the path's."""
        return self.name or name_of(self.path)

    def key(self, document: Document) -> str:
        """The key of the article that a document belongs to."""
        keys = {"title": document.title.strip(), "url": (document.url or "").partition("#")[0], "document": ""}
        return keys[self.article] or f"{self.corpus_name}/{document.id}"


@dataclass(slots=True)
class MaskingSettings:
    """The shares of tokens to mask; all pieces of a word are masked together."""

    passage: float | None = None
    """share in passages; null takes the variant's: 15% for coCondenser, 30% for CoT-MAE"""
    context: float | None = None
    """share in contexts; null takes the variant's: 15% for coCondenser, 45% for CoT-MAE"""

    def __post_init__(self) -> None:
        if any(share is not None and not 0 < share < 1 for share in (self.passage, self.context)):
            raise ValueError(f"passage {self.passage} and context {self.context} must be shares between 0 and 1")

    def share(self, variant: PretrainingVariant, role: Literal["passage", "context"]) -> float:
        """The share of masked tokens in a passage or a context."""
        defaults = {"cocondenser": (0.15, 0.15), "cot-mae": (0.3, 0.45)}[variant]
        share = self.passage if role == "passage" else self.context
        return defaults[role == "context"] if share is None else share


@dataclass(slots=True)
class QueryAsContextConfig:
    """The settings of `osn train query-as-context`."""

    output: Path
    """the pre-trained model's directory"""
    corpora: list[CorpusSettings]
    """the documents that are read in passages"""
    backbone: str
    """a BERT-like directory or hub id"""
    variant: PretrainingVariant = "cocondenser"
    """the pre-training method, "cocondenser" or "cot-mae" (sections 2.1 and 2.2)"""
    context: Context = "query"
    """the partner of a passage; "mixed": a query or a random passage, each half of the time; "none": only masked LM (with
    the Condenser head: Condenser pre-training)"""
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    """the generator for passages without queries"""
    unseen: list[SetSettings] = field(default_factory=list)
    """sets (test splits) whose relevant documents are left out, with their articles"""
    passage_length: int = 144
    """tokens of a passage, special ones included"""
    query_length: int = 64
    """tokens of a query, special ones included"""
    titles: bool = False
    """begin each passage with its document's title"""
    least_passages: int = 1
    """articles with fewer passages are left out"""
    candidates: int | None = None
    """the first N queries of each passage; null takes all"""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """the shares of tokens to predict in passages and contexts"""
    layers: int = 2
    """layers of the Condenser head, or of the decoder"""
    temperature: float = 1.0
    """divides the scores of the contrastive loss"""
    dev_share: float = 0.01
    """the share of the articles to keep for measuring"""
    dev: list[SetSettings] = field(default_factory=list)
    """sets to search with the current model during training"""
    selection: DevSettings = field(default_factory=DevSettings)
    """how much of `dev` to search"""
    condenser: TrainingSettings | None = None
    """an earlier pre-training with context "none", for a backbone without a Condenser head; null skips it"""
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=1e-4, batch_size=128))
    """batches, optimizer, precision and length of the pre-training"""
    retriever: DenseConfig | None = None
    """the fine-tuning afterwards (`osn train dense`), which ignores its `start`; null skips it"""
    test: list[SetSettings] = field(default_factory=list)
    """sets to measure every stage's model on, over their whole corpus"""
    cache: Path | None = None
    """folder for passages and queries; null takes one in the output"""

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ValueError("corpora names no corpus")
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        for name, sets in (("unseen", self.unseen), ("dev", self.dev), ("test", self.test)):
            refuse_unread(name, sets, "teachers", why="no teacher is asked")
        if self.selection.hold_back is not None:
            raise ValueError("selection.hold_back would have no effect: dev_share says how many articles are held back")
        for training in (self.training, self.condenser):
            if training is not None:
                training.check_measured(self.dev_share > 0 or bool(self.dev))
        if min(self.passage_length, self.query_length) < 8 or min(self.layers, self.least_passages) < 1:
            raise ValueError("passage_length and query_length must be at least 8, layers and least_passages at least 1")
        if self.temperature <= 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError(f"temperature {self.temperature} and candidates {self.candidates} must be above 0")
        if self.variant == "cot-mae" and self.condenser is not None:
            raise ValueError("condenser is a step before coCondenser: CoT-MAE has no Condenser head")
        if self.variant == "cot-mae" and self.temperature != 1:
            raise ValueError("temperature would have no effect: CoT-MAE compares nothing")
        if self.context == "random-passage" and self.candidates is not None:
            raise ValueError("candidates would have no effect: with context random-passage no query is drawn")
        own = self.output / FOLDER
        if self.retriever is not None and (
            _inside(self.retriever.output, self.output) or _inside(self.output, self.retriever.output)
        ):
            raise ValueError("retriever.output and output must be different folders, neither inside the other")
        if _inside(self.folder, self.output) and not _inside(self.folder, own):
            raise ValueError(f"cache must not be inside output; without cache, {own} is used")
        written_here = any(corpus.queries is None for corpus in self.corpora)
        if self.uses_queries and written_here and (self.candidates or 0) > self.generation.candidates:
            raise ValueError(f"candidates is {self.candidates}, but generation.candidates {self.generation.candidates}")

    @property
    def folder(self) -> Path:
        """The folder for passages and queries."""
        return self.cache or self.output / FOLDER

    @property
    def uses_queries(self) -> bool:
        """Whether queries are contexts."""
        return self.context in ("query", "mixed")


def _inside(folder: Path, other: Path) -> bool:
    """Whether `folder` is `other` or inside it."""
    return folder.absolute().is_relative_to(other.absolute())
