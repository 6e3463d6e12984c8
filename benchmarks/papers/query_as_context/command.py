"""The evidence for query-as-context pre-training: is a generated query a better context than another passage of the article?

    osn paper query-as-context --data DIR --work DIR --record benchmarks/results/query_as_context

`--data` holds the BEIR folders squad-mix, wikiqa-doc and medquad-liveqa. A small BERT is made and pre-trained on their
documents (masked LM, then Condenser); from it, every arm is trained for the same steps on the same passages:

    coCondenser and CoT-MAE, each with no context, a random passage of the same article, and a generated query (of 5)
    coCondenser with a generated query of 1 candidate

coCondenser's contexts differ in their negatives too: with random passages, all passages of an article belong together; with
queries, they are negatives of each other.

Parts: "zero-shot" measures the arms without fine-tuning on the test splits of squad-mix and wikiqa-doc. "fine-tuning"
measures retriever 1 (with BM25's negatives) and retriever 2 (with retriever 1's too), both trained on the two sets together,
of the arms and of their common start.

Intervals resample articles, since many questions of squad-mix are about one article. No test judgement chooses anything:
the loss on passages held back selects the states of arms, dev questions select those of retrievers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path

import click

from benchmarks.experiment import (
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    each,
    facts,
    goal_of,
    is_above,
    paper_options,
    run_parts,
)
from benchmarks.options import part_option, setting_options
from benchmarks.papers.query_as_context.training import (
    ARTICLES,
    NONE,
    QUERY,
    RANDOM,
    SEED,
    SINGLE,
    STAGES,
    START,
    TESTED,
    VARIANTS,
    QueryAsContextExperiment,
    QueryAsContextScale,
    arms,
)
from benchmarks.render import signed
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row

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


# ------------------------------------------------ the parts


def zero_shot(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Every arm without fine-tuning, compared with random passages and the start, and its progress on dev."""
    rows: list[Row] = []
    of_name = arms()
    models = each(
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
        "masked LM at the start": -float(before["eval_masked_lm"]),
        "masked LM": -float(best["eval_masked_lm"]),
        "nDCG@10 on dev at the start": float(before["eval_nDCG@10"]),
        "nDCG@10 on dev": float(best["eval_nDCG@10"]),
    }
    return facts("passages held back", engine, values, len(measured))


def fine_tuning(experiment: QueryAsContextExperiment) -> RowsAndGoals:
    """Retrievers 1 and 2 of the arms that the paper compares, and of their common start."""
    of_name = {name: arm for name, arm in arms().items() if arm.label in (NONE, RANDOM, QUERY)}

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
            rows += compared(f"{name}, {stage}", measured, DIFFERENCES, clusters=test.clusters)
    return rows, direction_goals(rows)


# ------------------------------------------------ goals


def direction_goals(rows: Iterable[Row]) -> list[Goal]:
    """Queries against random passages: zero-shot on each set; after fine-tuning, all measured gains in the paper's
    direction."""
    table, goals = Table(rows, [SEED]), []
    for stage in STAGES:
        gains: dict[str, dict[str, Row]] = {}
        for name, variant in product(TESTED, VARIANTS.values()):
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
    runs = {"zero-shot": zero_shot, "fine-tuning": fine_tuning}
    parts = {
        name: PaperPart(
            f"Query-as-context pre-training, {name}",
            partial(runs[name], experiment),
            [data / corpus for corpus in ARTICLES],
            [SEED],
            lambda row: row.column in MEASURES,
        )
        for name in PARTS
    }
    run_parts(parts, record, chosen)
