"""`osn tune`: finds the fastest setting that keeps a share of the quality, by searches of the index, and stores it there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.commands.evaluate import warn_of_engines
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import FiniteRange, check_report, options_of, setting, setting_options
from opensearch_neural.corpus.judgements import JudgedQueries, read_queries
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import First
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import Summary, read_facts
from opensearch_neural.evaluation.tables import table
from opensearch_neural.files import write_text
from opensearch_neural.tune import TUNINGS, Chosen, Questions, Tried, Tuned, pareto, store

PLOT_WIDTH, PLOT_HEIGHT = 64, 16
SHOWN_BELOW = 0.1
"""The plot shows settings down to this much below the required share."""


@dataclass(frozen=True)
class NamedQueries:
    """The queries to tune on, as they are named on the command line."""

    data: Path | None = setting(None, "Judged queries: a folder in BEIR layout.", type=click.Path(path_type=Path))
    split: str = setting("train", "Split to tune on. Do not report results on the same split.")
    queries: Path | None = setting(None, "Queries without judgements.", type=click.Path(path_type=Path))


queries_options = options_of(NamedQueries, "named", *setting_options(NamedQueries).values())


@dataclass(frozen=True)
class Trial:
    """How settings are tried and chosen."""

    keep: float = setting(0.99, "Share of quality to keep.", type=FiniteRange(0, 1))
    most: int = setting(150, "Most queries in each half.", type=click.IntRange(min=5))
    passes: int = setting(3, "How often each query is timed; the fastest time counts.", type=click.IntRange(min=1))
    seed: int = setting(0, "Seed of the order of requests and the bootstrap.", type=click.IntRange(min=0))


trial_options = options_of(Trial, "trial", *setting_options(Trial).values())


@dataclass(frozen=True)
class Outcome:
    """The result of a tuning, and the words that tables and messages need."""

    engine: str
    index: str
    tuned: Tuned
    measure: str
    """The measure of quality."""
    full: str
    """The name of the reference engine, with which all settings are compared."""
    keep: float
    """The share of quality to keep that was asked for."""
    required: float
    """The share that a setting must have: 1 for an engine that must be better than the reference."""
    confirmed_by: str
    """The queries that confirmed the choice, such as "40 held-back"."""


@click.command(cls=Headed, first="index engine first data queries keep dry-run json")
@click.option("--index", required=True, help="The index to tune; it must hold sparse vectors.")
@click.option(
    "--engine",
    type=click.Choice(list(TUNINGS)),
    default=next(iter(TUNINGS)),
    show_default=True,
    help="The engine to tune.",
)
@click.option(
    "--first",
    type=click.Choice(get_args(First)),
    help="With --engine cascade: the engine whose hits it scores further.  [default: as stored, else bm25-sparse]",
)
@queries_options
@trial_options
@click.option("--dry-run", is_flag=True, help="Do not store the chosen setting.")
@click.option("--json", "as_json", is_flag=True, help="Print the settings that were tried, as JSON.")
@click.option("--report", type=click.Path(path_type=Path), help="Write an HTML report here; needs the extra [ui].")
@models_options
@connection_options
def tune(
    connection: ConnectionSettings,
    index: str,
    engine: str,
    first: First | None,
    named: NamedQueries,
    trial: Trial,
    models: dict[str, Any],
    dry_run: bool,
    as_json: bool,
    report: Path | None,
) -> None:
    """Find the fastest setting of an engine that keeps a share of its quality, and store it in the index.

    bm25-sparse: the weight of the model, and the window. It takes the weight whose gain over BM25 has the highest lower
    bound, cross-validated, and the smallest window that keeps a share of that gain. Without --data, the queries are known
    items made from the corpus.

    high-idf-first: which tokens are rare, and the window, compared with a search by all tokens.

    sparse, in an index with pruned postings: the window, which is the number of hits that are rescored by their rows.

    cascade: its weight and its two windows, the fastest combination that keeps a share of the best quality.

    The setting is stored in the index, where `osn search`, `osn eval` and `opensearch_neural.engines` find it. Its window
    then grows with the index, as the default window does. Quality is nDCG@10 with --data, and on bm25-sparse's known items;
    else it is score@10: the sum of the ten hits' exact scores, divided by that of the true best ten. For all engines but
    bm25-sparse one half of the queries chooses, and the other half confirms. The cluster should have no other load.

    \b
    osn tune --index docs --data data/docs --report tuned.html
    osn tune --index docs
    osn tune --index docs --engine high-idf-first --queries queries.jsonl --keep 0.98
    osn tune --index docs --engine sparse --queries queries.jsonl
    osn tune --index docs --engine cascade --data data/docs
    """
    if first is not None and engine != "cascade":
        raise InputError("--first is a setting of the cascade", "give --engine cascade too")
    TUNINGS[engine].check_queries(judged=named.data is not None, unjudged=named.queries is not None)
    check_report(report, "opensearch_neural.ui.tune_report")
    client = connect(settings=connection)
    engines = open_engines(client, index, first=first, **models)
    tuning = TUNINGS[engine](client, engines)
    questions, measure = read_questions(named) or tuning.own_questions(trial.most, trial.seed)
    warn_of_engines(tuning.engines, [engine])
    tuned = tuning.run(questions, trial.keep, most=trial.most, passes=trial.passes, seed=trial.seed)
    outcome = Outcome(
        engine,
        index,
        tuned,
        measure,
        full=tuning.full_name,
        keep=trial.keep,
        required=trial.keep if tuning.keeps_share else 1.0,
        confirmed_by=f"{tuned.confirming} {tuning.confirmed}",
    )
    show_settings(outcome, as_json=as_json)
    refused: ClusterError | None = None
    if tuned.chosen is None:
        verdict = tuning.nothing_chosen.format(keep=trial.keep, measure=measure, full=outcome.full)
    else:
        verdict = choice_told(tuned.chosen, outcome)
        if dry_run:
            verdict += "; not stored (--dry-run)"
        else:
            try:
                store(client, index, tuned.chosen, keep=trial.keep, measure=measure, queries=tuned.confirming)
                verdict += f"; stored in {index}: {engine} uses it from now on"
            except ClusterError as error:
                refused = error
                verdict += f"; not stored: {error.message}"
    if not as_json:
        print(verdict)
    if report is not None:
        write_report(report, outcome, verdict, named, seed=trial.seed)
        print(f"wrote {report}", file=sys.stderr)
    if refused is not None:
        raise refused


def read_questions(named: NamedQueries) -> tuple[Questions, str] | None:
    """(the queries, with judgements if they have any; the measure of quality). None if no queries are named."""
    if named.data is not None:
        judged = JudgedQueries.of_folder(named.data, named.split)
        return Questions(judged.queries, judged.qrels), "nDCG@10"
    return None if named.queries is None else (Questions(read_queries(named.queries)), "score@10")


def show_settings(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was tried."""
    tuned, measure = outcome.tuned, outcome.measure
    if as_json:
        print(json.dumps(_json(tuned.tried, tuned.chosen, measure, outcome.keep), indent=1))
        return
    print(f"{len(tuned.tried) - 1} settings on {tuned.queries} queries, by {measure}\n")
    print(plot_and_table(tuned.tried, tuned.chosen, outcome.required, measure=measure, full=outcome.full))


