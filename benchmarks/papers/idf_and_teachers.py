"""What IDF, λ and the teachers contribute to a sparse model: parts "flops" and "distillation" of `inference_free_sparse.py`.

Small trainings, whose arms differ in one thing each, searched exactly without BM25.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks import plots
from benchmarks.bm25_sparse.measures import MEASURES
from benchmarks.bm25_sparse.models import configuration
from benchmarks.experiment import (
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    facts,
    for_each,
    goal_of,
    is_above,
    kept,
    mean_values,
    slug,
    trials,
)
from benchmarks.options import NumberList, setting
from benchmarks.papers.exact_sparse import PIECES, PRESENCE, SparseTest, sparse_test, untrained
from benchmarks.render import in_points, with_interval
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.evaluation.tables import table as as_table
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from trainers.common.config import fingerprint
from trainers.common.settings import TrainingSettings
from trainers.data.settings import DevSettings, SetSettings
from trainers.data.teacher_models import detect
from trainers.data.teacher_scores import LEXICAL, TeacherKind

if TYPE_CHECKING:
    from trainers.sparse.settings import SparseConfig


SMALL = ("wikiqa-doc", "tldr")
"""The sets for training."""
TESTED = ("wikiqa-doc", "cranfield")
"""The sets for tests: one seen in training, one unseen. Not tldr: encoding it takes longer than a training."""
SCALE_WITH_IDF, SCALE_WITHOUT_IDF = 30.0, 10.0
"""S of the teachers' scores for students with IDF in their scores and for students without: the best of 10, 30 and 90, and
of 3, 10 and 30, on dev questions of wikiqa-doc (λ 0.01, one seed)."""
LENGTH = 128
"""Tokens of a document, in training and in use."""
DENSE_TEACHER_STEPS = 70
"""Training steps of the second dense teacher, enough to see half of the questions once."""
OWN, TARGET = "own", "target corpus"
"""The weights of a student's queries: as in its training, or the IDF of the searched corpus."""


