"""`osn tune`: finds the fastest setting that keeps a share of the quality, by searches of the index, and stores it there."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.commands.evaluate import warn_of_engines
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import (
    FiniteRange,
    check_report,
    options_of,
    setting,
    setting_options,
    warn,
)
from opensearch_neural.corpus.judgements import JudgedQueries, read_queries
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import First
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import Summary, read_facts
from opensearch_neural.evaluation.unanswered import unanswered_sentences
from opensearch_neural.files import write_text
from opensearch_neural.index.contents import change, contents_of
from opensearch_neural.tune import TUNINGS, Chosen, Questions, Tuned, pareto, store
from opensearch_neural.tune.plot import plot_and_table


@dataclass(frozen=True)
class NamedQueries:
    """The queries to tune on, as they are named on the command line."""

    data: Path | None = setting(None, "Judged queries: a folder in BEIR layout.", type=click.Path(path_type=Path))
    split: str = setting("train", "Split to tune on. Do not report results on the same split.")
    queries: Path | None = setting(None, "Queries without judgements.", type=click.Path(path_type=Path))


queries_options = options_of(NamedQueries, "named", *setting_options(NamedQueries).values())


@dataclass(frozen=True)
class TrialSettings:
    """How settings are tried and chosen."""

    keep: float = setting(
        0.99, "Share of quality to keep; with bm25-sparse, of the gain over BM25.", type=FiniteRange(0, 1)
    )
    most: int = setting(150, "Most queries in each half.", type=click.IntRange(min=5))
    passes: int = setting(3, "How often each query is timed; the fastest time counts.", type=click.IntRange(min=1))
    seed: int = setting(0, "Seed of the order of requests and the bootstrap.", type=click.IntRange(min=0))


trial_options = options_of(TrialSettings, "trial", *setting_options(TrialSettings).values())


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
    trial: TrialSettings,
    models: dict[str, Any],
    dry_run: bool,
    as_json: bool,
    report: Path | None,
) -> None:
    """Find the fastest setting of an engine that keeps a share of its quality, and store it in the index.

    bm25-sparse: the weight of the model, and the window. It takes the weight whose gain over BM25 has the highest lower
    bound, cross-validated, and the smallest window that keeps a share of that gain. Without --data, the queries are known
    items: half of the words of a sentence of a document. BM25 usually finds these first, so that often no setting is surely
    better and nothing is stored; judged queries or clicks tell more.

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
    questions = read_questions(named) or tuning.own_questions(trial.most, trial.seed)
    warn_of_engines(tuning.engines, [engine])
    before = contents_of(client, engines.index)
    tuned = tuning.run(questions, trial.keep, most=trial.most, passes=trial.passes, seed=trial.seed)
    changed = change(engines.index, before, contents_of(client, engines.index))
    for line in unanswered_sentences({engine: tuned.unanswered}, list(questions.texts), "are left out"):
        warn(line)
    if not as_json:
        show_settings(tuned)
    refused: ClusterError | None = None
    stored = False
    if tuned.chosen is None:
        verdict = tuning.nothing_chosen.format(keep=tuned.keep, measure=tuned.measure, full=tuned.full)
        if tuning.has_stored_setting:
            verdict += f"; {engine} goes on with the setting that was stored before"
    else:
        verdict = choice_told(tuned.chosen, tuned)
        if dry_run:
            verdict += "; not stored (--dry-run)"
        else:
            try:
                store(client, index, tuned.chosen, keep=tuned.keep, measure=tuned.measure, queries=tuned.confirming)
                stored = True
                verdict += f"; stored in {index}: {engine} uses it from now on"
            except ClusterError as error:
                refused = error
                verdict += f"; not stored: {error.message}"
    if changed is not None:
        verdict += f"; {changed}"
    if as_json:
        print(json.dumps({**_json(tuned), "verdict": verdict, "stored": stored}, ensure_ascii=False, indent=1))
    else:
        print(verdict)
    if report is not None:
        write_report(report, f"{engine} on {index}, tuned", tuned, verdict, named, seed=trial.seed)
        print(f"wrote {report}", file=sys.stderr)
    if refused is not None:
        raise refused


def read_questions(named: NamedQueries) -> Questions | None:
    """The queries, with judgements if they have any. None if no queries are named."""
    if named.data is not None:
        judged = JudgedQueries.of_folder(named.data, named.split)
        return Questions(judged.queries, judged.qrels)
    return None if named.queries is None else Questions(read_queries(named.queries), measure="score@10")


def show_settings(tuned: Tuned) -> None:
    """Print what was tried."""
    print(f"{len(tuned.tried) - 1} settings on {tuned.queries} queries, by {tuned.measure}\n")
    print(plot_and_table(tuned))


def write_report(report: Path, title: str, tuned: Tuned, verdict: str, named: NamedQueries, *, seed: int) -> None:
    """Write the HTML report. verdict: the choice in words; named: the queries that it was tuned on"""
    from opensearch_neural.ui.tune_report import tune_report

    facts = read_facts(place for place in (named.data, named.queries) if place is not None)
    summary = Summary.of_this_run(title=title, rows=[], data=facts, seeds=[seed])
    write_text(report, tune_report(summary, tuned, verdict))


def choice_told(chosen: Chosen, tuned: Tuned) -> str:
    """The chosen setting in words."""
    interval = f" [{chosen.low:.1%}, {chosen.high:.1%}]" if chosen.low is not None and chosen.high is not None else ""
    over = f" ({chosen.passed_over} faster settings kept too little)" if chosen.passed_over else ""
    return (
        f"chosen: {chosen.setting}: {chosen.kept:.1%}{interval} of the {tuned.measure} of {tuned.full} on "
        f"{tuned.confirmed_by} queries, at {chosen.tried.ms / tuned.tried[0].ms:.0%} of the time of {tuned.full}{over}"
    )


def _json(tuned: Tuned) -> dict[str, Any]:
    chosen, front = tuned.chosen, pareto(tuned.tried)
    return {
        "measure": tuned.measure,
        "keep": tuned.keep,
        "chosen": None
        if chosen is None
        else {
            **chosen.setting.record,
            **{name: getattr(chosen, name) for name in ("kept", "low", "high", "passed_over")},
        },
        "tried": [
            {
                **({"all": True} if each.setting is None else each.setting.record),
                "ms": each.ms,
                tuned.measure: each.quality,
                "kept": each.kept,
                "pareto": each in front,
            }
            for each in tuned.tried
        ],
    }
