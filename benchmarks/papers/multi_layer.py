"""The evidence for multi-layer representations: what do other layers' vectors buy, and at what price?

    osn bench multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer

`--data` holds the BEIR folders squad-mix and wikiqa-doc. Parts, each with a result file of its own below `--record`:
    variants    a plain dual encoder, multi-layer representations under each pooling, and the rivals ME-BERT (first token
                vectors) and ColBERT-style (all token vectors), at equal steps (`multi-layer-representations`, tables 2, 7)
    two-stage   the same schedule in two stages, dual encoder and self-contrastive (section 4.3.2)
    layers      how many layers and which; ME-BERT beside; how often each layer wins (section 4.2, figure 3, table 1)
    lambda      λ of the self-contrastive loss from 0.01 to 10
    storage     bytes, latency and quality of each way to store the vectors, in faiss and in OpenSearch

One model learns from both sets' questions, one hard negative of BM25's for each. It is tested on SQuAD's (squad-mix's test
split, whose paragraphs no training question is about), on squad-mix's own kind of questions about articles that were held
back, and on wikiqa-doc's. Intervals resample articles: many questions are about one. A start that was pre-trained on these
corpora has read the documents that are held back here, and no question about them.

The λ of the self-contrastive arm is the best on dev with the first seed, which then does not count: dual encoder,
self-contrastive and multi-vector are judged by the others. Arms of one seed have the first, beside the dual encoder's. The
rivals' λ is not chosen here but the one that the paper found for them (appendix A: 1 for ME-BERT, 0.01 for all tokens).

A vector is the mean of a layer's tokens, compared by cosine: what the default start was made with. The paper's are a layer's
CLS (`--pooling cls`, which a T5 has not) and raw inner products (`--inner-products`). By these that start's fifth layer lies
nearer to a query than its last one, and self-contrastive training begins with unlearning. Models, vectors and measures stay
in `--work`, shared by the parts: interrupted, the same command goes on, and with another option it trains other models
beside them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np

from benchmarks.beir_parts import articles, by_article, evenly, judgements, write_judged
from benchmarks.papers.jobs import share_stage, shared
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation import measures, result_rows
from opensearch_neural.evaluation.results import Engine
from opensearch_neural.models.pooling import Pooling
from trainers.common.precision import PRECISIONS, Computed, Precision, computed_in, computing_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from trainers.data.examples import TrainingData
    from trainers.data.sets import SetSettings
    from trainers.dense import DenseConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
SQUAD, WIKIQA = "squad-mix", "wikiqa-doc"
HELD = "squad-mix, held-back articles"
TESTS = (SQUAD, HELD, WIKIQA)
MEASURES = ("Success@5", "Success@20", "Success@100", "nDCG@10")
TOP_5 = MEASURES[0]
DEPTH = 100
SEEDS = (42, 43, 44, 45)
"""The first chooses λ, and is that of arms with one seed; the others judge."""
STEPS = 60
LEARNING_RATE = 5e-5
BATCH = 32
DOCUMENT_LENGTH = 96
PARTS = ("variants", "two-stage", "layers", "lambda", "storage")
DEV_SHARE, TEST_SHARE = 0.03, 0.12
"""Of squad-mix's training articles."""
DEV_QUERIES = 300
"""Of each dev set, at most, that the states of a training are compared with."""
HELD_QUERIES = 3000
"""Questions about held-back articles that are tested, at most."""
QUERIES_AT_ONCE = 64
CHOICES, COUNTS = ("last", "first", "uniform"), (2, 4, 6, 8)
"""Of layers, and how many; where two are the same layers, the first is trained for both."""
LAMBDAS = (0.01, 0.1, 1.0, 10.0)
TOLERANCE = 0.01
"""In dev nDCG@10: an arm has converged that gains no more than this over a training of half the steps."""
HALF = "half the steps"
WINS = ("answers", "documents ranked first")
"""Whose nearest vector is looked at."""
NODE = "osn-bench-multi-layer"


# ------------------------------------------------ arms


@dataclass(frozen=True)
class Arm:
    """A way to represent documents. representation: fields of `RepresentationSettings`; None is the plain dual encoder."""

    name: str
    representation: Mapping[str, Any] | None = None
    two_stage: bool = False
    repeated: bool = False
    """Whether it is trained with the seeds that judge, too, or with the first alone."""

    def seeds(self, count: int) -> tuple[int, ...]:
        """count: of the seeds that judge."""
        return SEEDS[: count + 1] if self.repeated else SEEDS[:1]

    @property
    def is_rival(self) -> bool:
        return self.representation is not None and self.representation.get("source", "layers") != "layers"

    @property
    def slug(self) -> str:
        return slug(self.name)


def slug(name: str) -> str:
    """Letters and digits of a name, with a - for what is between them."""
    parts = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    return "-".join(part for part in parts.split("-") if part)


def of_seeds(seeds: Sequence[int]) -> str:
    """As engines name the mean over models of these seeds, or the only one."""
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def mlr(layers: str | Sequence[int], pooling: str, *, weight: float = 1.0, **more: Any) -> Arm:
    """weight: λ, 1 in the paper for two layers and 0.1 for all (appendix A)."""
    said = layers if isinstance(layers, str) else ",".join(map(str, layers))
    name = f"MLR {said}, {pooling}" + (f", λ {weight:g}" if pooling == "self-contrastive" else "")
    chosen = layers if isinstance(layers, str) else list(layers)
    return Arm(name, {"layers": chosen, "pooling": pooling, "regularization": weight}, **more)


