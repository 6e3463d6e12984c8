"""The evidence for query-as-context pre-training: is a generated query a better context than another passage of the article?

    osn bench query-as-context --data DIR --work DIR --record benchmarks/results/query_as_context

`--data` holds the BEIR folders squad-mix, wikiqa-doc and medquad-liveqa. A small BERT is made and pre-trained on their
documents (masked LM, then Condenser); from it every arm takes the same steps on the same passages:

    coCondenser and CoT-MAE, each with no context, a random passage of the same article, and a generated query (of 5)
    coCondenser with a generated query of 1; and, as an upper bound, with the questions that people asked of the passages,
    where they did, and generated ones elsewhere

coCondenser's contexts differ in their negatives, too: with random passages all passages of an article belong together, with
queries they are negatives of each other. The result file says how many a batch has of them.

Passages are those of articles that have four at least, so that a random one is mostly another than the neighbour. Whatever
article holds a relevant document of a test or dev split trains nothing before fine-tuning. Queries for squad-mix are written
by a generator trained on the pairs of the other two corpora, queries for these by one trained on squad-mix's. Generators
start from all-MiniLM-L6-v2, whose own training had other questions of the kind; the encoders that are compared do not.

Intervals resample articles: many questions of squad-mix are about one. With `--seeds`, random passage and generated query
are trained so many times, and compared by each question's mean.

Parts: "zero-shot" measures the arms as they stand on the test splits of squad-mix and wikiqa-doc, "fine-tuning" after
retriever 1 (BM25's negatives) and retriever 2 (retriever 1's as well), both trained on the two sets together, from what
every arm starts from as well; "sparse" what an inference-free sparse student gains.

Models, passages, queries and measurements stay in `--work`: interrupted, the same command goes on. No test judgement chooses
anything; states are selected by the loss on passages held back, retrievers on dev.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from benchmarks.beir_parts import articles, by_article, check_data, evenly, judgements, write_judged
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import result_rows

if TYPE_CHECKING:
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from trainers.data.examples import TrainingData
    from trainers.data.sets import SetSettings
    from trainers.dense import DenseConfig
    from trainers.query_as_context.settings import Context, CorpusSettings, QueryAsContextConfig, Variant
    from trainers.sparse.settings import SparseConfig

logger = logging.getLogger(__name__)

READER = "sentence-transformers/all-MiniLM-L6-v2"
"""What query generators start from."""
READER_LAYERS = 3
TESTED = ("squad-mix", "wikiqa-doc")
ARTICLES: dict[str, Literal["title", "url"]] = {"squad-mix": "title", "wikiqa-doc": "title", "medquad-liveqa": "url"}
WRITERS = {
    "squad-mix": ("wikiqa-doc", "medquad-liveqa"),
    "wikiqa-doc": ("squad-mix",),
    "medquad-liveqa": ("squad-mix",),
}
"""Whose pairs train the generator that writes for a corpus."""
DEV = "wikiqa-doc"
"""Whose dev split retrieval is watched on; its articles train nothing before fine-tuning."""
MASKED = 0.3
"""Of a window's tokens, for the small BERT: BERT's 15% are little to learn from in so few updates."""
LEAST_PASSAGES = 4
"""Of an article that trains."""
PASSAGE_LENGTH = 144
QUERY_LENGTH = 32
VARIANTS: dict[Variant, str] = {"cocondenser": "coCondenser", "cot-mae": "CoT-MAE"}
START = "start"
RANDOM, QUERY, HUMAN = "random passage", "query", "human questions"
FINE_TUNED_ON = 4000
"""Questions of each train split at most, evenly taken."""
SPARSE_WARM_UP = 20
QUESTIONS = 1000
"""Of each corpus, evenly taken, by which its questions are judged."""
SEED, MOST_SEEDS = 42, 5
STAGES = ("zero-shot", "retriever 1", "retriever 2")
PARTS = ("zero-shot", "fine-tuning", "sparse")


@dataclass(frozen=True)
class Scale:
    """Sizes and lengths of everything: the defaults are for two cores."""

    layers: int = 4
    hidden: int = 256
    mlm_steps: int = 2000
    steps: int = 500
    batch: int = 64
    generator_steps: int = 1000
    fine_tuning_steps: int = 240
    sparse_steps: int = 200
    documents: int = 1500
    """Of medquad-liveqa; all of the others."""
    seeds: int = 1
    """Of the arms with a random passage and with a generated query."""


@dataclass(frozen=True)
class Arm:
    """One pre-training: its name in the results, its context, and how many candidates; human: people's questions."""

    variant: Variant
    label: str
    context: Context
    candidates: int | None = None
    human: bool = False
    seed: int = SEED

    @property
    def engine(self) -> str:
        return f"{VARIANTS[self.variant]}, {self.label}" + (f", seed {self.seed}" if self.seed != SEED else "")

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.engine.lower())


