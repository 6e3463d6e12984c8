"""The settings that trainings share: length, speed, batches; the loss of retrieval; how a text becomes a vector.

Importing them needs no torch, nor does importing the settings of a method: `osn train METHOD --help`, `--print-config` and
the refusal of a configuration come at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from opensearch_neural.models.dense.pooling import Pooling
from trainers.common.own_loss import load_loss
from trainers.common.precision import Precision

FOLDER = ".stages"
"""The folder of intermediate results in an output directory; hidden, because they are not part of the model."""
FIRST = "retriever-1"
"""The folder in `FOLDER` of the model that the first of two stages trains."""
LAST = "last"
"""The value of `TrainingSettings.select` that keeps the last state."""
TEACHER_SCALE = 10.0
"""The default of `ObjectiveSettings.teacher_scale`."""
DISTILLATION = ("kl", "margin_mse")
"""The weights of `ObjectiveSettings` whose terms compare the student's scores with teachers'."""
TERMS = ("info_nce", *DISTILLATION)
"""All its weights; `objective.objective_terms` makes a term of the same name for each."""
NONE_DISTILS = f"{' and '.join(DISTILLATION)} are 0: give one of them a weight"
Role = Literal["query", "document"]
ROLES: tuple[Role, ...] = ("query", "document")


@dataclass(slots=True)
class TrainingSettings:
    """Length, speed and batches of a training. `steps` and `*_every` count optimizer steps."""

    steps: int | None = None
    """optimizer steps; null takes `epochs` instead"""
    epochs: float = 1.0
    """passes over the data"""
    batch_size: int = 32
    """examples in one loss, all processes together"""
    gradient_accumulation: int = 1
    """batches in one step; each has its own in-batch negatives"""
    chunk_size: int | None = None
    """rows that gradient caching encodes at a time, with the same gradient (dense, mlr, sparse, query-as-context); null
    encodes all at once"""
    learning_rate: float = 2e-5
    """the highest learning rate, at the end of the warm-up"""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """how the learning rate falls after the warm-up"""
    warmup: float = 0.1
    """steps in which the learning rate rises; below 1: the share of all steps"""
    weight_decay: float = 0.01
    """weight decay of matrices; biases and norms have none"""
    max_gradient_norm: float | None = 1.0
    """longer gradients are clipped to this norm; null clips none"""
    precision: Precision = "float32"
    """the number format of the network; auto is bfloat16 if the hardware is faster with it, else float32"""
    activation_checkpointing: bool = False
    """compute activations again in the backward pass instead of keeping them: less memory, more time"""
    seed: int = 42
    """the seed of everything random"""
    evaluate_every: int | None = None
    """steps between two evaluations; null is a tenth of all steps"""
    save_every: int | None = None
    """steps between two checkpoints; null is a tenth of all steps"""
    keep: int = 2
    """checkpoints to keep"""
    log_every: int = 10
    """steps between two lines of the log"""
    select: str | None = None
    """the dev measure that selects the state to keep; null takes the first measure; "last" keeps the last state"""
    patience: int | None = None
    """evaluations without a gain before training stops; null never stops early"""
    bucket: int = 1
    """sort examples by length within this many batches, where lengths are known (mlm, doc2query); 1 does not sort"""
    set_weights: list[float] | float | None = None
    """each set's share of the steps, as a list; a number p: shares in proportion to size ** p; null: to size"""
    embedding_rate: float | None = None
    """factor of the learning rate for word embeddings; null is 1"""
    start_share: float = 0.0
    """the share of the start in the average of starting and trained weights, which is measured and written
    (Wortsman and others, "Robust fine-tuning of zero-shot models", 2022); 0.5 is half of each, 0 the trained model alone"""
    workers: int = 0
    """processes that prepare batches; 0 prepares them in the training process"""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one"""

    def __post_init__(self) -> None:
        counts = ("batch_size", "gradient_accumulation", "keep", "log_every", "bucket", "steps", "chunk_size")
        for name in (*counts, "evaluate_every", "save_every", "patience"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.epochs <= 0 or self.learning_rate <= 0 or self.warmup < 0:
            raise ValueError("epochs and learning_rate must be above 0, warmup not below 0")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be from 0 to below 2^32, not {self.seed}")
        if not 0 <= self.start_share < 1:
            raise ValueError(f"start_share must be from 0 to below 1, not {self.start_share}")
        if self.embedding_rate is not None and self.embedding_rate <= 0:
            raise ValueError(f"embedding_rate must be above 0, not {self.embedding_rate}")
        if min(self.weight_decay, self.workers) < 0:
            raise ValueError(f"weight_decay {self.weight_decay} and workers {self.workers} must not be below 0")
        if self.max_gradient_norm is not None and self.max_gradient_norm <= 0:
            raise ValueError(f"max_gradient_norm must be above 0, or null to clip none, not {self.max_gradient_norm}")
        if self.patience is not None and self.select == LAST:
            raise ValueError("patience waits for a gain in a dev measure, and select is last: name a measure there")

    def check_measured(self, measured: bool) -> None:
        """Raises ValueError if a setting depends on dev measures and none are taken."""
        if not measured and (self.patience is not None or self.select not in (None, LAST)):
            raise ValueError(
                "training.select and training.patience depend on dev measures, and there is nothing to measure on"
            )

    def check_dev_share(self, share: float) -> None:
        """Raises ValueError for a share outside 0 to 1, and as `check_measured` does."""
        if not 0 <= share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {share}")
        self.check_measured(share > 0)

    def two_steps(self, most: int | None = None) -> TrainingSettings:
        """The settings of a dry run: two steps, each evaluated, saved and logged. most: the largest batch size."""
        size = self.batch_size if most is None else min(self.batch_size, most)
        return replace(self, steps=2, batch_size=size, evaluate_every=1, save_every=1, log_every=1, workers=0)

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """The device on which these settings train on this machine."""
        import torch

        return "cuda" if self.device == "auto" and torch.cuda.is_available() else "cpu"


@dataclass(slots=True)
class ObjectiveSettings:
    """The loss: a sum of terms, each with its weight; 0 leaves a term out."""

    info_nce: float = 1.0
    """weight of the contrastive term, over all documents of the batch"""
    loss: str | None = None
    """package:function, a loss of your own in place of the contrastive term, with its weight; null is InfoNCE"""
    margin_mse: float = 0.0
    """weight of distillation by margin MSE over the query's candidates; scores from teachers or from the data"""
    kl: float = 0.0
    """weight of distillation by Kullback-Leibler divergence from the teachers' scores, whose own temperature is 1"""
    temperature: float | None = None
    """divides the scores in InfoNCE, and those of normalized vectors in kl and margin_mse, too; null is 0.05 for normalized
    vectors and 1 for others"""
    teacher_weights: list[float] | None = None
    """weights of the teachers, in their order; null weighs them equally"""
    teacher_scale: float = TEACHER_SCALE
    """the scale S of the ensemble's scores; scores that come with the data are compared as they are"""
    normalize_teachers: bool = True
    """scale each teacher's scores of a query to the range 0 to 1 before adding them"""

    def __post_init__(self) -> None:
        weights = [getattr(self, name) for name in TERMS]
        if max(weights) <= 0 or min(weights) < 0:
            raise ValueError(f"{', '.join(TERMS)} are weights: none may be below 0, at least one must be above 0")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.teacher_weights is not None and not self.distils:
            raise ValueError(f"teacher_weights would have no effect: {NONE_DISTILS}")
        if self.loss is not None:
            if not self.info_nce:
                raise ValueError("loss takes the place of info_nce and its weight, which is 0: set info_nce above 0")
            load_loss(self.loss)

    @property
    def distils(self) -> bool:
        """Whether the loss compares scores with teachers'."""
        return any(getattr(self, name) > 0 for name in DISTILLATION)


