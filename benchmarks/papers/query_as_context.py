"""The evidence for query-as-context pre-training: is a generated query a better context than another passage of the article?

    osn paper query-as-context --data DIR --work DIR --record benchmarks/results/query_as_context

`--data` holds the BEIR folders squad-mix, wikiqa-doc and medquad-liveqa. A small BERT is made and pre-trained on their
documents (masked LM, then Condenser); from it, every arm is trained for the same steps on the same passages:

    coCondenser and CoT-MAE, each with no context, a random passage of the same article, and a generated query (of 5)
    coCondenser with a generated query of 1 candidate

coCondenser's contexts differ in their negatives too: with random passages, all passages of an article belong together; with
queries, they are negatives of each other.

Passages come from articles with at least four, so that a random one is mostly not the neighbour. Articles with a relevant
document of a test or dev split are not used before fine-tuning. A generator trained on the pairs of the other two corpora
writes the queries for squad-mix; one trained on squad-mix writes theirs. Generators start from all-MiniLM-L6-v2, whose own
training had other questions of this kind; the compared encoders do not.

Parts: "zero-shot" measures the arms without fine-tuning on the test splits of squad-mix and wikiqa-doc. "fine-tuning"
measures retriever 1 (with BM25's negatives) and retriever 2 (with retriever 1's too), both trained on the two sets together,
of the arms and of their common start.

Intervals resample articles, since many questions of squad-mix are about one article. No test judgement chooses anything:
the loss on passages held back selects the states of arms, dev questions select those of retrievers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import click

from benchmarks.beir_parts import articles, check_data, evenly, judgements, write_part
from benchmarks.experiment import (
    JudgedSet,
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    facts,
    for_each,
    gains_goal,
    kept_measured,
    paper_options,
    run_parts,
    slug,
)
from benchmarks.options import part_option, setting, setting_options
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.files import write_json_lines
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import MINILM, hash_files
from trainers.common.settings import FIRST, FOLDER, EncoderSettings, ObjectiveSettings, TrainingSettings
from trainers.data.dev_sets import corpus_measures
from trainers.data.leaks import without_questions_of
from trainers.data.loading import load_training, read_documents
from trainers.data.settings import CandidateSettings, DevSettings, SetSettings
from trainers.dense.settings import DenseConfig, TwoStageSettings
from trainers.doc2query.settings import Doc2QueryConfig
from trainers.encoders.settings import NewBackbone
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.query_as_context.settings import Context, CorpusSettings, PretrainingVariant, QueryAsContextConfig

READER = MINILM
"""The model that query generators start from."""
READER_LAYERS = 3
TESTED = ("squad-mix", "wikiqa-doc")
ARTICLES: dict[str, Literal["title", "url"]] = {"squad-mix": "title", "wikiqa-doc": "title", "medquad-liveqa": "url"}
WRITERS = {
    "squad-mix": ("wikiqa-doc", "medquad-liveqa"),
    "wikiqa-doc": ("squad-mix",),
    "medquad-liveqa": ("squad-mix",),
}
"""{corpus: the sets whose pairs train its generator}"""
DEV = "wikiqa-doc"
"""The set whose dev split is measured while training; its articles are not used before fine-tuning."""
MASKED = 0.3
"""The share of masked tokens for the small BERT: BERT's 15% teach too little in so few updates."""
LEAST_PASSAGES = 4
"""The fewest passages of a training article."""
PASSAGE_LENGTH = 144
QUERY_LENGTH = 32
VARIANTS: dict[PretrainingVariant, str] = {"cocondenser": "coCondenser", "cot-mae": "CoT-MAE"}
START = "start"
NONE, RANDOM, QUERY, SINGLE = "none", "random passage", "query", "query of 1 candidate"
FINE_TUNED_ON = 4000
"""Most questions of each train split, taken evenly."""
SEED = 42
STAGES = ("zero-shot", "retriever 1", "retriever 2")
PARTS = ("zero-shot", "fine-tuning")
MEASURES = ("MRR@10", "nDCG@10", "R@100")
DIFFERENCES = [
    (f"{variant}, {label}", START if rival == START else f"{variant}, {rival}")
    for variant in VARIANTS.values()
    for label, rival in (
        *((label, RANDOM) for label in (QUERY, NONE, SINGLE)),
        *((label, START) for label in (QUERY, NONE, SINGLE, RANDOM)),
        (QUERY, SINGLE),
    )
]


