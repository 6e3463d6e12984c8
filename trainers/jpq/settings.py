"""The settings of `osn train jpq`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.dense.quantized import CENTROIDS
from trainers.common.settings import FOLDER, TrainingSettings, check_dropout
from trainers.data.examples import TrainingData, training_pairs
from trainers.data.loading import text_store
from trainers.data.settings import Apart, refuse_unread
from trainers.doc2query.question_sets import QuestionSet

DocumentForm = Literal["quantized", "uncompressed"]
"""The vectors of documents: decoded from their codes, or as the document encoder gives them."""
RANKING_DEPTH = 10
"""A relevant document is drawn from this many best documents of the uncompressed ranking."""
NEGATIVES = 200
"""The default number of negatives."""
ALIGNMENT = 100.0
"""The default weight of alignment; large, because the ranking loss is a sum over some hundred pairs."""


@dataclass(slots=True)
class JpqSet(QuestionSet):
    """A set with whole documents: a question made from a document stays in the document."""

    def load(self, folder: Path | None = None) -> TrainingData:
        data = QuestionSet.load(self, folder)
        return data if self.questions is None else of_whole_documents(data, self.path)


def of_whole_documents(data: TrainingData, corpus: Path) -> TrainingData:
    """`data` with the whole documents of the corpus; `unlabelled` removes each question from its document."""
    documents = text_store(corpus)
    pairs = [
        (query, documents.row(data.documents.ids[row]))
        for query, positives in zip(data.query_rows.tolist(), data.positives, strict=True)
        for row in positives.tolist()
    ]
    return training_pairs(data.name, data.queries, documents, pairs)


@dataclass(slots=True)
class QuantizerSettings:
    """How a document is encoded as M bytes."""

    subvectors: int = 48
    """M, the bytes per document; it must divide the dimension D"""
    rotate: bool = True
    """learn OPQ's rotation; false is plain PQ"""
    rotation_iterations: int = 50
    """iterations of OPQ"""
    sample: int = 65_536
    """largest number of vectors that faiss learns from"""
    train_centroids: bool = True
    """train the scoring centroids too; false trains only the query encoder"""
    learning_rate: float | None = None
    """learning rate of the centroids; null takes the paper's for D/M coordinates per centroid"""

    def __post_init__(self) -> None:
        if self.subvectors < 1 or self.rotation_iterations < 1 or self.sample < CENTROIDS:
            raise ValueError(f"subvectors and rotation_iterations must be at least 1, sample at least {CENTROIDS}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")
        if self.learning_rate is not None and not self.train_centroids:
            raise ValueError(
                "learning_rate would have no effect: it is that of the centroids, and train_centroids is false"
            )

    def centroid_learning_rate(self, dimension: int) -> float:
        """The learning rate of the centroids. The paper (section 4.3) gives it for D = 768 and M = 16 and 24, 32, 48 and
        more; here it depends on D/M."""
        if self.learning_rate is not None:
            return self.learning_rate
        width = dimension // self.subvectors
        return 5e-6 if width >= 32 else 2e-5 if width >= 24 else 1e-4


@dataclass(slots=True)
class JpqObjective:
    """The loss: LambdaRank over pairs of a relevant document and a negative (`losses.lambda_rank`), and alignment.

    Relevant documents are "judged", or the best of the uncompressed model ("ranking"): one of its RANKING_DEPTH best is
    drawn, and must stay above all documents that the model ranks lower, each with the probability that the uncompressed
    scores give.
    """

    labels: Literal["judged", "ranking"] | None = None
    """which documents are relevant; null uses judgements if the set has any, else the ranking"""
    documents: DocumentForm = "quantized"
    """the document vectors of the loss; "uncompressed" trains only the query encoder (figure 7, "+JPQ Neg")"""
    scale: float | None = None
    """factor of the inner products; null is 20 if vectors have length 1, else 1"""
    alignment: float | None = None
    """weight of 1 - cos(q, the start's vector of the same question), which keeps a smaller query encoder aligned with the
    documents; null is 100 with query_layers, else 0"""
    lambda_rank: float | None = None
    """weight of LambdaRank; null is 1; 0 trains by alignment alone: no searches, and the centroids stay as they are"""

    def __post_init__(self) -> None:
        for name in ("alignment", "lambda_rank"):
            if (weight := getattr(self, name)) is not None and weight < 0:
                raise ValueError(f"{name} must be at least 0, not {weight}")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")


@dataclass(slots=True)
class NegativeSettings:
    """End-to-end negatives (section 3.4): at each step, the current model's best documents that are not relevant."""

    depth: int = NEGATIVES
    """number of negatives; reciprocal ranks below this rank count as 0"""
    search: DocumentForm = "quantized"
    """the document vectors that are searched"""
    asked_only: bool = False
    """only documents that a training question is about are negatives; false: all, as in the paper"""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")


