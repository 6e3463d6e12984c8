"""The evidence for JPQ: how much of a dense model's ranking M bytes a document keep.

    osn paper jpq --data DIR --work DIR --record benchmarks/results/jpq

`--data` holds the BEIR folders. There are two sets, each with its own result file below `--record`: scifact, and squad-mix
with wikiqa-sent as one corpus. With vectors of all-MiniLM-L6-v2, at several M, these are compared: flat search, flat with
the tuned query encoder, PQ, OPQ, OPQ with the query encoder tuned on uncompressed documents with the same negatives (the
control that isolates joint training), frozen centroids, JPQ (`jpq`, table 1, figures 4 and 7).

A trained model is removed after it is measured. Settings were chosen on questions held back from train.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from benchmarks.experiment import (
    JudgedSet,
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    gain_goal,
    goal_of,
    is_above,
    kept_measured,
    paper_options,
    run_parts,
    slug,
    trials,
)
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.query_segments import restricted
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.models.dense.quantized import Quantizer, load_quantized
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import MINILM
from opensearch_neural.retrievers import Retriever
from opensearch_neural.retrievers.faiss import FaissRetriever, QuantizedRetriever
from trainers.common.config import fingerprint
from trainers.common.settings import TrainingSettings
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.settings import Apart
from trainers.jpq.quantizer import kept_quantizer
from trainers.jpq.settings import JpqConfig, JpqObjective, JpqSelection, JpqSet, NegativeSettings, QuantizerSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

START = MINILM
SETS = {"scifact": ("scifact",), "squad-mix + wikiqa-sent": ("squad-mix", "wikiqa-sent")}
M = (8, 16, 24, 32, 48, 96)
SEEDS = (42, 43, 44)
SEVERAL_SEEDS = (16, 48)
"""The M that are trained with each of SEEDS; others are trained with the first."""
MEASURES = ("nDCG@10", "RR@10", "R@100")
DEPTH = 100
TEST_QUESTIONS = 1000
"""Most questions of a test split, taken evenly; all engines answer the same ones."""
HOLD_BACK = 160
"""Questions held back from train, which select the state."""
APART: dict[str, Apart] = {"scifact": "questions"}
"""{set: what held-back questions do not share with train}, as in the test split; "documents" for other sets. Two thirds of
scifact's test questions are about documents that train asks about too (part "quality" counts them)."""
LEARNING_RATE, CENTROID_LEARNING_RATE = 4e-5, 2e-4
"""Chosen on held-back questions at M = 16, for JPQ and the control, which converge on scifact in 200 steps. The paper's
rates for centroids (up to 1e-4) are for some hundred times as many steps: here they hardly move the centroids."""
ASKED, NEW = "documents that train asks about", "other documents"
FLAT, FLAT_TUNED, PQ, OPQ = "flat", "flat, tuned query encoder", "PQ", "OPQ"
CONTROL = "OPQ, query encoder tuned on uncompressed documents"
FROZEN, JPQ = "JPQ, frozen centroids", "JPQ"
TRAINED = (CONTROL, FROZEN, JPQ)
WITHOUT_CODES = (FLAT, FLAT_TUNED)
DIFFERENCES = [(engine, OPQ) for engine in (FLAT, FLAT_TUNED, PQ, *TRAINED)]
DIFFERENCES += [(JPQ, rival) for rival in (FLAT, FLAT_TUNED, CONTROL, FROZEN)]


def seeds_of(m: int) -> tuple[int, ...]:
    return SEEDS if m in SEVERAL_SEEDS else SEEDS[:1]


# ------------------------------------------------ what is measured


@dataclass(frozen=True, kw_only=True)
class EncodedSet(JudgedSet):
    """A test set with the start model's vectors."""

    train_documents: frozenset[str]
    """Its documents that are relevant to train questions."""
    start_hash: str
    """Hash of the start model."""
    vectors: NDArray[np.float32]
    """(documents, D)."""
    queries: NDArray[np.float32]
    """(questions, D)."""

    def searched(self, engine: Retriever) -> Measured:
        return self.measure(engine.retrieve(self.texts, DEPTH), MEASURES)

    def flat(self, queries: NDArray[np.float32]) -> Measured:
        """The measures of an exact search. queries: the questions' vectors"""
        return self.searched(FaissRetriever(self.data.documents.ids, self.vectors, lambda texts: queries))

    def quantized(self, quantizer: Quantizer, queries: NDArray[np.float32]) -> Measured:
        """The measures of a search of codes. queries: the questions' vectors"""
        codes = quantizer.encode(self.vectors)
        return self.searched(QuantizedRetriever(self.data.documents.ids, codes, quantizer, lambda texts: queries))

    def parts(self) -> dict[str, set[str]]:
        """{part: its questions}: those about documents that train asks about, which a query encoder may learn by heart, and
        the others."""
        asked = {query for query, relevant in self.qrels.items() if not self.train_documents.isdisjoint(relevant)}
        return {part: queries for part, queries in ((ASKED, asked), (NEW, {*self.qrels} - asked)) if queries}


