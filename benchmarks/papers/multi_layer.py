"""The evidence for multi-layer representations: what do the vectors of other layers add?

    osn paper multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer

`--data` holds the BEIR folders squad-mix and wikiqa-doc. Parts, each with its own result file below `--record`:
    variants    a plain dual encoder, multi-layer representations under each pooling, and the rivals ME-BERT (first token
                vectors) and ColBERT-style (all token vectors), at equal steps (`multi-layer-representations`, tables 2, 7)
    two-stage   the same schedule in two stages, dual encoder and self-contrastive (section 4.3.2)
    layers      how many layers, and which ones; beside ME-BERT; how often each layer wins (section 4.2, figure 3, table 1)
    lambda      λ of the self-contrastive loss from 0.01 to 10

Each model learns from the questions of both sets, with one hard negative of BM25 for each. Tests on squad-mix are its test
split, and training questions about articles that were held back; a dev part is held back too. No tested document is in the
training data. Intervals resample articles, since many questions are about one article. A start that was pre-trained on these
corpora has read the documents that are held back here, but no question about them.

The first seed chooses the self-contrastive arm's λ, the best on dev, and is then left out: the other seeds judge the dual
encoder, self-contrastive and multi-vector. All other arms have only the first seed, and are compared with its dual encoder.
The rivals' λ is the one that the paper found for them (appendix A: 1 for ME-BERT, 0.01 for all tokens), with inner products
at a temperature of 1; with cosines, here at 0.05, another may be better. A scalar mix's weights hardly move in so few steps.

A vector is the mean of a layer's tokens, compared by cosine, as in the training of the default start. The paper uses a
layer's CLS (`--pooling cls`, which a T5 lacks) and raw inner products (`--inner-products`). With these the fifth layer of
the default start is nearer to a query than its last one, so self-contrastive training must first unlearn.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np

from benchmarks import plots
from benchmarks.beir_parts import articles, check_data, evenly, judged_documents, judgements, write_part
from benchmarks.experiment import (
    SEED_ERROR,
    JudgedSet,
    PaperPart,
    RowsAndGoals,
    Table,
    compared,
    facts,
    gains_goal,
    goal_of,
    is_above,
    kept_measured,
    kept_rows,
    paper_options,
    run_parts,
    shared,
    slug,
)
from benchmarks.options import part_option, setting, setting_options
from benchmarks.render import signed
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import result_rows
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.files import replaced
from opensearch_neural.locks import locked
from opensearch_neural.models.dense.multi_layer import load_multi_layer
from opensearch_neural.models.dense.pooling import Pooling
from opensearch_neural.models.directory import MINILM, hash_files, locate, read_osn_json
from opensearch_neural.models.pretrained import T5, quiet_loading
from opensearch_neural.retrievers.faiss import FaissRetriever
from trainers.common.config import fingerprint
from trainers.common.precision import Computed, computed_in, computing_in
from trainers.common.settings import FIRST, FOLDER, EncoderSettings, TrainingSettings
from trainers.data.embedding_cache import several_vectors
from trainers.data.loading import load_training
from trainers.data.negatives import Mining, open_retriever, with_mined
from trainers.data.settings import CandidateSettings, DevSettings, SetSettings
from trainers.dense.settings import DenseConfig, TwoStageSettings
from trainers.multi_layer.settings import MlrConfig, RepresentationSettings, chosen_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

START = MINILM
SQUAD, WIKIQA = "squad-mix", "wikiqa-doc"
HELD = "squad-mix, held-back articles"
TESTS = (SQUAD, HELD, WIKIQA)
MEASURES = ("Success@5", "Success@20", "Success@100", "nDCG@10")
TOP_5 = MEASURES[0]
DEPTH = 100
SEEDS = (42, 43, 44, 45)
"""The first chooses λ, and is the seed of arms with a single one; the others judge."""
DEV_SHARE, TEST_SHARE = 0.03, 0.12
"""Shares of squad-mix's training articles that are held back for dev and test."""
DEV_QUERIES = 300
"""Most questions of each dev set, which compare the states of a training."""
HELD_QUERIES = 3000
"""Most test questions about held-back articles."""
PARTS = ("variants", "two-stage", "layers", "lambda")


# ------------------------------------------------ arms


