"""The evidence for inference-free sparse retrieval: is the student better than BM25, and what makes it so?

    osn paper inference-free-sparse --start MODEL --data DIR --work DIR --record benchmarks/results/inference_free_sparse

`--data` holds BEIR folders. MODEL is a published SPLADE, which every student starts from; each arm is trained with each of
`--seeds`. Parts, each with its own result file below `--record`:
    quality        nDCG@10 of models of `osn bench bm25-sparse`, searched without BM25: as published, trained 10 minutes,
                   and averaged with the start; on every set with a test split, beside BM25, presence × idf and BM25 over
                   word pieces
    flops          nDCG@10 against measured FLOPS for several λ, trained with and without IDF and searched with and without
                   it: the shares of training and retrieval; terms a document, the paper's expansion rate
                   (`inference-free-sparse`, table 5, figures 3 and 4)
    distillation   teachers alone and together, normalized or not, InfoNCE, no pre-training (table 6)
    high-idf-first the models of part "quality", searched by rare tokens first, then scored by all: the loss in nDCG@10
                   (section 5.3.2)

`--teacher` names the teachers of the parts "flops" and "distillation"; all of them teach together unless the arm says
otherwise. By default they are MiniLM and the start itself, as a siamese SPLADE.

Parts "quality" and "high-idf-first" reuse models, vectors and the tuned BM25 of `osn bench bm25-sparse` in `--work`. BM25 is
OpenSearch's, on the cluster of OSN_URL or --url or on a local node, with the analyzer, k1 and b that are best on train; k1
and b of BM25 over word pieces are chosen likewise. All other searches are exact and need no cluster. No test judgement
chooses anything. Slow results are kept in `--work`; the same command continues, and several at once share the trainings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from benchmarks import cluster_bm25, plots
from benchmarks.bm25_sparse import vectors as stored_vectors
from benchmarks.bm25_sparse.engines import TUNED
from benchmarks.bm25_sparse.measures import (
    MEASURES,
    judged_queries,
    rows_of_sets,
    sets_of_means,
    tuned_measured,
    tuned_settings,
)
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment, check_models, configuration, start_option
from benchmarks.cluster_bm25 import tuned_on_train, tuning_questions
from benchmarks.experiment import (
    JudgedSet,
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    facts,
    for_each,
    gain_goal,
    goal_of,
    is_above,
    kept,
    kept_measured,
    mean_values,
    paper_options,
    run_parts,
    slug,
    trials,
)
from benchmarks.local_cluster import cluster_or_node
from benchmarks.options import NumberList, part_option, setting, setting_options
from benchmarks.render import in_points, signed, with_interval
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.evaluation.tables import table as as_table
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import MINILM, hash_files, locate
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of
from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder, load_sparse
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.queries import Rare, rare_tokens
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from trainers.common.config import fingerprint
from trainers.common.settings import TrainingSettings
from trainers.data.embedding_cache import sparse_vectors
from trainers.data.loading import load_training
from trainers.data.settings import DevSettings, SetSettings
from trainers.data.teacher_models import detect
from trainers.data.teacher_scores import LEXICAL, TeacherKind

if TYPE_CHECKING:
    from trainers.sparse.settings import SparseConfig

# ------------------------------------------------ exact search


PRESENCE, PIECES = "presence × idf", "BM25 over word pieces"
DEPTH = 100


class Saturation(NamedTuple):
    """BM25's k1 and b."""

    k1: float
    """How slowly repeated words saturate, from 0."""
    b: float
    """How much long documents are discounted, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class SparseTest(JudgedSet):
    """A test split with the statistics of its corpus. Judgements are graded."""

    folder: Path
    """The folder of kept vectors."""

    @property
    def contents(self) -> list[str]:
        return list(self.data.documents.values())

    def lexical(self, pieces: Any, saturation: Saturation | None = None) -> LexicalEncoder:
        """IDF and BM25 of this corpus over the word pieces of `pieces`, a tokenizer."""
        encoder = build_lexical(self.contents, tokenizer=pieces)
        return encoder if saturation is None else replace(encoder, **saturation._asdict())

    def search(self, vectors: SparseVectors, encode: Callable[[str], Mapping[str, float]]) -> Run:
        """Exact search. vectors: of the documents; encode: query text → weights of tokens"""
        return ExactSparseRetriever(self.data.documents.ids, vectors, encode).retrieve(self.texts, DEPTH)

    def documents(self, encoder: SparseDocumentEncoder) -> SparseVectors:
        """The model's vectors of the documents, kept on disk."""
        info = encoder.info
        path = self.folder / f"{info.name}-{info.hash}"
        encode, vocabulary = encoder.encode_documents, encoder.vocabulary
        return sparse_vectors(encode, self.data.documents, path, model=info, vocabulary=vocabulary)


def sparse_test(data: Path, name: str, work: Path) -> SparseTest:
    """The set's test split, with the questions that `osn bench bm25-sparse` uses."""
    judged = judged_queries(data / name)
    test = load_training(data / name, split="test", name=name)
    test = test.take(at for at, example in enumerate(test.examples) if example.query_id in judged.qrels)
    # Training data has relevant documents without grades.
    return SparseTest(test, judged.qrels, folder=work / "vectors" / name)


