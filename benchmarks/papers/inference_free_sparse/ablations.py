"""The contributions of IDF, λ and the teachers to inference-free sparse models, measured with small trainings.

Parts "flops" and "distillation" of `osn paper inference-free-sparse`, their goals, table and plots.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import plots
from benchmarks.experiment import RowsAndGoals, Table, all_goal, goal_of, is_above
from benchmarks.papers.inference_free_sparse.search import PIECES, PRESENCE
from benchmarks.papers.inference_free_sparse.training import (
    OWN,
    SCALE_WITH_IDF,
    SCALE_WITHOUT_IDF,
    TARGET,
    TESTED,
    Ablation,
    trained_dense,
)
from benchmarks.render import in_points, with_interval
from opensearch_neural.evaluation.results import Goal, Row
from opensearch_neural.evaluation.tables import table as as_table
from trainers.data.teacher_scores import LEXICAL as LEXICAL_TEACHER

if TYPE_CHECKING:
    from trainers.sparse.settings import SparseConfig

LAMBDAS = (0.0, 0.01, 0.1, 0.5)
WITH, WITHOUT = "with IDF", "without IDF"


class TrainedWith(NamedTuple):
    """How a student was trained."""

    idf: str
    """its `student.idf`"""
    scale: float
    """S of its teachers' scores"""
    own: str
    """the name of its own weights of query tokens"""


TRAINED_WITH = {
    WITH: TrainedWith("train", SCALE_WITH_IDF, "training corpus"),
    WITHOUT: TrainedWith("none", SCALE_WITHOUT_IDF, "no IDF"),
}
CURVES = {
    "IDF in training and search": (WITH, TARGET),
    "IDF in search alone": (WITHOUT, TARGET),
    "no IDF": (WITHOUT, TRAINED_WITH[WITHOUT].own),
}
"""{curve that is drawn and compared: (how the student was trained, how it is searched)}"""
BOTH, SEARCH_ALONE, NEITHER = CURVES
ENSEMBLE, NO_PRETRAINING = "dense + sparse, normalized", "no pre-training"
DENSE, DENSE_TRAINED, SPARSE, LEXICAL = "dense", "dense, trained further", "sparse", "BM25 over word pieces"
FIRST_STAGES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    ENSEMBLE: ((DENSE, SPARSE), {}),
    "dense + sparse, added as they are": ((DENSE, SPARSE), {"normalize_teachers": False, "teacher_scale": 1.0}),
    f"{DENSE} alone": ((DENSE,), {}),
    f"{DENSE_TRAINED}, alone": ((DENSE_TRAINED,), {}),
    "two dense": ((DENSE, DENSE_TRAINED), {}),
    f"{SPARSE} alone": ((SPARSE,), {}),
    f"{LEXICAL} alone": ((LEXICAL,), {}),
    "two sparse": ((SPARSE, LEXICAL), {}),
    "InfoNCE": ((), {"kl": 0.0, "info_nce": 1.0, "all_pairs": False}),
}
"""{arm of part "distillation": (teachers of its first stage, other changes of the objective)}"""


def flops(ablation: Ablation) -> RowsAndGoals:
    """Curves over λ, trained with IDF and without, searched with the IDF of either corpus and without."""
    base = ablation.student()
    arms: dict[str, SparseConfig] = {}
    names: dict[tuple[str, str], str] = {}
    for how, (idf, scale, own) in TRAINED_WITH.items():
        for weight in LAMBDAS:
            arm = f"{how}, λ {weight:g}"
            arms[arm] = replace(
                base,
                student=replace(base.student, idf=idf),
                objective=replace(base.objective, teacher_scale=scale),
                regularization=replace(base.regularization, weight=weight),
            )
            names |= {(arm, OWN): of_curve(how, weight, own), (arm, TARGET): of_curve(how, weight, TARGET)}
    differences = [(engine, PIECES) for engine in (PRESENCE, *names.values())]
    for weight in LAMBDAS:
        both, search, neither = (of_curve(how, weight, idf) for how, idf in CURVES.values())
        own = of_curve(WITH, weight, TRAINED_WITH[WITH].own)
        differences += [(both, search), (search, neither), (both, neither), (both, own)]
    rows = ablation.rows(ablation.searched(arms), names, differences)
    table = Table(rows, ablation.seeds)
    return rows, [
        flops_goal(table, NEITHER),
        flops_goal(table, SEARCH_ALONE),
        *share_goals(table),
        terms_goal(table),
        idf_goal(table),
    ]


