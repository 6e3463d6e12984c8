"""`osn eval`: engines of one index against judged queries, side by side, with BM25 as the measure of all."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import engine_options
from opensearch_neural.engines import ENGINES, BodyOf, Engines, open_engines
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.corpus.judgements import BeirData
    from opensearch_neural.evaluation.results import Goal, Row, Summary
    from opensearch_neural.evaluation.side_by_side import CommonOnly, Outcome

BASELINE = "bm25"
MEASURES = "nDCG@10,RR@10,R@100,R@1000"
SHOWN = 10  # wins, and losses, that --per-query shows


@click.command(name="eval")
@click.option("--index", required=True, help="The index to search.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="A folder in BEIR layout: queries and qrels/SPLIT.tsv.",
)
@click.option("--split", default="test", show_default=True, help="Which judgements.")
@click.option(
    "--engines", default=None, help=f"Some of {','.join(ENGINES)}.  [default: all that the index has the data for]"
)
@click.option("--measures", default=MEASURES, show_default=True, help="Names of ir-measures.")
@click.option(
    "--baseline", default=None, help=f"The engine to compare with.  [default: {BASELINE}, where it is measured]"
)
@click.option("--limit-queries", type=click.IntRange(min=1), default=None, help="Only the first N judged queries.")
@click.option("--timed", type=click.IntRange(min=0), default=200, show_default=True, help="Queries to time; 0: none.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap and the randomization test.")
@click.option("--per-query", is_flag=True, help=f"Show the {SHOWN} largest wins and losses against the baseline.")
@click.option(
    "--expect", multiple=True, help="ENGINE:MEASURE=LOW..HIGH: a goal; the exit status is 1 where one is missed."
)
@click.option("--json", "as_json", is_flag=True, help="Print a result file instead of tables.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Write run files and per-query values here.")
@click.option(
    "--record", type=click.Path(path_type=Path), default=None, help="Write the result file summary.json here."
)
@engine_options
@connection_options
def evaluate(
    connection: ConnectionSettings,
    index: str,
    data: Path,
    split: str,
    engines: str | None,
    measures: str,
    baseline: str | None,
    how: dict[str, Any],
    limit_queries: int | None,
    timed: int,
    seed: int,
    per_query: bool,
    expect: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    record: Path | None,
) -> None:
    """Measure the engines of an index on judged queries, against BM25.

    Measures up to @10 are taken from searches for 10 hits, as a results page asks; deeper ones from searches as deep as
    they look. Intervals are 95% bootstrap intervals over queries, p-values those of a paired randomization test.
    Latencies are of single requests for 10 hits, one at a time, seen from this client; encoding is shown apart.

    \b
    osn eval --index scifact --data data/scifact
    osn eval --index scifact --data data/scifact --engines bm25,high-idf-first --per-query
    osn eval --index scifact --data data/scifact --engines bm25 --expect bm25:nDCG@10=0.66..0.70 --record results/scifact
    """
    from opensearch_neural.corpus.judgements import BeirData
    from opensearch_neural.evaluation import side_by_side as experiment
    from opensearch_neural.evaluation.evaluate import parse_measures

    if per_query and as_json:
        raise click.UsageError("--per-query shows text; for programs, --out writes per-query.tsv")
    names = list(parse_measures(measures.split(",")))
    chosen = chosen_engines(engines)
    judged = limited(BeirData.load(data, split), limit_queries)
    client = connect(settings=connection)
    with translate_errors():
        opened = open_engines(client, index, **how)
        chosen = chosen or available_engines(opened)
        against = chosen_baseline(baseline, chosen)
        goals = [parse_goal(text, chosen, names) for text in expect]
        warn_of(judged, *experiment.absent_documents(client, index, judged.qrels), index)
        bodies = {engine: opened.body_of(engine) for engine in chosen}
        needs_sparse = "high-idf-first" in chosen and "sparse" not in chosen
        steps = len(judged.queries) * (
            len(chosen) * len(experiment.sizes_of(names)) + ("high-idf-first" in chosen) + needs_sparse
        )
        with progress_bar(steps + len(chosen) * min(timed, len(judged.queries))) as advance:
            outcomes = [
                experiment.run_engine(
                    client, index, engine, body_of, judged.queries, judged.qrels, names, progress=advance
                )
                for engine, body_of in bodies.items()
            ]
            if timed:
                texts = list(judged.queries.values())[:timed]
                times = experiment.time_engines(client, index, bodies, texts, progress=advance)
                outcomes = [
                    replace(outcome, latency=times[outcome.engine][0], encode_ms=times[outcome.engine][1])
                    for outcome in outcomes
                ]
            lost = common_only(client, opened, judged, outcomes, advance)
        summary = summarize(client, opened, judged, data, outcomes, against, lost, goals, seed)
    if out is not None:
        write_runs(out, judged, outcomes)
    if record is not None:
        print(f"wrote {summary.write(record)}", file=sys.stderr)
    if as_json:
        print(json.dumps(summary.to_json(), ensure_ascii=False, indent=1))
    else:
        print_tables(summary, judged, outcomes, against, lost)
        if per_query:
            print_per_query(judged, outcomes, names[0], against)
    if not all(goal.met for goal in summary.goals):
        sys.exit(1)


def chosen_engines(names: str | None) -> list[str]:
    """The engines named on the command line, each once; none for none. Raises InputError for an unknown one."""
    chosen = list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))
    for name in chosen:
        if name not in ENGINES:
            raise InputError(f"there is no engine {name!r}", f"engines: {', '.join(ENGINES)}")
    return chosen


def available_engines(opened: Engines) -> list[str]:
    """The engines that this index and cluster can serve."""
    return [name for name, engine in ENGINES.items() if engine.compared and opened.serves(name)]


def chosen_baseline(name: str | None, engines: Sequence[str]) -> str | None:
    """The engine that differences are taken to, or None. Raises InputError for one that is not measured."""
    if name is not None and name not in engines:
        raise InputError(f"the baseline {name!r} is not among the engines measured ({', '.join(engines)})")
    return name or (BASELINE if BASELINE in engines else None)


def limited(judged: BeirData, limit: int | None) -> BeirData:
    """The first `limit` judged queries. Raises InputError where no judgement says that anything is relevant."""
    if not any(grade > 0 for grades in judged.qrels.values() for grade in grades.values()):
        raise InputError(f"the judgements of the split {judged.split!r} name no relevant document")
    if limit is None:
        return judged
    queries = dict(islice(judged.queries.items(), limit))
    return replace(judged, queries=queries, qrels={query: judged.qrels[query] for query in queries})


@dataclass(frozen=True)
class Expectation:
    """A goal of the command line: `engine`'s `measure` is to lie between `low` and `high`."""

    engine: str
    measure: str
    low: float
    high: float

    def goal(self, value: float) -> Goal:
        from opensearch_neural.evaluation.evaluate import label
        from opensearch_neural.evaluation.results import Goal

        words = f"{self.engine} {label(self.measure)} between {self.low:g} and {self.high:g}"
        return Goal(words, f"{self.low:g} to {self.high:g}", value, self.low <= value <= self.high)