def write_report(report: Path, outcome: Outcome, verdict: str, named: NamedQueries, *, seed: int) -> None:
    """Write the HTML report. verdict: the choice in words; named: the queries that it was tuned on"""
    from opensearch_neural.ui.tune_report import tune_report

    facts = read_facts(place for place in (named.data, named.queries) if place is not None)
    title = f"{outcome.engine} on {outcome.index}, tuned"
    page = tune_report(
        Summary.of_this_run(title=title, rows=[], data=facts, seeds=[seed]),
        outcome.tuned.tried,
        outcome.tuned.chosen,
        verdict=verdict,
        full=outcome.full,
        measure=outcome.measure,
        line=outcome.required,
        queries=outcome.tuned.queries,
        confirmed_by=outcome.confirmed_by,
        seed=seed,
    )
    write_text(report, page)


def plot_and_table(tried: Sequence[Tried], chosen: Chosen | None, keep: float, *, measure: str, full: str) -> str:
    """All settings as a plot, and the Pareto set as a table."""
    return "\n".join(
        [
            plot(tried, chosen, keep),
            f"{'':>9}up: {measure}, as a share of that of {full} (=: the required share); right: time of a query",
            f"{'':>9}A {full}, # chosen, o nothing is both faster and better, · other settings\n",
            front_table(tried, chosen, measure, full) + "\n",
        ]
    )