def of_curve(how: str, weight: float, idf: str) -> str:
    """The engine's name in part "flops": how it is trained, λ, and the IDF of its queries."""
    return f"{how}, λ {weight:g}, {idf}"


def distillation(ablation: Ablation) -> RowsAndGoals:
    """Table 6 in direction: arms differ in the objective of the first of two equally long stages; the second is the same.

    The second dense teacher is the first one trained on the same questions, the second sparse teacher is BM25 over word
    pieces. The arm without pre-training is trained for as many steps as both stages together.
    """
    from trainers.sparse.settings import SparseCandidates, StageSettings

    dense_teacher, sparse_teacher = ablation.of_kind("dense"), ablation.of_kind("sparse")
    teachers = {DENSE: dense_teacher, SPARSE: sparse_teacher, LEXICAL: LEXICAL_TEACHER}
    if any(DENSE_TRAINED in taught_by for taught_by, _ in FIRST_STAGES.values()):
        teachers[DENSE_TRAINED] = trained_dense(ablation, dense_teacher)
    base = ablation.student()
    half = replace(base.training, steps=ablation.steps // 2)
    arms: dict[str, SparseConfig] = {}
    for arm, (taught_by, changes) in FIRST_STAGES.items():
        first_stage = StageSettings(
            train=base.train,
            objective=replace(base.objective, teachers=[teachers[name] for name in taught_by], **changes),
            candidates=SparseCandidates(negatives=1, depth=50, mine="bm25"),
            regularization=replace(base.regularization, weight=base.regularization.weight / 10),
            training=half,
        )
        arms[arm] = replace(base, pretraining=first_stage, training=half)
    arms[NO_PRETRAINING] = replace(base, training=replace(base.training, steps=2 * (ablation.steps // 2)))
    names = {(arm, OWN): arm for arm in arms}
    others = [arm for arm in arms if arm != ENSEMBLE]
    rows = ablation.rows(ablation.searched(arms), names, [(other, ENSEMBLE) for other in others])
    return rows, [distillation_goal(Table(rows, ablation.seeds))]


# ------------------------------------------------ goals


def curve(table: Table, name: str, which: str, x: str, y: str) -> list[tuple[float, float]]:
    """The students of a set on one of CURVES, as points (x, y), ordered by x. x, y: measures"""
    how, idf = CURVES[which]
    engines = [of_curve(how, weight, idf) for weight in LAMBDAS]
    values = [(table.value(name, engine, x), table.value(name, engine, y)) for engine in engines]
    return sorted((at.value, of.value) for at, of in values if at is not None and of is not None)


def flops_goal(table: Table, rival: str) -> Goal:
    """The paper's direction (figure 4): for each student of the rival curve, is one with IDF better at no more FLOPS?"""
    higher = points = 0
    for name in TESTED:
        ours = curve(table, name, BOTH, "FLOPS", "nDCG@10")
        for cost, quality_of_rival in curve(table, name, rival, "FLOPS", "nDCG@10"):
            affordable = [quality for other, quality in ours if other <= cost]
            points += bool(affordable)
            higher += max(affordable, default=float("-inf")) >= quality_of_rival
    rival_words = {NEITHER: "with it in neither (figure 4", SEARCH_ALONE: "with it in search alone (training's share"}
    return goal_of(
        f"with IDF in training and in search nDCG@10 is higher at no more FLOPS than {rival_words[rival]}; by the values, "
        "without intervals)",
        "every point that compares",
        f"{higher} of {points}" if points else None,
        higher == points,
    )


def share_goals(table: Table) -> list[Goal]:
    """Table 5 in two shares, at equal λ: the gain of IDF in search for a student without IDF, and of IDF in training."""
    goals = []
    for words, ours, rival in (("training's", BOTH, SEARCH_ALONE), ("search's", SEARCH_ALONE, NEITHER)):
        gains: list[Row] = []
        for weight in LAMBDAS:
            engine, baseline = (of_curve(how, weight, idf) for how, idf in (CURVES[ours], CURVES[rival]))
            gains += table.differences(TESTED, engine, baseline, "nDCG@10").values()
        points = [100 * row.value for row in gains]
        goals.append(
            all_goal(
                f"{words} share of what IDF brings ({ours}, less {rival}, at equal λ), interval above zero (table 5)",
                [is_above(row) for row in gains],
                f", {min(points):.1f} to {max(points):.1f} points of nDCG@10" if points else "",
            )
        )
    return goals


def terms_goal(table: Table) -> Goal:
    """The paper's words (section 5.4.2): with as many terms a document, those trained with IDF cost fewer FLOPS.

    Compared at the terms of each student with IDF, with the curve without IDF interpolated between its points, if it
    reaches that far.
    """
    import numpy as np

    ratios: list[float] = []
    for name in TESTED:
        without = curve(table, name, NEITHER, "active terms", "FLOPS")
        terms, costs = [count for count, _ in without], [cost for _, cost in without]
        ratios += [
            cost / float(np.interp(count, terms, costs))
            for count, cost in curve(table, name, BOTH, "active terms", "FLOPS")
            if terms and terms[0] <= count <= terms[-1]
        ]
    fewer = sum(ratio < 1 for ratio in ratios)
    return goal_of(
        "with as many active terms a document, those trained with IDF cost fewer FLOPS (section 5.4.2)",
        "every point that compares",
        f"{fewer} of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f} times the FLOPS" if ratios else None,
        fewer == len(ratios),
    )


def idf_goal(table: Table) -> Goal:
    """The paper's direction for students without pre-training (table 5): the IDF of the searched corpus is better."""
    gains: list[Row] = []
    for weight in LAMBDAS:
        searched, own = (of_curve(WITH, weight, idf) for idf in (TARGET, TRAINED_WITH[WITH].own))
        gains += table.differences(TESTED, searched, own, "nDCG@10").values()
    return all_goal(
        "at retrieval the searched corpus's IDF is better than that of training, interval above zero (table 5, no "
        "pre-training)",
        [is_above(row) for row in gains],
        f", {sum(row.value > 0 for row in gains)} without regard to the interval",
    )


def distillation_goal(table: Table) -> Goal:
    """The paper's direction (table 6): normalized, heterogeneous teachers are above every other way to pre-train."""
    gains = [
        row
        for other in (*FIRST_STAGES, NO_PRETRAINING)
        for row in table.differences(TESTED, other, ENSEMBLE, "nDCG@10").values()
    ]
    return all_goal(
        "the normalized ensemble is above every other way to pre-train, interval of their differences below zero (table 6)",
        [row.high is not None and row.high < 0 for row in gains],
        f", {sum(row.value < 0 for row in gains)} without regard to the interval",
    )


# ------------------------------------------------ table and plots


def idf_shares(rows: Sequence[Row]) -> str:
    """A line for each set and λ: nDCG@10 of the student without IDF, the points that the searched corpus's IDF adds at
    retrieval, and the further points that IDF in training adds."""
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    table, lines = Table(rows, seeds), []
    for name, weight in itertools.product(table.sets, LAMBDAS):
        both, search, neither = (of_curve(how, weight, idf) for how, idf in CURVES.values())
        start = table.value(name, neither, "nDCG@10")
        at_retrieval = table.difference(name, search, neither, "nDCG@10")
        in_training = table.difference(name, both, search, "nDCG@10")
        if start and at_retrieval and in_training:
            shares = [with_interval(in_points(share)) for share in (at_retrieval, in_training)]
            lines.append([name, f"{weight:g}", f"{start.value:.3f}", *shares])
    return as_table(["", "λ", "no IDF: nDCG@10", "at retrieval: points", "in training, too: points more"], lines)


def draw_flops(seeds: Sequence[int], rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, and FLOPS against the expansion rate, a panel for each set."""
    table = Table(rows, seeds)
    for file, which, x, y in (
        ("flops.svg", tuple(CURVES), ("FLOPS", "FLOPS, measured"), ("nDCG@10", "nDCG@10")),
        ("expansion.svg", (BOTH, NEITHER), ("active terms", "terms a document"), ("FLOPS", "FLOPS, measured")),
    ):
        panels = {name: {key: curve(table, name, key, x[0], y[0]) for key in which} for name in TESTED}
        plots.curves(panels, folder / file, x=x[1], y=y[1], xlim=(0, None))