def parse_goal(text: str, engines: Sequence[str], measures: Sequence[str]) -> Expectation:
    """`Expectation` from "bm25:nDCG@10=0.66..0.70". Raises InputError naming what is wrong with it."""
    from opensearch_neural.evaluation.evaluate import parse_measures

    found = re.fullmatch(r"(?P<engine>[\w-]+):(?P<measure>.+)=(?P<low>[\d.]+?)\.\.(?P<high>[\d.]+)", text)
    try:
        if found is None:
            raise ValueError
        low, high = float(found["low"]), float(found["high"])
    except ValueError:
        raise InputError(
            f"--expect {text!r}", "expected ENGINE:MEASURE=LOW..HIGH, like bm25:nDCG@10=0.66..0.70"
        ) from None
    (measure,) = parse_measures([found["measure"]])
    if found["engine"] not in engines or measure not in measures:
        raise InputError(
            f"--expect {text!r}: {found['engine']} {measure} is not measured",
            f"measured are {', '.join(measures)} of {', '.join(engines)}",
        )
    return Expectation(found["engine"], measure, low, high)


def warn_of(judged: BeirData, absent: int, relevant: int, index: str) -> None:
    """Say on stderr what the numbers leave out."""
    if absent:
        print(
            f"warning: {absent:,} of the {relevant:,} documents judged relevant are not in the index {index!r}; "
            "no engine can find these",
            file=sys.stderr,
        )
    useless = sum(1 for grades in judged.qrels.values() if not any(grade > 0 for grade in grades.values()))
    if useless:
        print(f"warning: {useless:,} judged queries have no relevant document and are left out", file=sys.stderr)


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], object]]:
    """A bar over searches on stderr; yields what to call with the number done."""
    from tqdm import tqdm

    with tqdm(
        total=total,
        unit="query",
        desc="eval",
        # A terminal gets a bar that moves; a log gets a line every few seconds.
        mininterval=0.5 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
    ) as bar:
        yield bar.update


