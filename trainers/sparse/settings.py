"""The settings of `osn train sparse`: data, student, warm-up, loss, regularizer, candidates, stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from opensearch_neural.errors import InputError
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.retrievers.analyzers import check_analyzer
from opensearch_neural.retrievers.bm25 import K1, B
from trainers.common.settings import (
    FOLDER,
    NONE_DISTILS,
    ObjectiveSettings,
    Role,
    TrainingSettings,
    check_dropout,
)
from trainers.data.settings import (
    UNTAUGHT,
    DevSettings,
    check_candidates,
    check_training,
    refuse_unread,
)
from trainers.doc2query.question_sets import QuestionSet

STUDENT = "student"
"""The miner of this name is the student of the fine-tuning stage, trained without pre-training (section 4.2)."""


LogActivation = Literal["log", "double-log"]


@dataclass(slots=True)
class StudentSettings:
    """How documents are encoded, and how the tokens of a query are weighted."""

    activation: LogActivation | None = None
    """log(1 + ReLU(x)), or log(1 + log(1 + ReLU(x))); null keeps a sparse start's activation; other starts get log"""
    queries: Literal["table", "network"] = "table"
    """what weights a query's tokens: the IDF table (see `idf`), or the network, as for documents (a SPLADE teacher)"""
    idf: str = "train"
    """the IDF table of query tokens: "train" (of all train sets), "own" (of each set), "start" (the start's table), "none"
    (1 for each), or an idf.json"""
    idf_rate: float | None = None
    """also train the IDF table, at this many times the learning rate; null or 0: the table is frozen, as in the paper"""
    revive: float = 0.0
    """the share of its gradient that a term of weight 0 gets if that raises the weight; 0: the term stays at 0 for ever"""
    head: Literal["full", "sampled"] = "sampled"
    """sampled computes only the tokens of the queries and `columns` others"""
    columns: int = 1024
    """with head "sampled": vocabulary entries drawn in addition to the tokens of the queries"""
    max_active: int | None = None
    """a text keeps this many of its heaviest terms; with head "full" also in training; null: as many as a sparse start, or
    all; a number as large as the vocabulary keeps all"""
    prune: str | None = None
    """terms that a document keeps, TYPE:VALUE as for `osn ingest --prune`; with head "full" also in training; null: as of a
    sparse start, or all; "alpha_mass:1" keeps all"""
    document_length: int | None = None
    """tokens read of a document in use and on dev, and of a query that the network encodes; null: the last stage's"""
    query_length: int = 64
    """tokens read of a query in training; afterwards the tokenizer's own limit holds"""
    dropout: float | None = None
    """dropout of the network; null keeps the backbone's own"""
    frozen_layers: int = 0
    """this many first layers stay untrained, with the embeddings and the output layer: cheaper steps"""

    def __post_init__(self) -> None:
        if self.columns < 1 or self.query_length < 3:
            raise ValueError("columns must be at least 1, query_length at least 3")
        _check_length(self.document_length)
        check_dropout(self.dropout)
        if self.frozen_layers < 0:
            raise ValueError(f"frozen_layers must not be below 0, not {self.frozen_layers}")
        if not 0 <= self.revive <= 1:
            raise ValueError(f"revive must be from 0 to 1, not {self.revive}")
        if self.idf_rate is not None and self.idf_rate < 0:
            raise ValueError(f"idf_rate must not be below 0, not {self.idf_rate}")
        if self.idf_rate and self.idf == "own":
            raise ValueError("idf_rate trains one table for all sets, so idf must not be own: set it to train")
        if self.max_active is not None and self.max_active < 1:
            raise ValueError(f"max_active must be at least 1, not {self.max_active}")
        if self.prune is not None:
            try:
                Pruning.parse(self.prune)
            except InputError as error:
                raise ValueError(error.message) from None
        if self.queries == "network" and self.head != "full":
            raise ValueError("queries network needs head full: a query that the network encodes may hold any term")
        if self.queries == "network" and (self.idf != "train" or self.idf_rate):
            raise ValueError("idf and idf_rate set the table of queries: with queries network there is no table")

    @property
    def double_log(self) -> bool:
        return self.activation == "double-log"

    @property
    def pruning(self) -> Pruning | None:
        return None if self.prune is None else Pruning.parse(self.prune)


@dataclass(slots=True)
class WarmUpSettings:
    """The start of a new masked-LM head, for a backbone without one."""

    expansions: float | None = 50
    """mean number of terms before training that a document does not contain; null does not change the bias"""
    weight: float | None = None
    """mean weight, before training, of the largest such term of a document; null does not change the scale"""

    def __post_init__(self) -> None:
        if self.weight is not None and self.expansions is None:
            raise ValueError("weight would have no effect: without expansions the head is not calibrated")