def me_bert(count: int, pooling: str) -> Arm:
    return Arm(
        f"ME-BERT {count}, {pooling}",
        {"source": "first-tokens", "count": count, "pooling": pooling, "regularization": 1.0},
    )


def colbert(pooling: str) -> Arm:
    return Arm(f"token vectors, {pooling}", {"source": "tokens", "pooling": pooling, "regularization": 0.01})


DUAL = Arm("dual encoder", repeated=True)
SELF_CONTRASTIVE = mlr("last:2", "self-contrastive", repeated=True)
"""Of the paper's λ; `best_on_dev` says of which λ it is trained here."""
MULTI_VECTOR = mlr("last:2", "multi-vector", repeated=True)
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


def in_two_stages(arm: Arm) -> Arm:
    return replace(arm, name=f"{arm.name}, two stages", two_stage=True, repeated=False)


def layer_arms(depth: int) -> list[Arm]:
    """m = 2, 4, 6, 8 of the last, first and uniform layers, as far as the backbone has them, what the paper's {10, 12} of 12
    layers are here, and ME-BERT with as many. What chooses the same layers as another does is left out."""
    arms = {layers: mlr(name, "multi-vector") for layers, name in named_layers(depth).items()}
    if depth >= 4:
        arms.setdefault((depth - 2, depth), mlr([depth - 2, depth], "multi-vector"))
    return [*arms.values(), *(me_bert(count, "multi-vector") for count in (2, 4, 8))]


def named_layers(depth: int) -> dict[tuple[int, ...], str]:
    """{layers: what chose them first} for all CHOICES and COUNTS that a backbone of this depth has."""
    from trainers.multi_layer import chosen_layers

    found: dict[tuple[int, ...], str] = {}
    for choice in (f"{choice}:{count}" for count in COUNTS if count <= depth for choice in CHOICES):
        found.setdefault(chosen_layers(choice, depth), choice)
    return found


# ------------------------------------------------ the ground


@dataclass(frozen=True)
class Recipe:
    """What the trainings of all arms have in common. pooling: of every layer; cosine: vectors of length 1 instead of the
    paper's raw inner products; document_length: in tokens."""

    start: str = START
    pooling: Pooling = "mean"
    cosine: bool = True
    learning_rate: float = LEARNING_RATE
    batch: int = BATCH
    document_length: int = DOCUMENT_LENGTH
    precision: Precision = "auto"

    @cached_property
    def backbone(self) -> Any:
        """The configuration of the transformer that documents' towers start from."""
        from trainers.encoders.tower import read_config, read_start

        return read_config(read_start(self.start).folders["document"])

    @property
    def depth(self) -> int:
        return int(self.backbone.num_hidden_layers)

    @cached_property
    def computed(self) -> Computed:
        """What `precision` means here: a model that was trained in other numbers is another model."""
        return computed_in(self.precision)

    @cached_property
    def start_hash(self) -> str:
        from opensearch_neural.models.directory import hash_files, locate

        return hash_files(locate(self.start))

    @property
    def start_name(self) -> str:
        return self.start.rstrip("/").rpartition("/")[2]

    @property
    def described(self) -> str:
        """The start, and what is made of it, as a result names them."""
        width, compared = int(self.backbone.hidden_size), "cosines" if self.cosine else "inner products"
        made = f"{self.start_hash}, {self.depth} layers × {width}, {self.computed}"
        return f"{self.start_name} ({made}), {self.pooling}, {compared}"

    def check(self) -> None:
        """Raises InputError for a CLS that the start does not have, ModelError for a start that is none."""
        from trainers.encoders.tower import T5

        # `backbone` comes first: a start that is none is refused whatever the pooling.
        if self.backbone.model_type in T5 and self.pooling == "cls":
            raise InputError(f"{self.start} is a T5, which has no CLS", "give --pooling mean")

    def fingerprint(self, *, steps: int, seed: int) -> str:
        """Of everything that an option changes about a training: another one is another folder."""
        from trainers.common.config import fingerprint

        # Not where the start lies, but what it is.
        given = {**asdict(self), "start": "", "precision": self.computed}
        return fingerprint(given, self.start_hash, steps, seed)[:8]