def check_dropout(dropout: float | None) -> None:
    """Raises ValueError for a dropout outside 0 to 1."""
    if dropout is not None and not 0 <= dropout < 1:
        raise ValueError(f"dropout must be from 0 to below 1, not {dropout}")


@dataclass(slots=True)
class EncoderSettings:
    """How a text becomes a vector."""

    pooling: Pooling | None = None
    """the first token or the mean of all; null takes the pooling of the start, or the mean if it has none"""
    normalize: bool | None = None
    """scale vectors to length 1; null does as the start does"""
    tied: bool = True
    """one transformer for queries and documents"""
    query_length: int = 64
    """the most tokens of a query"""
    document_length: int = 256
    """the most tokens of a document"""
    query_prompt: str | None = None
    """text before every query; null takes the start's"""
    document_prompt: str | None = None
    """text before every document; null takes the start's"""
    dropout: float | None = None
    """dropout of the network; null keeps the backbone's own"""

    def __post_init__(self) -> None:
        if min(self.query_length, self.document_length) < 3:
            raise ValueError("query_length and document_length must leave room for text: at least 3")
        check_dropout(self.dropout)

    def length(self, role: Role) -> int:
        return self.query_length if role == "query" else self.document_length

    def prompt(self, role: Role) -> str:
        return (self.query_prompt if role == "query" else self.document_prompt) or ""