@dataclass(frozen=True)
class Ablation:
    """What the small trainings share."""

    data: Path
    """The folder of BEIR folders."""
    work: Path
    """Keeps everything that is made: models, scores, measures."""
    start: str
    """The published SPLADE: a folder or a hub id."""
    teachers: tuple[str, ...] = setting(
        (),
        "A dense or sparse model, or lexical; repeatable.  [default: all-MiniLM-L6-v2 and the start]",
        option="--teacher",
        type=str,
        multiple=True,
    )
    seeds: tuple[int, ...] = setting(
        (42, 43, 44), "Training seeds.", shown="42,43,44", type=NumberList(int, distinct=True, least=0)
    )
    steps: int = setting(
        240, 'Optimizer steps of each training of "flops" and "distillation".', type=click.IntRange(min=2)
    )

    def student(self) -> SparseConfig:
        """The paper's own student, trained without BM25, which the arms vary. The last state is kept."""
        train, unseen = ([self.data / name for name in names] for names in (SMALL, dict.fromkeys((*SMALL, *TESTED))))
        config = configuration(self.start, train, unseen, self.steps, self.seeds[0])
        return replace(
            config,
            cache=self.work / "cache",
            student=replace(config.student, idf="train"),
            document_length=LENGTH,
            objective=replace(
                config.objective,
                info_nce=0.0,
                kl=1.0,
                teachers=list(self.teachers),
                teacher_scale=SCALE_WITH_IDF,
                all_pairs=True,
            ),
            selection=DevSettings(),
        )

    def of_kind(self, kind: TeacherKind) -> str:
        """The first teacher of this kind. Raises InputError if there is none."""
        for teacher in self.teachers:
            if teacher != LEXICAL and detect(locate(teacher)) == kind:
                return teacher
        raise InputError(f"no {kind} model is among the teachers {', '.join(self.teachers)}", f"add a {kind} --teacher")

    @cached_property
    def tests(self) -> dict[str, SparseTest]:
        return {name: sparse_test(self.data, name, self.work) for name in TESTED}

    @cached_property
    def _made_of(self) -> list[str]:
        return [hash_files(locate(self.start)), *(test.data.hash for test in self.tests.values())]

    def seeded(self, arm: str, config: SparseConfig, seed: int) -> SparseConfig:
        """The arm with a seed, and an output folder named by everything that decides its results."""
        before = config.pretraining
        config = replace(
            config,
            training=replace(config.training, seed=seed),
            pretraining=before and replace(before, training=replace(before.training, seed=seed)),
        )
        made_by = fingerprint(replace(config, output=Path(), cache=None), self._made_of)
        return replace(config, output=self.work / "models" / f"{slug(f'{arm} seed {seed}')}-{made_by}")

    def searched(self, arms: Mapping[str, SparseConfig]) -> dict[MeasuredEngine, dict[str, Any]]:
        """{arm with its seed: {test set: see `_searched`}}; missing students are trained and searched."""
        engines = {
            engine: self.seeded(engine.name, arms[engine.name], engine.seed or 0)
            for engine in trials(arms, arms, self.seeds)
        }

        def search(engine: MeasuredEngine) -> dict[str, Any]:
            config = engines[engine]
            of_sets: dict[str, Any] = kept(
                self.work / "searched" / f"{config.output.name}.json", lambda: self._searched(config)
            )
            return of_sets

        return for_each(engines, lambda engine: engines[engine].output, search)

    def _searched(self, config: SparseConfig) -> dict[str, Any]:
        """{test set: {"measured": {OWN or TARGET: its measures}, "sparsity": {measure: value}}} of a student; the latter are
        terms of its documents, and FLOPS"""
        from trainers.sparse.student_measures import sparsity_of
        from trainers.sparse.train import train_sparse

        train_sparse(config)
        student, content = load_sparse(config.output), {}
        trained_table = student.query
        pieces = trained_table.tokenizer
        for name, test in self.tests.items():
            vectors, lexical = test.documents(student), test.lexical(pieces)
            target_table = TableEncoder(
                pieces, lexical.query.weights, trained_table.max_length, name=trained_table.name
            )
            measured = {
                idf: asdict(test.measure(test.search(vectors, query.encode), MEASURES))
                for idf, query in ((OWN, trained_table), (TARGET, target_table))
            }
            present = lexical.encode_documents(test.contents).to_scipy()
            queries = [target_table.encode(text) for text in test.texts.values()]
            sparsity = sparsity_of(vectors.to_scipy(), present, queries, student.vocabulary)
            content[name] = {"measured": measured, "sparsity": sparsity}
        return content

    def rows(
        self,
        arms: Mapping[str, SparseConfig],
        names: Mapping[tuple[str, str], str],
        differences: Collection[tuple[str, str]],
    ) -> list[Row]:
        """Rows of each test set, beside engines without learning. names: {(arm, OWN or TARGET): the engine's name}, for the
        engines to show."""
        rows: list[Row] = []
        pieces, searched = tokenizer_of(self.start), self.searched(arms)
        for name, test in self.tests.items():
            measured = {MeasuredEngine(key): values for key, values in untrained(test, test.lexical(pieces)).items()}
            sparsity: list[Row] = []
            for (arm, idf), engine in names.items():
                for student, of_sets in searched.items():
                    if student.name == arm:
                        named = student._replace(name=engine)
                        measured[named] = Measured.from_json(of_sets[name]["measured"][idf])
                        sparsity += facts(name, named, of_sets[name]["sparsity"], len(test.data.documents))
            rows += compared(name, measured, differences, seeds=self.seeds)
            rows += [*sparsity, *mean_values(sparsity, self.seeds)]
        return rows


