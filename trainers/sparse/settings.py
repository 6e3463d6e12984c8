"""What `osn train sparse` can be told: data, student, warm-up, loss, regularizer, candidates, stages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from opensearch_neural.errors import InputError
from opensearch_neural.models.pruning import Pruning
from trainers.common.objective import ObjectiveSettings
from trainers.common.schedules import FOLDER, quadratic_ramp
from trainers.common.settings import TrainingSettings
from trainers.data.sets import DevSettings, QuestionSet
from trainers.encoders.tower import Role

STUDENT = "student"
"""As a miner: the student of the fine-tuning stage, trained without pre-training (section 4.2)."""


LogActivation = Literal["log", "double-log"]


@dataclass(slots=True)
class StudentSettings:
    """What documents become, and what weighs a query's tokens."""

    activation: LogActivation | None = None
    """log(1 + ReLU(x)), or log(1 + log(1 + ReLU(x))); null keeps a sparse start's own, and takes log elsewhere"""
    queries: Literal["table", "network"] = "table"
    """what weighs a query's tokens: the table that `idf` says, or the network, as it does documents' (a SPLADE, to teach)"""
    idf: str = "train"
    """of "train" documents, each set's "own" in training, the "start"'s, "none" (every token 1), or an idf.json"""
    idf_rate: float | None = None
    """train the table, too, at so many learning rates of the rest; null keeps it as `idf` says"""
    revive: float = 0.0
    """the share of the gradient that reaches a silenced term where that would raise it; at 0 silence is for ever"""
    head: Literal["full", "sampled"] = "sampled"
    """sampled computes the queries' columns and `columns` others"""
    columns: int = 1024
    """vocabulary entries drawn beside the queries'"""
    max_active: int | None = None
    """a text keeps so many terms, its heaviest, in use, and with head "full" in training; null keeps all"""
    prune: str | None = None
    """which terms a document keeps, TYPE:VALUE as for `osn ingest --prune`, in use, and with head "full" in training;
    null keeps all"""
    document_length: int | None = None
    """tokens read of a document when the model is used, and on dev; of a query, too, where the network encodes it; null
    reads as many as the last stage of training"""
    query_length: int = 64
    """tokens read of a query in training; in use the tokenizer's own limit holds for the table"""
    dropout: float | None = None
    """in the place of the backbone's own; null keeps that"""
    frozen_layers: int = 0
    """so many first layers, the embeddings and the output layer's weights stay as they are: cheaper steps"""

    def __post_init__(self) -> None:
        if self.columns < 1 or self.query_length < 3:
            raise ValueError("columns must be at least 1, query_length at least 3")
        _check_length(self.document_length)
        if not 0 <= self.revive <= 1:
            raise ValueError(f"revive must be from 0 to 1, not {self.revive}")
        if self.idf_rate is not None and (self.idf_rate <= 0 or self.idf == "own"):
            raise ValueError("idf_rate must be above 0, and trains one table: idf must not be own")
        if self.max_active is not None and self.max_active < 1:
            raise ValueError(f"max_active must be at least 1, not {self.max_active}")
        if self.prune is not None:
            try:
                Pruning.parse(self.prune)
            except InputError as error:
                raise ValueError(error.message) from None
        if self.queries == "network" and self.head != "full":
            raise ValueError("any term may be in a query that the network encodes: queries network needs head full")
        if self.queries == "network" and (self.idf != "train" or self.idf_rate is not None):
            raise ValueError("idf and idf_rate are about the table of queries: with queries network there is none")

    @property
    def double_log(self) -> bool:
        return self.activation == "double-log"

    @property
    def pruning(self) -> Pruning | None:
        return None if self.prune is None else Pruning.parse(self.prune)


@dataclass(slots=True)
class WarmUpSettings:
    """How a backbone without a masked-LM head becomes a student."""

    impact_steps: int = 0
    """of regression to the BM25 impacts of the tokens that a document holds"""
    impact_learning_rate: float = 1e-4
    """of the regression"""
    batch_size: int = 32
    """documents a step"""
    length: int = 128
    """tokens of a document"""
    expansions: float | None = 50
    """active terms that a document does not hold, on average, before training; null leaves the bias as it is"""
    weight: float | None = None
    """the largest expansion's mean weight at the start; null leaves the head's scale as it is"""

    def __post_init__(self) -> None:
        if self.impact_steps < 0 or min(self.batch_size, self.length) < 1:
            raise ValueError("steps must not be below 0, batch_size and length at least 1")


@dataclass(slots=True)
class SparseObjective(ObjectiveSettings):
    """The terms of `osn train dense`, and who teaches."""

    temperature: float | None = 1.0
    """divides scores in the contrastive term"""
    teachers: list[str] = field(default_factory=list)
    """models that `osn data teach` takes ("lexical" too): each set's scores by them are computed and kept"""
    all_pairs: bool = False
    """kl compares all documents of the batch, which siamese teachers can score, not the query's candidates alone"""
    base: Literal["bm25"] | None = None
    """what the loss adds to the student's scores: BM25 over the words of the set's documents; null adds nothing"""
    sparse_weight: float = 1.0
    """of the student's scores beside a base: the loss compares base + sparse_weight · student"""

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        if self.teachers and not self.distils:
            raise ValueError("teachers are named, but kl and margin_mse are 0: give one of them a weight")
        if self.all_pairs and self.margin_mse:
            raise ValueError("margin_mse compares the query's own candidates: all_pairs is for kl")
        if self.sparse_weight <= 0 or (self.base is None and self.sparse_weight != 1):
            raise ValueError("sparse_weight must be above 0, and weighs the student beside a base: name objective.base")