def choice_told(chosen: Chosen, outcome: Outcome) -> str:
    """The chosen setting in words."""
    interval = f" [{chosen.low:.1%}, {chosen.high:.1%}]" if chosen.low is not None and chosen.high is not None else ""
    over = f" ({chosen.passed_over} faster settings kept too little)" if chosen.passed_over else ""
    return (
        f"chosen: {chosen.setting}: {chosen.kept:.1%}{interval} of the {outcome.measure} of {outcome.full} on "
        f"{outcome.confirmed_by} queries, at {chosen.tried.ms / outcome.tuned.tried[0].ms:.0%} of the time of "
        f"{outcome.full}{over}"
    )


def plot(tried: Sequence[Tried], chosen: Chosen | None, keep: float) -> str:
    """A plot of the share of quality kept (up) over time (right).

    · is a setting, o a setting of the Pareto set, # the chosen setting, = the required share, A all tokens. Settings far
    below the share are drawn on the lowest line, to leave room for settings near it.
    """
    front = pareto(tried)
    quickest, slowest = min(each.ms for each in tried), max(each.ms for each in tried)
    best = max(each.kept for each in tried)
    worst = max(min(each.kept for each in tried), keep - SHOWN_BELOW)
    span_ms, span_kept = max(slowest - quickest, 1e-9), max(best - worst, 1e-9)
    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]

    def row(kept: float) -> int:
        return min(PLOT_HEIGHT - 1, round((best - kept) / span_kept * (PLOT_HEIGHT - 1)))

    if worst <= keep <= best:
        grid[row(keep)] = ["="] * PLOT_WIDTH
    for each in sorted(tried, key=lambda each: _mark(each, front, chosen) != "·"):  # special marks on top
        column = round((each.ms - quickest) / span_ms * (PLOT_WIDTH - 1))
        grid[row(each.kept)][column] = _mark(each, front, chosen)
    labels = [f"{best:6.1%}", *[""] * (PLOT_HEIGHT - 2), f"{worst:6.1%}"]
    lines = [f"{label:>7} |{''.join(line)}" for label, line in zip(labels, grid, strict=True)]
    ends = f"{quickest:.2f} ms"
    return "\n".join(
        [*lines, f"{'':>7} +{'-' * PLOT_WIDTH}", f"{'':>9}{ends}{slowest:>{PLOT_WIDTH - len(ends) - 3}.2f} ms"]
    )


def _mark(each: Tried, front: Sequence[Tried], chosen: Chosen | None) -> str:
    if each.setting is None:
        return "A"
    if chosen is not None and each.setting == chosen.setting:
        return "#"
    return "o" if each in front else "·"


def front_table(tried: Sequence[Tried], chosen: Chosen | None, measure: str, full: str) -> str:
    """The Pareto set as a table, with the engine `full`, with which all are compared."""
    front = [each for each in pareto(tried) if each.setting is not None]
    lines = [
        [*each.cells(full), "chosen" if chosen and each.setting == chosen.setting else ""]
        for each in [*front, *([chosen.tried] if chosen and chosen.tried not in front else []), tried[0]]
    ]
    return table(["setting", "ms", measure, "kept", ""], lines)


def _json(tried: Sequence[Tried], chosen: Chosen | None, measure: str, keep: float) -> dict[str, Any]:
    front = pareto(tried)
    return {
        "measure": measure,
        "keep": keep,
        "chosen": None
        if chosen is None
        else {
            **chosen.setting.record,
            **{name: value for name, value in asdict(chosen).items() if name in ("kept", "low", "high", "passed_over")},
        },
        "tried": [
            {
                **({"all": True} if each.setting is None else each.setting.record),
                "ms": each.ms,
                measure: each.quality,
                "kept": each.kept,
                "pareto": each in front,
            }
            for each in tried
        ],
    }
