"""The loss of retrieval training: a weighted sum of terms over a batch's scores, for dense and sparse models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.common import losses
from trainers.common.own_loss import Targets, apply_loss, load_loss


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
    """weight of distillation by Kullback-Leibler divergence, at temperature 1"""
    temperature: float | None = None
    """divides the scores in InfoNCE; null is 0.05 for normalized vectors and 1 for others"""
    teacher_weights: list[float] | None = None
    """weights of the teachers, in their order; null weighs them equally"""
    teacher_scale: float = 10.0
    """the scale S of the ensemble's scores"""
    normalize_teachers: bool = True
    """scale each teacher's scores of a query to the range 0 to 1 before adding them"""

    def __post_init__(self) -> None:
        if max(self.info_nce, self.margin_mse, self.kl) <= 0 or min(self.info_nce, self.margin_mse, self.kl) < 0:
            raise ValueError(
                "info_nce, margin_mse and kl are weights: none may be below 0, at least one must be above 0"
            )
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.teacher_weights is not None and not self.distils:
            raise ValueError("teacher_weights would have no effect: kl and margin_mse are 0: give one of them a weight")
        if self.loss is not None:
            if not self.info_nce:
                raise ValueError("loss takes the place of info_nce and its weight, which is 0: set info_nce above 0")
            load_loss(self.loss)

    @property
    def distils(self) -> bool:
        return self.margin_mse > 0 or self.kl > 0


@dataclass
class TeacherScores:
    """The sum of the teachers' scores for each query's candidates."""

    scores: Tensor
    """(queries, candidates) float32, 0 if unknown"""
    known: Tensor
    """(queries, candidates) bool, True if all teachers have a score"""


def objective_terms(
    objective: ObjectiveSettings, scores: Tensor, targets: Targets, *, temperature: float, all_pairs: bool = False
) -> dict[str, Tensor]:
    """The terms of the loss by name, weighted.

    The first compares each query's positive with all documents of the batch: InfoNCE, or the user's own loss, which gets
    scores, (queries, documents), without the temperature. The others compare the scores of the query's candidates, or if
    `all_pairs` of all documents, with the teachers' scores. Raises ValueError if the batch lacks teachers' scores.
    """
    terms: dict[str, Tensor] = {}
    if objective.loss is not None:
        terms["loss"] = objective.info_nce * apply_loss(objective.loss, scores, targets)
    elif objective.info_nce:
        terms["info_nce"] = objective.info_nce * losses.info_nce(
            scores, targets.candidates[:, 0], temperature=temperature, excluded=targets.excluded
        )
    if objective.distils:
        teacher: TeacherScores | None = targets.teacher
        if teacher is None:
            raise ValueError("the objective distils, but the batch has no teacher scores")
        compared = scores if all_pairs else scores.gather(1, targets.candidates)
        if objective.margin_mse:
            terms["margin_mse"] = objective.margin_mse * losses.margin_mse(
                compared, teacher.scores, known=teacher.known
            )
        if objective.kl:
            terms["kl"] = objective.kl * losses.kl_distillation(compared, teacher.scores, known=teacher.known)
    return terms


def in_batch_accuracy(scores: Tensor, targets: Targets) -> Tensor:
    """The share of queries whose positive scores highest among the batch's documents: a scalar."""
    best = scores.masked_fill(targets.excluded, -torch.inf).argmax(dim=1)
    return (best == targets.candidates[:, 0]).float().mean()