@dataclass(slots=True)
class JpqSelection:
    """The questions that select the state to keep. They search the whole corpus, with the document vectors of
    `negatives.search`."""

    hold_back: float | int | None = None
    """examples of train kept for measuring: their share, or their number per set; null keeps none"""
    apart: Apart = "documents"
    """what is held back from train: only the "questions", or their "documents" too"""
    queries: int = 500
    """largest number of questions of each dev set"""

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"queries must be at least 1, not {self.queries}")


@dataclass(slots=True)
class JpqConfig:
    """The settings of `osn train jpq`."""

    output: Path
    """the model directory"""
    train: list[JpqSet]
    """training sets; their documents are searched together"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """any dense model; its document encoder is not trained"""
    quantizer: QuantizerSettings = field(default_factory=QuantizerSettings)
    """how a document becomes bytes, and how the codebooks are trained"""
    objective: JpqObjective = field(default_factory=JpqObjective)
    """the loss over the searched documents"""
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    """the documents that a query is compared with"""
    dev: list[JpqSet] = field(default_factory=list)
    """sets that select the state to keep, in addition to held-back questions"""
    unseen: list[JpqSet] = field(default_factory=list)
    """sets whose questions are removed from train"""
    selection: JpqSelection = field(default_factory=JpqSelection)
    """the questions that measure the states"""
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-6))
    """batches, optimizer, precision and length of the training"""
    query_length: int | None = None
    """tokens read of a query; null takes the start's length"""
    query_layers: int | None = None
    """number of the start's layers that the query encoder keeps, spaced evenly from first to last; null keeps all; 0: no
    transformer, a query is the mean of its tokens' vectors in a table"""
    dropout: float | None = None
    """dropout of the query encoder; null keeps its own"""
    cache: Path | None = None
    """folder for document vectors, codebooks and rankings, which trainings may share; null takes one in the output"""
    onnx: bool = False
    """also write ONNX files"""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        refuse_unread("train", self.train, "negatives", why="negatives are the model's own best documents at each step")
        for name, sets in (("train", self.train), ("dev", self.dev), ("unseen", self.unseen)):
            refuse_unread(name, sets, "teachers", why="the start is the teacher")
        check_dropout(self.dropout)
        self.training.check_measured(bool(self.dev) or self.selection.hold_back is not None)
        if self.query_length is not None and self.query_length < 3:
            raise ValueError("query_length must leave room for text: at least 3")
        if self.query_layers is not None and self.query_layers < 0:
            raise ValueError(f"query_layers must be at least 0, not {self.query_layers}")
        if self.query_layers == 0 and self.training.embedding_rate is not None:
            raise ValueError(
                "training.embedding_rate is for transformers; with query_layers 0 set training.learning_rate"
            )
        if self.query_layers == 0 and self.dropout is not None:
            raise ValueError("dropout is for transformers; a table of tokens (query_layers 0) has none")
        if not self.alignment and not self.lambda_rank:
            raise ValueError("objective.lambda_rank and objective.alignment are both 0: nothing is learned")
        of_ranking = {
            "negatives.asked_only": self.negatives.asked_only,
            "negatives.depth": self.negatives.depth != NEGATIVES,
            "quantizer.learning_rate": self.quantizer.learning_rate is not None,
        }
        unread = [name for name, is_set in of_ranking.items() if is_set]
        if unread and not self.lambda_rank:
            raise ValueError(
                f"{' and '.join(unread)} would have no effect: objective.lambda_rank is 0, nothing is searched"
            )
        if self.quantizer.learning_rate is not None and self.objective.documents == "uncompressed":
            raise ValueError(
                "quantizer.learning_rate would have no effect: it is that of the centroids, which do not learn if "
                "objective.documents is uncompressed"
            )

    @property
    def folder(self) -> Path:
        """The folder for document vectors, codebooks and rankings."""
        return self.cache or self.output / FOLDER

    @property
    def ranked(self) -> tuple[bool, ...]:
        """For each train set: whether relevance comes from the uncompressed model's ranking instead of judgements."""
        if self.objective.labels is None:
            return tuple(of_set.questions is not None for of_set in self.train)
        return (self.objective.labels == "ranking",) * len(self.train)

    @property
    def lambda_rank(self) -> float:
        """`objective.lambda_rank` with its default filled in."""
        return 1.0 if self.objective.lambda_rank is None else self.objective.lambda_rank

    @property
    def alignment(self) -> float:
        """`objective.alignment` with its default filled in."""
        if self.objective.alignment is not None:
            return self.objective.alignment
        return 0.0 if self.query_layers is None else ALIGNMENT