def trained_dense(ablation: Ablation, start: str) -> str:
    """The second dense teacher: `start` trained further by `osn train dense` on the same questions. Returns its folder."""
    from trainers.common.settings import EncoderSettings
    from trainers.dense.settings import DenseConfig
    from trainers.dense.train import train_dense

    config = DenseConfig(
        output=Path(),
        train=[SetSettings(ablation.data / name) for name in SMALL],
        start=start,
        unseen=[SetSettings(ablation.data / name, split="test", name=f"{name}-test") for name in SMALL],
        encoder=EncoderSettings(query_length=64, document_length=LENGTH),
        training=TrainingSettings(steps=DENSE_TEACHER_STEPS, batch_size=64, learning_rate=5e-5, precision="auto"),
    )
    output = ablation.work / "models" / f"dense-{fingerprint(config, hash_files(locate(start)))}"
    with locked(output):
        train_dense(replace(config, output=output))
    return str(output)


# ------------------------------------------------ parts "flops" and "distillation"


LAMBDAS = (0.0, 0.01, 0.1, 0.5)
WITH, WITHOUT = "with IDF", "without IDF"
NO_IDF, OWN_IDF = "no IDF", "training corpus"
"""Names of a student's own weights of query tokens."""
TRAINED_WITH = {WITH: ("train", SCALE_WITH_IDF, OWN_IDF), WITHOUT: ("none", SCALE_WITHOUT_IDF, NO_IDF)}
"""{how a student is trained: (its `student.idf`, S of its teachers' scores, its own weights of query tokens)}"""
CURVES = {
    "IDF in training and search": (WITH, TARGET),
    "IDF in search alone": (WITHOUT, TARGET),
    "no IDF": (WITHOUT, NO_IDF),
}
"""{curve that is drawn and compared: (how the student was trained, how it is searched)}"""
BOTH, SEARCH_ALONE, NEITHER = CURVES
ENSEMBLE, NO_PRETRAINING = "dense + sparse, normalized", "no pre-training"
DENSE, DENSE_TRAINED, SPARSE = "dense", "dense, trained further", "sparse"
FIRST_STAGES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    ENSEMBLE: ((DENSE, SPARSE), {}),
    "dense + sparse, added as they are": ((DENSE, SPARSE), {"normalize_teachers": False, "teacher_scale": 1.0}),
    f"{DENSE} alone": ((DENSE,), {}),
    f"{DENSE_TRAINED}, alone": ((DENSE_TRAINED,), {}),
    "two dense": ((DENSE, DENSE_TRAINED), {}),
    f"{SPARSE} alone": ((SPARSE,), {}),
    f"{PIECES} alone": ((PIECES,), {}),
    "two sparse": ((SPARSE, PIECES), {}),
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
            names |= {
                (arm, OWN): engine_on_curve(how, weight, own),
                (arm, TARGET): engine_on_curve(how, weight, TARGET),
            }
    differences = [(engine, PIECES) for engine in (PRESENCE, *names.values())]
    for weight in LAMBDAS:
        both, search, neither = (engine_on_curve(how, weight, idf) for how, idf in CURVES.values())
        own = engine_on_curve(WITH, weight, OWN_IDF)
        differences += [(both, search), (search, neither), (both, neither), (both, own)]
    rows = ablation.rows(arms, names, differences)
    table = Table(rows, ablation.seeds)
    return rows, [
        flops_goal(table, NEITHER),
        flops_goal(table, SEARCH_ALONE),
        *share_goals(table),
        terms_goal(table),
        idf_goal(table),
    ]


def engine_on_curve(how: str, weight: float, idf: str) -> str:
    """The engine's name in part "flops": how it is trained, λ, and the IDF of its queries."""
    return f"{how}, λ {weight:g}, {idf}"


