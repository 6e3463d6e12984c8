"""`osn tune`: finds the fastest setting that keeps a share of the quality, by searches of the index, and stores it there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.commands.evaluate import warn_of_engines
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import FiniteRange, seed_option
from opensearch_neural.corpus.judgements import JudgedQueries, read_queries
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import First
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import Summary, read_facts
from opensearch_neural.evaluation.tables import table
from opensearch_neural.files import write_text
from opensearch_neural.tune import TUNINGS, Chosen, Questions, Tried, pareto, store

if TYPE_CHECKING:
    from opensearch_neural.models.dense.dense_encoder import Backend

PLOT_WIDTH, PLOT_HEIGHT = 64, 16
SHOWN_BELOW = 0.1
"""The plot shows settings down to this much below the required share."""


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
@click.option("--data", type=click.Path(path_type=Path), help="Judged queries: a folder in BEIR layout.")
@click.option(
    "--split", default="train", show_default=True, help="Split to tune on. Do not report results on the same split."
)
@click.option("--queries", type=click.Path(path_type=Path), help="Queries without judgements.")
@click.option("--keep", type=FiniteRange(0, 1), default=0.99, show_default=True, help="Share of quality to keep.")
@click.option("--most", type=click.IntRange(min=5), default=150, show_default=True, help="Most queries in each half.")
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often each query is timed; the fastest time counts.",
)
@seed_option("Seed of the order of requests and the bootstrap.")
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
    data: Path | None,
    split: str,
    queries: Path | None,
    keep: float,
    most: int,
    passes: int,
    seed: int,
    sparse: str | None,
    dense: str | None,
    pq: str | None,
    backend: Backend,
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
    TUNINGS[engine].check_queries(judged=data is not None, unjudged=queries is not None)
    if report is not None:
        if report.is_dir():
            raise InputError(f"--report {report} is a folder", "name a file, such as tuned.html")
        import_module("opensearch_neural.ui.tune_report")  # a missing extra fails now, not after hours of work
    client = connect(settings=connection)
    engines = open_engines(client, index, sparse=sparse, dense=dense, pq=pq, backend=backend, first=first)
    tuning = TUNINGS[engine](client, engines)
    questions, measure = read_questions(data, split, queries) or tuning.own_questions(most, seed)
    warn_of_engines(tuning.engines, [engine])
    tuned = tuning.run(questions, keep, most=most, passes=passes, seed=seed)
    tried, chosen, full = tuned.tried, tuned.chosen, tuning.full_name
    required = keep if tuning.keeps_share else 1.0
    if as_json:
        print(json.dumps(_json(tried, chosen, measure, keep), indent=1))
    else:
        print(f"{len(tried) - 1} settings on {tuned.queries} queries, by {measure}\n")
        print(plot_and_table(tried, chosen, required, measure=measure, full=full))
    refused: ClusterError | None = None
    confirming = f"{tuned.confirming} {tuning.confirmed}"
    if chosen is None:
        told = tuning.nothing_chosen.format(keep=keep, measure=measure, full=full)
    else:
        told = choice_told(tried, chosen, full=full, measure=measure, of=confirming)
        if dry_run:
            told += "; not stored (--dry-run)"
        else:
            try:
                store(client, index, chosen, keep=keep, measure=measure, queries=tuned.confirming)
                told += f"; stored in {index}: {engine} uses it from now on"
            except ClusterError as error:
                refused = error
                told += f"; not stored: {error.message}"
    if not as_json:
        print(told)
    if report is not None:
        from opensearch_neural.ui.tune_report import tune_report

        read = read_facts(place for place in (data, queries) if place is not None)
        summary = Summary.of_this_run(title=f"{engine} on {index}, tuned", rows=[], data=read, seeds=[seed])
        page = tune_report(
            summary,
            tried,
            chosen,
            verdict=told,
            full=full,
            measure=measure,
            line=required,
            queries=tuned.queries,
            confirmed_by=confirming,
            seed=seed,
        )
        write_text(report, page)
        print(f"wrote {report}", file=sys.stderr)
    if refused is not None:
        raise refused


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


def read_questions(data: Path | None, split: str, queries: Path | None) -> tuple[Questions, str] | None:
    """(the queries, with judgements if they have any; the measure of quality). None if no queries are named."""
    if data is not None:
        judged = JudgedQueries.of_folder(data, split)
        return Questions(judged.queries, judged.qrels), "nDCG@10"
    return None if queries is None else (Questions(read_queries(queries)), "score@10")


def choice_told(tried: Sequence[Tried], chosen: Chosen, *, full: str, measure: str, of: str) -> str:
    """The chosen setting in words. of: the queries that confirmed it, such as "40 held-back"."""
    interval = f" [{chosen.low:.1%}, {chosen.high:.1%}]" if chosen.low is not None and chosen.high is not None else ""
    over = f" ({chosen.passed_over} faster settings kept too little)" if chosen.passed_over else ""
    return (
        f"chosen: {chosen.setting}: {chosen.kept:.1%}{interval} of the {measure} of {full} on {of} queries, "
        f"at {chosen.tried.ms / tried[0].ms:.0%} of the time of {full}{over}"
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
