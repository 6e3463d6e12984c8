"""The models and sets of `osn bench bm25-sparse`.

The models are a published SPLADE as it is, the same trained further (on judgements of five sets, or on each set's own
documents without judgements), and these averaged with the start. Each is measured with the IDF of every set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.beir_parts import check_data
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import slug
from benchmarks.local_cluster import HEAP
from benchmarks.options import NumberList, setting
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.reading import reading
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import MeasuredEngine
from opensearch_neural.models.sparse.averaging import write_average
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of, write_with_statistics
from opensearch_neural.models.sparse.lexical import count_documents
from trainers.common.config import load_config, recipe
from trainers.data.loading import read_documents
from trainers.data.unlabelled_questions import FIT, QUESTIONS
from trainers.doc2query.question_sets import QuestionSet

if TYPE_CHECKING:
    from trainers.sparse.settings import SparseConfig

TRAINED_ON = ("squad-mix", "tldr", "wikiqa-doc", "wikiqa-sent", "wikitablequestions")
COST_SET = "scifact"
"""The set that the documents of the load tests are drawn from."""
PUBLISHED = "as published"
STEPS = {"trained 10 minutes": 900, "trained an hour": 5400}
"""{arm: steps of 32 questions}; the times are for two cores."""
ON_CORPUS = "trained on the corpus"
"""The arm with a model for each set, trained on its documents' first sentences and titles, and on no judgement: so many
trainings that it is measured only if it is named."""
AVERAGED = {f"{arm}, averaged": arm for arm in STEPS}
"""{arm: the trained arm whose weights it averages with the start's (`osn model average`)}"""
ARMS = (PUBLISHED, *STEPS, ON_CORPUS, *AVERAGED)
start_option = click.option("--start", required=True, help="The published SPLADE: a folder or a hub id.")


def configuration(start: str, train: Sequence[Path], unseen: Sequence[Path], steps: int, seed: int) -> SparseConfig:
    """The settings of a training by the recipe sparse-published-start.

    train, unseen: BEIR folders; test questions of `unseen` are left out of `train`
    """
    from trainers.sparse.settings import SparseConfig

    base = load_config(SparseConfig, recipe("sparse-published-start"))
    return replace(
        base,
        start=start,
        train=[QuestionSet(folder) for folder in train],
        unseen=[QuestionSet(folder, split="test", name=f"{folder.name}-test") for folder in unseen],
        # The recorded models are the states that were best without BM25. The best in the sum with it gain .0003 to .0012
        # more on the dev sets.
        training=replace(base.training, steps=steps, seed=seed, select=None),
    )


def configuration_on_corpus(start: str, folder: Path, seed: int) -> SparseConfig:
    """The settings of a training on the corpus of a BEIR folder, without its judgements, by the recipe sparse-own-corpus.

    Raises InputError if the documents have neither titles nor sentences to ask with.
    """
    from trainers.sparse.settings import SparseConfig

    corpus = corpus_of(folder)
    kinds = [kind for kind, question_of in QUESTIONS.items() if any(map(question_of, read_documents(corpus)))]
    if not kinds:
        raise InputError(
            f"{corpus}: no document gives a question: {'; '.join(FIT.values())}", f"leave the arm {ON_CORPUS!r} out"
        )
    base = load_config(SparseConfig, recipe("sparse-own-corpus"))
    return replace(
        base,
        start=start,
        train=[QuestionSet(corpus, questions=kind, name=f"{folder.name}-{kind}") for kind in kinds],
        unseen=[QuestionSet(folder, split="test", name=f"{folder.name}-test")],
        training=replace(base.training, seed=seed),
    )


def _arms(_context: object, _option: object, named: Sequence[str]) -> tuple[str, ...]:
    return tuple(arm for arm in ARMS if (arm in named if named else arm != ON_CORPUS))


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that choose the models."""

    dense: str | None = setting(
        None,
        "Dense model, to measure hybrid and cascades too; trained arms get only the cascade after bm25-sparse.",
        type=str,
    )
    quantized: str | None = setting(
        None,
        "Quantized model of --dense, for the cascades' codes; hybrid is not measured then.  [default: OPQ of --dense's "
        "vectors]",
        option="--pq",
        type=str,
    )
    seeds: tuple[int, ...] = setting(
        (42, 43, 44), "Training seeds.", shown="42,43,44", type=NumberList(int, distinct=True, least=0)
    )
    arms: tuple[str, ...] = setting(
        (),
        f"Arm to measure; repeatable.  [default: all but '{ON_CORPUS}']",
        option="--arm",
        multiple=True,
        type=click.Choice(ARMS),
        callback=_arms,
    )
    heap: str = setting("4g", HEAP)


@dataclass(frozen=True, kw_only=True)
class Experiment(ModelOptions):
    """The options of the command."""

    data: Path
    """The folder of BEIR folders."""
    start: str
    """The published SPLADE: a folder or a hub id."""
    work: Path
    """The folder of trained models, indexes' states and measurements."""
    connection: ConnectionSettings
    """How to reach the cluster of the load tests."""
    beside: tuple[Path, ...] = setting(
        (),
        "Recorded result of this command with the same models: only engines that need --dense are measured, and the plot "
        "shows both. Repeatable.",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        multiple=True,
    )
    quality_of: tuple[Path, ...] = setting(
        (),
        "Measure costs alone; the plot shows them with the quality in this recorded result of the same models. Repeatable.",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        multiple=True,
    )
    sizes: tuple[int, ...] = setting(
        (100_000, 1_000_000),
        "Index sizes for the load tests; '' for none.",
        option="--documents",
        shown="100000,1000000",
        type=NumberList(int, distinct=True, least=1),
    )
    clients: tuple[int, ...] = setting((1, 20), "Clients of the load tests.", shown="1,20", type=NumberList(int))
    minutes: float = setting(12.0, "Longest time for a load test, after its warm-up.", type=float)
    owned: bool = False
    """Whether load tests may run against a cluster on another machine."""

    @property
    def sets(self) -> dict[str, Path]:
        """{name: folder} of the sets that have a test split."""
        return {file.parents[1].name: file.parents[1] for file in sorted(self.data.glob("*/qrels/test.tsv"))}

    @property
    def measured_sets(self) -> list[str]:
        """The sets whose documents are encoded: all, or for costs alone that of the load tests."""
        return [self.cost_set] if self.quality_of else [*self.sets]

    @property
    def cost_set(self) -> str:
        return COST_SET

    @property
    def with_train(self) -> dict[str, Path]:
        """{name: folder} of the sets that have a train split too."""
        return {name: folder for name, folder in self.sets.items() if (folder / "qrels" / "train.tsv").exists()}

    @property
    def unseen(self) -> list[str]:
        return [name for name in self.sets if name not in TRAINED_ON]

    @property
    def mean_of_all(self) -> str:
        """The name of the mean over all sets."""
        return f"mean of {len(self.sets)} sets"

    @property
    def mean_of_unseen(self) -> str:
        """The name of the mean over the sets that no arm is trained on."""
        return f"mean of {len(self.unseen)} unseen sets"

    @property
    def models(self) -> list[MeasuredEngine]:
        """The models, each named by its arm and the seed that it was trained with."""
        trained = [MeasuredEngine(arm, seed) for seed in self.seeds for arm in self.arms if arm != PUBLISHED]
        return ([MeasuredEngine(PUBLISHED)] if PUBLISHED in self.arms else []) + trained

    @property
    def measured_models(self) -> list[MeasuredEngine]:
        """All models; for costs alone, those of the first seed."""
        return self.of_first_seed if self.quality_of else self.models

    @property
    def of_first_seed(self) -> list[MeasuredEngine]:
        """The models whose cost is measured."""
        return [model for model in self.models if model.seed in (None, self.seeds[0])]

    def configuration(self, model: MeasuredEngine, name: str) -> SparseConfig:
        """The settings of the model's training; name: the set that it is for."""
        assert model.seed is not None
        if model.name == ON_CORPUS:
            config = configuration_on_corpus(self.start, self.sets[name], model.seed)
        else:
            trained_on, unseen = [self.data / folder for folder in TRAINED_ON], list(self.sets.values())
            config = configuration(self.start, trained_on, unseen, STEPS[model.name], model.seed)
        return replace(config, output=self._place(model, name), cache=self.work / "cache")

    @cached_property
    def _folders(self) -> dict[Path, str]:
        """{where a model is made: its folder}, kept because finding out whether a model is trained reads all sets."""
        return {}

    def make_models(self, is_measured: Callable[[MeasuredEngine, str], object] = lambda model, name: True) -> None:
        """Train and average what is not there yet, before anything is measured. is_measured: whether the model is measured
        on the set of this name"""
        for model, name in product(self.models, self.sets):
            if is_measured(model, name):
                self.folder(model, name)

    def folder(self, model: MeasuredEngine, name: str) -> str:
        """The model's folder; a model that is not there yet is trained, or averaged. name: the set that it is for."""
        place = self._place(model, name)
        if place not in self._folders:
            self._folders[place] = self._make(model, name)
        return self._folders[place]

    def _place(self, model: MeasuredEngine, name: str) -> Path:
        """Where the model is made: one folder for all sets, or with ON_CORPUS one for each."""
        of_set = f"-of-{name}" if model.name == ON_CORPUS else ""
        return self.work / "models" / f"{slug(str(model))}{of_set}"

    def _make(self, model: MeasuredEngine, name: str) -> str:
        from trainers.sparse.train import train_sparse

        if model.name == PUBLISHED:
            return self.start
        if model.name in AVERAGED:
            out = self._place(model, name)
            if not out.exists():
                write_average([self.folder(MeasuredEngine(AVERAGED[model.name], model.seed), name), self.start], out)
            return str(out)
        config = self.configuration(model, name)
        train_sparse(config)
        return str(config.output)

    def on_corpus(self, model: MeasuredEngine, name: str) -> str:
        """The model with the IDF of the set's corpus."""
        out = self.work / "models" / f"{slug(str(model))}-on-{name}"
        if not out.exists():
            folder = self.folder(model, name)
            with reading(str(corpus_of(self.sets[name])), "counting") as (documents, _):
                counts = count_documents((document.contents for document in documents), tokenizer_of(folder))
            write_with_statistics(folder, out, counts)
        return str(out)


def check_models(experiment: Experiment) -> None:
    """Raises InputError if `work` belongs to another start, dense model or data, or if --pq is given without --dense."""
    if experiment.quantized is not None and experiment.dense is None:
        raise InputError("--pq codes the vectors of a dense model, so it needs one", "give --dense MODEL too")
    models = {"start": experiment.start} | ({} if experiment.dense is None else {"dense": experiment.dense})
    check_data(experiment.work, list(experiment.sets.values()), models=models)