@dataclass(slots=True)
class SparseObjective(ObjectiveSettings):
    """The loss terms that `osn train dense` has too, and what is for sparse models alone: teachers by name, a base."""

    temperature: float | None = 1.0
    """divides the scores of the contrastive term alone: without info_nce it has no effect"""
    teachers: list[str] = field(default_factory=list)
    """teachers, as for `osn data teach` ("lexical" too); their scores are computed once for each set that names no teachers
    of its own"""
    all_pairs: bool = False
    """kl compares all documents of the batch, not only the query's candidates; teachers must be siamese"""
    base: Literal["bm25"] | None = None
    """a score that the loss adds to the student's: BM25 over the words of the set's documents, with the settings of `bm25`;
    null adds nothing"""
    sparse_weight: float = 1.0
    """weight of the student's scores if there is a base: the loss compares base + sparse_weight · student"""
    base_share: float = 1.0
    """share of the loss that compares this sum; the rest of it compares the student's scores alone"""

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        if self.teachers and not self.distils:
            raise ValueError(f"teachers are named, but {NONE_DISTILS}")
        if self.all_pairs and self.margin_mse:
            raise ValueError("all_pairs works with kl only: margin_mse compares the query's own candidates")
        if self.sparse_weight <= 0 or (self.base is None and self.sparse_weight != 1):
            raise ValueError("sparse_weight must be above 0; it weights the student beside a base: name objective.base")
        if not 0 < self.base_share <= 1 or (self.base is None and self.base_share != 1):
            raise ValueError(
                f"base_share {self.base_share}: above 0 and at most 1, and below 1 only beside a base: name objective.base"
            )


@dataclass(slots=True)
class RegularizationSettings:
    """λ · FLOPS of the learned weights."""

    weight: float = 1e-3
    """λ; the two kinds of FLOPS need different values"""
    query_weight: float | None = None
    """λ for queries that the network encodes; their FLOPS are over all queries of a batch; null takes `weight`"""
    flops: Literal["batch", "slot"] = "batch"
    """batch: over all documents together (sentence-transformers); slot: of each candidate slot, summed (the paper's code)"""
    least_terms: int | None = None
    """documents with at most this many terms are not regularized (the ℓ0 mask of `losses.flops`); null regularizes all"""
    delay: float = 0.0
    """λ is 0 for this share of the steps, at the start"""
    ramp: float = 1 / 3
    """then λ grows quadratically for this share of the steps; until its end no state is selected"""

    def __post_init__(self) -> None:
        if self.least_terms is not None and self.least_terms < 1:
            raise ValueError(f"least_terms must be at least 1, not {self.least_terms}")
        if min(self.weight, self.query_weight or 0) < 0 or not 0 <= self.delay <= 1 or not 0 <= self.ramp <= 1:
            raise ValueError(
                f"weight {self.weight}, query_weight {self.query_weight}, delay {self.delay}, ramp {self.ramp}: "
                "weights must be at least 0, delay and ramp from 0 to 1"
            )

    @property
    def full_weight_from(self) -> float:
        """The share of the steps after which λ has its full weight, at most 1."""
        return min(1.0, self.delay + self.ramp) if self.weight or self.query_weight else 0.0

    def at(self, step: int, steps: int, role: Role = "document") -> float:
        """λ of a role at a step: the weight times min(1, step / steps of the ramp)² (Formal et al. 2021, "SPLADE v2").

        At full weight from the first step, it would silence all terms before they learn to be useful.
        """
        weight = self.weight if role == "document" or self.query_weight is None else self.query_weight
        late, ramp = step - self.delay * steps, round(self.ramp * steps)
        if late < 0:
            return 0.0
        return weight if ramp < 1 else weight * min(1.0, round(late) / ramp) ** 2


@dataclass(slots=True)
class SparseCandidates:
    """The documents that a query is compared with, in addition to its positive."""

    negatives: int = 1
    """hard negatives of a query, drawn at each visit; random documents if there are too few"""
    depth: int = 100
    """negatives are drawn from this many of the hardest"""
    mine: str | None = "bm25"
    """the retriever that mines more negatives if there are too few: "bm25" (with the analyzer of `bm25`; for english
    with bm25s's own rules), "student" (not pre-trained), or a retriever of `osn data mine`; null mines nothing"""
    consistency: int | None = None
    """leave out queries without a positive in this many best documents of the miner; null keeps all queries"""

    def __post_init__(self) -> None:
        check_candidates(self.negatives, self.depth)
        if self.consistency is not None and self.mine is None:
            raise ValueError("consistency needs a miner: name it in candidates.mine")


