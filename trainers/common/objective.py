"""The loss of retrieval training: a weighted sum of terms over a batch's scores, for dense and sparse models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from trainers.common import losses
from trainers.common.own_loss import SIGNATURE, Targets, failure, load_loss
from trainers.common.settings import ObjectiveSettings


@dataclass
class TeacherScores:
    """The sum of the teachers' scores for each query's candidates."""

    scores: Tensor
    """(queries, candidates) float32, 0 if unknown"""
    known: Tensor
    """(queries, candidates) bool, True if all teachers have a score"""


def objective_terms(
    objective: ObjectiveSettings,
    scores: Tensor,
    targets: Targets,
    *,
    temperature: float,
    student_temperature: float = 1.0,
    all_pairs: bool = False,
) -> dict[str, Tensor]:
    """The terms of the loss by name, weighted.

    The first compares each query's positive with all documents of the batch: InfoNCE, or the user's own loss, which gets
    scores, (queries, documents), without the temperature. The others compare the scores of the query's candidates, or if
    `all_pairs` of all documents, with the teachers' scores; `student_temperature` divides the former. Cosines need it: they
    differ by 2 at most, the teachers' scores by `teacher_scale`. Raises ValueError if the batch lacks teachers' scores.
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
        compared = (scores if all_pairs else scores.gather(1, targets.candidates)) / student_temperature
        if objective.margin_mse:
            terms["margin_mse"] = objective.margin_mse * losses.margin_mse(
                compared, teacher.scores, known=teacher.known
            )
        if objective.kl:
            terms["kl"] = objective.kl * losses.kl_distillation(compared, teacher.scores, known=teacher.known)
    return terms


def apply_loss(name: str, scores: Tensor, targets: Targets) -> Tensor:
    """The loss of a batch by the function. Raises InputError if it fails or does not return a scalar with a gradient."""
    try:
        value = load_loss(name)(scores, targets)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        shapes = f"scores {tuple(scores.shape)}, candidates {tuple(targets.candidates.shape)}"
        raise InputError(f"the loss {name} failed: {failure(error)}", f"it was called with {shapes}") from error
    if not isinstance(value, Tensor):
        raise InputError(f"the loss {name} returned {type(value).__name__}, not a tensor", SIGNATURE)
    if value.ndim:
        raise InputError(
            f"the loss {name} returned a tensor of shape {tuple(value.shape)}", "take its mean(): one number"
        )
    if scores.requires_grad and not value.requires_grad:
        raise InputError(
            f"the loss {name} returned a number without a gradient",
            "compute it from scores; item(), detach(), argmax and comparisons cut the gradient",
        )
    return value


def in_batch_accuracy(scores: Tensor, targets: Targets) -> Tensor:
    """The share of queries whose positive scores highest among the batch's documents: a scalar."""
    best = scores.masked_fill(targets.excluded, -torch.inf).argmax(dim=1)
    return (best == targets.candidates[:, 0]).float().mean()