def untrained(test: SparseTest, lexical: LexicalEncoder) -> dict[str, Measured]:
    """{engine: measures} of search over the student's vocabulary without learning; a student should be better than these."""
    impacts = lexical.encode_documents(test.contents)
    presence = replace(impacts, weights=np.ones_like(impacts.weights))
    return {
        name: test.measure(test.search(vectors, lexical.query.encode), MEASURES)
        for name, vectors in ((PRESENCE, presence), (PIECES, impacts))
    }


def tuned_pieces(folders: Mapping[str, Path], work: Path, pieces: Any) -> dict[str, Saturation]:
    """k1 and b of BM25 over word pieces, chosen on train as those of OpenSearch's BM25 are; see `tuned_on_train`."""

    def scores(folder: Path) -> dict[Saturation, float]:
        questions = tuning_questions(folder)
        test, of_settings = SparseTest(questions, questions.qrels(), folder=work), {}
        lexical = test.lexical(pieces)
        for tried in itertools.starmap(Saturation, itertools.product(*cluster_bm25.GRID)):
            impacts = replace(lexical, **tried._asdict()).encode_documents(test.contents)
            run = test.search(impacts, lexical.query.encode)
            of_settings[tried] = test.measure(run, ["nDCG@10"]).mean["nDCG@10"]
        return of_settings

    return tuned_on_train(folders, work / "word-pieces", Saturation, scores)


# ------------------------------------------------ small trainings


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


TABLES = {"idf-shares": idf_shares}
"""{mark of the pages in docs/: rows → table}"""


