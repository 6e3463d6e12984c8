"""The evidence for query-as-context pre-training: is a generated query a better context than another passage of the article?

    osn paper query-as-context --data DIR --work DIR --record benchmarks/results/query_as_context

`--data` holds the BEIR folders squad-mix, wikiqa-doc and medquad-liveqa. A small BERT is made and pre-trained on their
documents (masked LM, then Condenser); from it every arm takes the same steps on the same passages:

    coCondenser and CoT-MAE, each with no context, a random passage of the same article, and a generated query (of 5)
    coCondenser with a generated query of 1; and, as an upper bound, with the questions that people asked of the passages,
    where they did, and generated ones elsewhere

coCondenser's contexts differ in their negatives, too: with random passages all passages of an article belong together, with
queries they are negatives of each other. The result file says how many a batch has of them.

Parts: "zero-shot" measures the arms as they stand on the test splits of squad-mix and wikiqa-doc; "fine-tuning" after
retriever 1 (BM25's negatives) and retriever 2 (retriever 1's as well), both trained on the two sets together, from what
every arm starts from as well.

Intervals resample articles: many questions of squad-mix are about one. With `--seeds`, random passage and generated query
are trained so many times, and compared by each question's mean. No test judgement chooses anything; states are selected by
the loss on passages held back, retrievers on dev.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np

from benchmarks.beir_parts import evenly
from benchmarks.experiment import (
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    each,
    goal_of,
    is_above,
    means,
    paper_options,
    part_option,
    run_parts,
    size_options,
    trials,
)
from benchmarks.papers.query_as_context_training import (
    ARTICLES,
    HUMAN,
    NONE,
    QUERY,
    RANDOM,
    SEED,
    SINGLE,
    STAGES,
    START,
    TESTED,
    VARIANTS,
    Pretraining,
    QueryAsContextExperiment,
    QueryAsContextScale,
    arms,
)
from benchmarks.render import signed
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.files import read_json_object
from opensearch_neural.models.directory import read_osn_json
from trainers.data.loading import load_training
from trainers.data.negatives import open_retriever
from trainers.query_as_context.pairs import usable_rows
from trainers.query_as_context.passages import question_files, read_passages
from trainers.query_as_context.train import steps_per_second

PARTS = ("zero-shot", "fine-tuning")
MOST_SEEDS = 5
QUESTIONS = 1000
"""The questions of each corpus, evenly taken, that judge its generator."""
MEASURES = ("MRR@10", "nDCG@10", "R@100")


def differences() -> list[tuple[str, str]]:
    """What is compared: query and others with random passage, all with the start, and with one candidate."""
    names, compared_pairs = arms(), []
    for variant in VARIANTS.values():
        machine = [f"{variant}, {label}" for label in (QUERY, NONE, SINGLE)]
        compared_pairs += [(name, f"{variant}, {RANDOM}") for name in machine]
        compared_pairs += [(name, START) for name in (*machine, f"{variant}, {RANDOM}")]
        compared_pairs += [
            (f"{variant}, {QUERY}", f"{variant}, {SINGLE}"),
            (f"{variant}, {HUMAN}", f"{variant}, {QUERY}"),
        ]
    return [pair for pair in compared_pairs if set(pair) <= {*names, START}]


# ------------------------------------------------ the parts


def zero_shot(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Every arm as it stands beside random passage and the start, how far it has come on dev, and how fast its steps are."""
    # First: what a generator is worth is known before anything is trained with its queries.
    rows = question_rows(experiment)
    of_name, seeds = arms(), seeds_of(experiment)
    repeated = [name for name, arm in of_name.items() if arm.label in (RANDOM, QUERY)]
    models = each(
        trials(of_name, repeated, seeds),
        lambda engine: experiment.output(engine.name, engine.seed or SEED),
        lambda engine: experiment.pretrained(of_name[engine.name], engine.seed or SEED),
    )
    for name in TESTED:
        test = experiment.judged(name)
        measured = {MeasuredEngine(START): experiment.measured(experiment.start, test)}
        measured |= {engine: experiment.measured(model, test) for engine, model in models.items()}
        measured |= means(measured, seeds)
        rows += compared(f"{name}, {STAGES[0]}", measured, differences(), clusters=test.clusters, seeds=seeds)
    for engine, model in models.items():
        rows += dev_rows(engine, model)
        if (rate := steps_per_second(model)) is not None:
            name = f"pre-training, batches of {experiment.scale.batch}"
            rows.append(Row(name, engine.name, "steps/s", rate, None, None, 1, seed=engine.seed))
    return rows, [*direction_goals(rows, seeds), *start_goals(rows)]