@dataclass(slots=True)
class StageSettings:
    """A stage of training: its data, loss, and length of documents."""

    train: list[QuestionSet]
    """training sets; each batch is from one set"""
    objective: SparseObjective = field(default_factory=SparseObjective)
    """the terms of the loss, their weights and teachers"""
    candidates: SparseCandidates = field(default_factory=SparseCandidates)
    """the negatives of each query"""
    regularization: RegularizationSettings = field(default_factory=RegularizationSettings)
    """what keeps documents short"""
    document_length: int | None = None
    """tokens read of a document in this stage; null takes the last stage's"""
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-5))
    """batches, optimizer, precision and length of the stage"""

    def __post_init__(self) -> None:
        _check_length(self.document_length)
        filters = self.candidates.consistency is not None  # by what is mined
        check_training(
            self.train,
            self.objective,
            self.candidates.negatives,
            drawn_from=None if filters else {"candidates.mine student": self.candidates.mine == STUDENT},
            teachers=bool(self.objective.teachers),
            all_pairs=self.objective.all_pairs,
        )
        if self.objective.teachers and all(settings.teachers for settings in self.train):
            raise ValueError("objective.teachers would have no effect: each train set names teachers of its own")


Stage = TypeVar("Stage", bound=StageSettings)


@dataclass(slots=True)
class BM25Settings:
    """The BM25 that a search adds the student to. It is computed without a cluster, as an index with these settings does."""

    analyzer: str = "english"
    """how texts are cut into terms, as `osn ingest --analyzer` names it: standard, english, german, dutch, norwegian,
    russian or swedish"""
    k1: float = K1
    """how slowly repeated words saturate, from 0"""
    b: float = B
    """how much long documents are discounted, from 0 to 1"""

    def __post_init__(self) -> None:
        check_analyzer(self.analyzer)
        if not (0 <= self.k1 < math.inf and 0 <= self.b <= 1):
            raise ValueError(f"k1 {self.k1:g} and b {self.b:g}: k1 must be at least 0, b from 0 to 1")


@dataclass(slots=True)
class SparseConfig(StageSettings):
    """The settings of `osn train sparse`. The fields of StageSettings are for the last stage, fine-tuning."""

    document_length: int = 256
    """tokens read of a document in training, on dev and in use, unless `student` or `pretraining` has its own"""
    output: Path = Path("models/sparse")
    """the model directory to write"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """directory or hub id of a backbone or a sparse model"""
    student: StudentSettings = field(default_factory=StudentSettings)
    """the query table, and the head of the document encoder"""
    bm25: BM25Settings = field(default_factory=BM25Settings)
    """the BM25 of the sum: in the loss with `objective.base`, and on dev"""
    warm_up: WarmUpSettings = field(default_factory=WarmUpSettings)
    """the first state of a new head, for a backbone without one"""
    pretraining: StageSettings | None = None
    """an earlier stage; null: only fine-tuning"""
    dev: list[QuestionSet] = field(default_factory=list)
    """sets to measure on while training"""
    unseen: list[QuestionSet] = field(default_factory=list)
    """sets whose questions are removed from train"""
    selection: DevSettings = field(default_factory=DevSettings)
    """how many questions and documents measure the states"""
    cache: Path | None = None
    """folder for made questions, scores, mined negatives and warm-ups, which trainings may share; null: in the output"""

    def __post_init__(self) -> None:
        for stage in self.stages:
            stage.training.check_measured(bool(self.dev) or self.selection.hold_back is not None)
            if stage.regularization.query_weight is not None and self.student.queries == "table":
                raise ValueError(
                    "regularization.query_weight is for queries that the network encodes: set student.queries"
                )
        StageSettings.__post_init__(self)
        refuse_unread("dev", self.dev, "teachers", why=UNTAUGHT)
        refuse_unread("unseen", self.unseen, "teachers", why=UNTAUGHT)

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def with_lengths(self) -> SparseConfig:
        """This configuration with every `document_length` filled in."""
        pretraining, length = self.pretraining, self.document_length
        return replace(
            self,
            student=replace(self.student, document_length=self.student.document_length or length),
            pretraining=pretraining and replace(pretraining, document_length=pretraining.document_length or length),
        )

    @property
    def stages(self) -> list[StageSettings]:
        """The stages, in the order of training. `pretraining_run` and `fine_tuning_run` give each as a run of its own."""
        return [self] if self.pretraining is None else [self.pretraining, self]

    def fine_tuning_run(self, start: str) -> SparseConfig:
        """The last stage as a run of its own, from the model `start`."""
        return replace(self, start=start, pretraining=None, cache=self.folder)

    def pretraining_run(self, start: str, output: Path) -> SparseConfig:
        """The earlier stage as a run of its own, from the model `start` to `output`."""
        stage = self.pretraining
        if stage is None:
            raise ValueError("there is no pretraining")
        return replace(
            self.fine_tuning_run(start),
            output=output,
            train=stage.train,
            objective=stage.objective,
            candidates=stage.candidates,
            regularization=stage.regularization,
            document_length=stage.document_length or self.document_length,
            training=stage.training,
        )


def _check_length(length: int | None) -> None:
    """Raises ValueError for a length below 3: one word and the two special tokens around it."""
    if length is not None and length < 3:
        raise ValueError("document_length must be at least 3")
