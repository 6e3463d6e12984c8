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
back, and on wikiqa-doc's. Similarities are raw inner products, as in the paper, or cosines (`--cosine`). Models and vectors
stay in `--work`, shared by the parts: interrupted, the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.beir_parts import articles, judgements, write_judged
from opensearch_neural.cluster import ConnectionSettings, connection_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.evaluate import Measured
    from opensearch_neural.results import Goal, Row
    from opensearch_neural.retrievers import Run
    from trainers.bi_encoder import DenseConfig
    from trainers.data import TrainingData

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
SQUAD, WIKIQA = "squad-mix", "wikiqa-doc"
HELD = "squad-mix, held-back articles"
TESTS = (SQUAD, HELD, WIKIQA)
MEASURES = ("Success@5", "Success@20", "Success@100", "nDCG@10")
TOP_5 = MEASURES[0]
DEPTH = 100
SEEDS = (42, 43, 44)
STEPS = 200
LEARNING_RATE = 2e-5
PARTS = ("variants", "two-stage", "layers", "lambda", "storage")
DEV_SHARE, TEST_SHARE = 0.03, 0.12
"""Of squad-mix's training articles."""
HELD_QUERIES = 3000
"""Questions about held-back articles that are tested, at most."""
QUERIES_AT_ONCE = 64
LAMBDAS = (0.01, 0.1, 1.0, 10.0)
TOLERANCE = 0.01
"""A gain in dev nDCG@10 over the last quarter of the steps below which an arm counts as converged."""


# ------------------------------------------------ arms


@dataclass(frozen=True)
class Arm:
    """A way to represent documents. representation: fields of `RepresentationSettings`; None is the plain dual encoder."""

    name: str
    representation: Mapping[str, Any] | None = None
    two_stage: bool = False
    repeated: bool = False
    """Whether it is trained with every seed, or with the first alone."""

    def seeds(self, count: int) -> tuple[int, ...]:
        return SEEDS[:count] if self.repeated else SEEDS[:1]

    @property
    def slug(self) -> str:
        parts = "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())
        return "-".join(part for part in parts.split("-") if part)


def mlr(layers: str, pooling: str, *, weight: float = 1.0, **more: Any) -> Arm:
    """weight: λ, 1 in the paper for two layers and 0.1 for all (appendix A)."""
    name = f"MLR {layers}, {pooling}" + (f", λ {weight:g}" if pooling == "self-contrastive" else "")
    return Arm(name, {"layers": layers, "pooling": pooling, "regularization": weight}, **more)


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
    """m = 2, 4, 6, 8 of the last, first and uniform layers, as far as the backbone has them, and ME-BERT with as many."""
    counts = [count for count in (2, 4, 6, 8) if count <= depth]
    choices = [(choice, count) for count in counts for choice in ("last", "first", "uniform")]
    # All layers are all of them, first or last.
    arms = [mlr(f"{choice}:{count}", "multi-vector") for choice, count in choices if count < depth or choice == "last"]
    return [*arms, *(me_bert(count, "multi-vector") for count in (2, 4, 8))]


# ------------------------------------------------ the ground


