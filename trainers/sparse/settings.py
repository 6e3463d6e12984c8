"""What `osn train sparse` can be told: data, student, warm-up, loss, regularizer, candidates, stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from opensearch_neural.models.lexical import K1, B
from trainers.common.loop import TrainingSettings
from trainers.common.schedules import FOLDER, quadratic_ramp
from trainers.dense import DevSettings, ObjectiveSettings, QuestionSet

STUDENT = "student"
"""As a miner: the student of the fine-tuning stage, trained without pre-training (section 4.2)."""


@dataclass(slots=True)
class SparseSet(QuestionSet):
    """osn teach's folders may stand as `teachers`; without them the stage's own are asked, and kept."""


@dataclass(slots=True)
class StudentSettings:
    """What documents become.

    activation: log(1 + ReLU(x)), or log(1 + log(1 + ReLU(x))). residual: the learned weights are added to BM25 impacts
    of the whole text, with k1 and b. idf: what weighs a query's tokens, in training and in the model: "train", from the
    documents of all train sets; "own", in training each set's from its own documents (for models whose table is made
    anew for each corpus they are used on); "none", every token 1; or an idf.json. revive: the share of the gradient that
    reaches a silenced term where that would raise it, beyond the paper; at 0 what is silenced stays silent. head: "full",
    or "sampled", which computes the queries' columns and `columns` others. document_length: tokens read of a document
    when the model is used; query_length: of a query in training (in use the tokenizer's own limit holds). dropout:
    replaces the backbone's own where given. frozen_layers: so many of the backbone's first layers, and the word embeddings
    with the output layer's weights, stay as they are: cheaper steps; 0 trains everything.
    """

    activation: Literal["log", "double-log"] = "log"
    residual: bool = False
    k1: float = K1
    b: float = B
    idf: str = "train"
    revive: float = 0.0
    head: Literal["full", "sampled"] = "sampled"
    columns: int = 1024
    document_length: int = 256
    query_length: int = 64
    dropout: float | None = None
    frozen_layers: int = 0

    def __post_init__(self) -> None:
        if self.columns < 1 or min(self.document_length, self.query_length) < 3:
            raise ValueError("columns must be at least 1, document_length and query_length at least 3")
        if not 0 <= self.k1 < math.inf or not 0 <= self.b <= 1:
            raise ValueError(f"k1 {self.k1} and b {self.b}: expected k1 of 0 or more, b from 0 to 1")
        if not 0 <= self.revive <= 1:
            raise ValueError(f"revive must be from 0 to 1, not {self.revive}")

    @property
    def double_log(self) -> bool:
        return self.activation == "double-log"


@dataclass(slots=True)
class WarmUpSettings:
    """How a backbone without a masked-LM head becomes a student.

    masked_lm_steps: of masked language modelling on `corpus` (the train sets' where it names none).
    impact_steps: of regression to the BM25 impacts of the tokens that a document holds. expansions: how many terms
    that are not in a document are active before training, on average; None leaves the bias as it is. weight: the
    largest expansion's mean weight at the start; None leaves the head's scale as it is.
    """

    masked_lm_steps: int = 0
    masked_lm_learning_rate: float = 1e-4
    impact_steps: int = 0
    impact_learning_rate: float = 1e-4
    batch_size: int = 32
    length: int = 128
    corpus: list[Path] = field(default_factory=list)
    expansions: float | None = 50
    weight: float | None = None

    def __post_init__(self) -> None:
        if min(self.masked_lm_steps, self.impact_steps) < 0 or min(self.batch_size, self.length) < 1:
            raise ValueError("steps must not be below 0, batch_size and length at least 1")


@dataclass(slots=True)
class SparseObjective(ObjectiveSettings):
    """The terms of `osn train dense`. teachers: models that `osn teach` takes ("lexical" too), each set's scores by them
    computed and kept; for the terms that distil, kl or margin_mse. all_pairs: kl compares all documents of the batch,
    which siamese teachers can score, and not the query's own candidates alone."""

    temperature: float | None = 1.0
    teachers: list[str] = field(default_factory=list)
    all_pairs: bool = False

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        if self.teachers and not self.distils:
            raise ValueError("teachers are named, but kl and margin_mse are 0: give one of them a weight")
        if self.all_pairs and self.margin_mse:
            raise ValueError("margin_mse compares the query's own candidates: all_pairs is for kl")


@dataclass(slots=True)
class RegularizationSettings:
    """λ · FLOPS of the learned weights. flops: "batch", the mean over all documents at once, as in
    sentence-transformers; "slot", of each candidate slot over the queries, summed, as in the paper's code: λ does not
    carry over. λ is 0 for the share `delay` of the steps, then grows quadratically over the share `ramp`; until then no
    state is kept as the best on dev."""

    weight: float = 1e-3
    flops: Literal["batch", "slot"] = "batch"
    delay: float = 0.0
    ramp: float = 1 / 3

    def __post_init__(self) -> None:
        if self.weight < 0 or not 0 <= self.delay <= 1 or not 0 <= self.ramp <= 1:
            raise ValueError(
                f"weight {self.weight}, delay {self.delay}, ramp {self.ramp}: none below 0, shares up to 1"
            )

    @property
    def whole_from(self) -> float:
        """The share of the steps from which λ has its whole weight: 1 at most."""
        return min(1.0, self.delay + self.ramp) if self.weight else 0.0

    def at(self, step: int, steps: int) -> float:
        """λ at a step."""
        late = step - self.delay * steps
        return 0.0 if late < 0 else self.weight * quadratic_ramp(round(late), steps=round(self.ramp * steps))


@dataclass(slots=True)
class SparseCandidates:
    """`negatives` hard ones beside the positive, drawn out of the first `depth`. mine: what finds more where a query of
    the data has fewer: "bm25", "student" (trained without pre-training, for a run that has it), another name that `osn
    mine` knows, or null, which fills up at random. consistency: queries without a positive in the miner's top so many are
    left out."""

    negatives: int = 1
    depth: int = 100
    mine: str | None = "bm25"
    consistency: int | None = None

    def __post_init__(self) -> None:
        if self.negatives < 0 or self.depth < 1:
            raise ValueError(f"negatives {self.negatives} and depth {self.depth}: expected at least 0 and 1")
        if self.consistency is not None and self.mine is None:
            raise ValueError("consistency is what a miner finds: name it in candidates.mine")


@dataclass(slots=True)
class StageSettings:
    """A stage of training: its data, loss, and length of documents in tokens."""

    train: list[SparseSet]
    objective: SparseObjective = field(default_factory=SparseObjective)
    candidates: SparseCandidates = field(default_factory=SparseCandidates)
    regularization: RegularizationSettings = field(default_factory=RegularizationSettings)
    document_length: int = 128
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-5))

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.document_length < 3:
            raise ValueError("document_length must be at least 3")
        if self.objective.distils and self.candidates.negatives < 1 and not self.objective.all_pairs:
            raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")