LAMBDAS = (0.01, 0.1, 1.0, 10.0)
CHOICES, COUNTS = ("last", "first", "uniform"), (2, 4, 6, 8)
"""Which layers, and how many; if two choices give the same layers, only the first is trained."""


@dataclass(frozen=True)
class Arm:
    """A way to represent documents."""

    name: str
    """Its name in results."""
    representation: Mapping[str, Any] | None = None
    """Fields of `RepresentationSettings`; None: the plain dual encoder."""
    two_stage: bool = False
    """Whether a second training uses the hard negatives that the first one mined."""
    repeated: bool = False
    """Whether it is also trained with the seeds that judge; if not, only with the first."""
    layers: str = ""
    """Its layers, if it has several, without their pooling: "MLR last:2"."""

    @property
    def is_rival(self) -> bool:
        return self.representation is not None and not self.layers


def mlr(layers: str | list[int], pooling: str, *, weight: float = 1.0, **more: Any) -> Arm:
    """Multi-layer representations. weight: λ; in the paper 1 for two layers and 0.1 for all (appendix A)."""
    named = layers if isinstance(layers, str) else ",".join(map(str, layers))
    name = f"MLR {named}, {pooling}" + (f", λ {weight:g}" if pooling == "self-contrastive" else "")
    representation = {"layers": layers, "pooling": pooling, "regularization": weight}
    return Arm(name, representation, layers=f"MLR {named}", **more)


def me_bert(count: int, pooling: str) -> Arm:
    settings = {"source": "first-tokens", "count": count, "pooling": pooling, "regularization": 1.0}
    return Arm(f"ME-BERT {count}, {pooling}", settings)


def colbert(pooling: str) -> Arm:
    return Arm(f"token vectors, {pooling}", {"source": "tokens", "pooling": pooling, "regularization": 0.01})


def in_two_stages(arm: Arm) -> Arm:
    return replace(arm, name=f"{arm.name}, two stages", two_stage=True, repeated=False)


DUAL = Arm("dual encoder", repeated=True)
SELF_CONTRASTIVE = mlr("last:2", "self-contrastive", repeated=True)
"""With the paper's λ; `best_on_dev` chooses the one that is used."""
MULTI_VECTOR = mlr("last:2", "multi-vector", repeated=True)


def lambda_arms() -> list[Arm]:
    return [mlr("last:2", "self-contrastive", weight=weight, repeated=True) for weight in LAMBDAS]


def layer_choices(depth: int) -> dict[tuple[int, ...], str]:
    """{layers: the first choice that gives them}, for all CHOICES and COUNTS possible at this depth of a backbone."""
    named: dict[tuple[int, ...], str] = {}
    for choice in (f"{choice}:{count}" for count in COUNTS if count <= depth for choice in CHOICES):
        named.setdefault(chosen_layers(choice, depth), choice)
    return named


def layer_arms(depth: int) -> list[Arm]:
    """m = 2, 4, 6, 8 of the last, first and uniform layers, if the backbone has as many; the counterpart of the paper's
    {10, 12} of 12 layers; and ME-BERT with 2, 4 and 8 vectors. Choices of the same layers occur once."""
    arms = {layers: mlr(name, "multi-vector") for layers, name in layer_choices(depth).items()}
    if depth >= 4:
        arms.setdefault((depth - 2, depth), mlr([depth - 2, depth], "multi-vector"))
    return [*arms.values(), *(me_bert(count, "multi-vector") for count in (2, 4, 8))]


def layer_points(depth: int, choice: str) -> list[tuple[int, str]]:
    """(number of layers, arm) for `choice`; layers that another choice gives too were trained under its name."""
    names = layer_choices(depth)
    chosen = {count: names[chosen_layers(f"{choice}:{count}", depth)] for count in COUNTS if count <= depth}
    return [(count, mlr(layers, "multi-vector").name) for count, layers in chosen.items()]


VARIANTS = (
    DUAL,
    SELF_CONTRASTIVE,
    MULTI_VECTOR,
    mlr("last:2", "average"),
    mlr("last:2", "scalar-mix"),
    mlr("all", "self-contrastive", weight=0.1),
    me_bert(8, "multi-vector"),
    me_bert(8, "self-contrastive"),
    me_bert(8, "average"),
    me_bert(8, "scalar-mix"),
    colbert("multi-vector"),
    colbert("self-contrastive"),
    colbert("average"),
)


