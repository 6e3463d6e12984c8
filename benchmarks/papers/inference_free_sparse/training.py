"""The small trainings of `osn paper inference-free-sparse`: one start, several seeds, arms that differ in one thing (with
and without IDF, also in the scale of the teachers' scores)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.bm25_sparse.measures import MEASURES
from benchmarks.bm25_sparse.models import configuration
from benchmarks.experiment import compared, each, facts, kept, mean_values, means, slug, trials
from benchmarks.papers.inference_free_sparse.search import SparseTest, sparse_test, untrained
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import MeasuredEngine, Row
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


class Searched(NamedTuple):
    """The measures of a student on a test set."""

    measured: dict[str, Measured]
    """{OWN or TARGET: its measures}"""
    sparsity: dict[str, float]
    """{measure: value}: terms of its documents, and FLOPS."""


@dataclass(frozen=True)
class Ablation:
    """What the small trainings share."""

    data: Path
    """The folder of BEIR folders."""
    work: Path
    """Keeps everything that is made: models, scores, measures."""
    start: str
    """The published SPLADE: a folder or a hub id."""
    teachers: tuple[str, ...]
    """The models whose scores are distilled: folders or hub ids."""
    seeds: tuple[int, ...]
    """Each arm is trained with each seed."""
    steps: int
    """Optimizer steps of each training."""

    def student(self) -> SparseConfig:
        """The paper's own student, trained without BM25, which the arms vary. The last state is kept."""
        train, unseen = ([self.data / name for name in names] for names in (SMALL, dict.fromkeys((*SMALL, *TESTED))))
        made = configuration(self.start, train, unseen, self.steps, self.seeds[0])
        return replace(
            made,
            cache=self.work / "cache",
            student=replace(made.student, idf="train"),
            document_length=LENGTH,
            objective=replace(
                made.objective,
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

    def searched(self, arms: Mapping[str, SparseConfig]) -> dict[MeasuredEngine, dict[str, Searched]]:
        """{arm with its seed: {test set: the student's measures}}; missing ones are trained and searched."""
        engines = {
            engine: self.seeded(engine.name, arms[engine.name], engine.seed or 0)
            for engine in trials(arms, arms, self.seeds)
        }

        def search(engine: MeasuredEngine) -> dict[str, Searched]:
            config = engines[engine]
            content = kept(self.work / "searched" / f"{config.output.name}.json", lambda: self._searched(config))
            return {
                name: Searched(
                    {idf: Measured.from_json(own) for idf, own in of_set["measured"].items()}, of_set["sparsity"]
                )
                for name, of_set in content.items()
            }

        return each(engines, lambda engine: engines[engine].output, search)

    def _searched(self, config: SparseConfig) -> dict[str, Any]:
        from trainers.sparse.student_measures import sparsity_of
        from trainers.sparse.train import train_sparse

        train_sparse(config)
        student, content = load_sparse(config.output), {}
        own = student.query
        for name, test in self.tests.items():
            vectors, lexical = test.documents(student), test.lexical(own.tokenizer)
            target = TableEncoder(own.tokenizer, lexical.query.weights, own.max_length, name=own.name)
            measured = {
                idf: asdict(test.measure(test.search(vectors, query.encode), MEASURES))
                for idf, query in ((OWN, own), (TARGET, target))
            }
            present = lexical.encode_documents(test.contents).to_scipy()
            queries = [target.encode(text) for text in test.texts.values()]
            sparsity = sparsity_of(vectors.to_scipy(), present, queries, student.vocabulary)
            content[name] = {"measured": measured, "sparsity": sparsity}
        return content

    def rows(
        self,
        searched: Mapping[MeasuredEngine, Mapping[str, Searched]],
        names: Mapping[tuple[str, str], str],
        differences: Collection[tuple[str, str]],
    ) -> list[Row]:
        """Rows of each test set, beside engines without learning. names: {(arm, OWN or TARGET): the engine's name}, for the
        engines to show."""
        rows: list[Row] = []
        pieces = tokenizer_of(self.start)
        for name, test in self.tests.items():
            measured = {MeasuredEngine(key): own for key, own in untrained(test, test.lexical(pieces)).items()}
            sparsity: list[Row] = []
            for (arm, idf), engine in names.items():
                for student, of_sets in searched.items():
                    if student.name == arm:
                        named = student._replace(name=engine)
                        measured[named] = of_sets[name].measured[idf]
                        sparsity += facts(name, named, of_sets[name].sparsity, len(test.data.documents))
            rows += compared(name, measured | means(measured, self.seeds), differences, seeds=self.seeds)
            rows += [*sparsity, *mean_values(sparsity, self.seeds)]
        return rows


def trained_dense(ablation: Ablation, start: str) -> str:
    """The second dense teacher: `start` trained further by `osn train dense` on the same questions. Returns its folder."""
    from trainers.dense.settings import DenseConfig
    from trainers.dense.train import train_dense
    from trainers.encoders.tower import EncoderSettings

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
