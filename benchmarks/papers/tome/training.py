"""The trainings of `osn paper tome`: parts of sets, T5s by span corruption, a query generator, and the arms of a set.

Learning rate and schedule are the same for all arms; test questions choose nothing. Folders of trainings are named by their
sizes; the same command continues an interrupted run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from benchmarks.beir_parts import evenly, write_part
from benchmarks.experiment import shared, slug
from benchmarks.options import setting
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.evaluation.measures import relevant_documents
from opensearch_neural.files import write_json_lines
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.generative.generative_model import GenerativeModel, load_generative
from opensearch_neural.models.generative.settings import PASSAGE, GenerativeSettings
from opensearch_neural.models.pretrained import load_sequence_to_sequence
from trainers.common.precision import PRECISIONS, Precision
from trainers.common.settings import TrainingSettings
from trainers.data.loading import read_documents, text_store
from trainers.data.settings import SetSettings
from trainers.doc2query.settings import Doc2QueryConfig, GenerationSettings
from trainers.encoders.settings import NewBackbone
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.tome.settings import TomeConfig

logger = logging.getLogger(__name__)

SETS = ("tldr", "wikiqa-doc")
PAIRS = ("squad-mix", *SETS)
"""The sets whose train splits teach the query generator."""
TWO, SINGLE, SMALL, RANDOM = "two-stage", "single-stage", "single-stage, one T5", "random ids"
BARE, HALF, SPANLESS = "no prompts", "half the queries", "no spans"
ARMS = (TWO, SINGLE, SMALL, RANDOM, BARE, HALF, SPANLESS)
LAYERS, DEEPER = 4, 9
"""The layers of a stage, and of the single stage with as many parameters (one table of word embeddings instead of two)."""
EMBEDDING_RATE = 20.0
"""A new T5's word embeddings are 16 times as large as its matrices; at the same learning rate they learn several times
slower."""
MASKED = 0.3
"""The share of corrupted tokens: T5's 15% teach too little in so few updates."""
SEED = 42


@dataclass(frozen=True)
class TomeScale:
    """The lengths of trainings, in updates of `batch` examples, and their data."""

    pretraining_steps: int = setting(4000, "Updates of span corruption, for each size of T5.")
    generator_steps: int = setting(4000, "Updates of the query generator.")
    steps: int = setting(6000, "Updates of stage 1.")
    url_steps: int = setting(3000, "Updates of stage 2; a single stage has the sum of both.")
    batch: int = setting(64, "Examples of an update.")
    learning_rate: float = setting(1e-3, "Learning rate of the generator and all arms.")
    candidates: int = setting(10, "Generated queries a document.")
    spans: int = setting(0, 'Random spans of each document that are queries too, in all arms but "no spans".')
    documents: int | None = setting(None, "Documents of each set, those of the test questions first.  [default: all]")
    precision: Precision = setting("auto", "Precision of the networks in training.", type=click.Choice(PRECISIONS))
    writer: str = ""
    """Hash of the model that writes queries."""

    @property
    def backbones(self) -> str:
        """The folder of what was trained before the arms."""
        return f"pretrained-{self.pretraining_steps}-{self.batch}-{self.learning_rate:g}"

    @property
    def queries(self) -> str:
        """A folder name for the documents and queries of a set."""
        return f"{self.documents or 'all'}-documents-{self.candidates}-queries-{self.writer}"

    @property
    def arms(self) -> str:
        """The other settings that decide an arm's model, for folder names."""
        sizes = f"{self.pretraining_steps}-{self.steps}-{self.url_steps}-{self.batch}-{self.learning_rate:g}"
        return sizes + (f"-{self.spans}" if self.spans else "")

    def training(self, steps: int, **more: float) -> TrainingSettings:
        return TrainingSettings(
            steps=steps,
            batch_size=self.batch,
            learning_rate=self.learning_rate,
            embedding_rate=EMBEDDING_RATE,
            precision=self.precision,
            **more,  # type: ignore[arg-type]
        )


# ------------------------------------------------ parts of sets


def some_documents(data: Path, work: Path, count: int) -> Path:
    """Write a smaller set, with the documents of the test questions first, and return its folder."""
    qrels = {split: BeirData.load(data, split).qrels for split in ("train", "test")}
    asked = relevant_documents(qrels["test"])
    known = set(asked)
    others = [document.id for document in read_documents(data) if document.id not in known]
    chosen = evenly(asked, count)
    folder = work / data.name
    kept = {*chosen, *evenly(others, count - len(chosen))}
    splits = {
        split: [
            f"{query}\t{document}\t{grade}"
            for query, judged in of_split.items()
            for document, grade in judged.items()
            if document in kept
        ]
        for split, of_split in qrels.items()
    }
    write_part(data, folder, splits, kept)
    return folder


def with_urls(folder: Path, file: Path) -> Path:
    """Write the documents of a set with their URLs behind their texts: a model that writes URLs should have read some."""
    if not file.exists():
        documents = (replace(each, text=f"{each.text} {each.url or ''}".rstrip()) for each in read_documents(folder))
        write_json_lines(file, (document.record() for document in documents))
    return file


# ------------------------------------------------ the arms