def common_only(
    client: OpenSearch,
    opened: Engines,
    judged: BeirData,
    outcomes: Sequence[Outcome],
    advance: Callable[[int], object],
) -> CommonOnly | None:
    """What high-IDF-first cannot find of the full sparse query's pages; None where it is not measured."""
    from opensearch_neural.evaluation import side_by_side as experiment
    from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

    if not any(outcome.engine == "high-idf-first" for outcome in outcomes):
        return None
    pages = next((outcome.runs.get(experiment.PAGE) for outcome in outcomes if outcome.engine == "sparse"), None)
    if pages is None:
        full: BodyOf = opened.body_of("sparse")
        retriever = OpenSearchRetriever(client, opened.index, "sparse", full, progress=advance)
        pages = retriever.retrieve(judged.queries, experiment.PAGE)
    first = opened.body_of("high-idf-first")
    return experiment.common_only(client, opened.index, first, judged.queries, pages, judged.qrels, progress=advance)


def summarize(
    client: OpenSearch,
    opened: Engines,
    judged: BeirData,
    folder: Path,
    outcomes: Sequence[Outcome],
    baseline: str | None,
    lost: CommonOnly | None,
    expectations: Sequence[Expectation],
    seed: int,
) -> Summary:
    """The result file of this evaluation."""
    from opensearch_neural.evaluation import side_by_side as experiment
    from opensearch_neural.evaluation.results import Summary, code_commit, command_line, data_facts, machine_facts

    rows = experiment.outcome_rows(judged.name, outcomes, baseline=baseline, seed=seed)
    if lost is not None:
        rows += experiment.common_only_rows(judged.name, lost)
    files = [
        judged.corpus_path,
        *sorted(folder.glob("queries.jsonl*")),
        *sorted(folder.glob(f"qrels/{judged.split}.tsv*")),
    ]
    models = [
        f"{kind} {meta.name}"
        for kind in ("sparse", "dense", "quantized")
        if (meta := getattr(opened.meta, kind)) is not None
    ]
    documents = client.count(index=opened.index)["count"]
    means = {(outcome.engine, name): value for outcome in outcomes for name, value in outcome.measured.mean.items()}
    title = f"{judged.name} ({judged.split}): {documents:,} documents, {outcomes[0].measured.queries:,} queries"
    return Summary(
        command=command_line(),
        code=code_commit(),
        machine={**machine_facts(), "opensearch": client.info()["version"]["number"]},
        data=[data_facts(folder, [path.relative_to(folder).as_posix() for path in files])],
        seeds=[seed],
        rows=rows,
        goals=[each.goal(means[each.engine, each.measure]) for each in expectations],
        title=title + (f"; {', '.join(models)}" if models else ""),
    )


