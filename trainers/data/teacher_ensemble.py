"""The combined scores of several teachers for a batch (`inference-free-sparse`, section 4.2, eq. 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from opensearch_neural.errors import InputError
from trainers.common import losses
from trainers.common.objective import TeacherScores
from trainers.common.settings import ObjectiveSettings
from trainers.data.candidates import Drawn
from trainers.data.examples import TrainingData
from trainers.data.teacher_scores import Teacher, open_teacher


class TeacherEnsemble:
    """Teacher scores for the distillation terms, from each set's teachers or from its data."""

    def __init__(
        self, sets: Sequence[TrainingData], teachers: Sequence[Sequence[Teacher]], objective: ObjectiveSettings
    ) -> None:
        """teachers: a list for each set, in the order of objective.teacher_weights; empty: take the scores in the data."""
        self.sets, self.objective = list(sets), objective
        self.teachers = [list(of_set) for of_set in teachers] or [[] for _ in sets]

    def of_candidates(self, own: Sequence[Drawn]) -> TeacherScores:
        """Scores of the queries with their own candidates: (queries, 1 + negatives)."""
        data = self.sets[own[0].at]
        documents = data.documents.ids
        ids = [[documents[row] for row in (item.positive, *item.negatives)] for item in own]
        if self.teachers[own[0].at]:
            # Siamese teachers compute all pairs in any case: take each query's own.
            every = self._each(own, [document for candidates in ids for document in candidates])
            places = torch.arange(every[0].shape[1]).view(len(own), -1)
            each = [scores.gather(1, places) for scores in every]
            return self._together(each, torch.zeros_like(places, dtype=torch.bool))
        scores = [data.example(item.example).scores for item in own]
        values = np.array(
            [
                [by_document.get(document, np.nan) for document in candidates]
                for by_document, candidates in zip(scores, ids, strict=True)
            ],
            np.float32,
        )
        known = np.isfinite(values)
        if not known[:, 1:].any():
            raise InputError(
                f"{data.name}: there is no teacher score for any negative of this batch "
                f"(query {data.queries.ids[own[0].query]!r} among others)",
                "name the folders of `osn data teach` as this set's teachers, or give data with scores",
            )
        return TeacherScores(torch.from_numpy(np.nan_to_num(values)), torch.from_numpy(known))

    def of_documents(self, own: Sequence[Drawn], documents: Sequence[str], *, excluded: Tensor) -> TeacherScores:
        """Scores of the queries with `documents`: (queries, documents).

        excluded: (queries, documents) bool, True for pairs that are not candidates; the normalization ignores them too.
        """
        return self._together(self._each(own, documents), excluded)

    def _each(self, own: Sequence[Drawn], documents: Sequence[str]) -> list[Tensor]:
        """Each teacher's scores: (queries, documents)."""
        at = own[0].at
        queries = [self.sets[at].queries.ids[item.query] for item in own]
        return [torch.from_numpy(np.asarray(teacher.scores(queries, documents))) for teacher in self.teachers[at]]

    def _together(self, each: Sequence[Tensor], excluded: Tensor) -> TeacherScores:
        known = torch.stack([scores.isfinite() for scores in each]).all(dim=0) & ~excluded
        together = losses.normalized_ensemble(
            [scores.nan_to_num() for scores in each],
            self.objective.teacher_weights,
            scale=self.objective.teacher_scale,
            normalize=self.objective.normalize_teachers,
            known=known,
        )
        return TeacherScores(together, known)


def open_teachers(folders: Sequence[Path], data: TrainingData, objective: ObjectiveSettings) -> list[Teacher]:
    """The teachers that `osn data teach` cached for `data`. Raises InputError if teachers and weights differ in number."""
    check_weights(len(folders), data, objective)
    return [open_teacher(folder, data) for folder in folders]


def check_weights(teachers: int, data: TrainingData, objective: ObjectiveSettings) -> None:
    """Raises InputError if the numbers of teachers and weights differ."""
    weights = objective.teacher_weights
    if weights is not None and teachers and teachers != len(weights):
        raise InputError(f"{data.name} has {teachers} teachers, objective.teacher_weights {len(weights)} weights")