@dataclass(frozen=True)
class Trainings:
    data: Path
    """The folder of the set."""
    work: Path
    """The folder of its trainings and generated queries."""
    start: Path
    """The folder of the backbones."""
    scale: TomeScale
    """Lengths and data of the trainings."""

    @property
    def queries(self) -> Path:
        """The file of generated queries, which all arms have."""
        return self.work / "queries.jsonl"

    def generate_queries(self, model: str) -> None:
        """Let `model` write queries for every document."""
        from trainers.doc2query.generate import generate_queries

        generation = GenerationSettings(model, candidates=self.scale.candidates, top_k=20, top_p=1.0)
        generate_queries(generation, text_store(self.data), output=self.queries)

    def output(self, arm: str) -> Path:
        return self.work / f"{slug(arm)}-{SEED}-{self.scale.arms}"

    def configuration(self, arm: str) -> TomeConfig:
        """The configuration of `osn train tome` for an arm."""
        data, scale = self.data, self.scale
        config = TomeConfig(
            output=self.output(arm),
            corpus=data,
            backbone=str(self.start / f"t5-{LAYERS}"),
            queries=[SetSettings(data, name="labelled"), SetSettings(self.queries, corpus=data, name="generated")],
            unseen=[SetSettings(data, split="test", name="test")],
            spans=scale.spans,
            # The last state of every stage is kept: the likelihood of dev questions says little about Hits@1, and stage 2
            # has no dev questions.
            dev_share=0.0,
            training=scale.training(scale.steps, weight_decay=0.0, seed=SEED),
            url_training=scale.training(scale.url_steps, weight_decay=0.0, seed=SEED),
        )
        if arm in (SINGLE, SMALL, RANDOM):
            return replace(
                config,
                stages="single",
                backbone=config.backbone if arm == SMALL else str(self.start / f"t5-{DEEPER}"),
                settings=GenerativeSettings(identifiers="random") if arm == RANDOM else config.settings,
                training=replace(config.training, steps=scale.steps + scale.url_steps),
            )
        if arm == BARE:
            return replace(config, settings=GenerativeSettings(prompts=False))
        if arm == HALF:
            return replace(config, stages="passage", candidates=scale.candidates // 2)
        if arm == SPANLESS:
            return replace(config, stages="passage", spans=0)
        return config

    def train(self, arm: str) -> tuple[GenerativeModel, int]:
        """The model of an arm, trained if it is not there yet, and the updates of its stages together."""
        from trainers.tome.train import train_tome

        config = self.configuration(arm)
        stages = train_tome(config)
        for stage, outcome in stages.items():
            logger.info("%s, %s: %d steps, %s", arm, stage, outcome.steps, outcome.measures)
        if arm not in (HALF, SPANLESS):
            return load_generative(config.output), sum(outcome.steps for outcome in stages.values())
        # Stage 2 never sees a query, so it is that of TWO.
        with locked(self.output(TWO)):
            whole, updates = self.train(TWO)
        model, tokenizer = load_sequence_to_sequence(config.output / PASSAGE)
        return replace(whole, passage=(model.to(whole.url[0].device).eval(), tokenizer)), updates


# ------------------------------------------------ before the arms


def backbone(work: Path, scale: TomeScale, layers: int) -> Path:
    return work / scale.backbones / f"t5-{layers}"


def pretrained(data: Path, work: Path, scale: TomeScale, layers: int) -> Path:
    """A T5 with `layers` layers a side, trained by span corruption on the corpora; both sizes have the same tokenizer."""
    from trainers.masked_lm.train import train_masked_lm

    return train_masked_lm(
        MaskedLmConfig(
            output=backbone(work, scale, layers),
            corpus=[with_urls(data / name, work / "with-urls" / f"{name}.jsonl") for name in PAIRS],
            # No dropout, also in later trainings: its random numbers cost a CPU a third of a step's time.
            new=NewBackbone("t5", layers=layers, hidden=256, heads=4, vocabulary=8000, dropout=0.0),
            max_length=64,
            masked=MASKED,
            training=scale.training(scale.pretraining_steps, bucket=16),
        )
    )


def generator(data: Path, work: Path, scale: TomeScale) -> Path:
    """A model that writes a question for a passage, from the T5 and the questions of the train splits."""
    from trainers.doc2query.train import train_doc2query

    return train_doc2query(
        Doc2QueryConfig(
            output=work / scale.backbones / f"generator-{scale.generator_steps}",
            data=[data / name for name in PAIRS],
            unseen=[data / name for name in PAIRS],
            backbone=str(backbone(work, scale, LAYERS)),
            passage_length=96,
            query_length=32,
            # By size alone three of four batches would be of squad-mix, for which it writes no queries.
            training=scale.training(scale.generator_steps, bucket=16, set_weights=0.3),
        )
    )


def prepared_trainings(
    data: Path, work: Path, scale: TomeScale, folders: Mapping[str, Path], arms: Collection[str]
) -> dict[str, Trainings]:
    """{set: the trainings of its arms}, with backbones, query generator and generated queries, made if they are not there
    yet. folders: {set: its folder, with all of its documents or a part of them}"""

    def backbone_and_generator() -> str:
        pretrained(data, work, scale, LAYERS)
        return str(generator(data, work, scale))

    beginnings: dict[Path, Callable[[], object]] = {backbone(work, scale, LAYERS): backbone_and_generator}
    if {SINGLE, RANDOM} & set(arms):
        beginnings[backbone(work, scale, DEEPER)] = partial(pretrained, data, work, scale, DEEPER)
    writer = str(shared(beginnings)[0])
    scale = replace(scale, writer=hash_files(locate(writer))[:8])
    trainings = {
        name: Trainings(folder, work / name / scale.queries, work / scale.backbones, scale)
        for name, folder in folders.items()
    }
    shared({each.queries: partial(each.generate_queries, writer) for each in trainings.values()})
    return trainings
