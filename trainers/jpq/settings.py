"""What `osn train jpq` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.quantized import CENTROIDS
from trainers.common.schedules import FOLDER
from trainers.common.settings import TrainingSettings
from trainers.data.examples import TrainingData, training_pairs
from trainers.data.loading import read_documents
from trainers.data.sets import QuestionSet
from trainers.data.splits import Apart
from trainers.data.texts import TextStore

DocumentForm = Literal["quantized", "uncompressed"]
"""Which vectors stand for documents: those that codes are decoded to, or the document encoder's own."""
RANKING_DEPTH = 10
"""Documents of the uncompressed ranking that a relevant one is drawn from."""
ALIGNMENT = 100.0
"""The default weight of alignment. It is large because the ranking loss is a sum over some hundred pairs."""


@dataclass(slots=True)
class JpqSet(QuestionSet):
    """A set whose documents are whole: a question made of a document is not taken out of it."""

    def load(self, folder: Path | None = None) -> TrainingData:
        data = QuestionSet.load(self, folder)
        return data if self.questions is None else of_whole_documents(data, self.path)


def of_whole_documents(data: TrainingData, corpus: Path) -> TrainingData:
    """`data` over the corpus's documents as they are: `unlabelled` takes a question out of the document it came from."""
    documents = TextStore((document.id, document.contents) for document in read_documents(corpus))
    pairs = [
        (query, documents.row(data.documents.ids[row]))
        for query, positives in zip(data.query_rows.tolist(), data.positives, strict=True)
        for row in positives.tolist()
    ]
    return training_pairs(data.name, data.queries, documents, pairs)


@dataclass(slots=True)
class QuantizerSettings:
    """How a document becomes M bytes."""

    subvectors: int = 48
    """M, the bytes of a document; it divides the dimension D"""
    rotate: bool = True
    """learn OPQ's rotation; false is plain PQ"""
    rotation_iterations: int = 50
    """of OPQ"""
    sample: int = 65_536
    """vectors that faiss learns from, at most"""
    train_centroids: bool = True
    """the scoring centroids learn too; false trains the query encoder alone"""
    learning_rate: float | None = None
    """of the centroids; null takes the paper's for D/M coordinates a centroid"""

    def __post_init__(self) -> None:
        if self.subvectors < 1 or self.rotation_iterations < 1 or self.sample < CENTROIDS:
            raise ValueError(f"subvectors and rotation_iterations must be at least 1, sample at least {CENTROIDS}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")

    def centroid_learning_rate(self, dimension: int) -> float:
        """The learning rate of the centroids. The paper (section 4.3) gives it for D = 768 and M = 16 and 24, 32, 48 and
        more; here it goes by D/M."""
        if self.learning_rate is not None:
            return self.learning_rate
        width = dimension // self.subvectors
        return 5e-6 if width >= 32 else 2e-5 if width >= 24 else 1e-4


@dataclass(slots=True)
class JpqObjective:
    """The loss: LambdaRank over the pairs of a relevant document and each negative (`losses.lambda_rank`).

    Relevant are "judged" documents, or what the uncompressed model ranks highest ("ranking"): one of its best
    RANKING_DEPTH documents is drawn and is to stay above all that it ranks lower, each with the probability that the
    uncompressed scores give.
    """

    labels: Literal["judged", "ranking"] | None = None
    """what is relevant; null takes a set's judgements if it has any, else the ranking"""
    documents: DocumentForm = "quantized"
    """what the loss scores; "uncompressed" trains the query encoder alone (figure 7, "+JPQ Neg")"""
    scale: float | None = None
    """factor of the inner products; null is 20 if vectors have length 1, else 1"""
    alignment: float | None = None
    """weight of 1 - cos(q, the start's vector of the same question), which brings a query encoder that has lost layers
    back to where the documents are; null is 100 with query_layers, else 0"""

    def __post_init__(self) -> None:
        if self.alignment is not None and self.alignment < 0:
            raise ValueError(f"alignment must be at least 0, not {self.alignment}")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")


@dataclass(slots=True)
class NegativeSettings:
    """End-to-end negatives (section 3.4): at each step the best documents, as the model stands, that are not relevant."""

    depth: int = 200
    """how many; reciprocal ranks beyond it count as 0"""
    search: DocumentForm = "quantized"
    """in which documents"""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")


@dataclass(slots=True)
class JpqSelection:
    """Which questions select the state that is kept. They are searched over the whole corpus, in the documents that
    `negatives.search` names."""

    hold_back: float | int | None = None
    """the share of train's examples, or the number of each set's, that measures and does not train"""
    apart: Apart = "documents"
    """what train has not: the held-back "questions" alone, or their "documents" too"""
    queries: int = 500
    """of each dev set, at most"""


@dataclass(slots=True)
class JpqConfig:
    """Everything that `osn train jpq` can be told."""

    output: Path
    """the model directory"""
    train: list[JpqSet]
    """the documents of all sets make one index"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """any dense model; its document encoder stays as it is"""
    quantizer: QuantizerSettings = field(default_factory=QuantizerSettings)
    objective: JpqObjective = field(default_factory=JpqObjective)
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dev: list[JpqSet] = field(default_factory=list)
    """sets that the state is selected by, beside what is held back"""
    unseen: list[JpqSet] = field(default_factory=list)
    """sets whose questions are left out of train"""
    selection: JpqSelection = field(default_factory=JpqSelection)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-6))
    query_length: int | None = None
    """tokens read of a query; null reads as many as the start"""
    query_layers: int | None = None
    """layers of the start that the query encoder keeps, evenly taken from first to last; null keeps all; with 0 a query
    is the mean of its tokens' embeddings, whatever the start pools by, and no transformer runs for it"""
    dropout: float | None = None
    """of the query encoder; null keeps its own"""
    cache: Path | None = None
    """where document vectors, codebooks and rankings lie, which other configurations may share; null is in the output"""
    onnx: bool = False
    """write ONNX files too"""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.query_length is not None and self.query_length < 3:
            raise ValueError("query_length must leave room for text: at least 3")
        if self.query_layers is not None and self.query_layers < 0:
            raise ValueError(f"query_layers must be at least 0, not {self.query_layers}")

    @property
    def folder(self) -> Path:
        """Of document vectors, codebooks and rankings."""
        return self.cache or self.output / FOLDER

    @property
    def ranked(self) -> tuple[bool, ...]:
        """For each train set: whether the uncompressed model's ranking, and not a judgement, says what is relevant."""
        if self.objective.labels is None:
            return tuple(of_set.questions is not None for of_set in self.train)
        return (self.objective.labels == "ranking",) * len(self.train)

    @property
    def alignment(self) -> float:
        """`objective.alignment`, decided."""
        if self.objective.alignment is not None:
            return self.objective.alignment
        return 0.0 if self.query_layers is None else ALIGNMENT