@dataclass
class Ground:
    """The data of this experiment in `--work`, made once: what is trained on has no document of what is tested."""

    data: Path
    work: Path
    start: str
    cosine: bool = False
    """Vectors of length 1 instead of the paper's raw inner products."""
    learning_rate: float = LEARNING_RATE
    only: tuple[str, ...] = ()
    """Parts of the names of the arms that are wanted; the dual encoder always is. All without any."""
    _tests: dict[str, TrainingData] = field(default_factory=dict)

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

    def test(self, name: str) -> TrainingData:
        from trainers.data import load_training

        if name not in self._tests:
            folder = self.held if name == HELD else self.data / name
            loaded = load_training(folder, split="test", name=name)
            if name == HELD and len(loaded) > HELD_QUERIES:
                loaded = loaded.take(range(0, len(loaded), -(-len(loaded) // HELD_QUERIES)))
            self._tests[name] = loaded
        return self._tests[name]

    def prepare(self) -> Ground:
        """Split by article, keep the documents of training questions, mine BM25's negatives, where that is not done."""
        from trainers.data import load_training
        from trainers.schedules import with_mined

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
        return self


def _part(article: str) -> str:
    share = int(hashlib.sha256(article.encode()).hexdigest()[:8], 16) / 0x100000000
    return "dev" if share < DEV_SHARE else "test" if share < DEV_SHARE + TEST_SHARE else "train"


# ------------------------------------------------ training and testing


def configuration(arm: Arm, ground: Ground, *, steps: int, seed: int) -> DenseConfig:
    """What `osn train dense` or `osn train mlr` is told; the same for all arms but for the representation."""
    from trainers.bi_encoder import CandidateSettings, DenseConfig, DevSettings, SetSettings
    from trainers.loop import TrainingSettings
    from trainers.multi_layer import MlrConfig, RepresentationSettings, SeparateTowers
    from trainers.schedules import TwoStageSettings

    common: dict[str, Any] = {
        "output": ground.work / "models" / f"{arm.slug}{'-cosine' if ground.cosine else ''}-{steps}-{seed}",
        "start": ground.start,
        "train": [
            SetSettings(ground.train(name), name=name, negatives=ground.negatives(name)) for name in (SQUAD, WIKIQA)
        ],
        "dev": [
            # Of wikiqa-doc's few questions nearly all are answered by what is ranked first, before any training.
            SetSettings(ground.held, split="dev", name="squad-mix-dev"),
        ],
        "unseen": [
            SetSettings(ground.squad, split="test", name="squad-mix-test"),
            SetSettings(ground.held, split="test", name="held-back"),
            SetSettings(ground.data / WIKIQA, split="test", name="wikiqa-test"),
        ],
        "encoder": SeparateTowers(
            pooling="cls", query_length=48, document_length=128, normalize=ground.cosine, dropout=0.0
        ),
        "candidates": CandidateSettings(negatives=1, depth=DEPTH),
        "two_stage": TwoStageSettings(depth=DEPTH, keep=50) if arm.two_stage else None,
        "selection": DevSettings(queries=500, documents=1000),
        "training": TrainingSettings(
            steps=steps,
            batch_size=32,
            learning_rate=ground.learning_rate,
            warmup=0.05,
            weight_decay=0.0,
            max_gradient_norm=2.0,
            set_weights=0.5,
            evaluate_every=-(-steps // 4),
            save_every=-(-steps // 4),
            precision="auto",
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
    def name(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def spec(self) -> str:
        """As `open_retriever` names it."""
        from opensearch_neural.models.directory import read_osn_json

        return f"{(read_osn_json(self.folder) or {})['kind']}:{self.folder}"


def trained(arm: Arm, ground: Ground, *, steps: int, seed: int) -> Outcome:
    """The model of an arm, trained where it is not yet."""
    from trainers.bi_encoder import train_dense
    from trainers.multi_layer import MlrConfig, build

    config = configuration(arm, ground, steps=steps, seed=seed)
    found = train_dense(config, build) if isinstance(config, MlrConfig) else train_dense(config)
    logger.info("%s, seed %d: %d steps, %s", arm.name, seed, found.steps, found.measures)
    history = (config.output / ".training" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    evaluated = {one["step"]: one["eval_nDCG@10"] for one in map(json.loads, history) if "eval_nDCG@10" in one}
    return Outcome(arm, seed, config.output, [evaluated[step] for step in sorted(evaluated)])


def best_on_dev(ground: Ground, *, steps: int) -> Arm:
    """SELF_CONTRASTIVE with that λ of LAMBDAS whose model, of the first seed, is the best on dev."""
    outcomes = [trained(arm, ground, steps=steps, seed=SEEDS[0]) for arm in of_lambdas()]
    best = max(outcomes, key=lambda outcome: max(outcome.dev))
    logger.info("best on dev: %s", best.arm.name)
    return best.arm


def with_best(arms: Sequence[Arm], ground: Ground, *, steps: int) -> tuple[list[Arm], Arm]:
    """`arms` with the best on dev in the place of SELF_CONTRASTIVE, and that; it is not looked for where that is none."""
    best = best_on_dev(ground, steps=steps) if SELF_CONTRASTIVE in arms else SELF_CONTRASTIVE
    return [best if arm == SELF_CONTRASTIVE else arm for arm in arms], best


def of_lambdas() -> list[Arm]:
    return [mlr("last:2", "self-contrastive", weight=weight, repeated=True) for weight in LAMBDAS]


def searched(spec: str, name: str, ground: Ground) -> Measured:
    """A model (as `open_retriever` names it) on a test set: exact search over the whole corpus."""
    from opensearch_neural.evaluate import measure
    from trainers.negatives import open_retriever

    test = ground.test(name)
    engine = open_retriever(spec, test.documents, cache=cache_of(spec, test, ground))
    return measure(engine.retrieve(test.query_texts(), DEPTH), test.qrels(), MEASURES)


def cache_of(spec: str, test: TrainingData, ground: Ground) -> Path:
    """Where the vectors of a test set's corpus are kept; the two sets of squad-mix share theirs."""
    return ground.work / "vectors" / spec.rpartition("/")[2] / test.documents.hash


def compared(outcomes: Sequence[Outcome], ground: Ground) -> list[Row]:
    """Every arm on every test set beside the dual encoder of its seed, the first among `outcomes`; arms of several seeds
    as their mean, too."""
    from opensearch_neural.evaluate import averaged, rows

    baselines: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.arm.representation is None:
            baselines.setdefault(outcome.seed, outcome)
    seeds = len(baselines)
    found: list[Row] = []
    for name in TESTS:
        measured = {outcome.name: searched(outcome.spec, name, ground) for outcome in outcomes}
        as_published = {f"{ground.start.rpartition('/')[2]} as it is": searched(f"dense:{ground.start}", name, ground)}
        for seed, baseline in baselines.items():
            of_seed = {one.name: measured[one.name] for one in outcomes if one.seed == seed}
            found += rows(name, of_seed | (as_published if seed == SEEDS[0] else {}), baseline=baseline.name)
        repeated = {
            f"{outcome.arm.name}, {seeds} seeds": averaged(
                [measured[one.name] for one in outcomes if one.arm == outcome.arm]
            )
            for outcome in outcomes
            if outcome.arm.repeated and seeds > 1
        }
        found += rows(name, repeated, baseline=f"{next(iter(baselines.values())).arm.name}, {seeds} seeds")
    return found


def dev_rows(outcomes: Iterable[Outcome]) -> list[Row]:
    """Where each arm started on dev, where it ended, and what the last evaluation added."""
    from opensearch_neural.results import Row

    found = []
    for outcome in outcomes:
        dev = outcome.dev
        for measure, value in (
            ("nDCG@10 at the start", dev[0]),
            ("nDCG@10", max(dev)),
            ("gain of the last quarter", dev[-1] - dev[-2]),
        ):
            found.append(Row("dev", outcome.name, measure, value, None, None, len(dev)))
    return found


def dev_goal(rows: Sequence[Row]) -> Goal:
    """Each arm converged on dev and above its own start."""
    from opensearch_neural.results import Goal

    value = {(row.engine, row.measure): row.value for row in rows if row.set == "dev"}
    arms = list(dict.fromkeys(engine for engine, _ in value))
    failed = [
        arm
        for arm in arms
        if value[arm, "nDCG@10"] <= value[arm, "nDCG@10 at the start"]
        or value[arm, "gain of the last quarter"] > TOLERANCE
    ]
    return Goal(
        f"each arm converged on dev (the last quarter of the steps gains at most {TOLERANCE:g} nDCG@10) and above its start",
        f"{len(arms)} of {len(arms)}",
        f"{len(arms) - len(failed)} of {len(arms)}" + (f" (not: {'; '.join(failed)})" if failed else ""),
        bool(arms) and not failed,
    )


# ------------------------------------------------ which layer wins


@dataclass(frozen=True)
class Winners:
    """Of each query's answer, and of the document ranked first, which layer's vector is the nearest; shares sum to 1.
    last_alone: the run over the last layer's vectors, of the same model."""

    layers: tuple[int, ...]
    of_answers: list[float]
    of_first: list[float]
    last_alone: Run


def winners(outcome: Outcome, name: str, ground: Ground) -> Winners:
    """Of a multi-vector arm over layers on a test set."""
    from opensearch_neural.models.multi_layer import load_multi_layer
    from opensearch_neural.retrievers.faiss import FaissRetriever
    from trainers.embeddings import several_vectors

    test = ground.test(name)
    encoder = load_multi_layer(outcome.folder)
    vectors = several_vectors(encoder, test.documents, cache_of(outcome.spec, test, ground) / "documents").stacked()
    texts = test.query_texts()
    queries = encoder.encode_queries(list(texts.values()))
    answers = np.array([test.documents.row(next(iter(positives))) for positives in test.qrels().values()])
    alone = FaissRetriever(
        test.documents.ids, np.ascontiguousarray(vectors[:, encoder.selection.last]), lambda texts: queries
    )
    of_answers, of_first = shares_won(queries, vectors, answers).tolist()
    return Winners(encoder.selection.layers, of_answers, of_first, alone.retrieve(texts, DEPTH))


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
    from opensearch_neural.evaluate import measure, rows
    from opensearch_neural.results import Row

    found: list[Row] = []
    for outcome in outcomes:
        for name in TESTS:
            test, won = ground.test(name), winners(outcome, name, ground)
            for whose, shares in (("answers", won.of_answers), ("documents ranked first", won.of_first)):
                found += [
                    Row(name, outcome.name, f"layer {layer} wins, {whose}", share, None, None, len(test))
                    for layer, share in zip(won.layers, shares, strict=True)
                ]
            alone = f"{outcome.name}, the last layer's vectors alone"
            measured = {
                alone: measure(won.last_alone, test.qrels(), MEASURES),
                outcome.name: searched(outcome.spec, name, ground),
            }
            found += [
                row for row in rows(name, measured, baseline=alone) if row.engine == alone or alone in row.measure
            ]
    return found


def weight_rows(outcome: Outcome) -> list[Row]:
    """What a scalar mix has learned by the end of training: the weight of each vector of a document."""
    from opensearch_neural.results import Row

    history = (outcome.folder / ".training" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    logged = [line for line in map(json.loads, history) if "weight_1" in line]
    return [
        Row("scalar mix", outcome.name, name.replace("_", " of vector "), value, None, None, 1)
        for name, value in (logged[-1].items() if logged else ())
        if name.startswith("weight_")
    ]


def last_layer_goal(rows: Sequence[Row]) -> Goal:
    """If the last layer always wins, what does storing the others buy?"""
    from opensearch_neural.results import Goal

    shares: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.measure.endswith("wins, documents ranked first"):
            shares.setdefault((row.set, row.engine), {})[int(row.measure.split()[1])] = row.value
    last = [of_layer[max(of_layer)] for of_layer in shares.values()]
    gains = [row for row in rows if row.measure.startswith(f"{TOP_5} - ") and row.measure.endswith("alone")]
    above = [row for row in gains if (row.low or 0) > 0]
    return Goal(
        "how often the last layer wins after training, and what multi-vector storage buys beside its vectors alone",
        "measured",
        f"the last layer wins {min(last):.1%} to {max(last):.1%}; top-5 accuracy above that of the last layer's vectors "
        f"alone, interval above zero, in {len(above)} of {len(gains)} cases"
        if last and gains
        else None,
        bool(last and gains),
    )


# ------------------------------------------------ the parts


def variants(ground: Ground, steps: int, seeds: int) -> tuple[list[Row], list[Goal]]:
    wanted, best = with_best(ground.wanted(VARIANTS), ground, steps=steps)
    outcomes = [trained(arm, ground, steps=steps, seed=seed) for arm in wanted for seed in arm.seeds(seeds)]
    rows = dev_rows(outcomes) + compared(outcomes, ground)
    several = [outcome for outcome in outcomes if outcome.arm == MULTI_VECTOR]
    rows += winner_rows(several[:1], ground)
    rows += [row for outcome in outcomes for row in weight_rows(outcome)]
    goal = self_contrastive_goal(rows, best, f"{seeds} seeds" if seeds > 1 else f"seed {SEEDS[0]}")
    return rows, [goal, dev_goal(rows), last_layer_goal(rows)]


def self_contrastive_goal(rows: Sequence[Row], arm: Arm, of: str, baseline: Arm = DUAL) -> Goal:
    """of: which seeds, as the rows' engines have it."""
    from opensearch_neural.results import Goal

    engine, other = f"{arm.name}, {of}", f"{baseline.name}, {of}"
    gains = [row for row in rows if row.engine == engine and row.measure == f"{TOP_5} - {other}"]
    above = [row.set for row in gains if (row.low or 0) > 0]
    said = ", ".join(
        f"{row.set} {row.value:+.4f} [{row.low:+.4f}, {row.high:+.4f}]" for row in gains if row.low is not None
    )
    return Goal(
        f"self-contrastive above the dual encoder in top-5 accuracy on at least one set, interval above zero"
        f"{' (two stages)' if arm.two_stage else ''}",
        "at least 1 set",
        f"{len(above)} of {len(gains)}" + (f" ({said})" if said else ""),
        bool(above),
    )


def two_stages(ground: Ground, steps: int, seeds: int) -> tuple[list[Row], list[Goal]]:
    best = best_on_dev(ground, steps=steps)
    dual, contrastive = in_two_stages(DUAL), in_two_stages(best)
    # The first dual encoder is what the others are compared with.
    outcomes = [trained(arm, ground, steps=steps, seed=SEEDS[0]) for arm in (dual, contrastive, DUAL, best)]
    rows = dev_rows(outcomes) + compared(outcomes, ground)
    return rows, [self_contrastive_goal(rows, contrastive, f"seed {SEEDS[0]}", dual), dev_goal(rows)]


def layers(ground: Ground, steps: int, seeds: int) -> tuple[list[Row], list[Goal]]:
    from transformers import AutoConfig

    from opensearch_neural.models.directory import locate

    depth = int(AutoConfig.from_pretrained(locate(ground.start)).num_hidden_layers)
    outcomes = [trained(arm, ground, steps=steps, seed=SEEDS[0]) for arm in ground.wanted((DUAL, *layer_arms(depth)))]
    rows = dev_rows(outcomes) + compared(outcomes, ground)
    of_layers = [one for one in outcomes if one.arm.name.startswith("MLR")]
    rows += [row for row in winner_rows(of_layers, ground) if row not in rows]
    return rows, [dev_goal(rows), last_layer_goal(rows)]


def lambdas(ground: Ground, steps: int, seeds: int) -> tuple[list[Row], list[Goal]]:
    outcomes = [trained(arm, ground, steps=steps, seed=SEEDS[0]) for arm in (DUAL, *of_lambdas())]
    rows = dev_rows(outcomes) + compared(outcomes, ground)
    return rows, [dev_goal(rows)]


# ------------------------------------------------ plots


def plots(part: str, rows: Sequence[Row], folder: Path) -> None:
    """Top-5 accuracy against the number of vectors (part layers) or λ (part lambda), a panel for each set; and by which
    layer a document is found."""
    value = {(row.set, row.engine, row.measure): row.value for row in rows}
    seed = f", seed {SEEDS[0]}"
    if part == "layers":
        curves = {
            choice: [(count, f"MLR {choice}:{count}, multi-vector{seed}") for count in (2, 4, 6, 8)]
            for choice in ("last", "first", "uniform")
        }
        curves["ME-BERT"] = [(count, f"ME-BERT {count}, multi-vector{seed}") for count in (2, 4, 8)]
        _curves(value, curves, "vectors a document", folder / "layers.svg")
        _shares(rows, folder / "winners.svg")
    elif part == "lambda":
        points = [(weight, f"MLR last:2, self-contrastive, λ {weight:g}{seed}") for weight in LAMBDAS]
        _curves(value, {"self-contrastive": points}, "λ", folder / "lambda.svg", logarithmic=True)


def _curves(
    value: Mapping[tuple[str, str, str], float],
    curves: Mapping[str, Sequence[tuple[float, str]]],
    axis_name: str,
    file: Path,
    *,
    logarithmic: bool = False,
) -> None:
    plt = _pyplot()
    sets = [name for name in TESTS if any(of == name for of, _, _ in value)]
    figure, axes = plt.subplots(1, len(sets), figsize=(4 * len(sets), 3.2), squeeze=False)
    for axis, name in zip(axes[0], sets, strict=True):
        for curve, points in curves.items():
            known = [(at, value[name, engine, TOP_5]) for at, engine in points if (name, engine, TOP_5) in value]
            if known:
                axis.plot(*zip(*known, strict=True), marker="o", label=curve)
        axis.axhline(value[name, f"{DUAL.name}, seed {SEEDS[0]}", TOP_5], linestyle="--", label=DUAL.name)
        axis.set(title=name, xlabel=axis_name, ylabel="top-5 accuracy", xscale="log" if logarithmic else "linear")
    axes[0][0].legend()
    _save(figure, file)


def _shares(rows: Sequence[Row], file: Path) -> None:
    plt = _pyplot()
    shown = [row for row in rows if row.set == SQUAD and row.measure.endswith("wins, documents ranked first")]
    engines = list(dict.fromkeys(row.engine for row in shown))
    if not engines:
        return
    figure, axis = plt.subplots(figsize=(7, 0.4 * len(engines) + 1.2))
    left = dict.fromkeys(engines, 0.0)
    numbers = sorted({int(row.measure.split()[1]) for row in shown})
    for number in numbers:
        shares = {row.engine: row.value for row in shown if row.measure.startswith(f"layer {number} ")}
        axis.barh(engines, [shares.get(one, 0) for one in engines], left=list(left.values()), label=f"layer {number}")
        left = {one: left[one] + shares.get(one, 0) for one in engines}
    axis.set(xlabel=f"share of {SQUAD}'s questions whose first document is found by this layer")
    axis.legend(ncols=len(numbers), fontsize="small")
    _save(figure, file)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    _pyplot().close(figure)


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
@click.option("--steps", default=STEPS, show_default=True, help="Optimizer steps of a training.")
@click.option(
    "--seeds", type=click.IntRange(1, len(SEEDS)), default=len(SEEDS), show_default=True, help="Of the main arms."
)
@click.option(
    "--only", multiple=True, help="Arms whose name holds this, beside the dual encoder; repeatable.  [default: all]"
)
@click.option("--start", default=START, show_default=True, help="What every arm starts from.")
@click.option("--learning-rate", default=LEARNING_RATE, show_default=True, help="Of every training.")
@click.option("--cosine", is_flag=True, help="Vectors of length 1 instead of the paper's raw inner products.")
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
    start: str,
    learning_rate: float,
    cosine: bool,
) -> None:
    """Train multi-layer representations beside a dual encoder and its rivals, and measure quality and cost.

    \b
    osn bench multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer
    osn bench multi-layer --data DIR --work DIR --part variants --only "last:2, self" --steps 100 --seeds 1
    """
    from benchmarks.multi_layer_storage import storage
    from benchmarks.publish import publish

    ground = Ground(data, work, start, cosine, learning_rate, only).prepare()
    titles = {
        "variants": "Multi-layer representations against a dual encoder and its rivals",
        "two-stage": "Multi-layer representations in two stages",
        "layers": "Which layers, how many, and which of them wins",
        "lambda": "The weight of the self-contrastive regularization",
        "storage": "What several vectors a document cost, and buy",
    }
    parts = {"variants": variants, "two-stage": two_stages, "layers": layers, "lambda": lambdas}
    for part in chosen or PARTS:
        rows, goals = storage(ground, steps, connection) if part == "storage" else parts[part](ground, steps, seeds)
        measures = dict.fromkeys(row.measure for row in rows)
        if record:
            plots(part, rows, record / part)
        publish(
            rows,
            goals,
            title=titles[part],
            data=[data / name for name in (SQUAD, WIKIQA)],
            seeds=SEEDS[: seeds if part == "variants" else 1],
            shown=[one for one in measures if one in MEASURES or one.startswith(f"{TOP_5} - ")],
            record=record and record / part,
        )