@dataclass(slots=True)
class RegularizationSettings:
    """λ · FLOPS of the learned weights."""

    weight: float = 1e-3
    """λ; it does not carry over between the two kinds of FLOPS"""
    query_weight: float | None = None
    """λ of queries that the network encodes, whose FLOPS are over all of them at once; null is `weight`"""
    flops: Literal["batch", "slot"] = "batch"
    """over all documents at once, as in sentence-transformers, or of each candidate slot, summed, as in the paper's code"""
    least_terms: int | None = None
    """documents with at most so many active terms cost nothing; null counts all"""
    delay: float = 0.0
    """the share of the steps with λ 0"""
    ramp: float = 1 / 3
    """the share of the steps over which λ then grows quadratically; until then no state is kept as the best on dev"""

    def __post_init__(self) -> None:
        if self.least_terms is not None and self.least_terms < 1:
            raise ValueError(f"least_terms must be at least 1, not {self.least_terms}")
        if min(self.weight, self.query_weight or 0) < 0 or not 0 <= self.delay <= 1 or not 0 <= self.ramp <= 1:
            raise ValueError(
                f"weight {self.weight}, query_weight {self.query_weight}, delay {self.delay}, ramp {self.ramp}: "
                "none below 0, shares up to 1"
            )

    @property
    def whole_from(self) -> float:
        """The share of the steps from which λ has its whole weight: 1 at most."""
        return min(1.0, self.delay + self.ramp) if self.weight or self.query_weight else 0.0

    def at(self, step: int, steps: int, role: Role = "document") -> float:
        """λ of a role at a step."""
        weight = self.weight if role == "document" or self.query_weight is None else self.query_weight
        late = step - self.delay * steps
        return 0.0 if late < 0 else weight * quadratic_ramp(round(late), steps=round(self.ramp * steps))


@dataclass(slots=True)
class SparseCandidates:
    """What a query is compared with beside its positive."""

    negatives: int = 1
    """hard ones, drawn at each visit"""
    depth: int = 100
    """of how many of the hardest they are drawn"""
    mine: str | None = "bm25"
    """who finds more if there are too few: "bm25", "student" (not pre-trained), a retriever of `osn data mine`, or null"""
    consistency: int | None = None
    """queries without a positive in the miner's top so many are left out"""

    def __post_init__(self) -> None:
        if self.negatives < 0 or self.depth < 1:
            raise ValueError(f"negatives {self.negatives} and depth {self.depth}: expected at least 0 and 1")
        if self.consistency is not None and self.mine is None:
            raise ValueError("consistency is what a miner finds: name it in candidates.mine")


@dataclass(slots=True)
class StageSettings:
    """A stage of training: its data, loss, and length of documents."""

    train: list[QuestionSet]
    """what is trained on; each batch is out of one set"""
    objective: SparseObjective = field(default_factory=SparseObjective)
    candidates: SparseCandidates = field(default_factory=SparseCandidates)
    regularization: RegularizationSettings = field(default_factory=RegularizationSettings)
    document_length: int | None = None
    """tokens read of a document in this stage; null reads as many as in the last one"""
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-5))

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        _check_length(self.document_length)
        if self.objective.distils and self.candidates.negatives < 1 and not self.objective.all_pairs:
            raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")


@dataclass(slots=True)
class SparseConfig(StageSettings):
    """Everything that `osn train sparse` can be told. What StageSettings has is the last stage, fine-tuning."""

    document_length: int = 256
    """tokens read of a document: in training, on dev, and when the model is used, unless `student` or `pretraining` says
    otherwise"""
    output: Path = Path("models/sparse")
    """where the model directory is written"""
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    """directory or hub id of a backbone or a sparse model"""
    student: StudentSettings = field(default_factory=StudentSettings)
    warm_up: WarmUpSettings = field(default_factory=WarmUpSettings)
    pretraining: StageSettings | None = None
    """an earlier stage"""
    dev: list[QuestionSet] = field(default_factory=list)
    """what is measured on while training"""
    unseen: list[QuestionSet] = field(default_factory=list)
    """sets whose questions are left out of train"""
    selection: DevSettings = field(default_factory=DevSettings)
    cache: Path | None = None
    """made questions, teachers' scores, mined negatives, warm-ups: may be shared; null hides it in the output"""

    def __post_init__(self) -> None:
        for stage in (self, self.pretraining):
            if stage is not None and stage.regularization.query_weight is not None and self.student.queries == "table":
                raise ValueError("regularization.query_weight is of queries that the network encodes: student.queries")
        StageSettings.__post_init__(self)

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def with_lengths(self) -> SparseConfig:
        """This configuration with every length of documents named."""
        before, length = self.pretraining, self.document_length
        return replace(
            self,
            student=replace(self.student, document_length=self.student.document_length or length),
            pretraining=before and replace(before, document_length=before.document_length or length),
        )

    def stage(self, stage: StageSettings, output: Path, start: str) -> SparseConfig:
        """This configuration with another stage's data and loss, and no other stage."""
        taken = {name: getattr(stage, name) for name in StageSettings.__dataclass_fields__}
        taken["document_length"] = stage.document_length or self.document_length
        return replace(self, **taken, output=output, start=start, pretraining=None, cache=self.folder)


def _check_length(length: int | None) -> None:
    """Raises ValueError for fewer tokens of a document than a word and the two that frame it."""
    if length is not None and length < 3:
        raise ValueError("document_length must be at least 3")