# ------------------------------------------------ sizes and arms


@dataclass(frozen=True)
class QueryAsContextScale:
    """Sizes of models and data, and lengths of trainings in steps; the defaults are for two cores."""

    layers: int = setting(4, "Layers of the small BERT.")
    hidden: int = setting(256, "Dimension of the small BERT.")
    mlm_steps: int = setting(2000, "Masked-LM steps of the small BERT, with 32 windows each.")
    steps: int = setting(500, "Pre-training steps of each arm.")
    batch: int = setting(64, "Pairs of a step.")
    generator_steps: int = setting(1000, "Training steps of each query generator, with 32 pairs each.")
    fine_tuning_steps: int = setting(240, "Training steps of each retriever, with 32 questions each.")
    documents: int = setting(1500, "Documents to read of medquad-liveqa.")


@dataclass(frozen=True)
class Pretraining:
    """One pre-training."""

    variant: PretrainingVariant
    """The method."""
    label: str
    """The context's name in results."""
    context: Context
    """The partner of a passage."""
    candidates: int | None = None
    """Generated queries of a passage, of which one is drawn; None: all."""

    @property
    def name(self) -> str:
        return f"{VARIANTS[self.variant]}, {self.label}"


def arms() -> dict[str, Pretraining]:
    pretrainings = [
        *(Pretraining(variant, NONE, "none") for variant in VARIANTS),
        *(Pretraining(variant, RANDOM, "random-passage") for variant in VARIANTS),
        *(Pretraining(variant, QUERY, "query") for variant in VARIANTS),
        Pretraining("cocondenser", SINGLE, "query", candidates=1),
    ]
    return {arm.name: arm for arm in pretrainings}