@dataclass(slots=True)
class SparseConfig(StageSettings):
    """Everything that `osn train sparse` can be told. What StageSettings has is the last stage, fine-tuning;
    pretraining: an earlier one. cache: where generated questions, teachers' scores, mined negatives and warm-ups lie, which
    other configurations may share; by default in the output, hidden. unseen: sets whose questions are left out of train."""

    output: Path = Path("models/sparse")
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    student: StudentSettings = field(default_factory=StudentSettings)
    warm_up: WarmUpSettings = field(default_factory=WarmUpSettings)
    pretraining: StageSettings | None = None
    dev: list[SparseSet] = field(default_factory=list)
    unseen: list[SparseSet] = field(default_factory=list)
    selection: DevSettings = field(default_factory=DevSettings)
    cache: Path | None = None

    def __post_init__(self) -> None:
        StageSettings.__post_init__(self)
        if self.student.residual and self.warm_up.impact_steps:
            raise ValueError(
                "warm_up.impact_steps would teach what student.residual adds already: BM25 would count twice"
            )

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def stage(self, stage: StageSettings, output: Path, start: str) -> SparseConfig:
        """This configuration with another stage's data and loss, and no other stage."""
        taken = {name: getattr(stage, name) for name in StageSettings.__dataclass_fields__}
        return replace(self, **taken, output=output, start=start, pretraining=None, cache=self.folder)