@dataclass
class JpqExperiment:
    """The engines of one set, trained if necessary, each measured once."""

    data: Path
    """The folder of BEIR folders."""
    work: Path
    """Keeps everything that is made from them."""
    name: str
    """One of SETS."""
    steps: int
    """Optimizer steps of a training."""

    @cached_property
    def test(self) -> EncodedSet:
        """The test splits of the set over the corpus that its train splits have."""
        from trainers.data.splits import merge
        from trainers.jpq.preparation import document_vectors

        def merged(split: str) -> TrainingData:
            sets = [load_training(self.data / part, split=split, name=part) for part in SETS[self.name]]
            if split == "test":
                sets = [part.take(range(0, len(part), -(-len(part) // TEST_QUESTIONS))) for part in sets]
            return sets[0] if len(sets) == 1 else merge(sets)

        test, train, start = merged("test"), merged("train"), load_dense(START)
        return EncodedSet(
            test,
            test.qrels(),
            train_documents=frozenset(train.documents.ids[row] for row in train.positives.values.tolist()),
            start_hash=start.info.hash,
            vectors=np.asarray(document_vectors(start, test.documents, self.work / "cache"), np.float32),
            queries=start.encode_queries(list(test.query_texts().values())),
        )

    # -------------------------------------------- what is trained

    def configuration(self, engine: MeasuredEngine, m: int) -> JpqConfig:
        """The training of an arm; settings were chosen on held-back parts of train."""
        name, steps, seed, parts = engine.name, self.steps, engine.seed or SEEDS[0], SETS[self.name]
        uncompressed, learned = name in (CONTROL, FLAT_TUNED), name == JPQ
        return JpqConfig(
            output=self.work / "models" / slug(f"{self.name} {name} {m} {seed} {steps}"),
            cache=self.work / "cache",
            start=START,
            train=[JpqSet(self.data / part) for part in parts],
            unseen=[JpqSet(self.data / part, split="test", name=f"{part}-test") for part in parts],
            quantizer=QuantizerSettings(
                m, train_centroids=learned, learning_rate=CENTROID_LEARNING_RATE if learned else None
            ),
            objective=JpqObjective(documents="uncompressed" if uncompressed else "quantized"),
            negatives=NegativeSettings(search="uncompressed" if name == FLAT_TUNED else "quantized"),
            selection=JpqSelection(hold_back=HOLD_BACK, apart=APART.get(self.name, "documents"), queries=HOLD_BACK),
            dropout=0.0,
            training=TrainingSettings(
                steps=steps,
                batch_size=32,
                learning_rate=LEARNING_RATE,
                seed=seed,
                set_weights=0.5,
                precision="auto",
                evaluate_every=max(1, steps // 5),
                save_every=max(1, steps // 2),
            ),
        )

    def train(self, engine: MeasuredEngine, m: int) -> Measured:
        from trainers.jpq.train import train_jpq

        config = self.configuration(engine, m)
        trained = train_jpq(config)
        logger.info("%s: the state after step %s kept: %s", config.output.name, trained.best_step, trained.measures)
        model = load_quantized(config.output)
        queries = model.encode_queries(list(self.test.texts.values()))
        flat = engine.name == FLAT_TUNED
        measured = self.test.flat(queries) if flat else self.test.quantized(model.quantizer, queries)
        shutil.rmtree(config.output)
        return measured

    def quantizer(self, engine: str, m: int, seed: int) -> Quantizer:
        """The quantizer of PQ or OPQ, without training of a query encoder."""
        config, test = self.configuration(MeasuredEngine(OPQ, seed), m), self.test
        settings = replace(config.quantizer, rotate=engine == OPQ)
        made_of = f"{test.data.documents.hash} {test.start_hash}"
        return kept_quantizer(test.vectors, made_of, settings, seed=seed, folder=config.folder)

    # -------------------------------------------- what is measured

    def file(self, engine: MeasuredEngine, m: int) -> Path:
        """The file of an engine's measures, named by everything that decides them."""
        config, seed = self.configuration(engine, m), engine.seed or SEEDS[0]
        trained = engine.name in (*TRAINED, FLAT_TUNED)
        settings = replace(config, output=Path(), cache=None) if trained else config.quantizer
        made_by = fingerprint(settings, seed, self.test.data.hash, self.test.start_hash)
        return self.work / "measures" / f"{slug(f'{self.name} {engine.name} {m} {seed}')}-{made_by}.json"

    def measured(self, engine: MeasuredEngine, m: int) -> Measured:
        # An engine without codes has no M of its own.
        m = SEVERAL_SEEDS[0] if engine.name in WITHOUT_CODES else m
        return kept_measured(self.file(engine, m), partial(self.measure, engine, m))

    def measure(self, engine: MeasuredEngine, m: int) -> Measured:
        if engine.name == FLAT:
            return self.test.flat(self.test.queries)
        if engine.name in (PQ, OPQ):
            return self.test.quantized(self.quantizer(engine.name, m, engine.seed or SEEDS[0]), self.test.queries)
        return self.train(engine, m)

    # -------------------------------------------- rows

    def rows(self, m: int) -> list[Row]:
        """Rows of the set "NAME, M bytes", and of its questions split by whether train asks about their documents."""
        of_set, seeds = f"{self.name}, {m} bytes", seeds_of(m)
        repeated = (FLAT_TUNED, PQ, OPQ, *TRAINED)
        engines = [MeasuredEngine(FLAT), *trials(repeated, repeated, seeds)]
        measured = {engine: self.measured(engine, m) for engine in engines}
        rows = compared(of_set, measured, DIFFERENCES, seeds=seeds)
        for part, queries in self.test.parts().items():
            chosen = {engine: restricted(of_engine, queries) for engine, of_engine in measured.items()}
            rows += compared(f"{of_set}, {part}", chosen, DIFFERENCES, seeds=seeds)
        return rows


# ------------------------------------------------ goals


def quality(experiment: JpqExperiment, sizes: Sequence[int]) -> RowsAndGoals:
    rows = [row for m in sizes for row in experiment.rows(m)]
    return rows, quality_goals(experiment.name, rows)


def quality_goals(name: str, rows: Iterable[Row]) -> list[Goal]:
    rows, goals = list(rows), []

    def of_size(m: int) -> Table:
        return Table(rows, seeds_of(m))

    for rival, rival_words in ((OPQ, "OPQ"), (CONTROL, "the control")):
        gains = {m: of_size(m).difference(f"{name}, {m} bytes", JPQ, rival, "nDCG@10") for m in M if m <= 32}
        measured = [gain for gain in gains.values() if gain is not None]
        above, higher = list(map(is_above, gains.values())), sum(gain.value > 0 for gain in measured)
        words = f"JPQ above {rival_words} at every M up to 32, interval above zero ({name})"
        goals.append(all_goal(words, above if measured else (), f", {higher} without regard to the interval"))
        words = f"JPQ above {rival_words} at M = 16, interval above zero ({name})"
        goals.append(gain_goal(words, gains.get(16), digits=4))
    flat, jpq = (of_size(48).value(f"{name}, 48 bytes", engine, "nDCG@10") for engine in (FLAT, JPQ))
    share = jpq.value / flat.value if flat and jpq and flat.value else None
    words = f"at M = 48 (32x smaller than float32) within 2% of flat ({name})"
    shown_share = None if share is None else round(share, 4)
    return [*goals, goal_of(words, "at least 0.98", shown_share, share is not None and share >= 0.98)]


# ------------------------------------------------ the command


@click.command("jpq")
@paper_options
@click.option("--set", "names", multiple=True, type=click.Choice(list(SETS)), help="Set; repeatable.  [default: all]")
@click.option(
    "--bytes",
    "sizes",
    multiple=True,
    type=int,
    help="Bytes a document (M); repeatable.  [default: 8, 16, 24, 32, 48, 96]",
)
@click.option("--steps", type=int, default=200, show_default=True, help="Optimizer steps of a training.")
def jpq(
    data: Path, work: Path, record: Path | None, names: tuple[str, ...], sizes: tuple[int, ...], steps: int
) -> None:
    """Measure how much of a dense model's ranking M bytes a document keep.

    \b
    osn paper jpq --data beir --work /tmp/jpq --set scifact --bytes 16
    """
    parts = {
        f"quality/{slug(name)}": PaperPart(
            f"JPQ: ranking at M bytes a document, {name}",
            partial(quality, JpqExperiment(data, work, name, steps), sizes or M),
            [data / folder for folder in SETS[name]],
            SEEDS,
            lambda row: row.measure in ("nDCG@10", "MRR@10", "R@100") and row.kind == "value",
        )
        for name in names or SETS
    }
    run_parts(parts, record)