def seeds_of(experiment: QueryAsContextExperiment) -> list[int]:
    return [SEED + at for at in range(experiment.scale.seeds)]


def dev_rows(engine: MeasuredEngine, model: Path) -> list[Row]:
    """What was measured while an arm was trained, at the start and of the state that was kept: the loss of masked LM on
    passages held back, which all arms have, and nDCG@10 on DEV's dev questions. n: evaluations."""
    lines = (model / ".training" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {int(line["step"]): line for line in map(json.loads, lines) if "eval_objective" in line}
    before, best = measured[min(measured)], max(measured.values(), key=lambda line: float(line["eval_objective"]))
    values = {
        "masked LM at the start": -float(before["eval_masked_lm"]),
        "masked LM": -float(best["eval_masked_lm"]),
        "nDCG@10 on dev at the start": float(before["eval_nDCG@10"]),
        "nDCG@10 on dev": float(best["eval_nDCG@10"]),
    }
    return [
        Row("passages held back", engine.name, measure, value, None, None, len(measured), seed=engine.seed)
        for measure, value in values.items()
    ]


def question_rows(experiment: QueryAsContextExperiment) -> list[Row]:
    """How many of the questions lead BM25 to their own passage, a measure of their generator; how often a training visits a
    passage, and with how many negatives of its article."""
    scale = experiment.scale
    rows: list[Row] = []
    for name, arm in arms().items():
        if arm.variant != "cocondenser" or arm.label not in (QUERY, HUMAN):
            continue
        config = experiment.of_arm(arm)
        files = question_files(config)
        passages = read_passages(config)
        trained, _ = usable_rows(passages, config)
        counts = np.bincount(passages.articles[trained])
        of_article = float((counts * (counts - 1)).sum() / len(trained) / (len(trained) - 1)) * (scale.batch - 1)
        for measure, value in (
            ("visits of a passage", scale.steps * scale.batch / len(trained)),
            ("negatives of its article, a passage", of_article),
        ):
            rows.append(Row("questions", name, measure, value, None, None, len(trained)))
        for corpus, (file, questions) in zip(config.corpora, files, strict=True):
            assert questions is not None
            data = load_training(questions, corpus=file, format="generated", name=corpus.title)
            some = data.take(evenly(range(len(data)), QUESTIONS))
            ranked = open_retriever("bm25", some.documents).retrieve(some.query_texts(), 10)
            own = [any(passage in ranked[asked.query_id] for passage in asked.positives) for asked in some.examples]
            engine, share = f"questions of {corpus.title}, {arm.label}", float(np.mean(own))
            rows.append(Row("questions", engine, "own passage in BM25's top 10", share, None, None, len(own)))
    return rows


def compared_arms() -> dict[str, Pretraining]:
    """The arms that the paper compares."""
    return {name: arm for name, arm in arms().items() if arm.label in (NONE, RANDOM, QUERY)}


def fine_tuning(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Retrievers 1 and 2 of the arms that the paper compares, and of what all of them start from."""
    of_name = compared_arms()

    def train(engine: MeasuredEngine) -> dict[str, Path]:
        start = experiment.start if engine.name == START else experiment.pretrained(of_name[engine.name])
        return experiment.fine_tuned(engine.name, start)

    models = each(
        [MeasuredEngine(START), *(MeasuredEngine(name) for name in of_name)],
        lambda engine: experiment.fine_tuning(engine.name, experiment.start).output,
        train,
    )
    rows: list[Row] = []
    for name in TESTED:
        test = experiment.judged(name)
        for stage in STAGES[1:]:
            measured = {engine: experiment.measured(model[stage], test) for engine, model in models.items()}
            rows += compared(f"{name}, {stage}", measured, differences(), clusters=test.clusters)
    for engine, model in models.items():
        rows += retriever_rows(engine.name, model)
    return rows, direction_goals(rows)


def retriever_rows(engine: str, models: Mapping[str, Path]) -> list[Row]:
    """nDCG@10 on dev of what each retriever started from and of the state kept, and the step of that: at 0 a retriever is
    what it started from."""
    rows: list[Row] = []
    for stage, model in models.items():
        measures = (read_osn_json(model) or {}).get("measures", {})
        values = {"nDCG@10 at the start": measures.get("start nDCG@10"), "nDCG@10": measures.get("nDCG@10")}
        values["step kept"] = read_json_object(model / ".training" / "outcome.json")["best_step"]
        rows += [
            Row(f"dev, {stage}", engine, measure, float(value), None, None, 1)
            for measure, value in values.items()
            if value is not None
        ]
    return rows


# ------------------------------------------------ goals


def direction_goals(rows: Iterable[Row], seeds: Sequence[int] = (SEED,)) -> list[Goal]:
    """Query against random passage: zero-shot on each set; after fine-tuning in the paper's direction, for all that was
    measured. Of several seeds the mean counts."""
    table, goals = Table(rows, seeds), []
    for stage in STAGES:
        gains: dict[str, dict[str, Row]] = {}
        for name in TESTED:
            for variant in VARIANTS.values():
                row = table.difference(f"{name}, {stage}", f"{variant}, {QUERY}", f"{variant}, {RANDOM}", "MRR@10")
                if row is not None:
                    gains.setdefault(name, {})[variant] = row
        shown = {
            name: "; ".join(f"{variant} {signed(row)}" for variant, row in own.items()) for name, own in gains.items()
        }
        if stage == STAGES[0]:
            words = "query-as-context above random passage zero-shot, interval above zero, for at least one variant"
            goals += [
                goal_of(f"{words} (MRR@10 on {name})", "1 variant", shown[name], any(map(is_above, own.values())))
                for name, own in gains.items()
            ]
        elif gains:
            words = "Paper: +1.4 MRR@10 for CoT-MAE (38.8 → 40.2), +0.6 for coCondenser"
            goals.append(
                goal_of(
                    f"{words}: the same direction after {stage}, interval above zero (MRR@10)",
                    "above 0",
                    "; ".join(f"{name}: {said}" for name, said in shown.items()),
                    all(is_above(row) for own in gains.values() for row in own.values()),
                )
            )
    return goals


def start_goals(rows: Iterable[Row]) -> list[Goal]:
    """Each arm beside what it started from."""
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
@size_options(
    QueryAsContextScale,
    layers="Layers of the small BERT.",
    hidden="Dimension of the small BERT.",
    mlm_steps="Masked-LM steps of the small BERT, with 32 windows each.",
    steps="Pre-training steps of each arm.",
    batch="Pairs of a step.",
    generator_steps="Training steps of each query generator, with 32 pairs each.",
    fine_tuning_steps="Training steps of each retriever, with 32 questions each.",
    documents="Documents to read of medquad-liveqa.",
    seeds=f"Seeds of random passage and query, zero-shot; at most {MOST_SEEDS}.",
)
def query_as_context(data: Path, work: Path, record: Path | None, chosen: tuple[str, ...], **sizes: int) -> None:
    """Pre-train with generated queries, random passages or no context, and measure the gain in retrieval."""
    scale = QueryAsContextScale(**sizes)
    if scale.seeds > MOST_SEEDS:
        raise InputError(f"{scale.seeds} seeds are more than the {MOST_SEEDS} that are compared")
    experiment = QueryAsContextExperiment(data, work, scale)
    runs = {"zero-shot": zero_shot, "fine-tuning": fine_tuning}
    parts = {
        name: PaperPart(
            f"Query-as-context pre-training, {name}",
            partial(runs[name], experiment),
            [data / corpus for corpus in ARTICLES],
            seeds_of(experiment) if name == PARTS[0] else [SEED],
            lambda row: row.column in MEASURES,
        )
        for name in chosen or PARTS
    }
    run_parts(parts, record)