# ------------------------------------------------ trainings and searches


@dataclass(frozen=True)
class TrainedArm:
    arm: Arm
    """The vectors of documents, and how they were trained."""
    seed: int | None
    """The seed of its training; None for the start."""
    folder: Path
    """The folder of the model."""
    dev: float = math.nan
    """nDCG@10 on dev of the state that was kept, the best one in training."""

    @property
    def engine(self) -> MeasuredEngine:
        return MeasuredEngine(self.arm.name, self.seed)

    @property
    def spec(self) -> str:
        """The model's name for `open_retriever`."""
        kind = "dense" if self.seed is None else (read_osn_json(self.folder) or {})["kind"]
        return f"{kind}:{self.folder}"

    @cached_property
    def hash(self) -> str:
        return hash_files(self.folder)


@dataclass
class MultiLayerExperiment:
    """Data, and the settings that the trainings of all arms share; `work` keeps everything made from them."""

    data: Path
    """The folder of the BEIR folders."""
    work: Path
    """Keeps everything made from the data."""
    start: str = setting(START, "The model that every arm starts from.")
    pooling: Pooling = setting(
        "mean", "Pooling of a layer's tokens; the paper's is cls, which T5 lacks.", type=click.Choice(get_args(Pooling))
    )
    cosine: bool = setting(
        True, "Compare vectors of length 1, or raw inner products as in the paper.", option="--cosine/--inner-products"
    )
    learning_rate: float = setting(5e-5, "Learning rate of every training.")
    batch: int = setting(32, "Questions of a step.")
    document_length: int = setting(96, "Most tokens of a document.")
    steps: int = setting(60, "Optimizer steps of each training.", type=click.IntRange(2))
    seeds: int = setting(
        len(SEEDS) - 1,
        "Seeds of the main arms; one more seed chooses λ.",
        type=click.IntRange(1, len(SEEDS) - 1),
    )
    _sets: dict[str, JudgedSet] = field(default_factory=dict)
    """{name: set}, as it was loaded."""
    _trained: dict[Path, TrainedArm] = field(default_factory=dict)
    """{folder of a model: the arm}"""

    # -------------------------------------------- the start

    @cached_property
    def backbone(self) -> Any:
        """The configuration of the transformer that the document towers start from."""
        from trainers.encoders.backbones import read_config
        from trainers.encoders.tower import read_start

        return read_config(read_start(self.start).folders["document"])

    def check_start(self) -> None:
        """Raises InputError if the start has no CLS token for --pooling cls, ModelError if the start is not a model."""
        # `backbone` comes first, to refuse an invalid start whatever the pooling.
        if self.backbone.model_type in T5 and self.pooling == "cls":
            raise InputError(f"{self.start} is a T5, which has no CLS", "give --pooling mean")

    @property
    def depth(self) -> int:
        return int(self.backbone.num_hidden_layers)

    @cached_property
    def computed(self) -> Computed:
        """This machine's number format for training and encoding; a model trained in another one is another model."""
        return computed_in("auto")

    @cached_property
    def start_hash(self) -> str:
        return hash_files(locate(self.start))

    @property
    def start_name(self) -> str:
        return self.start.rstrip("/").rpartition("/")[2]

    @property
    def described(self) -> str:
        """The start and its use, as results name them."""
        width, compared = int(self.backbone.hidden_size), "cosines" if self.cosine else "inner products"
        details = f"{self.start_hash}, {self.depth} layers × {width}, {self.computed}"
        return f"{self.start_name} ({details}), {self.pooling}, {compared}"

    # -------------------------------------------- sets

    @property
    def held(self) -> Path:
        """squad-mix with its training questions split by article: qrels dev and test."""
        return self.work / "data" / "squad-mix-held"

    def train_set(self, name: str) -> Path:
        """The folder of the set's training questions and the documents that answer them."""
        return self.work / "data" / f"{name}-train"

    def negatives(self, name: str) -> Path:
        return self.work / "data" / f"{name}.bm25.jsonl"

    @property
    def dev(self) -> list[SetSettings]:
        """The sets on which trainings choose their best state."""
        return [
            SetSettings(self.held, split="dev", name="squad-mix-dev"),
            SetSettings(self.data / WIKIQA, split="dev", name="wikiqa-dev"),
        ]

    @cached_property
    def dev_questions(self) -> int:
        """The number of questions behind a measure on dev, of both sets together."""
        return sum(min(DEV_QUERIES, len(settings.load().query_texts())) for settings in self.dev)

    def judged(self, name: str) -> JudgedSet:
        """A test set; its clusters are articles, since questions about one article are not independent."""
        if name not in self._sets:
            loaded = load_training(self.held if name == HELD else self.data / name, split="test", name=name)
            if name == HELD and len(loaded) > HELD_QUERIES:
                loaded = loaded.take(evenly(range(len(loaded)), HELD_QUERIES))
            corpus = self.data / (WIKIQA if name == WIKIQA else SQUAD)
            self._sets[name] = JudgedSet.grouped(loaded, articles(corpus))
        return self._sets[name]

    def prepare(self) -> MultiLayerExperiment:
        """Split by article, keep the documents of training questions and mine BM25 negatives, unless already done.

        Raises InputError if `work` holds work on other data.
        """
        squad, wikiqa = self.data / SQUAD, self.data / WIKIQA
        with locked(self.work / "data"):
            check_data(self.work, [squad, wikiqa])
            of_document = articles(squad)
            parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
            for line in judgements(squad, "train"):
                parts[_split_of(of_document[line.split("\t")[1]])].append(line)
            write_part(squad, self.held, {"dev": parts["dev"], "test": parts["test"]})
            write_part(squad, self.train_set(SQUAD), {"train": parts["train"]}, judged_documents(parts["train"]))
            # A document may answer questions of several splits.
            tested = judged_documents([*judgements(wikiqa, "dev"), *judgements(wikiqa, "test")])
            untested = [line for line in judgements(wikiqa, "train") if line.split("\t")[1] not in tested]
            write_part(wikiqa, self.train_set(WIKIQA), {"train": untested}, judged_documents(untested))
            for name in (SQUAD, WIKIQA):
                train = load_training(self.train_set(name), name=name)
                with_mined(train, "bm25", self.negatives(name), Mining(DEPTH, keep=50))
        return self

    # -------------------------------------------- trainings

    def configuration(self, arm: Arm, seed: int) -> DenseConfig:
        """The configuration of `osn train dense` or `osn train mlr`; only the representation differs between arms."""
        steps = self.steps
        # The content of the start, not its place.
        made_by = {
            name: getattr(self, name) for name in ("pooling", "cosine", "learning_rate", "batch", "document_length")
        }
        made_by |= {"start": "", "precision": self.computed}
        name = f"{slug(arm.name)}-{steps}-{seed}-{fingerprint(made_by, self.start_hash, steps, seed)[:8]}"
        settings: dict[str, Any] = {
            "output": self.work / "models" / name,
            "start": self.start,
            "train": [
                SetSettings(self.train_set(name), name=name, negatives=self.negatives(name)) for name in (SQUAD, WIKIQA)
            ],
            "dev": self.dev,
            "unseen": [
                SetSettings(self.data / SQUAD, split="test", name="squad-mix-test"),
                SetSettings(self.held, split="test", name="held-back"),
                SetSettings(self.data / WIKIQA, split="test", name="wikiqa-test"),
            ],
            "encoder": EncoderSettings(
                tied=False,
                pooling=self.pooling,
                query_length=48,
                document_length=self.document_length,
                normalize=self.cosine,
                dropout=0.0,
            ),
            "candidates": CandidateSettings(negatives=1, depth=DEPTH),
            "two_stage": TwoStageSettings(DEPTH, keep=50) if arm.two_stage else None,
            "selection": DevSettings(queries=DEV_QUERIES, documents=500),
            "training": TrainingSettings(
                steps=steps,
                batch_size=self.batch,
                learning_rate=self.learning_rate,
                warmup=0.05,
                weight_decay=0.0,
                max_gradient_norm=2.0,
                set_weights=0.5,
                evaluate_every=-(-steps // 3),
                save_every=-(-steps // 4),
                precision=self.computed,
                seed=seed,
            ),
        }
        if arm.representation is None:
            return DenseConfig(**settings)
        return MlrConfig(**settings, representation=RepresentationSettings(**arm.representation))

    def train(self, arm: Arm, seed: int) -> TrainedArm:
        """The model of an arm, trained if it is not there yet."""
        from trainers.dense.train import train_dense
        from trainers.multi_layer.train import train_mlr

        config = self.configuration(arm, seed)
        if config.output not in self._trained:
            trained = train_mlr(config) if isinstance(config, MlrConfig) else train_dense(config)
            logger.info("%s, seed %d: %d steps, %s", arm.name, seed, trained.steps, trained.measures)
            self._trained[config.output] = TrainedArm(arm, seed, config.output, trained.measures["nDCG@10"])
        return self._trained[config.output]

    def each_trained(
        self, arms: Iterable[Arm], seeds: Sequence[int] = SEEDS[:1], *, search: bool = True
    ) -> list[TrainedArm]:
        """The models of the arms, of those that are repeated with each of `seeds`, of others with the first. Each is trained
        once and, if `search`, tested on every set; see `shared`."""

        def job(arm: Arm, seed: int) -> TrainedArm:
            trained = self.train(arm, seed)
            for name in TESTS if search else ():
                self.searched(trained, name)
            return trained

        trials = [(arm, seed) for arm in arms for seed in (seeds if arm.repeated else seeds[:1])]
        return shared({self.configuration(arm, seed).output: partial(job, arm, seed) for arm, seed in trials})

    def train_on(self, first: TrainedArm) -> TrainedArm:
        """The arm in two stages; the model trained in one stage is the first, which is not trained again."""
        arm = in_two_stages(first.arm)
        copy = self.configuration(arm, SEEDS[0]).output / FOLDER / FIRST
        if not copy.exists():
            with replaced(copy) as beside:
                shutil.copytree(first.folder, beside)
        (trained,) = self.each_trained([arm])
        return trained

    def best_on_dev(self) -> Arm:
        """SELF_CONTRASTIVE with the λ of LAMBDAS whose model with the first seed is best on dev."""
        models = self.each_trained(lambda_arms(), search=False)
        best = max(models, key=lambda trained: trained.dev)
        logger.info("best on dev: %s", best.arm.name)
        return best.arm

    # -------------------------------------------- searches

    def searched(self, model: TrainedArm, name: str) -> Measured:
        """The measures of a model on a test set, by exact search of the whole corpus."""
        judged, cache = self.judged(name), self.vectors(model, name)

        def search() -> Measured:
            with computing_in(self.computed):
                engine = open_retriever(model.spec, judged.data.documents, cache=cache)
                with locked(cache):  # one process at a time writes the vectors
                    run = engine.retrieve(judged.texts, DEPTH)
            return judged.measure(run, MEASURES)

        return kept_measured(self.measured_file(model, name), search)

    def measured_file(self, model: TrainedArm, name: str, suffix: str = "") -> Path:
        """The file of a model's measures on a test set, named by both hashes."""
        measured = f"{slug(name)}-{model.hash}-{self.judged(name).data.hash}-{self.computed}"
        return self.work / "measured" / f"{measured}{suffix}.json"

    def vectors(self, model: TrainedArm, name: str) -> Path:
        """The folder of a model's vectors of a test set's corpus; the two sets of squad-mix share it."""
        documents = self.judged(name).data.documents
        return self.work / "vectors" / model.hash / f"{documents.hash}-{self.computed}"

    def starts(self) -> list[TrainedArm]:
        """The start as published, and, if it reads more tokens of a document than the arms, cut to as many."""
        from sentence_transformers import SentenceTransformer

        folder, length = locate(self.start), self.document_length
        name = f"{self.start_name} as it is"
        published = TrainedArm(Arm(name), None, folder)
        with quiet_loading():
            model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        if model.max_seq_length and model.max_seq_length <= length:
            return [published]
        cut = self.work / "starts" / f"{self.start_hash}-{length}"
        with locked(cut):
            if not cut.exists():
                model.max_seq_length = length
                with quiet_loading(), replaced(cut) as beside:
                    model.save(str(beside), create_model_card=False)
        return [published, TrainedArm(Arm(f"{name}, {length} tokens"), None, cut)]


def _split_of(article: str) -> str:
    share = int(hashlib.sha256(article.encode()).hexdigest()[:8], 16) / 0x100000000
    return "dev" if share < DEV_SHARE else "test" if share < DEV_SHARE + TEST_SHARE else "train"


# ------------------------------------------------ which layer wins


QUERIES_AT_ONCE = 64
ALONE = "the last layer's vectors alone"
WINS = ("answers", "documents ranked first")
"""The documents of which the nearest vector is counted."""


def wins(layer: int, whose: str = WINS[0]) -> str:
    """The measure of how often this layer's vector is the nearest."""
    return f"layer {layer} wins, {whose}"


def winner_rows(experiment: MultiLayerExperiment, models: Iterable[TrainedArm]) -> list[Row]:
    """For multi-vector arms over layers: the share won by each layer, and the gain over the last layer's vectors alone."""
    rows: list[Row] = []
    for model, name in product(models, TESTS):
        file = experiment.measured_file(model, name, "-winner-rows")
        rows += kept_rows(file, partial(_winner_rows, experiment, model, name))
    return rows


def _winner_rows(experiment: MultiLayerExperiment, model: TrainedArm, name: str) -> list[Row]:
    test, encoder = experiment.judged(name), load_multi_layer(model.folder)
    documents = test.data.documents
    with computing_in(experiment.computed):
        vectors = several_vectors(encoder, documents, experiment.vectors(model, name) / "documents").stacked()
        queries = encoder.encode_queries(list(test.texts.values()))
    answers = np.array([documents.row(next(iter(positives))) for positives in test.qrels.values()])
    shares = {
        wins(layer, whose): share
        for whose, of_layers in zip(WINS, shares_won(queries, vectors, answers).tolist(), strict=True)
        for layer, share in zip(encoder.selection.layers, of_layers, strict=True)
    }
    last = np.ascontiguousarray(vectors[:, encoder.selection.last])
    run = FaissRetriever(documents.ids, last, lambda texts: queries).retrieve(test.texts, DEPTH)
    alone = model.engine._replace(variant=ALONE)
    measured = {alone: test.measure(run, MEASURES), model.engine: experiment.searched(model, name)}
    rows = result_rows.rows(name, measured, baseline=alone, clusters=test.clusters)
    rows = [row for row in rows if row.variant == ALONE or row.kind != "value"]
    return facts(name, model.engine, shares, len(test.data)) + rows


def shares_won(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(2, layers): the share of queries for which each layer's vector is the nearest vector of the answer, and of the
    document ranked first. queries: (q, D); vectors: (documents, layers, D); answers: (q,), rows of documents."""
    counts = np.zeros((2, vectors.shape[1]))
    flat = vectors.reshape(-1, vectors.shape[2])
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = queries[start : start + QUERIES_AT_ONCE]
        similarities = (block @ flat.T).reshape(len(block), *vectors.shape[:2])  # (queries, documents, layers)
        rows = np.arange(len(block))
        first = similarities.max(axis=2).argmax(axis=1)
        for at, documents in enumerate((answers[start : start + QUERIES_AT_ONCE], first)):
            counts[at] += np.bincount(similarities[rows, documents].argmax(axis=1), minlength=vectors.shape[1])
    shares: NDArray[np.float64] = counts / len(queries)
    return shares


# ------------------------------------------------ plots


def draw_layers(depth: int, rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against the number of vectors, and how often layers other than the last win."""
    arms = {choice: layer_points(depth, choice) for choice in CHOICES}
    arms["ME-BERT"] = [(count, me_bert(count, "multi-vector").name) for count in (2, 4, 8)]
    _draw(rows, arms, folder / "layers.svg", x="vectors a document")
    _draw_winners(depth, rows, folder / "winners.svg")


def draw_lambdas(rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against λ."""
    points = [(weight, mlr("last:2", "self-contrastive", weight=weight).name) for weight in LAMBDAS]
    _draw(rows, {"self-contrastive": points}, folder / "lambda.svg", x="λ", xscale="log")


def _draw(
    rows: Iterable[Row], arms: Mapping[str, Sequence[tuple[float, str]]], file: Path, *, x: str, **options: str
) -> None:
    table = Table(rows, SEEDS[:1])
    panels: dict[str, dict[str, plots.Points]] = {}
    levels: dict[str, tuple[str, float]] = {}
    for name in TESTS:
        dual = table.value(name, DUAL.name, TOP_5)
        if dual is None:
            continue
        levels[name] = (DUAL.name, dual.value)
        panels[name] = {
            curve: [(at, row.value) for at, arm in points if (row := table.value(name, arm, TOP_5)) is not None]
            for curve, points in arms.items()
        }
    plots.curves(panels, file, x=x, y="top-5 accuracy", levels=levels, **options)


def _draw_winners(depth: int, rows: Iterable[Row], file: Path) -> None:
    """The share of answers whose nearest vector is of a layer other than the last, a curve for each arm. The last layer's
    share is the rest and not drawn: beside it the others would be too small to see."""
    layer_of = {wins(layer): layer for layer in range(1, depth + 1)}
    layers_of = {arm.name: arm.layers for arm in layer_arms(depth)}
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row.measure in layer_of and layer_of[row.measure] < depth:
            arms = panels.setdefault(row.set, {})
            arms.setdefault(layers_of[row.engine], []).append((layer_of[row.measure], 100 * row.value))
    if panels:
        plots.curves(panels, file, x=f"layer; the rest: layer {depth}", y="% of answers")


# ------------------------------------------------ rows


def rows_of(
    experiment: MultiLayerExperiment, models: Sequence[TrainedArm], baseline: Arm, rivals_of: Arm | None = None
) -> list[Row]:
    """Rows of dev and of every test set: every model compared with the dual encoder `baseline` of its seed, the published
    start with that of the first seed, and means over the seeds that judge. rivals_of: an arm that is also compared with all
    others"""
    judging = [seed for seed in SEEDS[1:] if any(model.seed == seed for model in models)]
    every = [*models, *experiment.starts()]
    names = list(dict.fromkeys(model.arm.name for model in every if model.arm != baseline))
    differences = [(name, baseline.name) for name in names]
    if rivals_of is not None:
        rivals = {model.arm.name for model in models} - {rivals_of.name, baseline.name}
        differences += [(rivals_of.name, name) for name in names if name in rivals]
    rows = dev_rows(experiment, models)
    for name in TESTS:
        measured = {model.engine: experiment.searched(model, name) for model in every}
        rows += compared(name, measured, differences, clusters=experiment.judged(name).clusters, seeds=judging)
    return rows


def dev_rows(experiment: MultiLayerExperiment, models: Iterable[TrainedArm]) -> list[Row]:
    """nDCG@10 on dev of the state that each arm kept."""
    n = experiment.dev_questions
    return [row for model in models for row in facts("dev", model.engine, {"nDCG@10": model.dev}, n)]


# ------------------------------------------------ goals


def self_contrastive_goal(table: Table, arm: Arm, steps: int, baseline: Arm = DUAL) -> Goal:
    """Judged by the mean over the table's seeds; each seed's own difference is shown too."""
    seeds = table.seeds

    def shown(gain: Row) -> str:
        if len(seeds) == 1:
            return signed(gain, 4)
        by_seed = table.by_seed(gain.set, arm.name, baseline.name, TOP_5)
        values = ", ".join(f"{of_seed.value:+.4f}" for of_seed in by_seed)
        error = table.difference(gain.set, arm.name, baseline.name, f"{TOP_5}, {SEED_ERROR}")
        over_seeds = f", {SEED_ERROR} {error.value:.4f}" if error is not None else ""
        return f"{signed(gain, 4)}, by seed {values}{over_seeds}"

    stages = "two stages, " if arm.two_stage else ""
    choice = "that λ was chosen with" if seeds[0] == SEEDS[0] else "λ chosen with another one"
    return gains_goal(
        "self-contrastive above the dual encoder in top-5 accuracy on at least one set, interval over articles above zero "
        f"({stages}{len(seeds)} seed{'s' * (len(seeds) > 1)}, {choice}, {steps} steps)",
        "at least 1 set",
        table.differences(TESTS, arm.name, baseline.name, TOP_5),
        1,
        shown=shown,
    )


def rivals_goal(table: Table, arm: Arm, rivals: Sequence[str]) -> Goal:
    """`arm` against each of `rivals`, all trained with the first seed."""
    gains = {rival: of_sets for rival in rivals if (of_sets := table.differences(TESTS, arm.name, rival, TOP_5))}
    above = [rival for rival, of_sets in gains.items() if any(map(is_above, of_sets.values()))]
    shown = "; ".join(
        f"{rival}: {', '.join(f'{name} {signed(row, 4)}' for name, row in of_sets.items())}"
        for rival, of_sets in gains.items()
    )
    return goal_of(
        "self-contrastive above each rival (ME-BERT, token vectors) in top-5 accuracy on at least one set, interval above "
        f"zero (seed {SEEDS[0]}, with which its λ is the best of {len(LAMBDAS)} on dev; the rivals have the paper's, found "
        "for inner products at temperature 1, and scalar mix learns its weights at a rate of 0.01)",
        f"{len(rivals)} of {len(rivals)}",
        f"{len(above)} of {len(gains)} ({shown})" if gains else None,
        len(above) == len(rivals),
    )


# ------------------------------------------------ the parts


def with_best(experiment: MultiLayerExperiment, arms: Iterable[Arm]) -> tuple[list[Arm], Arm]:
    """(`arms` with the arm that is best on dev in place of SELF_CONTRASTIVE, that arm)"""
    best = experiment.best_on_dev()
    return [best if arm == SELF_CONTRASTIVE else arm for arm in arms], best


def variants(experiment: MultiLayerExperiment) -> RowsAndGoals:
    arms, best = with_best(experiment, VARIANTS)
    seeds = SEEDS[: experiment.seeds + 1]
    models = experiment.each_trained(arms, seeds)
    rows = rows_of(experiment, models, DUAL, best)
    # The other candidates for λ; the chosen one has a row already.
    others = [arm for arm in lambda_arms() if arm != best]
    rows += dev_rows(experiment, experiment.each_trained(others, search=False))
    rows += winner_rows(experiment, [model for model in models if model.arm == MULTI_VECTOR][:1])
    return rows, [
        self_contrastive_goal(Table(rows, seeds[1:]), best, experiment.steps),
        rivals_goal(Table(rows, seeds[:1]), best, [arm.name for arm in VARIANTS if arm.is_rival]),
    ]


def two_stages(experiment: MultiLayerExperiment) -> RowsAndGoals:
    arms, best = with_best(experiment, (DUAL, SELF_CONTRASTIVE))
    alone = experiment.each_trained(arms)
    models = [*map(experiment.train_on, alone), *alone]
    rows = rows_of(experiment, models, in_two_stages(DUAL))
    table = Table(rows, SEEDS[:1])
    return rows, [self_contrastive_goal(table, in_two_stages(best), experiment.steps, in_two_stages(DUAL))]


def layers(experiment: MultiLayerExperiment) -> RowsAndGoals:
    models = experiment.each_trained([DUAL, *layer_arms(experiment.depth)])
    rows = rows_of(experiment, models, DUAL)
    return rows + winner_rows(experiment, [model for model in models if model.arm.layers]), []


def lambdas(experiment: MultiLayerExperiment) -> RowsAndGoals:
    return rows_of(experiment, experiment.each_trained([DUAL, *lambda_arms()]), DUAL), []


# ------------------------------------------------ the command


@click.command("multi-layer")
@paper_options
@part_option(PARTS)
@setting_options(MultiLayerExperiment)
def multi_layer(data: Path, work: Path, record: Path | None, chosen: tuple[str, ...], **options: Any) -> None:
    """Train multi-layer representations, a dual encoder and its rivals, and compare them.

    \b
    osn paper multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer
    osn paper multi-layer --data DIR --work DIR --part variants --steps 100 --seeds 1
    """
    experiment = MultiLayerExperiment(data, work, **options)
    experiment.check_start()
    experiment.prepare()

    def part(title: str, run: Callable[[MultiLayerExperiment], RowsAndGoals], draw: Any = None) -> PaperPart:
        def shown(row: Row) -> bool:
            above_dual = row.kind == "difference" and row.baseline in (DUAL.name, in_two_stages(DUAL).name)
            return (row.measure in MEASURES and row.kind == "value") or (row.measure == TOP_5 and above_dual)

        title = f"{title}; start: {experiment.described}; {experiment.steps} steps"
        seeds = SEEDS[: experiment.seeds + 1] if run is variants else SEEDS[:1]
        return PaperPart(title, partial(run, experiment), [data / SQUAD, data / WIKIQA], seeds, shown, draw)

    draw = partial(draw_layers, experiment.depth)
    parts = {
        "variants": part("Multi-layer representations against a dual encoder and its rivals", variants),
        "two-stage": part("Multi-layer representations in two stages", two_stages),
        "layers": part("Which layers, how many, and which of them wins", layers, draw),
        "lambda": part("The weight of the self-contrastive regularization", lambdas, draw_lambdas),
    }
    run_parts(parts, record, chosen)
