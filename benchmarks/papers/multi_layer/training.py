"""Sets, recipe, trainings and tests of all parts of `osn paper multi-layer`.

Each model learns from the questions of both sets, with one hard negative of BM25 for each. Tests on squad-mix are its test
split, and training questions about articles that were held back; a dev part is held back too. No tested document is in the
training data.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

import click

from benchmarks.beir_parts import articles, check_data, evenly, judged_documents, judgements, write_part
from benchmarks.experiment import JudgedSet, kept_measured, shared, slug
from benchmarks.options import setting
from benchmarks.papers.multi_layer.arms import Arm, in_two_stages, of_lambdas
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import MeasuredEngine
from opensearch_neural.files import replaced
from opensearch_neural.locks import locked
from opensearch_neural.models.dense.pooling import Pooling
from opensearch_neural.models.directory import MINILM, hash_files, locate, read_osn_json
from opensearch_neural.models.pretrained import T5, quiet_loading
from trainers.common.config import fingerprint
from trainers.common.precision import PRECISIONS, Computed, Precision, computed_in, computing_in
from trainers.common.settings import FIRST, FOLDER, EncoderSettings, TrainingSettings
from trainers.data.loading import load_training
from trainers.data.negatives import Mining, open_retriever, with_mined
from trainers.data.settings import CandidateSettings, DevSettings, SetSettings
from trainers.dense.settings import DenseConfig, TwoStageSettings
from trainers.multi_layer.settings import MlrConfig, RepresentationSettings

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
STEPS = 60
DEV_SHARE, TEST_SHARE = 0.03, 0.12
"""Shares of squad-mix's training articles that are held back for dev and test."""
DEV_QUERIES = 300
"""Most questions of each dev set, which compare the states of a training."""
HELD_QUERIES = 3000
"""Most test questions about held-back articles."""


# ------------------------------------------------ what trainings have in common


@dataclass(frozen=True)
class Recipe:
    """The settings that the trainings of all arms share."""

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
    precision: Precision = setting(
        "auto",
        "Precision of training and encoding; auto: bfloat16 if the hardware is faster with it. Name it to use models that "
        "were trained on another machine.",
        type=click.Choice(PRECISIONS),
    )

    @cached_property
    def backbone(self) -> Any:
        """The configuration of the transformer that the document towers start from."""
        from trainers.encoders.backbones import read_config
        from trainers.encoders.tower import read_start

        return read_config(read_start(self.start).folders["document"])

    @property
    def depth(self) -> int:
        return int(self.backbone.num_hidden_layers)

    @cached_property
    def computed(self) -> Computed:
        """The number format of `precision` on this machine; a model trained in another format is another model."""
        return computed_in(self.precision)

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
        made = f"{self.start_hash}, {self.depth} layers × {width}, {self.computed}"
        return f"{self.start_name} ({made}), {self.pooling}, {compared}"

    def check(self) -> None:
        """Raises InputError if the start has no CLS token for --pooling cls, ModelError if the start is not a model."""
        # `backbone` comes first, to refuse an invalid start whatever the pooling.
        if self.backbone.model_type in T5 and self.pooling == "cls":
            raise InputError(f"{self.start} is a T5, which has no CLS", "give --pooling mean")

    def fingerprint(self, *, steps: int, seed: int) -> str:
        """A fingerprint of all options that change a training, for its own folder."""
        # The content of the start, not its place.
        settings = {**asdict(self), "start": "", "precision": self.computed}
        return fingerprint(settings, self.start_hash, steps, seed)[:8]


@dataclass(frozen=True)
class TrainedArm:
    arm: Arm
    """The vectors of documents, and how they were trained."""
    seed: int
    """The seed of its training."""
    folder: Path
    """The folder of the model."""
    dev: float
    """nDCG@10 on dev of the state that was kept, the best one in training."""

    @property
    def engine(self) -> MeasuredEngine:
        return MeasuredEngine(self.arm.name, self.seed)

    @property
    def spec(self) -> str:
        """The model's name for `open_retriever`."""
        return f"{(read_osn_json(self.folder) or {})['kind']}:{self.folder}"