def write_runs(folder: Path, judged: BeirData, outcomes: Sequence[Outcome]) -> None:
    """ENGINE.top10.trec and, where deeper measures were taken, ENGINE.top1000.trec; and per-query.tsv."""
    from opensearch_neural.evaluation.evaluate import write_run
    from opensearch_neural.files import write_text

    lines = ["query\tengine\tmeasure\tvalue\n"]
    for outcome in outcomes:
        for size, run in outcome.runs.items():
            write_run(folder / f"{outcome.engine}.top{size}.trec", run, outcome.engine)
        for measure, values in outcome.measured.per_query.items():
            lines += [f"{query}\t{outcome.engine}\t{measure}\t{value!r}\n" for query, value in values.items()]
    write_text(folder / "per-query.tsv", "".join(lines))
    print(f"wrote {len(outcomes)} engines' runs to {folder}", file=sys.stderr)


def print_tables(
    summary: Summary, judged: BeirData, outcomes: Sequence[Outcome], baseline: str | None, lost: CommonOnly | None
) -> None:
    """Means and latencies, differences to the baseline, what high-IDF-first loses, and the goals."""
    from opensearch_neural.evaluation.evaluate import label
    from opensearch_neural.evaluation.results import Key
    from opensearch_neural.evaluation.tables import result_table, table

    measures = list(outcomes[0].measured.mean)
    timed = ["P50 ms", "P99 ms", "encode P50 ms"] if outcomes[0].latency is not None else []
    print(f"{summary.title}\n")
    print(result_table(summary.rows, [*map(label, measures), *timed]))
    others = [outcome.engine for outcome in outcomes if outcome.engine != baseline]
    if baseline is not None and others:
        by_key = {row.key: row for row in summary.rows}

        def compared(engine: str, measure: str) -> str:
            key = Key(summary.rows[0].set, engine, label(measure), "difference", baseline or "")
            return difference(by_key[key], by_key[key._replace(kind="p-value")])

        print(f"\ndifference to {baseline} [95% interval], p\n")
        print(
            table(
                ["engine", *map(label, measures)],
                [[engine, *(compared(engine, measure) for measure in measures)] for engine in others],
            )
        )
    for outcome in outcomes:
        if outcome.measured.unanswered:
            print(f"\n{outcome.engine} found nothing for {outcome.measured.unanswered:,} queries; each counts as 0")
    if lost is not None:
        print(
            "\nhigh-idf-first cannot find documents that hold only common tokens of a query: "
            f"{lost.lost:,} of the {lost.documents:,} in the full sparse query's top 10 "
            f"({lost.lost_relevant:,} judged relevant), in {lost.affected_queries:,} of {lost.queries:,} queries "
            f"({lost.affected_queries / lost.queries:.1%})"
        )
    for goal in summary.goals:
        print(f"\n{'met' if goal.met else 'MISSED'}: {goal.goal}: {goal.value:.4f}")


def difference(row: Row, p: Row) -> str:
    """ "+0.012 [-0.003, +0.028] p=0.12"."""
    spread = f" [{row.low:+.3f}, {row.high:+.3f}]" if row.low is not None and row.high is not None else ""
    return f"{row.value:+.3f}{spread} " + ("p<0.001" if p.value < 0.001 else f"p={p.value:.3f}")


def print_per_query(judged: BeirData, outcomes: Sequence[Outcome], measure: str, baseline: str | None) -> None:
    """The queries on which each engine gains and loses most against the baseline, by `measure`."""
    from opensearch_neural.evaluation.evaluate import label

    if baseline is None:
        print("\n--per-query: no baseline was measured", file=sys.stderr)
        return
    base = next(outcome for outcome in outcomes if outcome.engine == baseline).measured.per_query[measure]
    for outcome in outcomes:
        if outcome.engine == baseline:
            continue
        values = outcome.measured.per_query[measure]
        change = sorted(
            ((values[query] - base[query], query) for query in values), key=lambda pair: (-pair[0], pair[1])
        )
        wins, losses = [pair for pair in change if pair[0] > 0], [pair for pair in change[::-1] if pair[0] < 0]
        print(f"\n{outcome.engine} against {baseline}, {label(measure)}: {len(wins):,} wins, {len(losses):,} losses")
        for gain, query in wins[:SHOWN] + losses[:SHOWN]:
            text = " ".join(judged.queries[query].split())
            print(f"  {gain:+.3f}  {base[query]:.3f} → {values[query]:.3f}  {query}  {text[:100]}")
