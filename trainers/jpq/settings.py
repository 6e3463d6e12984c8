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

Documents = Literal["quantized", "uncompressed"]

ALIGNMENT = 100.0
"""Beside a loss of rankings, which sums over some hundred pairs."""


@dataclass(slots=True)
class JpqSet(QuestionSet):
    """A set whose documents are whole: a question made of one is not taken out of it."""

    def load(self, folder: Path | None = None) -> TrainingData:
        data = QuestionSet.load(self, folder)
        return data if self.questions is None else of_whole_documents(data, self.path)


@dataclass(slots=True)
class QuantizerSettings:
    """What a document becomes.

    subvectors: M, its bytes; M divides the dimension. rotate: OPQ, else plain PQ. rotation_iterations: of OPQ. sample:
    vectors at most that faiss learns from. train_centroids: the scoring centroids learn, too. learning_rate: theirs;
    None takes the paper's for the coordinates of a part, D/M.
    """

    subvectors: int = 48
    rotate: bool = True
    rotation_iterations: int = 50
    sample: int = 65_536
    train_centroids: bool = True
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.subvectors < 1 or self.rotation_iterations < 1 or self.sample < CENTROIDS:
            raise ValueError(f"subvectors and rotation_iterations must be at least 1, sample at least {CENTROIDS}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")


@dataclass(slots=True)
class JpqObjective:
    """The loss: LambdaRank over the pairs of a relevant document and each negative.

    labels: what is relevant: "judged" documents, or the uncompressed model's own "ranking": of its best
    `ranking_depth` one is drawn, which is to stay above all that it ranks lower, each with the probability that its
    scores give (`losses.lambda_rank`). None: of each set, judged, without judgements ranking. documents: what the loss
    scores: "quantized" ones, or "uncompressed" ones (the ablation that trains the query encoder alone). scale: factor of
    the inner products; None is 20 where vectors have length 1, else 1. cutoff: reciprocal ranks beyond it count as 0;
    None is the negatives' depth. alignment: weight of 1 − cos(q, the start's vector of the same question), which brings a
    query encoder that has lost layers back to where the documents are; None is ALIGNMENT with query_layers, else 0.
    """

    labels: Literal["judged", "ranking"] | None = None
    ranking_depth: int = 10
    documents: Documents = "quantized"
    scale: float | None = None
    cutoff: int | None = None
    alignment: float | None = None

    def __post_init__(self) -> None:
        if self.alignment is not None and self.alignment < 0:
            raise ValueError(f"alignment must be at least 0, not {self.alignment}")
        if self.ranking_depth < 1 or (self.cutoff is not None and self.cutoff < 1):
            raise ValueError("ranking_depth and cutoff must be at least 1")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")


@dataclass(slots=True)
class NegativeSettings:
    """The `depth` best documents that are not relevant. source: "live", searched at each step with the model as it
    stands (end to end), or "static", searched once before training. search: in which documents."""

    depth: int = 200
    source: Literal["live", "static"] = "live"
    search: Documents = "quantized"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")


@dataclass(slots=True)
class JpqSelection:
    """What selects the state that is kept: hold_back is the share of train examples, or the number of each set's, that is
    measured on and not trained on; `queries` of them all at most. Measured over the whole corpus, as `negatives.search`
    has it. apart: what these have that train has not: questions, as one corpus is searched by questions of tomorrow, or
    documents, too."""

    hold_back: float | int | None = None
    apart: Apart = "documents"
    queries: int = 500


@dataclass(slots=True)
class JpqConfig:
    """Everything that `osn train jpq` can be told.

    start: any dense model directory; its document encoder stays as it is. The documents of all train sets make one
    index. query_length: tokens read of a query, None as the start has it. query_layers: layers of the start's transformer
    that the query encoder keeps, evenly taken from the first to the last; None keeps all, 0 leaves the embeddings of tokens
    and positions, whose mean is the query whatever the start pools by, and no transformer is run for it. A query costs what
    its layers cost; documents are encoded by all. dropout: replaces the query encoder's own where given. cache: where
    document vectors, codebooks and rankings lie, which other configurations may share; by default in the output, hidden.
    unseen: sets whose questions are left out of train. onnx: write ONNX files, too.
    """

    output: Path
    train: list[JpqSet]
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    quantizer: QuantizerSettings = field(default_factory=QuantizerSettings)
    objective: JpqObjective = field(default_factory=JpqObjective)
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dev: list[JpqSet] = field(default_factory=list)
    unseen: list[JpqSet] = field(default_factory=list)
    selection: JpqSelection = field(default_factory=JpqSelection)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-6))
    query_length: int | None = None
    query_layers: int | None = None
    dropout: float | None = None
    cache: Path | None = None
    onnx: bool = False

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.query_length is not None and self.query_length < 3:
            raise ValueError("query_length must leave room for text: at least 3")
        if self.query_layers is not None and self.query_layers < 0:
            raise ValueError(f"query_layers must be at least 0, not {self.query_layers}")

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def ranks(self, one: JpqSet) -> bool:
        """Whether the uncompressed model's ranking is what is relevant to a set's questions, not its judgements."""
        return one.questions is not None if self.objective.labels is None else self.objective.labels == "ranking"

    @property
    def alignment(self) -> float:
        """`objective.alignment`, decided."""
        if self.objective.alignment is not None:
            return self.objective.alignment
        return 0.0 if self.query_layers is None else ALIGNMENT

    @property
    def ranked(self) -> tuple[bool, ...]:
        """`ranks` of each train set."""
        return tuple(map(self.ranks, self.train))


def of_whole_documents(data: TrainingData, corpus: Path) -> TrainingData:
    """`data` over the corpus's documents as they are: `unlabelled` takes the question out of the one it came from."""
    documents = TextStore((document.id, document.contents) for document in read_documents(corpus))
    pairs = [
        (query, documents.row(data.documents.ids[row]))
        for query, positives in zip(data.query_rows.tolist(), data.positives, strict=True)
        for row in positives.tolist()
    ]
    return training_pairs(data.name, data.queries, documents, pairs)