@dataclass
class MultiLayerExperiment:
    """Data, recipe and length of the trainings; `work` keeps everything made from them."""

    data: Path
    """The folder of the BEIR folders."""
    work: Path
    """Keeps everything made from the data."""
    recipe: Recipe = field(default_factory=Recipe)
    """What all trainings have in common."""
    steps: int = STEPS
    """Optimizer steps of each training."""
    _sets: dict[str, JudgedSet] = field(default_factory=dict)
    """{name: set}, as it was loaded."""
    _trained: dict[Path, TrainedArm] = field(default_factory=dict)
    """{folder of a model: the arm}"""
    _hashes: dict[str, str] = field(default_factory=dict)
    """{retriever that mines: hash of its model}"""

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
                parts[_part(of_document[line.split("\t")[1]])].append(line)
            write_part(squad, self.held, {"dev": parts["dev"], "test": parts["test"]})
            write_part(squad, self.train_set(SQUAD), {"train": parts["train"]}, judged_documents(parts["train"]))
            # A document may answer questions of several splits.
            tested = judged_documents([*judgements(wikiqa, "dev"), *judgements(wikiqa, "test")])
            own = [line for line in judgements(wikiqa, "train") if line.split("\t")[1] not in tested]
            write_part(wikiqa, self.train_set(WIKIQA), {"train": own}, judged_documents(own))
            for name in (SQUAD, WIKIQA):
                train = load_training(self.train_set(name), name=name)
                with_mined(train, "bm25", self.negatives(name), Mining(DEPTH, keep=50))
        return self

    # -------------------------------------------- trainings

    def configuration(self, arm: Arm, seed: int) -> DenseConfig:
        """The configuration of `osn train dense` or `osn train mlr`; only the representation differs between arms."""
        recipe, steps = self.recipe, self.steps
        name = f"{slug(arm.name)}-{steps}-{seed}-{recipe.fingerprint(steps=steps, seed=seed)}"
        settings: dict[str, Any] = {
            "output": self.work / "models" / name,
            "start": recipe.start,
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
                pooling=recipe.pooling,
                query_length=48,
                document_length=recipe.document_length,
                normalize=recipe.cosine,
                dropout=0.0,
            ),
            "candidates": CandidateSettings(negatives=1, depth=DEPTH),
            "two_stage": TwoStageSettings(DEPTH, keep=50) if arm.two_stage else None,
            "selection": DevSettings(queries=DEV_QUERIES, documents=500),
            "training": TrainingSettings(
                steps=steps,
                batch_size=recipe.batch,
                learning_rate=recipe.learning_rate,
                warmup=0.05,
                weight_decay=0.0,
                max_gradient_norm=2.0,
                set_weights=0.5,
                evaluate_every=-(-steps // 3),
                save_every=-(-steps // 4),
                precision=recipe.computed,
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
            done = train_mlr(config) if isinstance(config, MlrConfig) else train_dense(config)
            logger.info("%s, seed %d: %d steps, %s", arm.name, seed, done.steps, done.measures)
            self._trained[config.output] = TrainedArm(arm, seed, config.output, done.measures["nDCG@10"])
        return self._trained[config.output]

    def each_trained(self, trials: Iterable[tuple[Arm, int]], *, search: bool = True) -> list[TrainedArm]:
        """The models of arms and seeds, each trained once and, if `search`, tested on every set; see `shared`."""

        def job(arm: Arm, seed: int) -> TrainedArm:
            trained = self.train(arm, seed)
            return self.tested(trained) if search else trained

        return shared({self.configuration(arm, seed).output: partial(job, arm, seed) for arm, seed in trials})

    def train_on(self, first: TrainedArm) -> TrainedArm:
        """The arm in two stages; the model trained in one stage is the first."""
        arm = in_two_stages(first.arm)
        copy = self.configuration(arm, first.seed).output / FOLDER / FIRST
        if not copy.exists():
            with replaced(copy) as beside:
                shutil.copytree(first.folder, beside)
        return self.tested(self.train(arm, first.seed))

    def best_on_dev(self) -> Arm:
        """SELF_CONTRASTIVE with the λ of LAMBDAS whose model with the first seed is best on dev."""
        every = self.each_trained([(arm, SEEDS[0]) for arm in of_lambdas()], search=False)
        best = max(every, key=lambda trained: trained.dev)
        logger.info("best on dev: %s", best.arm.name)
        return best.arm

    # -------------------------------------------- searches

    def tested(self, trained: TrainedArm) -> TrainedArm:
        for name in TESTS:
            self.searched(trained.spec, name)
        return trained

    def searched(self, spec: str, name: str) -> Measured:
        """The measures of a model on a test set, by exact search of the whole corpus. spec: its name for `open_retriever`"""

        def search() -> Measured:
            judged, cache = self.judged(name), self.vectors(spec, name)
            with computing_in(self.recipe.computed):
                engine = open_retriever(spec, judged.data.documents, cache=cache)
                with locked(cache):  # one process at a time writes the vectors
                    run = engine.retrieve(judged.texts, DEPTH)
            return judged.measure(run, MEASURES)

        return kept_measured(self.measured_file(spec, name), search)

    def measured_file(self, spec: str, name: str, what: str = "") -> Path:
        """The file of a model's measures on a test set, named by both hashes. what: a suffix of the name"""
        known = f"{slug(name)}-{self.hash_of(spec)}-{self.judged(name).data.hash}-{self.recipe.computed}"
        return self.work / "measured" / f"{known}{what}.json"

    def vectors(self, spec: str, name: str) -> Path:
        """The folder of a model's vectors of a test set's corpus; the two sets of squad-mix share it."""
        documents = self.judged(name).data.documents
        return self.work / "vectors" / self.hash_of(spec) / f"{documents.hash}-{self.recipe.computed}"

    def hash_of(self, spec: str) -> str:
        if spec not in self._hashes:
            self._hashes[spec] = hash_files(locate(spec.partition(":")[2]))
        return self._hashes[spec]

    def starts(self) -> dict[str, str]:
        """{name: name for `open_retriever`} of the start: as published, and, if it reads more tokens of a document than the
        arms, cut to as many."""
        from sentence_transformers import SentenceTransformer

        recipe = self.recipe
        name, length = f"{recipe.start_name} as it is", recipe.document_length
        published = {name: f"dense:{recipe.start}"}
        with quiet_loading():
            model = SentenceTransformer(str(locate(recipe.start)), device="cpu", local_files_only=True)
        if model.max_seq_length and model.max_seq_length <= length:
            return published
        cut = self.work / "starts" / f"{recipe.start_hash}-{length}"
        with locked(cut):
            if not cut.exists():
                model.max_seq_length = length
                with quiet_loading(), replaced(cut) as beside:
                    model.save(str(beside), create_model_card=False)
        return published | {f"{name}, {length} tokens": f"dense:{cut}"}


def _part(article: str) -> str:
    share = int(hashlib.sha256(article.encode()).hexdigest()[:8], 16) / 0x100000000
    return "dev" if share < DEV_SHARE else "test" if share < DEV_SHARE + TEST_SHARE else "train"