@dataclass
class Ground:
    """The data of this experiment in `--work`, made once: what is trained on has no document of what is tested."""

    data: Path
    work: Path
    recipe: Recipe = field(default_factory=Recipe)
    only: tuple[str, ...] = ()
    """Parts of the names of the arms that are wanted; the dual encoder always is. All without any."""
    _tests: dict[str, TrainingData] = field(default_factory=dict)
    _outcomes: dict[Path, Outcome] = field(default_factory=dict)
    _clusters: dict[str, dict[str, str]] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)

    def wanted(self, arms: Iterable[Arm]) -> list[Arm]:
        return [
            arm
            for arm in arms
            if arm.representation is None or not self.only or any(part in arm.name for part in self.only)
        ]

    @property
    def squad(self) -> Path:
        return self.data / SQUAD

    @property
    def held(self) -> Path:
        """squad-mix with its training questions split by article: qrels dev and test."""
        return self.work / "data" / "squad-mix-held"

    def train(self, name: str) -> Path:
        """The training questions of a set, and the documents that answer them."""
        return self.work / "data" / f"{name}-train"

    def negatives(self, name: str) -> Path:
        return self.work / "data" / f"{name}.bm25.jsonl"

    @property
    def dev(self) -> list[SetSettings]:
        """What trainings choose their best state on."""
        from trainers.data.sets import SetSettings

        return [
            SetSettings(self.held, split="dev", name="squad-mix-dev"),
            SetSettings(self.data / WIKIQA, split="dev", name="wikiqa-dev"),
        ]

    @cached_property
    def dev_questions(self) -> int:
        """How many questions a measure on dev rests on, of both sets together."""
        return sum(min(DEV_QUERIES, len(one.load().query_texts())) for one in self.dev)

    def test(self, name: str) -> TrainingData:
        from trainers.data.loading import load_training

        if name not in self._tests:
            folder = self.held if name == HELD else self.data / name
            loaded = load_training(folder, split="test", name=name)
            if name == HELD and len(loaded) > HELD_QUERIES:
                loaded = loaded.take(evenly(range(len(loaded)), HELD_QUERIES))
            self._tests[name] = loaded
        return self._tests[name]

    def clusters(self, name: str) -> dict[str, str]:
        """Of a test set's questions the articles: questions about one are not independent of each other."""
        if name not in self._clusters:
            corpus = self.data / (WIKIQA if name == WIKIQA else SQUAD)
            self._clusters[name] = by_article(self.test(name).qrels(), articles(corpus))
        return self._clusters[name]

    def measured_file(self, spec: str, name: str, what: str = "") -> Path:
        """Where is kept what was measured of a model (as `open_retriever` names it) on a test set: by both hashes, so that
        the parts do not search twice."""
        known = f"{slug(name)}-{self.hash_of(spec)}-{self.test(name).hash}-{self.recipe.computed}"
        return self.work / "measured" / f"{known}{what}.json"

    def hash_of(self, spec: str) -> str:
        """Of a model as `open_retriever` names it."""
        from opensearch_neural.models.directory import hash_files, locate

        if spec not in self._hashes:
            self._hashes[spec] = hash_files(locate(spec.partition(":")[2]))
        return self._hashes[spec]

    def refuse_other_data(self) -> None:
        """Raises InputError for a folder of work on other data."""
        from opensearch_neural.evaluation.results import data_facts
        from opensearch_neural.files import read_json_object, write_json

        file = self.work / "data.json"
        facts = {name: data_facts(self.data / name).files for name in (SQUAD, WIKIQA)}
        if not file.exists():
            write_json(file, facts)
        for name, known in read_json_object(file).items():
            if known != facts[name]:
                raise InputError(f"{self.work} holds work on another {name} than {self.data}'s", "give another --work")

    def prepare(self) -> Ground:
        """Split by article, keep the documents of training questions, mine BM25's negatives, where that is not done. Raises
        InputError for a folder of work on other data."""
        shared({self.work / "data": self._prepare})
        return self

    def _prepare(self) -> None:
        from trainers.common.schedules import with_mined
        from trainers.data.loading import load_training

        self.refuse_other_data()
        of_document = articles(self.squad)
        parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
        for line in judgements(self.squad, "train"):
            parts[_part(of_document[line.split("\t")[1]])].append(line)
        write_judged(self.squad, self.held, {"dev": parts["dev"], "test": parts["test"]})
        write_judged(self.squad, self.train(SQUAD), {"train": parts["train"]}, answers_only=True)
        wikiqa = self.data / WIKIQA
        # A document may answer questions of several splits.
        tested = {line.split("\t")[1] for split in ("dev", "test") for line in judgements(wikiqa, split)}
        own = [line for line in judgements(wikiqa, "train") if line.split("\t")[1] not in tested]
        write_judged(wikiqa, self.train(WIKIQA), {"train": own}, answers_only=True)
        for name in (SQUAD, WIKIQA):
            with_mined(load_training(self.train(name), name=name), "bm25", self.negatives(name), depth=DEPTH, keep=50)


def _part(article: str) -> str:
    share = int(hashlib.sha256(article.encode()).hexdigest()[:8], 16) / 0x100000000
    return "dev" if share < DEV_SHARE else "test" if share < DEV_SHARE + TEST_SHARE else "train"


# ------------------------------------------------ training and testing