def draw_flops(seeds: Sequence[int], rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, and FLOPS against the expansion rate, a panel for each set."""
    table = Table(rows, seeds)
    for file, which, x, y in (
        ("flops.svg", tuple(CURVES), ("FLOPS", "FLOPS, measured"), ("nDCG@10", "nDCG@10")),
        ("expansion.svg", (BOTH, NEITHER), ("active terms", "terms a document"), ("FLOPS", "FLOPS, measured")),
    ):
        panels = {name: {key: curve(table, name, key, x[0], y[0]) for key in which} for name in TESTED}
        plots.curves(panels, folder / file, x=x[1], y=y[1], xlim=(0, None))


# ------------------------------------------------ parts "quality" and "high-idf-first"


QUALITY = (PUBLISHED, "trained 10 minutes", "trained 10 minutes, averaged")
"""The models of part "quality", arms of `osn bench bm25-sparse`."""
PARTS = ("quality", "flops", "distillation", "high-idf-first")
ALL_TOKENS = "all tokens"
RATIOS = (0.4, 0.5, 0.6, 0.8)
"""A token is rare if its IDF is at least this share of the highest IDF."""
MOST_LOST = 0.005
"""The highest loss of nDCG@10 by searching rare tokens first."""


def quality(experiment: Experiment) -> RowsAndGoals:
    """Every model searched without BM25, and the engines without a model."""
    differences = [(engine, TUNED) for engine in (PRESENCE, PIECES, *experiment.arms)]
    with cluster_or_node(experiment.connection, "osn-bench-sparse") as client:
        tuned = tuned_measured(client, experiment, tuned_settings(client, experiment))
    pieces = tokenizer_of(experiment.start)
    saturations = tuned_pieces(experiment.with_train, experiment.work, pieces)

    def measured(name: str) -> dict[MeasuredEngine, Measured]:
        test = sparse_test(experiment.data, name, experiment.work)
        without = untrained(test, test.lexical(pieces, saturations.get(test.name, saturations[""])))
        engines = {MeasuredEngine(TUNED): tuned[test.name]}
        engines |= {MeasuredEngine(engine): values for engine, values in without.items()}
        return engines | {model: searched(experiment, model, test)[ALL_TOKENS] for model in experiment.models}

    rows = rows_of_sets(experiment, measured, differences, sets_of_means(experiment))
    return rows, quality_goals(experiment, rows)


def high_idf_first(experiment: Experiment) -> RowsAndGoals:
    """The best 100 by rare tokens, rescored with all tokens; a row's variant is the model."""

    def measured(name: str) -> dict[MeasuredEngine, Measured]:
        test = sparse_test(experiment.data, name, experiment.work)
        return {
            MeasuredEngine(engine, model.seed, model.name): values
            for model in experiment.models
            for engine, values in searched(experiment, model, test).items()
        }

    differences = [(rare_first_name(ratio), ALL_TOKENS) for ratio in RATIOS]
    rows = rows_of_sets(experiment, measured, differences, {experiment.mean_of_all: list(experiment.sets)})
    return rows, rare_goals(experiment, rows)


def rare_first_name(ratio: float) -> str:
    return f"rare first, idf from {ratio:g} of the highest"


def searched(experiment: Experiment, model: MeasuredEngine, test: SparseTest) -> dict[str, Measured]:
    """{engine: the model's measures}, searched with all tokens, and with rare tokens first for each of RATIOS."""
    manifest = stored_vectors.sparse_vectors(experiment, model, test.name)
    place = experiment.work / "exact" / f"{test.name}-{slug(str(model))}-{manifest.stem}"

    @cache
    def loaded() -> tuple[list[str], SparseVectors, Callable[[str], Mapping[str, float]]]:
        ids, vectors = stored_vectors.stored_sparse(experiment, model, test.name)
        return ids, vectors, TableEncoder.load(Path(experiment.on_corpus(model, test.name))).encode

    def run(rare: Rare | None) -> Measured:
        ids, vectors, encode = loaded()

        def search(encode: Callable[[str], Mapping[str, float]]) -> Run:
            return ExactSparseRetriever(ids, vectors, encode).retrieve(test.texts, DEPTH)

        if rare is None:
            return test.measure(search(encode), MEASURES)
        first = search(lambda text: rare_tokens(encode(text), rare))
        return test.measure(rescored(first, test.texts, ids, vectors, encode), MEASURES)

    ways = {ALL_TOKENS: None} | {rare_first_name(ratio): Rare("ratio", ratio) for ratio in RATIOS}
    return {name: kept_measured(place / f"{slug(name)}.json", partial(run, rare)) for name, rare in ways.items()}


def rescored(
    run: Run, texts: Mapping[str, str], ids: Sequence[str], vectors: SparseVectors, encode: Callable[[str], Any]
) -> Run:
    """The documents of `run`, with their scores by all tokens. vectors: of the documents `ids`."""
    rows, columns = ({key: at for at, key in enumerate(keys)} for keys in (ids, vectors.vocabulary))
    matrix = vectors.to_scipy()
    result: Run = {}
    for query, text in texts.items():
        weights = {columns[token]: weight for token, weight in encode(text).items() if token in columns}
        hits = list(run[query])
        picked = matrix[[rows[hit] for hit in hits]][:, list(weights)]
        scores = picked @ list(weights.values()) if hits and weights else []
        result[query] = {hit: float(score) for hit, score in zip(hits, scores, strict=True)}
    return result


# ------------------------------------------------ goals


def quality_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's claim (table 3): the student alone is better than BM25, in the mean of sets that it did not see."""
    table, label = Table(rows, experiment.seeds), experiment.mean_of_unseen
    words = f"alone above tuned BM25's nDCG@10 in the {label}, interval above zero (table 3)"
    return [gain_goal(f"{arm}: {words}", table.difference(label, arm, TUNED, "nDCG@10")) for arm in experiment.arms]


def rare_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's "negligible impact on search relevance" (section 5.3.2): at most 0.5 points lost, interval included."""
    table, label = Table(rows, experiment.seeds), experiment.mean_of_all
    goals: list[Goal] = []
    for arm in experiment.arms:
        for ratio in RATIOS:
            row = table.difference(label, rare_first_name(ratio), ALL_TOKENS, "nDCG@10", variant=arm)
            words = (
                f"{arm}, {rare_first_name(ratio)}: nDCG@10 at most {MOST_LOST} below that of all tokens, {label}, "
                "interval included (section 5.3.2)"
            )
            is_kept = row is not None and row.low is not None and row.low >= -MOST_LOST
            goals.append(goal_of(words, f"at least -{MOST_LOST}", None if row is None else signed(row, 4), is_kept))
    return goals


# ------------------------------------------------ the command


@click.command("inference-free-sparse")
@start_option
@setting_options(Ablation)
@paper_options
@part_option(PARTS)
@connection_options
def inference_free_sparse(
    connection: ConnectionSettings,
    start: str,
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    **options: Any,
) -> None:
    """Train inference-free sparse models and compare them with BM25, or measure what their parts contribute.

    \b
    osn paper inference-free-sparse --start my-splade --data data --work work --record results
    osn paper inference-free-sparse --start my-splade --data data --work work --part flops --teacher my-dense
    """
    ablation = Ablation(data, work, start, **{**options, "teachers": options["teachers"] or (MINILM, start)})
    seeds = ablation.seeds
    experiment = Experiment(data=data, start=start, work=work, seeds=seeds, arms=QUALITY, connection=connection)
    check_models(experiment)
    small = [data / name for name in sorted({*SMALL, *TESTED})]

    every, facts = list(experiment.sets.values()), ("active terms", "expansion terms", "FLOPS")

    def part(title: str, run: Callable[[], RowsAndGoals], sets: Sequence[Path] = small, draw: Any = None) -> PaperPart:
        measures = (MEASURES[0], *(facts if sets is small else ()))

        def shown(row: Row) -> bool:
            return (row.seed is None or len(seeds) == 1) and row.kind != "p-value" and row.measure in measures

        return PaperPart(title, run, sets, seeds, shown, draw)

    curves = partial(draw_flops, seeds)
    parts = {
        "quality": part("Inference-free sparse retrieval against BM25", partial(quality, experiment), every),
        "flops": part("nDCG@10 against FLOPS, with and without IDF", partial(flops, ablation), draw=curves),
        "distillation": part("Teachers alone and together", partial(distillation, ablation)),
        "high-idf-first": part("Rare tokens first, then all", partial(high_idf_first, experiment), every),
    }
    run_parts(parts, record, chosen)
