"""The settings of `osn train jpq`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opensearch_neural.models.dense.quantized import CENTROIDS
from trainers.common.run_folder import FOLDER
from trainers.common.settings import TrainingSettings, check_dropout
from trainers.data.examples import TrainingData, training_pairs
from trainers.data.loading import text_store
from trainers.data.splits import Apart
from trainers.doc2query.question_sets import QuestionSet

DocumentForm = Literal["quantized", "uncompressed"]
"""The vectors of documents: decoded from their codes, or the document encoder's own."""
RANKING_DEPTH = 10
"""A relevant document is drawn from this many best documents of the uncompressed ranking."""
ALIGNMENT = 100.0
"""The default weight of alignment. It is large because the ranking loss is a sum over some hundred pairs."""


@dataclass(slots=True)
class JpqSet(QuestionSet):
    """A set with whole documents: a question that is made from a document is not removed from it."""

    def load(self, folder: Path | None = None) -> TrainingData:
        data = QuestionSet.load(self, folder)
        return data if self.questions is None else of_whole_documents(data, self.path)


def of_whole_documents(data: TrainingData, corpus: Path) -> TrainingData:
    """`data` over the whole documents of the corpus: `unlabelled` removes a question from the document it came from."""
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
    """M, the bytes of a document; it divides the dimension D"""
    rotate: bool = True
    """learn OPQ's rotation; false is plain PQ"""
    rotation_iterations: int = 50
    """iterations of OPQ"""
    sample: int = 65_536
    """the most vectors for faiss to learn from"""
    train_centroids: bool = True
    """train the scoring centroids too; false trains only the query encoder"""
    learning_rate: float | None = None
    """learning rate of the centroids; null is the paper's for D/M coordinates a centroid"""

    def __post_init__(self) -> None:
        if self.subvectors < 1 or self.rotation_iterations < 1 or self.sample < CENTROIDS:
            raise ValueError(f"subvectors and rotation_iterations must be at least 1, sample at least {CENTROIDS}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")

    def centroid_learning_rate(self, dimension: int) -> float:
        """The learning rate of the centroids. The paper (section 4.3) gives it for D = 768 and M = 16 and 24, 32, 48 and
        more; here it depends on D/M."""
        if self.learning_rate is not None:
            return self.learning_rate
        width = dimension // self.subvectors
        return 5e-6 if width >= 32 else 2e-5 if width >= 24 else 1e-4


@dataclass(slots=True)
class JpqObjective:
    """The loss: LambdaRank over the pairs of a relevant document and each negative (`losses.lambda_rank`), and alignment.

    Relevant are "judged" documents, or what the uncompressed model ranks highest ("ranking"): one of its best
    RANKING_DEPTH documents is drawn and is to stay above all that it ranks lower, each with the probability that the
    uncompressed scores give.
    """

    labels: Literal["judged", "ranking"] | None = None
    """which documents are relevant; null uses judgements if the set has any, else the ranking"""
    documents: DocumentForm = "quantized"
    """the document vectors of the loss; "uncompressed" trains only the query encoder (figure 7, "+JPQ Neg")"""
    scale: float | None = None
    """factor of the inner products; null is 20 if vectors have length 1, else 1"""
    alignment: float | None = None
    """weight of 1 - cos(q, the start's vector of the same question), which keeps a query encoder with fewer layers aligned
    with the documents; null is 100 with query_layers, else 0"""
    lambda_rank: float | None = None
    """weight of LambdaRank; null is 1. With 0 questions are aligned alone: nothing is searched, and centroids stay as they
    are"""

    def __post_init__(self) -> None:
        for name in ("alignment", "lambda_rank"):
            if (weight := getattr(self, name)) is not None and weight < 0:
                raise ValueError(f"{name} must be at least 0, not {weight}")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")


@dataclass(slots=True)
class NegativeSettings:
    """End-to-end negatives (section 3.4): at each step the best documents of the current model that are not
    relevant."""

    depth: int = 200
    """how many negatives; reciprocal ranks beyond count as 0"""
    search: DocumentForm = "quantized"
    """the document vectors that are searched"""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")


@dataclass(slots=True)
class JpqSelection:
    """Which questions select the state to keep. They are searched over the whole corpus, with the document vectors of
    `negatives.search`."""

    hold_back: float | int | None = None
    """the share of train's examples, or the number of each set's, that is kept for measuring"""
    apart: Apart = "documents"
    """what is held back from train: the "questions" alone, or their "documents" too"""
    queries: int = 500
    """the most questions of each dev set"""


@dataclass(slots=True)
class JpqConfig:
    """The settings of `osn train jpq`."""

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
    """sets that select the state to keep, in addition to what is held back"""
    unseen: list[JpqSet] = field(default_factory=list)
    """sets whose questions are removed from train"""
    selection: JpqSelection = field(default_factory=JpqSelection)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-6))
    query_length: int | None = None
    """tokens read of a query; null is as in the start"""
    query_layers: int | None = None
    """layers of the start that the query encoder keeps, evenly taken from first to last; null keeps all; with 0 a query
    is the mean of its tokens' vectors in a table, and no transformer runs for it"""
    dropout: float | None = None
    """dropout of the query encoder; null keeps its own"""
    cache: Path | None = None
    """folder for document vectors, codebooks and rankings, which trainings may share; null is within the output"""
    onnx: bool = False
    """write ONNX files too"""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        check_dropout(self.dropout)
        self.training.check_measured(bool(self.dev) or self.selection.hold_back is not None)
        if self.query_length is not None and self.query_length < 3:
            raise ValueError("query_length must leave room for text: at least 3")
        if self.query_layers is not None and self.query_layers < 0:
            raise ValueError(f"query_layers must be at least 0, not {self.query_layers}")
        if self.query_layers == 0 and self.training.embedding_rate is not None:
            raise ValueError(
                "training.embedding_rate is a transformer's; with query_layers 0 set training.learning_rate"
            )
        if not self.alignment and not self.lambda_rank:
            raise ValueError("objective.lambda_rank and objective.alignment are both 0: nothing is learned")

    @property
    def folder(self) -> Path:
        """The folder for document vectors, codebooks and rankings."""
        return self.cache or self.output / FOLDER

    @property
    def ranked(self) -> tuple[bool, ...]:
        """For each train set: whether the uncompressed model's ranking, and not a judgement, says what is relevant."""
        if self.objective.labels is None:
            return tuple(of_set.questions is not None for of_set in self.train)
        return (self.objective.labels == "ranking",) * len(self.train)

    @property
    def lambda_rank(self) -> float:
        """`objective.lambda_rank`, decided."""
        return 1.0 if self.objective.lambda_rank is None else self.objective.lambda_rank

    @property
    def alignment(self) -> float:
        """`objective.alignment`, decided."""
        if self.objective.alignment is not None:
            return self.objective.alignment
        return 0.0 if self.query_layers is None else ALIGNMENT
