"""The evidence for multi-layer representations: what do the vectors of other layers add?

    osn paper multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer

`--data` holds the BEIR folders squad-mix and wikiqa-doc. Parts, each with its own result file below `--record`:
    variants    a plain dual encoder, multi-layer representations under each pooling, and the rivals ME-BERT (first token
                vectors) and ColBERT-style (all token vectors), at equal steps (`multi-layer-representations`, tables 2, 7)
    two-stage   the same schedule in two stages, dual encoder and self-contrastive (section 4.3.2)
    layers      how many layers, and which ones; beside ME-BERT; how often each layer wins (section 4.2, figure 3, table 1)
    lambda      λ of the self-contrastive loss from 0.01 to 10

`training` has the sets and the recipe of all trainings. Intervals resample articles, since many questions are
about one article. A start that was pre-trained on these corpora has read the documents that are held back here, but no
question about them.

The first seed chooses the self-contrastive arm's λ, the best on dev, and is then left out: the other seeds judge the dual
encoder, self-contrastive and multi-vector. All other arms have only the first seed, and are compared with its dual encoder.
The rivals' λ is the one that the paper found for them (appendix A: 1 for ME-BERT, 0.01 for all tokens).

A vector is the mean of a layer's tokens, compared by cosine, as in the training of the default start. The paper uses a
layer's CLS (`--pooling cls`, which a T5 lacks) and raw inner products (`--inner-products`). With these the fifth layer of
the default start is nearer to a query than its last one, so self-contrastive training must first unlearn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.experiment import (
    SEED_ERROR,
    PaperPart,
    RowsAndGoals,
    Table,
    compared,
    facts,
    goal_of,
    is_above,
    means,
    paper_options,
    run_parts,
    shared,
)
from benchmarks.options import part_option, setting_options
from benchmarks.papers.multi_layer.arms import (
    DUAL,
    MULTI_VECTOR,
    SELF_CONTRASTIVE,
    Arm,
    colbert,
    in_two_stages,
    layer_arms,
    me_bert,
    mlr,
    of_lambdas,
)
from benchmarks.papers.multi_layer.layers import draw_lambdas, draw_layers, winner_rows
from benchmarks.papers.multi_layer.training import (
    MEASURES,
    SEEDS,
    SQUAD,
    STEPS,
    TESTS,
    TOP_5,
    WIKIQA,
    MultiLayerExperiment,
    Recipe,
    TrainedArm,
)
from benchmarks.render import signed
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row

PARTS = ("variants", "two-stage", "layers", "lambda")
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


# ------------------------------------------------ rows


def test_rows(
    experiment: MultiLayerExperiment, models: Sequence[TrainedArm], baseline: Arm, rivals_of: Arm | None = None
) -> list[Row]:
    """Rows of every test set: every model compared with the dual encoder `baseline` of its seed, the published start with
    that of the first seed, and means over the seeds that judge. rivals_of: an arm that is also compared with all others"""
    judging = [seed for seed in SEEDS[1:] if any(model.seed == seed for model in models)]
    names = list(dict.fromkeys(model.arm.name for model in models))
    starts = experiment.starts()
    differences = [(name, baseline.name) for name in (*names, *starts) if name != baseline.name]
    if rivals_of is not None:
        differences += [(rivals_of.name, name) for name in names if name not in (rivals_of.name, baseline.name)]
    rows: list[Row] = []
    for name in TESTS:
        measured = {model.engine: experiment.searched(model.spec, name) for model in models}
        measured |= {MeasuredEngine(start): experiment.searched(spec, name) for start, spec in starts.items()}
        measured |= means(measured, judging)
        clusters = experiment.judged(name).clusters
        rows += compared(name, measured, differences, clusters=clusters, seeds=judging)
    return rows


def dev_rows(experiment: MultiLayerExperiment, models: Iterable[TrainedArm]) -> list[Row]:
    """nDCG@10 on dev of the state that each arm kept."""
    n = experiment.dev_questions
    return [row for model in models for row in facts("dev", model.engine, {"nDCG@10": model.dev}, n)]


# ------------------------------------------------ goals


def self_contrastive_goal(table: Table, arm: Arm, steps: int, baseline: Arm = DUAL) -> Goal:
    """Judged by the mean over the table's seeds; each seed's own difference is shown too."""
    seeds = table.seeds
    gains = table.differences(TESTS, arm.name, baseline.name, TOP_5)
    above = sum(map(is_above, gains.values()))

    def shown(name: str, row: Row) -> str:
        own = ", ".join(f"{each.value:+.4f}" for each in table.by_seed(name, arm.name, baseline.name, TOP_5))
        error = table.difference(name, arm.name, baseline.name, f"{TOP_5}, {SEED_ERROR}")
        over_seeds = f", {SEED_ERROR} {error.value:.4f}" if error is not None else ""
        return f"{name} {signed(row, 4)}" + (f", by seed {own}{over_seeds}" if len(seeds) > 1 else "")

    stages = "two stages, " if arm.two_stage else ""
    choice = "that λ was chosen with" if seeds[0] == SEEDS[0] else "λ chosen with another one"
    return goal_of(
        "self-contrastive above the dual encoder in top-5 accuracy on at least one set, interval over articles above zero "
        f"({stages}{len(seeds)} seed{'s' * (len(seeds) > 1)}, {choice}, {steps} steps)",
        "at least 1 set",
        f"{above} of {len(gains)} ({'; '.join(shown(*gain) for gain in gains.items())})" if gains else None,
        above > 0,
    )


def rivals_goal(table: Table, arm: Arm, rivals: Sequence[str]) -> Goal:
    """`arm` against each of `rivals`, all trained with the first seed."""
    gains = {rival: own for rival in rivals if (own := table.differences(TESTS, arm.name, rival, TOP_5))}
    above = [rival for rival, own in gains.items() if any(map(is_above, own.values()))]
    shown = "; ".join(
        f"{rival}: {', '.join(f'{name} {signed(row, 4)}' for name, row in own.items())}" for rival, own in gains.items()
    )
    return goal_of(
        "self-contrastive above each rival (ME-BERT, token vectors) in top-5 accuracy on at least one set, interval above "
        f"zero (seed {SEEDS[0]}, which its λ was chosen with; the rivals have the paper's)",
        f"{len(rivals)} of {len(rivals)}",
        f"{len(above)} of {len(gains)} ({shown})" if gains else None,
        len(above) == len(rivals),
    )


# ------------------------------------------------ the parts


def with_best(experiment: MultiLayerExperiment, arms: Iterable[Arm]) -> tuple[list[Arm], Arm]:
    """(`arms` with the arm that is best on dev in place of SELF_CONTRASTIVE, that arm)"""
    best = experiment.best_on_dev()
    return [best if arm == SELF_CONTRASTIVE else arm for arm in arms], best


def variants(experiment: MultiLayerExperiment, seeds: int) -> RowsAndGoals:
    arms, best = with_best(experiment, VARIANTS)
    models = experiment.each_trained(
        [(arm, seed) for arm in arms for seed in (SEEDS[: seeds + 1] if arm.repeated else SEEDS[:1])]
    )
    # The other candidates for λ; the chosen one has a row already.
    others = [arm for arm in of_lambdas() if arm != best]
    rows = dev_rows(experiment, models)
    rows += dev_rows(experiment, experiment.each_trained([(arm, SEEDS[0]) for arm in others], search=False))
    rows += test_rows(experiment, models, DUAL, best)
    rows += winner_rows(experiment, [model for model in models if model.arm == MULTI_VECTOR][:1])
    judging, first = Table(rows, SEEDS[1 : seeds + 1]), Table(rows, SEEDS[:1])
    return rows, [
        self_contrastive_goal(judging, best, experiment.steps),
        rivals_goal(first, best, [arm.name for arm in VARIANTS if arm.is_rival]),
    ]


def two_stages(experiment: MultiLayerExperiment) -> RowsAndGoals:
    arms, best = with_best(experiment, (DUAL, SELF_CONTRASTIVE))
    alone = experiment.each_trained([(arm, SEEDS[0]) for arm in arms])
    jobs = {
        experiment.configuration(in_two_stages(one_stage.arm), SEEDS[0]).output: partial(experiment.train_on, one_stage)
        for one_stage in alone
    }
    models = shared(jobs) + alone
    rows = dev_rows(experiment, models) + test_rows(experiment, models, in_two_stages(DUAL))
    table = Table(rows, SEEDS[:1])
    return rows, [self_contrastive_goal(table, in_two_stages(best), experiment.steps, in_two_stages(DUAL))]


def layers(experiment: MultiLayerExperiment) -> RowsAndGoals:
    arms = (DUAL, *layer_arms(experiment.recipe.depth))
    models = experiment.each_trained([(arm, SEEDS[0]) for arm in arms])
    rows = dev_rows(experiment, models) + test_rows(experiment, models, DUAL)
    rows += winner_rows(experiment, [model for model in models if model.arm.layers])
    return rows, []


def lambdas(experiment: MultiLayerExperiment) -> RowsAndGoals:
    arms = (DUAL, *of_lambdas())
    models = experiment.each_trained([(arm, SEEDS[0]) for arm in arms])
    return dev_rows(experiment, models) + test_rows(experiment, models, DUAL), []


# ------------------------------------------------ the command


@click.command("multi-layer")
@paper_options
@part_option(PARTS)
@click.option(
    "--steps", type=click.IntRange(2), default=STEPS, show_default=True, help="Optimizer steps of each training."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, len(SEEDS) - 1),
    default=len(SEEDS) - 1,
    show_default=True,
    help="Seeds of the main arms; one more seed chooses λ.",
)
@setting_options(Recipe)
def multi_layer(
    data: Path, work: Path, record: Path | None, chosen: tuple[str, ...], steps: int, seeds: int, **recipe: Any
) -> None:
    """Train multi-layer representations, a dual encoder and its rivals, and compare them.

    \b
    osn paper multi-layer --data DIR --work DIR --part variants --record benchmarks/results/multi_layer
    osn paper multi-layer --data DIR --work DIR --part variants --steps 100 --seeds 1
    """
    experiment = MultiLayerExperiment(data, work, Recipe(**recipe), steps)
    experiment.recipe.check()
    experiment.prepare()

    def part(title: str, run: Any, *, of: int = 1, draw: Any = None) -> PaperPart:
        def shown(row: Row) -> bool:
            above_dual = row.kind == "difference" and row.baseline in (DUAL.name, in_two_stages(DUAL).name)
            return (row.measure in MEASURES and row.kind == "value") or (row.measure == TOP_5 and above_dual)

        title = f"{title}; start: {experiment.recipe.described}; {steps} steps"
        return PaperPart(title, run, [data / name for name in (SQUAD, WIKIQA)], SEEDS[:of], shown, draw)

    draw = partial(draw_layers, experiment.recipe.depth)
    parts = {
        "variants": part(
            "Multi-layer representations against a dual encoder and its rivals",
            partial(variants, experiment, seeds),
            of=seeds + 1,
        ),
        "two-stage": part("Multi-layer representations in two stages", partial(two_stages, experiment)),
        "layers": part("Which layers, how many, and which of them wins", partial(layers, experiment), draw=draw),
        "lambda": part(
            "The weight of the self-contrastive regularization", partial(lambdas, experiment), draw=draw_lambdas
        ),
    }
    run_parts(parts, record, chosen)