def configuration(arm: Arm, ground: Ground, *, steps: int, seed: int) -> DenseConfig:
    """What `osn train dense` or `osn train mlr` is told; the same for all arms but for the representation."""
    from trainers.common.schedules import TwoStageSettings
    from trainers.common.settings import TrainingSettings
    from trainers.data.candidates import CandidateSettings
    from trainers.data.sets import DevSettings, SetSettings
    from trainers.dense import DenseConfig
    from trainers.multi_layer import MlrConfig, RepresentationSettings, SeparateTowers

    recipe = ground.recipe
    name = f"{arm.slug}-{steps}-{seed}-{recipe.fingerprint(steps=steps, seed=seed)}"
    common: dict[str, Any] = {
        "output": ground.work / "models" / name,
        "start": recipe.start,
        "train": [
            SetSettings(ground.train(name), name=name, negatives=ground.negatives(name)) for name in (SQUAD, WIKIQA)
        ],
        "dev": ground.dev,
        "unseen": [
            SetSettings(ground.squad, split="test", name="squad-mix-test"),
            SetSettings(ground.held, split="test", name="held-back"),
            SetSettings(ground.data / WIKIQA, split="test", name="wikiqa-test"),
        ],
        "encoder": SeparateTowers(
            pooling=recipe.pooling,
            query_length=48,
            document_length=recipe.document_length,
            normalize=recipe.cosine,
            dropout=0.0,
        ),
        "candidates": CandidateSettings(negatives=1, depth=DEPTH),
        "two_stage": TwoStageSettings(depth=DEPTH, keep=50) if arm.two_stage else None,
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
        return DenseConfig(**common)
    return MlrConfig(**common, representation=RepresentationSettings(**arm.representation))


@dataclass(frozen=True)
class Outcome:
    """A trained arm: its directory, and the dev measure that selected it, at each evaluation."""

    arm: Arm
    seed: int
    folder: Path
    dev: list[float]

    @property
    def engine(self) -> Engine:
        return Engine(self.arm.name, self.seed)

    @property
    def name(self) -> str:
        return str(self.engine)

    @property
    def spec(self) -> str:
        """As `open_retriever` names it."""
        from opensearch_neural.models.directory import read_osn_json

        return f"{(read_osn_json(self.folder) or {})['kind']}:{self.folder}"


def trained(arm: Arm, ground: Ground, *, steps: int, seed: int) -> Outcome:
    """The model of an arm, trained where it is not yet."""
    from trainers.dense import train_dense
    from trainers.multi_layer import MlrConfig, build

    config = configuration(arm, ground, steps=steps, seed=seed)
    if config.output in ground._outcomes:
        return ground._outcomes[config.output]
    found = train_dense(config, build) if isinstance(config, MlrConfig) else train_dense(config)
    logger.info("%s, seed %d: %d steps, %s", arm.name, seed, found.steps, found.measures)
    history = (config.output / ".training" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    evaluated = {one["step"]: one["eval_nDCG@10"] for one in map(json.loads, history) if "eval_nDCG@10" in one}
    outcome = Outcome(arm, seed, config.output, [evaluated[step] for step in sorted(evaluated)])
    ground._outcomes[config.output] = outcome
    return outcome


def each_trained(arms: Iterable[tuple[Arm, int]], ground: Ground, *, steps: int, search: bool = True) -> list[Outcome]:
    """The models of arms and seeds, and what was searched with them: see `shared`."""

    def job(arm: Arm, seed: int) -> Outcome:
        outcome = trained(arm, ground, steps=steps, seed=seed)
        return searched_everywhere(outcome, ground) if search else outcome

    return shared(
        {configuration(arm, ground, steps=steps, seed=seed).output: partial(job, arm, seed) for arm, seed in arms}
    )


def trained_on(first: Outcome, ground: Ground, *, steps: int) -> Outcome:
    """An arm in two stages, of which the first is what was trained in one."""
    from trainers.common.schedules import FIRST, FOLDER

    arm = in_two_stages(first.arm)
    share_stage(first.folder, configuration(arm, ground, steps=steps, seed=first.seed).output / FOLDER / FIRST)
    return searched_everywhere(trained(arm, ground, steps=steps, seed=first.seed), ground)


def best_on_dev(ground: Ground, *, steps: int) -> Arm:
    """SELF_CONTRASTIVE with that λ of LAMBDAS whose model, of the first seed, is the best on dev."""
    outcomes = each_trained(of_first_seed(of_lambdas()), ground, steps=steps, search=False)
    best = max(outcomes, key=lambda outcome: max(outcome.dev))
    logger.info("best on dev: %s", best.arm.name)
    return best.arm


def with_best(arms: Sequence[Arm], ground: Ground, *, steps: int) -> tuple[list[Arm], Arm]:
    """`arms` with the best on dev in the place of SELF_CONTRASTIVE, and that; it is not looked for where that is none of
    them."""
    best = best_on_dev(ground, steps=steps) if SELF_CONTRASTIVE in arms else SELF_CONTRASTIVE
    return [best if arm == SELF_CONTRASTIVE else arm for arm in arms], best


def of_lambdas() -> list[Arm]:
    return [mlr("last:2", "self-contrastive", weight=weight, repeated=True) for weight in LAMBDAS]


def of_first_seed(arms: Iterable[Arm]) -> list[tuple[Arm, int]]:
    return [(arm, SEEDS[0]) for arm in arms]


def searched_everywhere(outcome: Outcome, ground: Ground) -> Outcome:
    for name in TESTS:
        searched(outcome.spec, name, ground)
    return outcome


def searched(spec: str, name: str, ground: Ground) -> Measured:
    """A model (as `open_retriever` names it) on a test set: exact search over the whole corpus; kept, query by query. Sets
    of the same documents are searched together."""
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.files import read_json_object

    file, documents = ground.measured_file(spec, name), ground.test(name).documents
    if not file.exists():
        job = partial(
            _search, spec, [one for one in TESTS if ground.test(one).documents.hash == documents.hash], ground
        )
        shared({cache_of(spec, ground.test(name), ground): job})
    return Measured(**read_json_object(file))


def _search(spec: str, tests: Sequence[str], ground: Ground) -> None:
    from opensearch_neural.evaluation.measures import measure
    from opensearch_neural.files import write_json
    from trainers.data.negatives import open_retriever

    files = {name: ground.measured_file(spec, name) for name in tests}
    if all(file.exists() for file in files.values()):
        return
    first = ground.test(tests[0])
    with computing_in(ground.recipe.computed):
        engine = open_retriever(spec, first.documents, cache=cache_of(spec, first, ground))
        for name, file in files.items():
            test = ground.test(name)
            found = measure(engine.retrieve(test.query_texts(), DEPTH), test.qrels(), MEASURES)
            write_json(file, asdict(found), indent=None)


def cache_of(spec: str, test: TrainingData, ground: Ground) -> Path:
    """Where the vectors of a test set's corpus are kept; the two sets of squad-mix share theirs."""
    return ground.work / "vectors" / ground.hash_of(spec) / f"{test.documents.hash}-{ground.recipe.computed}"


def compared(outcomes: Sequence[Outcome], ground: Ground) -> list[Row]:
    """Every arm on every test set beside the dual encoder of its seed, the first among `outcomes`; of arms of several seeds,
    the mean over those that judge, too."""
    baselines: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.arm.representation is None:
            baselines.setdefault(outcome.seed, outcome)
    judging = [seed for seed in SEEDS[1:] if seed in baselines]
    starts = starts_as_they_are(ground)
    found: list[Row] = []
    for name in TESTS:
        rows = partial(result_rows.rows, name, clusters=ground.clusters(name))
        measured = {outcome.engine: searched(outcome.spec, name, ground) for outcome in outcomes}
        as_published = {Engine(label): searched(spec, name, ground) for label, spec in starts.items()}
        for seed, baseline in baselines.items():
            of_seed = {engine: one for engine, one in measured.items() if engine.seed == seed}
            found += rows(of_seed | (as_published if seed == SEEDS[0] else {}), baseline=baseline.engine)
        if len(judging) > 1:
            repeated = list(dict.fromkeys(one.arm.name for one in outcomes if one.seed in judging))
            means = {
                Engine(arm, variant=of_seeds(judging)): measures.averaged(
                    [measured[Engine(arm, seed)] for seed in judging if Engine(arm, seed) in measured]
                )
                for arm in repeated
            }
            found += rows(means, baseline=Engine(baselines[judging[0]].arm.name, variant=of_seeds(judging)))
    return found


def starts_as_they_are(ground: Ground) -> dict[str, str]:
    """{name: as `open_retriever` names it} of the model that all arms start from: as it was published, and, where that is
    less, reading as many tokens of a document as the arms do."""
    from sentence_transformers import SentenceTransformer

    from opensearch_neural.models.directory import locate
    from opensearch_neural.models.pretrained import quiet_loading

    recipe = ground.recipe
    name, length = f"{recipe.start_name} as it is", recipe.document_length
    found = {name: f"dense:{recipe.start}"}
    with quiet_loading():
        model = SentenceTransformer(str(locate(recipe.start)), device="cpu", local_files_only=True)
    if model.max_seq_length and model.max_seq_length <= length:
        return found
    cut = ground.work / "starts" / f"{recipe.start_hash}-{length}"

    def write() -> None:
        if not cut.exists():
            part = cut.with_suffix(".part")
            model.max_seq_length = length
            with quiet_loading():
                model.save(str(part), create_model_card=False)
            part.rename(cut)

    shared({cut: write})
    return found | {f"{name}, {length} tokens": f"dense:{cut}"}


def against_others(outcomes: Sequence[Outcome], arm: Arm, ground: Ground) -> list[Row]:
    """Of `arm`, trained with the first seed, the difference to every other variant and rival of that seed."""
    first = [one for one in outcomes if one.seed == SEEDS[0] and one.arm.representation is not None]
    found: list[Row] = []
    for own in [one for one in first if one.arm == arm]:
        for name in TESTS:
            measured = {one.engine: searched(one.spec, name, ground) for one in first}
            for other in first:
                if other is not own:
                    pair = {one.engine: measured[one.engine] for one in (other, own)}
                    rows = result_rows.rows(name, pair, baseline=other.engine, clusters=ground.clusters(name))
                    found += result_rows.only_differences(rows)
    return found


def dev_rows(outcomes: Iterable[Outcome], ground: Ground, note: str = "") -> list[Row]:
    """Where each arm started on dev, and where it ended; note: what tells them from others of the same name."""
    from opensearch_neural.evaluation.results import Row

    return [
        Row("dev", outcome.arm.name, measure, value, None, None, ground.dev_questions, seed=outcome.seed, variant=note)
        for outcome in outcomes
        for measure, value in (("nDCG@10 at the start", outcome.dev[0]), ("nDCG@10", max(outcome.dev)))
    ]


def half_rows(arms: Iterable[Arm], ground: Ground, steps: int) -> list[Row]:
    """Where the arms end with half the steps, and a learning rate that has fallen to 0 by then: within one run the last
    steps, whose rate is next to 0, always gain little."""
    halves = each_trained(of_first_seed(arms), ground, steps=steps // 2, search=False)
    return dev_rows(halves, ground, HALF)


def start_goal(rows: Sequence[Row]) -> Goal:
    """Each arm above its own start on dev."""
    from opensearch_neural.evaluation.results import Goal

    value = _on_dev(rows)
    arms = [arm for arm in dict.fromkeys(engine for engine, _ in value) if not arm.endswith(f", {HALF}")]
    failed = [arm for arm in arms if value[arm, "nDCG@10"] <= value[arm, "nDCG@10 at the start"]]
    return Goal(
        "each arm above its own start on dev (nDCG@10)",
        f"{len(arms)} of {len(arms)}",
        f"{len(arms) - len(failed)} of {len(arms)}" + (f" (not: {'; '.join(failed)})" if failed else "")
        if arms
        else None,
        bool(arms) and not failed,
    )


def converged_goal(rows: Sequence[Row], arms: Sequence[Arm], steps: int) -> Goal:
    """A run of twice the steps gains little. Of the two arms that the first goal is about; not measured where one is
    missing."""
    from opensearch_neural.evaluation.results import Goal

    value, measure = _on_dev(rows), "nDCG@10"
    names = [f"{arm.name}, seed {SEEDS[0]}" for arm in arms]
    gains = {
        name: value[name, measure] - value[f"{name}, {HALF}", measure]
        for name in names
        if (name, measure) in value and (f"{name}, {HALF}", measure) in value
    }
    whole = bool(names) and len(gains) == len(names)
    return Goal(
        f"dual encoder and self-contrastive converged on dev: {steps} steps gain little nDCG@10 over {steps // 2}",
        f"at most {TOLERANCE:g} each",
        "; ".join(f"{name} {gain:+.4f}" for name, gain in gains.items()) if whole else None,
        whole and max(gains.values()) <= TOLERANCE,
    )


def _on_dev(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    return {(row.line, row.column): row.value for row in rows if row.set == "dev"}


# ------------------------------------------------ which layer wins


@dataclass(frozen=True)
class Winners:
    """Of each query's answer, and of the document ranked first, which layer's vector is the nearest; shares sum to 1.
    last_alone: what is found by the last layer's vectors alone, of the same model."""

    layers: list[int]
    of_answers: list[float]
    of_first: list[float]
    last_alone: Measured


def winners(outcome: Outcome, name: str, ground: Ground) -> Winners:
    """Of a multi-vector arm over layers on a test set; kept as measures are."""
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.files import read_json_object, write_json

    file = ground.measured_file(outcome.spec, name, "-winners")
    if not file.exists():
        write_json(file, asdict(_winners(outcome, name, ground)), indent=None)
    content = read_json_object(file)
    return Winners(**content | {"last_alone": Measured(**content["last_alone"])})


def _winners(outcome: Outcome, name: str, ground: Ground) -> Winners:
    from opensearch_neural.evaluation.measures import measure
    from opensearch_neural.models.multi_layer import load_multi_layer
    from opensearch_neural.retrievers.faiss import FaissRetriever
    from trainers.data.embedding_cache import several_vectors

    test = ground.test(name)
    encoder = load_multi_layer(outcome.folder)
    texts = test.query_texts()
    with computing_in(ground.recipe.computed):
        cache = cache_of(outcome.spec, test, ground) / "documents"
        vectors = several_vectors(encoder, test.documents, cache).stacked()
        queries = encoder.encode_queries(list(texts.values()))
    answers = np.array([test.documents.row(next(iter(positives))) for positives in test.qrels().values()])
    alone = FaissRetriever(
        test.documents.ids, np.ascontiguousarray(vectors[:, encoder.selection.last]), lambda texts: queries
    )
    of_answers, of_first = shares_won(queries, vectors, answers).tolist()
    measured = measure(alone.retrieve(texts, DEPTH), test.qrels(), MEASURES)
    return Winners(list(encoder.selection.layers), of_answers, of_first, measured)


def shares_won(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(2, layers): of queries (q, D), the share for which each layer's vector is the nearest of the answer's, and of those
    of the document ranked first. vectors: (documents, layers, D); answers: (q,), rows of documents."""
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


def winner_rows(outcomes: Iterable[Outcome], ground: Ground) -> list[Row]:
    """Shares by layer, and what the vectors of the other layers add to those of the last."""
    from opensearch_neural.evaluation.results import Row

    found: list[Row] = []
    for outcome in outcomes:
        for name in TESTS:
            test, won = ground.test(name), winners(outcome, name, ground)
            for whose, shares in zip(WINS, (won.of_answers, won.of_first), strict=True):
                found += [
                    Row(
                        name,
                        outcome.arm.name,
                        f"layer {layer} wins, {whose}",
                        share,
                        None,
                        None,
                        len(test),
                        seed=outcome.seed,
                    )
                    for layer, share in zip(won.layers, shares, strict=True)
                ]
            alone = outcome.engine._replace(variant="the last layer's vectors alone")
            measured = {alone: won.last_alone, outcome.engine: searched(outcome.spec, name, ground)}
            rows = result_rows.rows(name, measured, baseline=alone, clusters=ground.clusters(name))
            found += [row for row in rows if row.variant == alone.variant or row.kind != "value"]
    return found


def weight_rows(outcome: Outcome) -> list[Row]:
    """What the scalar mix of a written model has learned: the weight of each vector of a document."""
    from opensearch_neural.evaluation.results import Row

    mixes = (outcome.arm.representation or {}).get("pooling") == "scalar-mix"
    weights = mixed_by(outcome.folder) if mixes else {}
    return [
        Row("scalar mix", outcome.arm.name, f"weight of {vector}", weight, None, None, 1, seed=outcome.seed)
        for vector, weight in weights.items()
    ]


def mixed_by(model: Path) -> dict[str, float]:
    """{"layer 5": its weight, …} of a directory that mixes layers, {"vector 1": …} of one that mixes tokens' vectors; their
    sum is 1."""
    from safetensors.numpy import load_file

    from opensearch_neural.files import read_json_object
    from opensearch_neural.models.dense_onnx import MIX
    from opensearch_neural.models.directory import routes
    from opensearch_neural.models.multi_layer import FILE, read_selection

    if (model / FILE).exists():
        weights = {f"vector {at}": one for at, one in enumerate(read_selection(model)[1] or (), start=1)}
    else:
        of_route = routes(model)
        (module,) = [one.path for one in of_route.get("document") or of_route[""] if one.type == MIX]
        first = int(read_json_object(module / "config.json")["layer_start"])
        kept = load_file(module / "model.safetensors")["layer_weights"].tolist()
        # Between the layers that are mixed stand others, with a weight of 0.
        weights = {f"layer {at}": one for at, one in enumerate(kept, start=first) if one}
    return {vector: weight / sum(weights.values()) for vector, weight in weights.items()}


def last_layer_goal(rows: Sequence[Row]) -> Goal:
    """If the last layer always wins, what does storing the others buy?"""
    from opensearch_neural.evaluation.results import Goal

    last = {whose: _last_layer_wins(rows, whose) for whose in WINS}
    gains = [row for row in rows if row.column.startswith(f"{TOP_5} - ") and row.column.endswith("alone")]
    above = [row for row in gains if (row.low or 0) > 0]
    differences = [row.value for row in gains]
    won = ", ".join(f"{min(of):.1%} to {max(of):.1%} of {whose}" for whose, of in last.items() if of)
    return Goal(
        "how often the last layer wins after training, and what multi-vector storage buys beside its vectors alone",
        "measured",
        f"the last layer wins {won}; storage buys {float(np.mean(differences)):+.4f} of top-5 "
        f"accuracy over the last layer's vectors alone, mean of {len(gains)} cases ({min(differences):+.4f} to "
        f"{max(differences):+.4f}), interval above zero in {len(above)}"
        if gains and all(last.values())
        else None,
        bool(gains and all(last.values())),
    )


def _last_layer_wins(rows: Sequence[Row], whose: str) -> list[float]:
    """The share that the last layer wins, for each set and model."""
    shares: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.column.endswith(f"wins, {whose}"):
            shares.setdefault((row.set, row.line), {})[int(row.column.split()[1])] = row.value
    return [of_layer[max(of_layer)] for of_layer in shares.values()]


# ------------------------------------------------ the parts


def variants(ground: Ground, steps: int, seeds: int) -> tuple[list[Row], list[Goal]]:
    wanted, best = with_best(ground.wanted(VARIANTS), ground, steps=steps)
    outcomes = each_trained([(arm, seed) for arm in wanted for seed in arm.seeds(seeds)], ground, steps=steps)
    of_goal = [arm for arm in wanted if arm in (DUAL, best)]
    # What λ was chosen among; of the chosen one there is a row already.
    others = [arm for arm in ground.wanted(of_lambdas()) if best in wanted and arm != best]
    rows = dev_rows(outcomes, ground) + half_rows(of_goal, ground, steps)
    rows += dev_rows(each_trained(of_first_seed(others), ground, steps=steps, search=False), ground)
    rows += compared(outcomes, ground) + against_others(outcomes, best, ground)
    several = [outcome for outcome in outcomes if outcome.arm == MULTI_VECTOR]
    rows += winner_rows(several[:1], ground)
    rows += [row for outcome in outcomes for row in weight_rows(outcome)]
    return rows, [
        self_contrastive_goal(rows, best, SEEDS[1 : seeds + 1], steps),
        rivals_goal(rows, best),
        converged_goal(rows, (DUAL, best), steps),
        start_goal(rows),
        last_layer_goal(rows),
    ]


def self_contrastive_goal(
    rows: Sequence[Row], arm: Arm, seeds: Sequence[int], steps: int, baseline: Arm = DUAL
) -> Goal:
    """By the mean over models of `seeds`, each seed's own difference beside it."""
    from opensearch_neural.evaluation.results import Goal

    value = {(row.set, row.line, row.column): row for row in rows}
    engine, difference = f"{arm.name}, {of_seeds(seeds)}", f"{TOP_5} - {baseline.name}, {of_seeds(seeds)}"
    gains = [row for row in rows if (row.line, row.column) == (engine, difference)]
    above = [row.set for row in gains if (row.low or 0) > 0]

    def each(row: Row) -> str:
        keys = [(row.set, f"{arm.name}, seed {seed}", f"{TOP_5} - {baseline.name}, seed {seed}") for seed in seeds]
        own = ", ".join(f"{value[key].value:+.4f}" for key in keys if key in value)
        return f"{_of_set(row)}" + (f", by seed {own}" if len(seeds) > 1 else "")

    stages = "two stages, " if arm.two_stage else ""
    choice = "that λ was chosen with" if seeds[0] == SEEDS[0] else "λ chosen with another one"
    return Goal(
        "self-contrastive above the dual encoder in top-5 accuracy on at least one set, interval above zero "
        f"({stages}{len(seeds)} seed{'s' * (len(seeds) > 1)}, {choice}, {steps} steps)",
        "at least 1 set",
        f"{len(above)} of {len(gains)} ({'; '.join(map(each, gains))})" if gains else None,
        bool(above),
    )


def rivals_goal(rows: Sequence[Row], arm: Arm) -> Goal:
    """Against every rival of VARIANTS, all trained with the first seed."""
    from opensearch_neural.evaluation.results import Goal

    rivals = [rival.name for rival in VARIANTS if rival.is_rival]
    gains: dict[str, list[Row]] = {}
    for row in rows:
        for rival in rivals:
            if (row.line, row.column) == (f"{arm.name}, seed {SEEDS[0]}", f"{TOP_5} - {rival}, seed {SEEDS[0]}"):
                gains.setdefault(rival, []).append(row)
    above = [rival for rival, own in gains.items() if any((row.low or 0) > 0 for row in own)]
    shown = "; ".join(f"{rival}: {', '.join(map(_of_set, own))}" for rival, own in gains.items())
    return Goal(
        "self-contrastive above each rival (ME-BERT, token vectors) in top-5 accuracy on at least one set, interval above "
        f"zero (seed {SEEDS[0]}, which its λ was chosen with; the rivals have the paper's)",
        f"{len(rivals)} of {len(rivals)}",
        f"{len(above)} of {len(gains)} ({shown})" if gains else None,
        bool(rivals) and len(above) == len(rivals),
    )


def _of_set(row: Row) -> str:
    from benchmarks.publish import signed

    return f"{row.set} {signed(row, 4)}"


def two_stages(ground: Ground, steps: int) -> tuple[list[Row], list[Goal]]:
    wanted, best = with_best(ground.wanted((DUAL, SELF_CONTRASTIVE)), ground, steps=steps)
    alone = each_trained(of_first_seed(wanted), ground, steps=steps)
    jobs = {
        configuration(in_two_stages(one.arm), ground, steps=steps, seed=one.seed).output: partial(
            trained_on, one, ground, steps=steps
        )
        for one in alone
    }
    # The first dual encoder is what the others are compared with.
    outcomes = shared(jobs) + alone
    rows = dev_rows(outcomes, ground) + compared(outcomes, ground)
    goal = self_contrastive_goal(rows, in_two_stages(best), SEEDS[:1], steps, in_two_stages(DUAL))
    return rows, [goal, start_goal(rows)]


def layers(ground: Ground, steps: int) -> tuple[list[Row], list[Goal]]:
    arms = ground.wanted((DUAL, *layer_arms(ground.recipe.depth)))
    outcomes = each_trained(of_first_seed(arms), ground, steps=steps)
    rows = dev_rows(outcomes, ground) + compared(outcomes, ground)
    of_layers = [one for one in outcomes if one.arm.name.startswith("MLR")]
    rows += winner_rows(of_layers, ground)
    return rows, [start_goal(rows), last_layer_goal(rows)]


def lambdas(ground: Ground, steps: int) -> tuple[list[Row], list[Goal]]:
    outcomes = each_trained(of_first_seed(ground.wanted((DUAL, *of_lambdas()))), ground, steps=steps)
    rows = dev_rows(outcomes, ground) + compared(outcomes, ground)
    return rows, [start_goal(rows)]


# ------------------------------------------------ the command


@click.command("multi-layer")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Models and vectors are kept there.")
@click.option(
    "--record", type=click.Path(path_type=Path), default=None, help="Write PART/summary.json and plots there."
)
@click.option(
    "--part", "chosen", type=click.Choice(PARTS), multiple=True, help="Which evidence; repeatable.  [default: all]"
)
@click.option(
    "--steps", type=click.IntRange(2), default=STEPS, show_default=True, help="Optimizer steps of a training."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, len(SEEDS) - 1),
    default=len(SEEDS) - 1,
    show_default=True,
    help="That judge the main arms, beside the one that chooses λ.",
)
@click.option(
    "--only", multiple=True, help="Arms whose name holds this, beside the dual encoder; repeatable.  [default: all]"
)
@click.option("--start", default=START, show_default=True, help="What every arm starts from.")
@click.option(
    "--pooling",
    type=click.Choice(get_args(Pooling)),
    default="mean",
    show_default=True,
    help="Of a layer's tokens; the paper's is CLS, which a T5 has not.",
)
@click.option(
    "--cosine/--inner-products",
    default=True,
    show_default=True,
    help="Vectors of length 1, or the paper's raw inner products.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    default=LEARNING_RATE,
    show_default=True,
    help="Of every training.",
)
@click.option("--batch", type=click.IntRange(2), default=BATCH, show_default=True, help="Questions of a step.")
@click.option(
    "--document-length", type=click.IntRange(3), default=DOCUMENT_LENGTH, show_default=True, help="Tokens, at most."
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="auto",
    show_default=True,
    help="What trainings and the encoding of test sets compute in; auto: bfloat16 where the hardware is faster in it. Name "
    "it to go on with models that were trained on another machine.",
)
@connection_options
def multi_layer(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    steps: int,
    seeds: int,
    only: tuple[str, ...],
    **recipe: Any,
) -> None:
    """Train multi-layer representations beside a dual encoder and its rivals, and measure quality and cost.

    \b
    osn bench multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer
    osn bench multi-layer --data DIR --work DIR --part variants --only "last:2, self" --steps 100 --seeds 1
    """
    from benchmarks.local_cluster import cluster_or_node
    from benchmarks.papers.multi_layer_plots import plots
    from benchmarks.papers.multi_layer_storage import storage
    from benchmarks.publish import publish

    ground = Ground(data, work, Recipe(**recipe), only)
    ground.recipe.check()
    wanted = chosen or PARTS
    if "storage" in wanted:
        # Hours of training come first: that there is no cluster is better known now.
        with cluster_or_node(connection, NODE):
            pass
    ground.prepare()
    titles = {
        "variants": "Multi-layer representations against a dual encoder and its rivals",
        "two-stage": "Multi-layer representations in two stages",
        "layers": "Which layers, how many, and which of them wins",
        "lambda": "The weight of the self-contrastive regularization",
        "storage": "What several vectors a document cost, and buy",
    }
    parts: dict[str, Callable[[Ground, int], tuple[list[Row], list[Goal]]]] = {
        "variants": partial(variants, seeds=seeds),
        "two-stage": two_stages,
        "layers": layers,
        "lambda": lambdas,
        "storage": partial(storage, connection=connection),
    }
    for part in wanted:
        rows, goals = parts[part](ground, steps)
        measures = dict.fromkeys(row.column for row in rows)
        publish(
            rows,
            goals,
            title=f"{titles[part]}; start: {ground.recipe.described}; {steps} steps",
            data=[data / name for name in (SQUAD, WIKIQA)],
            seeds=SEEDS[: seeds + 1 if part == "variants" else 1],
            shown=[one for one in measures if one in MEASURES or one.startswith(f"{TOP_5} - {DUAL.name}")],
            record=record and record / part,
        )
        if record:
            try:
                plots(part, rows, record / part)
            except MissingExtra as error:
                logger.warning("no plots: %s", error)