def arms() -> list[Arm]:
    found: list[Arm] = []
    for variant in VARIANTS:
        found += [
            Arm(variant, "none", "none"),
            Arm(variant, RANDOM, "random-passage"),
            Arm(variant, QUERY, "query"),
        ]
    found.append(Arm("cocondenser", "query of 1 candidate", "query", candidates=1))
    found.append(Arm("cocondenser", HUMAN, "query", human=True))
    return found


def of_seeds(variant: Variant, label: str, seeds: int) -> list[Arm]:
    """An arm of `arms` with each of so many seeds, its own first."""
    (arm,) = (one for one in arms() if one.variant == variant and one.label == label)
    return [replace(arm, seed=SEED + at) for at in range(seeds)]


# ------------------------------------------------ corpora, generators, the start


@dataclass
class Ground:
    """What all arms share: data, sizes, and what was made on the way."""

    data: Path
    work: Path
    scale: Scale
    made: dict[Arm, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_data(self.work, [self.data / name for name in ARTICLES])

    @property
    def folder(self) -> Path:
        """Of documents and pairs of them: another number of documents has another."""
        return self.work / f"documents-{self.scale.documents}"

    @cached_property
    def documents(self) -> list[CorpusSettings]:
        """The corpora without the articles that are tested on, written to `work`."""
        from trainers.data.loading import load_training, read_documents
        from trainers.query_as_context.passages import tested_articles
        from trainers.query_as_context.settings import CorpusSettings

        given = [
            CorpusSettings(self.data / name, article=article, limit=None if name in TESTED else self.scale.documents)
            for name, article in ARTICLES.items()
        ]
        folder = self.folder
        files = {corpus.title: folder / f"{corpus.title}.jsonl" for corpus in given}
        if not all(file.exists() for file in files.values()):
            folder.mkdir(parents=True, exist_ok=True)
            splits = [(name, "test") for name in TESTED] + [("wikiqa-doc", "dev")]
            tested = tested_articles(given, [load_training(self.data / name, split=split) for name, split in splits])
            for corpus in given:
                beside = files[corpus.title].with_suffix(".part")
                with beside.open("w", encoding="utf-8") as target:
                    for document in read_documents(corpus.path, limit=corpus.limit):
                        if corpus.key(document) not in tested:
                            target.write(json.dumps(document.record(), ensure_ascii=False) + "\n")
                beside.replace(files[corpus.title])
        return [replace(corpus, path=files[corpus.title], limit=None) for corpus in given]

    def questions(self, name: str) -> Iterator[tuple[str, str]]:
        """(question, id of the document that answers it) of a corpus' train split, or of its titles where those are the
        questions; only of documents that may train, and without what the test split asks too."""
        from trainers.data.leaks import find_leaks, without_leaks
        from trainers.data.loading import load_training, read_documents

        documents = {document.id: document for document in read_documents(self.folder / f"{name}.jsonl")}
        if name not in TESTED:
            yield from ((document.title, identifier) for identifier, document in documents.items() if document.title)
            return
        asked = load_training(self.data / name, split="train", name=name)
        for example in without_leaks(asked, find_leaks(asked, self.test(name))).examples:
            yield from ((example.query, one) for one in example.positives if one in documents)

    def generator(self, corpus: str) -> str:
        """The query generator that writes for a corpus, trained where it is not there yet."""
        from trainers.common.settings import TrainingSettings
        from trainers.data.loading import read_documents
        from trainers.doc2query import train as doc2query
        from trainers.encoders import backbones

        names = WRITERS[corpus]
        pairs = self.folder / "pairs" / f"{'+'.join(names)}.jsonl"
        if not pairs.exists():
            pairs.parent.mkdir(parents=True, exist_ok=True)
            beside = pairs.with_suffix(".part")
            with beside.open("w", encoding="utf-8") as target:
                for name in names:
                    file = self.folder / f"{name}.jsonl"
                    # What a passage is: text without its title.
                    texts = {document.id: document.text for document in read_documents(file)}
                    for question, identifier in self.questions(name):
                        if texts[identifier].strip():
                            target.write(json.dumps({"query": question, "positive": texts[identifier]}) + "\n")
            beside.replace(pairs)
        start = self.work / "models" / "reader"
        if not (start / "tokenizer.json").exists():
            backbones.save(*backbones.encoder_decoder(READER, layers=READER_LAYERS), start)
        steps = self.scale.generator_steps
        config = doc2query.Doc2QueryConfig(
            output=self.work / "models" / f"generator-{'-'.join(names)}",
            data=[pairs],
            backbone=str(start),
            passage_length=PASSAGE_LENGTH,
            query_length=QUERY_LENGTH,
            training=TrainingSettings(
                steps=steps, batch_size=32, learning_rate=2e-4, bucket=16, precision="auto", evaluate_every=steps
            ),
        )
        return str(doc2query.run(config))

    def masked_lm(self) -> Path:
        """The small BERT, from scratch."""
        from trainers.common.settings import TrainingSettings
        from trainers.encoders.backbones import NewBackbone
        from trainers.masked_lm import train as masked_lm

        steps, scale = self.scale.mlm_steps, self.scale
        return masked_lm.run(
            masked_lm.MaskedLmConfig(
                output=self.work / "models" / "mlm",
                corpus=[corpus.path for corpus in self.documents],
                new=NewBackbone(
                    "bert",
                    layers=scale.layers,
                    hidden=scale.hidden,
                    heads=max(1, scale.hidden // 64),
                    # Of every training that follows, too: its random numbers cost a processor a third of a step's time.
                    dropout=0.0,
                ),
                max_length=PASSAGE_LENGTH,
                masked=MASKED,
                whole_word=True,
                training=TrainingSettings(
                    steps=steps,
                    batch_size=32,
                    learning_rate=5e-4,
                    bucket=16,
                    precision="auto",
                    evaluate_every=max(1, steps // 5),
                ),
            )
        )

    def configuration(self, arm: Arm, corpora: list[CorpusSettings], backbone: Path) -> QueryAsContextConfig:
        """What `osn train query-as-context` is told for an arm."""
        from trainers.common.settings import TrainingSettings
        from trainers.data.sets import DevSettings
        from trainers.query_as_context.settings import QueryAsContextConfig

        steps = self.scale.steps
        return QueryAsContextConfig(
            output=self.work / "models" / arm.folder,
            corpora=corpora,
            backbone=str(backbone),
            variant=arm.variant,
            context=arm.context,
            candidates=arm.candidates,
            passage_length=PASSAGE_LENGTH,
            query_length=QUERY_LENGTH,
            # The same passages for all: those that a random passage can be drawn for.
            least_passages=LEAST_PASSAGES,
            layers=min(2, self.scale.layers),
            dev_share=0.04,
            # What is kept is still chosen by the loss on passages held back.
            dev=[self.dev],
            selection=DevSettings(queries=300, documents=700),
            training=TrainingSettings(
                steps=steps,
                batch_size=self.scale.batch,
                learning_rate=3e-4,
                precision="auto",
                evaluate_every=max(1, steps // 5),
                log_every=max(1, min(10, steps // 10)),
                seed=arm.seed,
            ),
            cache=self.work / "passages",
        )

    @cached_property
    def start(self) -> Path:
        """Condenser pre-training of the small BERT: where every arm starts."""
        from trainers.query_as_context.train import run

        config = self.configuration(Arm("cocondenser", START, "none"), self.documents, self.masked_lm())
        training = replace(
            config.training,
            steps=max(1, self.scale.steps // 2),
            evaluate_every=max(1, self.scale.steps // 4),
        )
        config = replace(config, output=self.work / "models" / "start", training=training)
        run(config)
        return config.output

    def pretrained(self, arm: Arm) -> Path:
        """An arm's checkpoint, trained where it is not there yet."""
        if arm not in self.made:
            self.made[arm] = self._pretrained(arm)
        return self.made[arm]

    def _pretrained(self, arm: Arm) -> Path:
        from trainers.query_as_context.train import run

        config = self.configuration(arm, self.corpora(arm), self.start)
        run(config)
        return config.output

    def corpora(self, arm: Arm) -> list[CorpusSettings]:
        """The corpora with what an arm's questions come from."""
        corpora = self.documents
        if arm.context == "query" and arm.human:
            config = self.configuration(arm, corpora, self.start)
            return [replace(one, queries=self.human_questions(config, at)) for at, one in enumerate(corpora)]
        if arm.context == "query":
            return [replace(corpus, generator=self.generator(corpus.title)) for corpus in corpora]
        return corpora

    def human_questions(self, config: QueryAsContextConfig, at: int) -> Path:
        """What people asked of a corpus, as `osn generate-queries` would have written it: a question goes to the passage of
        its document that shares most words with it. A passage of which nobody asked keeps its generated queries, so that
        all arms read the same passages."""
        from opensearch_neural.files import write_text
        from trainers.data.formats import read_json_lines
        from trainers.data.loading import GENERATED, read_documents
        from trainers.data.texts import TextStore, normalised
        from trainers.query_as_context.passages import question_files

        name = config.corpora[at].title
        generated = [replace(corpus, generator=self.generator(corpus.title)) for corpus in config.corpora]
        passages, questions = question_files(replace(config, corpora=generated))[at]
        assert questions is not None
        file = self.work / "passages" / f"{questions.name.partition('.')[0]}.human.jsonl"
        if file.exists():
            return file
        texts = TextStore((document.id, document.contents) for document in read_documents(passages))
        words = {identifier: set(normalised(text).split()) for identifier, text in texts.items()}
        of_document: dict[str, list[str]] = {}
        for identifier in texts:
            of_document.setdefault(identifier.rpartition("#")[0], []).append(identifier)
        asked: dict[str, list[str]] = {}
        for question, document in self.questions(name):
            own = set(normalised(question).split())
            if candidates := of_document.get(document):
                asked.setdefault(max(candidates, key=lambda one: len(words[one] & own)), []).append(question)
        header = {"osn": GENERATED, "format": 1, "documents": texts.hash, "model": "people"}
        lines = [
            {"_id": one["_id"], "queries": [{"text": text} for text in asked[one["_id"]]]}
            if one["_id"] in asked
            else one
            for _, one in read_json_lines(questions)
            if "_id" in one
        ]
        write_text(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [header, *lines]))
        return file

    # -------------------------------------------- measuring

    @property
    def dev(self) -> SetSettings:
        from trainers.data.sets import SetSettings

        return SetSettings(self.data / DEV, split="dev", name=f"{DEV}-dev")

    def test(self, name: str) -> TrainingData:
        from trainers.data.loading import load_training

        return load_training(self.data / name, split="test", name=name)

    def clusters(self, test: TrainingData) -> dict[str, str]:
        """Of a test set's questions the articles."""
        return by_article(test.qrels(), articles(self.data / test.name))

    def measured(self, model: Path, test: TrainingData) -> Measured:
        """A dense model on a test split; kept, query by query."""
        from opensearch_neural.evaluation.measures import Measured
        from opensearch_neural.files import read_json_object, write_json
        from opensearch_neural.models.directory import hash_files
        from trainers.common.dev_measures import corpus_measures

        file = self.work / "measured" / f"{test.name}-{hash_files(model)}-{test.hash}.json"
        if not file.exists():
            # Where this model has mined among the same documents, their vectors are there.
            mined = model.parent / f"{test.name}.vectors"
            found = corpus_measures(f"dense:{model}", test, cache=mined if mined.exists() else None)
            write_json(file, {name: getattr(found, name) for name in Measured.__dataclass_fields__}, indent=None)
        return Measured(**read_json_object(file))

    def asked(self, name: str) -> Path:
        """The set with at most FINE_TUNED_ON of its train questions: negatives are mined for all that train, by each arm."""
        source, folder = self.data / name, self.work / "fine-tuning" / name
        lines = list(judgements(source, "train"))
        questions = list(dict.fromkeys(line.split("\t")[0] for line in lines))
        chosen = set(evenly(questions, FINE_TUNED_ON))
        write_judged(source, folder, {"train": [line for line in lines if line.split("\t")[0] in chosen]})
        return folder

    def fine_tuned(self, name: str, start: Path) -> dict[str, Path]:
        """Both retrievers of what is called `name`, trained where they are not there yet: {stage: model}."""
        from trainers.common.schedules import FIRST, FOLDER
        from trainers.dense import train_dense

        config = self.fine_tuning(name, start)
        train_dense(config)
        return {STAGES[1]: config.output / FOLDER / FIRST, STAGES[2]: config.output}

    def fine_tuning(self, name: str, start: Path) -> DenseConfig:
        """The paper's two stages at this size: CLS, raw inner products, BM25's negatives, then mined ones beside them."""
        from trainers.common.objective import ObjectiveSettings
        from trainers.common.schedules import TwoStageSettings
        from trainers.common.settings import TrainingSettings
        from trainers.data.candidates import CandidateSettings
        from trainers.data.sets import DevSettings, SetSettings
        from trainers.dense import DenseConfig
        from trainers.encoders.tower import EncoderSettings

        steps = self.scale.fine_tuning_steps
        return DenseConfig(
            output=self.work / "models" / f"{name}-retriever",
            train=[SetSettings(self.asked(one), name=one) for one in TESTED],
            start=str(start),
            dev=[self.dev],
            unseen=[SetSettings(self.data / one, split="test", name=f"{one}-test") for one in TESTED],
            encoder=EncoderSettings(
                pooling="cls", normalize=False, query_length=QUERY_LENGTH, document_length=PASSAGE_LENGTH
            ),
            objective=ObjectiveSettings(temperature=1.0),
            candidates=CandidateSettings(negatives=1, depth=200, mine="bm25"),
            two_stage=TwoStageSettings(depth=200),
            selection=DevSettings(hold_back=0.05, queries=300, documents=500),
            training=TrainingSettings(
                steps=steps,
                batch_size=32,
                learning_rate=1e-4,
                precision="auto",
                set_weights=0.5,
                evaluate_every=max(1, steps // 2),
            ),
        )


# ------------------------------------------------ the parts


def zero_shot(ground: Ground) -> list[Row]:
    """Every arm as it stands beside random passage and the start, how far it has come on dev, and how fast its steps are.

    Apart from these: one candidate against five, and people's questions, which not every passage has.
    """
    from opensearch_neural.evaluation.result_rows import only_differences
    from opensearch_neural.evaluation.results import Row
    from trainers.query_as_context.train import steps_per_second

    # First: what a generator is worth is known before anything is trained with its queries.
    found = question_rows(ground)
    models = {arm: ground.pretrained(arm) for arm in arms()}
    for name in TESTED:
        test, of_set = ground.test(name), f"{name}, {STAGES[0]}"
        rows = partial(result_rows.rows, clusters=ground.clusters(test))
        start = {START: ground.measured(ground.start, test)}
        found += rows(of_set, start, baseline=None)
        for variant in VARIANTS:
            own = {arm: ground.measured(model, test) for arm, model in models.items() if arm.variant == variant}
            machine = {arm.engine: measured for arm, measured in own.items() if not arm.human}
            found += rows(of_set, machine, baseline=_baseline(variant))
            found += only_differences(rows(of_set, start | machine, baseline=START))
            five, one = f"{VARIANTS[variant]}, {QUERY}", f"{VARIANTS[variant]}, query of 1 candidate"
            if one in machine and five in machine:
                found += only_differences(rows(of_set, {one: machine[one], five: machine[five]}, baseline=one))
            human = {arm.engine: measured for arm, measured in own.items() if arm.human}
            if human and five in machine:
                found += rows(f"{of_set}, upper bound", {five: machine[five], **human}, baseline=five)
            if ground.scale.seeds > 1 and five in machine:
                found += seed_rows(ground, variant, test, rows, of_set)
    # Those of further seeds, too.
    for arm, model in ground.made.items():
        found += dev_rows(arm, model)
        if (rate := steps_per_second(model)) is not None:
            found.append(
                Row(f"pre-training, batches of {ground.scale.batch}", arm.engine, "steps/s", rate, None, None, 1)
            )
    return found


def seed_rows(
    ground: Ground, variant: Variant, test: TrainingData, rows: Callable[..., list[Row]], of_set: str
) -> list[Row]:
    """Query against random passage with every other seed, and of each question the mean over all."""
    from opensearch_neural.evaluation.measures import averaged

    seeds = ground.scale.seeds
    measured = {
        label: [ground.measured(ground.pretrained(arm), test) for arm in of_seeds(variant, label, seeds)]
        for label in (RANDOM, QUERY)
    }
    found: list[Row] = []
    for at in range(1, seeds):
        engines = {of_seeds(variant, label, seeds)[at].engine: of[at] for label, of in measured.items()}
        found += rows(of_set, engines, baseline=next(iter(engines)))
    means = {f"{VARIANTS[variant]}, {label}{_of(seeds)}": averaged(of) for label, of in measured.items()}
    return found + rows(of_set, means, baseline=next(iter(means)))


def _of(seeds: int) -> str:
    return f", mean of {seeds} seeds" if seeds > 1 else ""


def _baseline(variant: Variant) -> str:
    return f"{VARIANTS[variant]}, {RANDOM}"


def dev_rows(arm: Arm, model: Path) -> list[Row]:
    """What was measured while an arm was trained, at the start and of the state that was kept: the loss of masked LM on
    passages held back, which all arms have, and nDCG@10 on DEV's dev questions."""
    from opensearch_neural.evaluation.results import Row

    lines = (model / ".training" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {int(line["step"]): line for line in map(json.loads, lines) if "eval_objective" in line}
    before, kept = measured[min(measured)], max(measured.values(), key=lambda line: float(line["eval_objective"]))
    values = {
        "masked LM at the start": -float(before["eval_masked_lm"]),
        "masked LM": -float(kept["eval_masked_lm"]),
        "nDCG@10 on dev at the start": float(before["eval_nDCG@10"]),
        "nDCG@10 on dev": float(kept["eval_nDCG@10"]),
    }
    return [
        Row("passages held back", arm.engine, name, value, None, None, len(measured)) for name, value in values.items()
    ]


def fine_tuning(ground: Ground) -> list[Row]:
    """Retrievers 1 and 2 of the arms that the paper compares, and of what all of them start from."""
    from opensearch_neural.evaluation.result_rows import only_differences

    compared = [arm for arm in arms() if arm.label in ("none", RANDOM, QUERY)]
    models = {START: ground.fine_tuned(START, ground.start)}
    models |= {arm.engine: ground.fine_tuned(arm.folder, ground.pretrained(arm)) for arm in compared}
    found: list[Row] = []
    for name in TESTED:
        test = ground.test(name)
        rows = partial(result_rows.rows, clusters=ground.clusters(test))
        for stage in STAGES[1:]:
            of_set = f"{name}, {stage}"
            measured = {engine: ground.measured(model[stage], test) for engine, model in models.items()}
            found += rows(of_set, {START: measured[START]}, baseline=None)
            found += only_differences(rows(of_set, measured, baseline=START))
            for variant in VARIANTS:
                own = {arm.engine: measured[arm.engine] for arm in compared if arm.variant == variant}
                found += rows(of_set, own, baseline=_baseline(variant))
    for engine, model in models.items():
        found += retriever_rows(engine, model)
    return found


def retriever_rows(engine: str, models: Mapping[str, Path]) -> list[Row]:
    """nDCG@10 on dev of what each retriever started from and of the state kept, and the step of that: at 0 a retriever is
    what it started from."""
    from opensearch_neural.evaluation.results import Row
    from opensearch_neural.files import read_json_object
    from opensearch_neural.models.directory import read_osn_json

    found: list[Row] = []
    for stage, model in models.items():
        measures = (read_osn_json(model) or {}).get("measures", {})
        values = {"nDCG@10 at the start": measures.get("start nDCG@10"), "nDCG@10": measures.get("nDCG@10")}
        values["step kept"] = read_json_object(model / ".training" / "outcome.json")["best_step"]
        found += [
            Row(f"dev, {stage}", engine, measure, float(value), None, None, 1)
            for measure, value in values.items()
            if value is not None
        ]
    return found


def question_rows(ground: Ground) -> list[Row]:
    """Of the questions that contexts are drawn from, how many lead BM25 to their own passage: what a generator is worth. How
    many were written for several passages; and how often a training visits a passage."""
    from opensearch_neural.evaluation.results import Row
    from trainers.data.loading import load_training
    from trainers.data.negatives import open_retriever
    from trainers.data.texts import normalised
    from trainers.query_as_context.pairs import usable_rows
    from trainers.query_as_context.passages import question_files, read_passages

    found: list[Row] = []
    for arm in arms():
        if arm.variant != "cocondenser" or arm.label not in (QUERY, HUMAN):
            continue
        corpora = ground.corpora(arm)
        config = ground.configuration(arm, corpora, ground.start)
        files = question_files(config)
        passages_read = read_passages(config)
        trained, _ = usable_rows(passages_read, config)
        visits = ground.scale.steps * ground.scale.batch / len(trained)
        found.append(Row("questions", arm.engine, "visits of a passage", visits, None, None, len(trained)))
        counts = np.bincount(passages_read.articles[trained])
        of_article = float((counts * (counts - 1)).sum() / len(trained) / (len(trained) - 1)) * (ground.scale.batch - 1)
        found.append(
            Row("questions", arm.engine, "negatives of its article, a passage", of_article, None, None, len(trained))
        )
        for corpus, (passages, questions) in zip(corpora, files, strict=True):
            assert questions is not None
            data = load_training(questions, corpus=passages, format="generated", name=corpus.title)
            some = data.take(range(0, len(data), -(-len(data) // QUESTIONS)))
            ranked = open_retriever("bm25", some.documents).retrieve(some.query_texts(), 10)
            own = [any(one in ranked[example.query_id] for one in example.positives) for example in some.examples]
            engine = f"questions of {corpus.title}, {arm.label}"
            asked_of: dict[str, set[int]] = {}
            for example, positives in zip(data.examples, data.positives, strict=True):
                asked_of.setdefault(normalised(example.query), set()).update(positives.tolist())
            several = [len(asked_of[normalised(example.query)]) > 1 for example in data.examples]
            found.append(
                Row("questions", engine, "asked of several passages", float(np.mean(several)), None, None, len(several))
            )
            found.append(
                Row("questions", engine, "own passage in BM25's top 10", float(np.mean(own)), None, None, len(own))
            )
            asked = len({row for positives in data.positives for row in positives.tolist()})
            found.append(
                Row("questions", engine, "passages with a question", float(asked), None, None, len(data.documents))
            )
    return found


def sparse(ground: Ground) -> list[Row]:
    """The inference-free sparse student from the start, and from coCondenser's checkpoints. All at one weight of the FLOPS
    loss, after heads calibrated to as many expansions: how many terms each has stands beside."""
    from benchmarks.papers.inference_free_sparse import Test, on_target, student_run, trained
    from opensearch_neural.evaluation.result_rows import only_differences
    from opensearch_neural.evaluation.results import Row

    starts = {f"sparse student from the {START}": ground.start}
    for arm in arms():
        if arm.variant == "cocondenser" and arm.label in ("none", RANDOM, QUERY):
            starts[f"sparse student from {arm.engine}"] = ground.pretrained(arm)
    students = {engine: trained(sparse_student(ground, start)) for engine, start in starts.items()}
    found: list[Row] = []
    for name in TESTED:
        test = Test.load(ground.data, name, ground.work)
        rows = partial(result_rows.rows, clusters=ground.clusters(ground.test(name)))
        measured: dict[str, Measured] = {}
        for engine, student in students.items():
            run, sparsity = student_run(on_target(student, test.lexicon(student.query.tokenizer)), test)
            measured[engine] = test.measured(run)
            found += [
                Row(f"{name}, sparse", engine, measure, value, None, None, len(test.data.documents))
                for measure, value in sparsity.items()
            ]
        found += rows(f"{name}, sparse", measured, baseline=next(iter(students)))
        pair = {engine: of for engine, of in measured.items() if engine.endswith((f", {RANDOM}", f", {QUERY}"))}
        if len(pair) == 2:
            found += only_differences(rows(f"{name}, sparse", pair, baseline=next(iter(pair))))
    return found


def sparse_student(ground: Ground, start: Path) -> SparseConfig:
    """As the sparse benchmark trains its student, without layers kept as they were. A few steps of masked LM on what the
    backbones read come first, since a head is calibrated, to as many expansions for each start, where it has warmed up."""
    from benchmarks.papers.inference_free_sparse import configuration

    steps = ground.scale.sparse_steps
    config = configuration(ground.data, ground.work, f"sparse-{start.name}", steps=steps, sets=TESTED)
    return replace(
        config,
        start=str(start),
        cache=ground.work / "cache",
        warm_up=replace(config.warm_up, masked_lm_steps=SPARSE_WARM_UP, corpus=[one.path for one in ground.documents]),
        student=replace(config.student, frozen_layers=0),
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals of the issue, in its words, as far as they were measured."""
    from benchmarks.publish import signed
    from opensearch_neural.evaluation.results import Goal

    found: list[Goal] = []
    value: Mapping[tuple[str, str, str], Row] = {(row.set, row.line, row.column): row for row in rows}
    for stage in STAGES:
        differences: dict[str, list[Row]] = {}
        for variant, name in VARIANTS.items():
            for suffix in [_of(seeds) for seeds in range(1, MOST_SEEDS + 1)]:
                difference = f"MRR@10 - {_baseline(variant)}{suffix}"
                keys = [(f"{one}, {stage}", f"{name}, {QUERY}{suffix}", difference) for one in TESTED]
                if all(key in value for key in keys):
                    differences[f"{name}{suffix}"] = [value[key] for key in keys]
        if not differences:
            continue
        most = max(name.partition(",")[2] for name in differences)  # The mean where there are several seeds.
        counted = {name: own for name, own in differences.items() if name.partition(",")[2] == most}
        shown = "; ".join(f"{name} {', '.join(map(signed, own))}" for name, own in differences.items())
        if stage == STAGES[0]:
            words = "query-as-context above random passage zero-shot, interval above zero, for at least one variant"
            for at, one in enumerate(TESTED):
                above = [name for name, own in counted.items() if (own[at].low or 0) > 0]
                each = "; ".join(f"{name} {signed(own[at])}" for name, own in differences.items())
                found.append(Goal(f"{words} (MRR@10 on {one})", "1 variant", each, bool(above)))
        else:
            words = "Paper: +1.4 MRR@10 for CoT-MAE (38.8 → 40.2), +0.6 for coCondenser"
            positive = all(row.value > 0 for own in counted.values() for row in own)
            found.append(Goal(f"{words}: the same direction after {stage} (MRR@10)", "above 0", shown, positive))
    started = [row for row in rows if row.column == "masked LM at the start"]
    if started:
        for measure, sign in (("masked LM", -1), ("nDCG@10 on dev", 1)):
            beaten = [
                row.line
                for row in rows
                if row.column == f"{measure} at the start"
                and sign * (value[row.set, row.line, measure].value - row.value) > 0
            ]
            found.append(
                Goal(
                    f"Each arm is shown to beat its own start on dev: {measure}",
                    f"{len(started)} of {len(started)}",
                    f"{len(beaten)} of {len(started)}",
                    len(beaten) == len(started),
                )
            )
    return found


# ------------------------------------------------ the command


def _option(name: str, text: str) -> Any:
    default = getattr(Scale(), name.replace("-", "_"))
    return click.option(f"--{name}", type=click.IntRange(1), default=default, show_default=True, help=text)


@click.command("query-as-context")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Everything that is made is kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write PART/summary.json there.")
@click.option(
    "--part", "chosen", type=click.Choice(PARTS), multiple=True, help="Which evidence; repeatable.  [default: all]"
)
@_option("layers", "Of the small BERT.")
@_option("hidden", "Its dimension.")
@_option("mlm-steps", "Masked LM of the small BERT, batches of 32 windows.")
@_option("steps", "Pre-training of each arm.")
@_option("batch", "Pairs of a step.")
@_option("generator-steps", "Training of each query generator, batches of 32 pairs.")
@_option("fine-tuning-steps", "Each retriever, batches of 32 questions.")
@_option("sparse-steps", "Each sparse student, batches of 32 questions.")
@_option("documents", "Read of medquad-liveqa.")
@_option("seeds", f"Of random passage and query, zero-shot; {MOST_SEEDS} at most.")
def query_as_context(data: Path, work: Path, record: Path | None, chosen: tuple[str, ...], **sizes: int) -> None:
    """Pre-train with generated queries, random passages or no context, and measure what retrieval gains."""
    from benchmarks.publish import publish

    scale = Scale(**sizes)
    if scale.seeds > MOST_SEEDS:
        raise InputError(f"{scale.seeds} seeds are more than the {MOST_SEEDS} that are compared")
    ground = Ground(data, work, scale)
    parts = {"zero-shot": zero_shot, "fine-tuning": fine_tuning, "sparse": sparse}
    for name, part in parts.items():
        if chosen and name not in chosen:
            continue
        rows = part(ground)
        publish(
            rows,
            goals(rows),
            title=f"Query-as-context pre-training, {name}",
            data=[data / one for one in ARTICLES],
            seeds=[SEED + at for at in range(scale.seeds if name == PARTS[0] else 1)],
            shown=["MRR@10", "nDCG@10", "R@100"],
            record=record and record / name,
        )