def distillation(ablation: Ablation) -> RowsAndGoals:
    """Table 6 in direction: arms differ in the objective of the first of two equally long stages; the second is the same.

    The second dense teacher is the first one trained on the same questions, the second sparse teacher is BM25 over word
    pieces. The arm without pre-training is trained for as many steps as both stages together.
    """
    from trainers.sparse.settings import SparseCandidates, StageSettings

    teachers = {DENSE: ablation.of_kind("dense"), SPARSE: ablation.of_kind("sparse"), PIECES: LEXICAL}
    teachers[DENSE_TRAINED] = trained_dense(ablation, teachers[DENSE])
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
    rows = ablation.rows(arms, names, [(other, ENSEMBLE) for other in others])
    return rows, [distillation_goal(Table(rows, ablation.seeds))]


# ------------------------------------------------ goals


def curve(table: Table, name: str, which: str, x: str, y: str) -> list[tuple[float, float]]:
    """The students of a set on one of CURVES, as points (x, y), ordered by x. x, y: measures"""
    how, idf = CURVES[which]
    engines = [engine_on_curve(how, weight, idf) for weight in LAMBDAS]
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


def gains_at_equal_weight(table: Table, ours: tuple[str, str], rival: tuple[str, str]) -> list[Row]:
    """The differences in nDCG@10 on all sets and at every λ. ours, rival: (how a student is trained, how it is searched)"""
    gains: list[Row] = []
    for weight in LAMBDAS:
        engine, baseline = (engine_on_curve(how, weight, idf) for how, idf in (ours, rival))
        gains += table.differences(TESTED, engine, baseline, "nDCG@10").values()
    return gains


def share_goals(table: Table) -> list[Goal]:
    """Table 5 in two shares, at equal λ: the gain of IDF in search for a student without IDF, and of IDF in training."""
    goals = []
    for words, ours, rival in (("training's", BOTH, SEARCH_ALONE), ("search's", SEARCH_ALONE, NEITHER)):
        gains = gains_at_equal_weight(table, CURVES[ours], CURVES[rival])
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
    gains = gains_at_equal_weight(table, (WITH, TARGET), (WITH, OWN_IDF))
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
    retrieval, the further points that IDF in training adds, and the terms of a document without and with IDF in training:
    all (the paper's expansion rate, section 5.4.2), and in brackets those that its text does not have."""
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    table, lines = Table(rows, seeds), []
    for name, weight in itertools.product(table.sets, LAMBDAS):
        both, search, neither = (engine_on_curve(how, weight, idf) for how, idf in CURVES.values())
        start = table.value(name, neither, "nDCG@10")
        at_retrieval = table.difference(name, search, neither, "nDCG@10")
        in_training = table.difference(name, both, search, "nDCG@10")
        if start and at_retrieval and in_training:
            shares = [with_interval(in_points(share)) for share in (at_retrieval, in_training)]
            terms = [expansion(table, name, engine) for engine in (neither, both)]
            lines.append([name, f"{weight:g}", f"{start.value:.3f}", *shares, *terms])
    header = ["", "λ", "no IDF: nDCG@10", "at retrieval: points", "in training, too: points more"]
    return as_table([*header, "trained without: terms (added)", "trained with: terms (added)"], lines)


def expansion(table: Table, name: str, engine: str) -> str:
    """ "357 (307)": the terms of a document, and those of them that its text does not have; "–" if not measured."""
    terms, added = (table.value(name, engine, measure) for measure in ("active terms", "expansion terms"))
    return f"{terms.value:.0f} ({added.value:.0f})" if terms and added else "–"


def draw_flops(seeds: Sequence[int], rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, and FLOPS against the expansion rate, a panel for each set."""
    table = Table(rows, seeds)
    for file, which, x, y in (
        ("flops.svg", tuple(CURVES), ("FLOPS", "FLOPS, measured"), ("nDCG@10", "nDCG@10")),
        ("expansion.svg", (BOTH, NEITHER), ("active terms", "terms a document"), ("FLOPS", "FLOPS, measured")),
    ):
        panels = {name: {key: curve(table, name, key, x[0], y[0]) for key in which} for name in TESTED}
        plots.curves(panels, folder / file, x=x[1], y=y[1], xlim=(0, None))