def training_settings(
    steps: int, learning_rate: float, *, evaluations: int, batch: int = 32, **more: Any
) -> TrainingSettings:
    """evaluations: how often a training is evaluated"""
    return TrainingSettings(
        steps=steps,
        batch_size=batch,
        learning_rate=learning_rate,
        precision="auto",
        evaluate_every=max(1, steps // evaluations),
        **more,
    )


# ------------------------------------------------ trainings


@dataclass
class QueryAsContextExperiment:
    """Data and sizes; `work` keeps everything made from them. Raises InputError if it holds work on other data."""

    data: Path
    """The folder of BEIR folders."""
    work: Path
    """Keeps everything made from them."""
    scale: QueryAsContextScale
    """Sizes and lengths."""

    def __post_init__(self) -> None:
        check_data(self.work, [self.data / name for name in ARTICLES])

    # -------------------------------------------- corpora and questions

    @property
    def folder(self) -> Path:
        """The folder for documents and pairs; each number of documents has its own."""
        return self.work / f"documents-{self.scale.documents}"

    @cached_property
    def documents(self) -> list[CorpusSettings]:
        """The corpora without the articles that are tested on, written to `work`."""
        from trainers.query_as_context.passages import tested_articles

        corpora = [
            CorpusSettings(self.data / name, article=article, limit=None if name in TESTED else self.scale.documents)
            for name, article in ARTICLES.items()
        ]
        files = {corpus.corpus_name: self.folder / f"{corpus.corpus_name}.jsonl" for corpus in corpora}
        if not all(file.exists() for file in files.values()):
            splits = [(name, "test") for name in TESTED] + [(DEV, "dev")]
            tested = tested_articles(corpora, [load_training(self.data / name, split=split) for name, split in splits])
            for corpus in corpora:
                documents = read_documents(corpus.path, limit=corpus.limit)
                rest = (document.record() for document in documents if corpus.key(document) not in tested)
                write_json_lines(files[corpus.corpus_name], rest)
        return [replace(corpus, path=files[corpus.corpus_name], limit=None) for corpus in corpora]

    def questions(self, name: str) -> Iterator[tuple[str, str]]:
        """(question, id of the document that answers it), from a corpus's train split, or from its titles if they are the
        questions; only of documents allowed in training, and without questions of the test split."""
        documents = {document.id: document for document in read_documents(self.folder / f"{name}.jsonl")}
        if name not in TESTED:
            yield from ((document.title, identifier) for identifier, document in documents.items() if document.title)
            return
        train = load_training(self.data / name, split="train", name=name)
        for example in without_questions_of(train, [self.judged(name).data]).examples:
            yield from ((example.query, document) for document in example.positives if document in documents)

    def generator(self, corpus: str) -> str:
        """The query generator for a corpus, trained if it is not there yet."""
        import torch

        from trainers.doc2query.train import train_doc2query
        from trainers.encoders import backbones

        names, start = WRITERS[corpus], self.work / "models" / "reader"
        pairs = self.folder / "pairs" / f"{'+'.join(names)}.jsonl"
        config = Doc2QueryConfig(
            output=self.work / "models" / f"generator-{'-'.join(names)}",
            data=[pairs],
            backbone=str(start),
            passage_length=PASSAGE_LENGTH,
            query_length=QUERY_LENGTH,
            training=training_settings(self.scale.generator_steps, 2e-4, evaluations=1, bucket=16),
        )

        def read_pairs() -> Iterator[dict[str, str]]:
            for name in names:
                # A passage is text without its title.
                texts = {document.id: document.text for document in read_documents(self.folder / f"{name}.jsonl")}
                for question, identifier in self.questions(name):
                    if texts[identifier].strip():
                        yield {"query": question, "positive": texts[identifier]}

        with locked(config.output):
            if not pairs.exists():
                write_json_lines(pairs, read_pairs())
            if not (start / "tokenizer.json").exists():
                # The decoder's cross-attention is drawn at random: seed it, whatever was trained before.
                torch.manual_seed(SEED)
                backbones.save(*backbones.encoder_decoder(READER, layers=READER_LAYERS), start)
            return str(train_doc2query(config))

    # -------------------------------------------- pre-training

    def masked_lm(self) -> Path:
        """The small BERT, from scratch."""
        from trainers.masked_lm.train import train_masked_lm

        scale = self.scale
        return train_masked_lm(
            MaskedLmConfig(
                output=self.work / "models" / "mlm",
                corpus=[corpus.path for corpus in self.documents],
                new=NewBackbone(
                    "bert",
                    layers=scale.layers,
                    hidden=scale.hidden,
                    heads=max(1, scale.hidden // 64),
                    # Also in every later training: its random numbers cost a CPU a third of a step's time.
                    dropout=0.0,
                ),
                max_length=PASSAGE_LENGTH,
                masked=MASKED,
                whole_word=True,
                training=training_settings(scale.mlm_steps, 5e-4, evaluations=5, bucket=16),
            )
        )

    def output(self, arm: str) -> Path:
        return self.work / "models" / f"{slug(arm)}-{SEED}"

    def configuration(self, arm: Pretraining, corpora: list[CorpusSettings], start: Path) -> QueryAsContextConfig:
        """The configuration of `osn train query-as-context` for an arm."""
        steps = self.scale.steps
        return QueryAsContextConfig(
            output=self.output(arm.name),
            corpora=corpora,
            backbone=str(start),
            variant=arm.variant,
            context=arm.context,
            candidates=arm.candidates,
            passage_length=PASSAGE_LENGTH,
            query_length=QUERY_LENGTH,
            # The same passages for all arms: those with a random passage to draw.
            least_passages=LEAST_PASSAGES,
            layers=min(2, self.scale.layers),
            dev_share=0.04,
            # Only measured: the loss on passages held back still chooses the state to keep.
            dev=[self.dev],
            selection=DevSettings(queries=300, documents=700),
            training=training_settings(
                steps, 3e-4, evaluations=5, batch=self.scale.batch, log_every=max(1, min(10, steps // 10)), seed=SEED
            ),
            cache=self.work / "passages",
        )

    @cached_property
    def start(self) -> Path:
        """The small BERT after Condenser pre-training, from which every arm starts."""
        from trainers.query_as_context.train import train_query_as_context

        output, steps = self.work / "models" / START, self.scale.steps
        with locked(output):
            config = self.configuration(Pretraining("cocondenser", START, "none"), self.documents, self.masked_lm())
            half = replace(config.training, steps=max(1, steps // 2), evaluate_every=max(1, steps // 4))
            train_query_as_context(replace(config, output=output, training=half))
        return output

    def with_contexts(self, arm: Pretraining) -> QueryAsContextConfig:
        """The configuration of an arm with the source of its contexts, which is made if it is not there yet."""
        config = self.configuration(arm, self.documents, self.start)
        if arm.context != "query":
            return config
        corpora = [replace(corpus, generator=self.generator(corpus.corpus_name)) for corpus in config.corpora]
        return replace(config, corpora=corpora)

    def pretrained(self, arm: Pretraining) -> Path:
        """An arm's checkpoint, trained if it is not there yet."""
        from trainers.query_as_context.train import train_query_as_context

        train_query_as_context(self.with_contexts(arm))
        return self.output(arm.name)

    # -------------------------------------------- fine-tuning

    def fine_tuning_set(self, name: str) -> Path:
        """The set with at most FINE_TUNED_ON of its train questions, since each arm mines negatives for all of them."""
        source, folder = self.data / name, self.work / "fine-tuning" / name
        lines = judgements(source, "train")
        questions = list(dict.fromkeys(line.split("\t")[0] for line in lines))
        chosen = set(evenly(questions, FINE_TUNED_ON))
        write_part(source, folder, {"train": [line for line in lines if line.split("\t")[0] in chosen]})
        return folder

    def fine_tuned(self, name: str, start: Path) -> dict[str, Path]:
        """{stage: model} of the two retrievers of the arm (or start) `name`, trained if they are not there yet."""
        from trainers.dense.train import train_dense

        config = self.fine_tuning(name, start)
        train_dense(config)
        return {STAGES[1]: config.output / FOLDER / FIRST, STAGES[2]: config.output}

    def fine_tuning(self, name: str, start: Path) -> DenseConfig:
        """The paper's two stages at this size: CLS, raw inner products, BM25's negatives, then mined ones too."""
        return DenseConfig(
            output=self.work / "models" / f"{slug(name)}-retriever-of-three",
            train=[SetSettings(self.fine_tuning_set(tested), name=tested) for tested in TESTED],
            start=str(start),
            # The held-back part of DEV has the name of its dev split. The recorded retrievers were selected by the held-back
            # parts alone.
            dev=[replace(self.dev, name=f"{DEV}-dev-split")],
            unseen=[SetSettings(self.data / tested, split="test", name=f"{tested}-test") for tested in TESTED],
            encoder=EncoderSettings(
                pooling="cls", normalize=False, query_length=QUERY_LENGTH, document_length=PASSAGE_LENGTH
            ),
            objective=ObjectiveSettings(temperature=1.0),
            candidates=CandidateSettings(negatives=1, depth=200, mine="bm25"),
            two_stage=TwoStageSettings(depth=200),
            selection=DevSettings(hold_back=0.05, queries=300, documents=500),
            training=training_settings(self.scale.fine_tuning_steps, 1e-4, evaluations=2, set_weights=0.5),
        )

    # -------------------------------------------- tests

    @property
    def dev(self) -> SetSettings:
        return SetSettings(self.data / DEV, split="dev", name=f"{DEV}-dev")

    def judged(self, name: str) -> JudgedSet:
        """A test split; its clusters are articles."""
        return JudgedSet.grouped(load_training(self.data / name, split="test", name=name), articles(self.data / name))

    def measured(self, model: Path, test: JudgedSet) -> Measured:
        """The measures of a dense model on a test split."""
        # If this model has mined among the same documents, their vectors exist.
        mined = model.parent / f"{test.name}.vectors"
        return kept_measured(
            self.work / "measured" / f"{test.name}-{hash_files(model)}-{test.data.hash}.json",
            lambda: corpus_measures(f"dense:{model}", test.data, cache=mined if mined.exists() else None),
        )


# ------------------------------------------------ the parts


def zero_shot(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Every arm without fine-tuning, compared with random passages and the start, and its progress on dev."""
    rows: list[Row] = []
    of_name = arms()
    models = for_each(
        [MeasuredEngine(name, SEED) for name in of_name],
        lambda engine: experiment.output(engine.name),
        lambda engine: experiment.pretrained(of_name[engine.name]),
    )
    for name in TESTED:
        test = experiment.judged(name)
        measured = {MeasuredEngine(START): experiment.measured(experiment.start, test)}
        measured |= {engine: experiment.measured(model, test) for engine, model in models.items()}
        rows += compared(f"{name}, {STAGES[0]}", measured, DIFFERENCES, clusters=test.clusters)
    for engine, model in models.items():
        rows += dev_rows(engine, model)
    return rows, [*direction_goals(rows), *start_goals(rows)]


def dev_rows(engine: MeasuredEngine, model: Path) -> list[Row]:
    """Measures of an arm's training, at the start and of the kept state: the masked-LM loss on passages held back, which all
    arms have, and nDCG@10 on DEV's dev questions. n of a row: evaluations"""
    from trainers.common.run_folder import history

    measured = {line["step"]: line for line in history(model) if "eval_objective" in line}
    before, best = measured[min(measured)], max(measured.values(), key=lambda line: float(line["eval_objective"]))
    values = {
        f"{measure}{when}": sign * float(line[f"eval_{name}"])
        for measure, name, sign in (("masked LM", "masked_lm", -1), ("nDCG@10 on dev", "nDCG@10", 1))
        for when, line in ((" at the start", before), ("", best))
    }
    return facts("passages held back", engine, values, len(measured))


def fine_tuning(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Retrievers 1 and 2 of the arms that the paper compares, and of their common start."""
    of_name = {name: arm for name, arm in arms().items() if arm.label in (NONE, RANDOM, QUERY)}

    def train(engine: MeasuredEngine) -> dict[str, Path]:
        start = experiment.start if engine.name == START else experiment.pretrained(of_name[engine.name])
        return experiment.fine_tuned(engine.name, start)

    models = for_each(
        [MeasuredEngine(START), *(MeasuredEngine(name) for name in of_name)],
        lambda engine: experiment.fine_tuning(engine.name, experiment.start).output,
        train,
    )
    rows: list[Row] = []
    for name in TESTED:
        test = experiment.judged(name)
        for stage in STAGES[1:]:
            measured = {engine: experiment.measured(model[stage], test) for engine, model in models.items()}
            rows += compared(f"{name}, {stage}", measured, DIFFERENCES, clusters=test.clusters)
    return rows, direction_goals(rows)


# ------------------------------------------------ goals


def direction_goals(rows: Iterable[Row]) -> list[Goal]:
    """Queries against random passages: zero-shot on each set; after fine-tuning, all measured gains in the paper's
    direction."""
    table = Table(rows, [SEED])

    def gains(stage: str, name: str) -> dict[str, Row]:
        of_variants = {
            variant: table.difference(f"{name}, {stage}", f"{variant}, {QUERY}", f"{variant}, {RANDOM}", "MRR@10")
            for variant in VARIANTS.values()
        }
        return {variant: row for variant, row in of_variants.items() if row is not None}

    words = "query-as-context above random passage zero-shot, interval above zero, for at least one variant"
    goals = [
        gains_goal(f"{words} (MRR@10 on {name})", "1 variant", of_set, 1)
        for name in TESTED
        if (of_set := gains(STAGES[0], name))
    ]
    words = "Paper: +1.4 MRR@10 for CoT-MAE (38.8 → 40.2), +0.6 for coCondenser"
    for stage in STAGES[1:]:
        of_stage = {f"{name}, {variant}": row for name in TESTED for variant, row in gains(stage, name).items()}
        if of_stage:
            words_of_stage = f"{words}: the same direction after {stage}, interval above zero (MRR@10)"
            goals.append(gains_goal(words_of_stage, "above 0", of_stage, len(of_stage)))
    return goals


def start_goals(rows: Iterable[Row]) -> list[Goal]:
    """Each arm against its start."""
    values = {(row.line, row.measure): row.value for row in rows if row.set == "passages held back"}
    lines = list(dict.fromkeys(line for line, _ in values))
    goals: list[Goal] = []
    for measure, sign in (("masked LM", -1), ("nDCG@10 on dev", 1)) if lines else ():
        beaten = [sign * (values[line, measure] - values[line, f"{measure} at the start"]) > 0 for line in lines]
        words = f"Each arm beats its own start on dev: {measure} (by the values, without intervals)"
        goals.append(all_goal(words, beaten))
    return goals


# ------------------------------------------------ the command


@click.command("query-as-context")
@paper_options
@part_option(PARTS)
@setting_options(QueryAsContextScale)
def query_as_context(data: Path, work: Path, record: Path | None, chosen: tuple[str, ...], **sizes: int) -> None:
    """Pre-train with generated queries, random passages or no context, and measure the gain in retrieval."""
    experiment = QueryAsContextExperiment(data, work, QueryAsContextScale(**sizes))
    sets = [data / name for name in ARTICLES]

    def part(run: Callable[[QueryAsContextExperiment], RowsAndGoals], name: str) -> PaperPart:
        title = f"Query-as-context pre-training, {name}"
        return PaperPart(title, partial(run, experiment), sets, [SEED], lambda row: row.column in MEASURES)

    parts = {name: part(run, name) for name, run in zip(PARTS, (zero_shot, fine_tuning), strict=True)}
    run_parts(parts, record, chosen)
