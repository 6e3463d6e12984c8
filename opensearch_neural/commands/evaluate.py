"""`osn eval`: engines of one index against judged queries, side by side, with BM25 as the measure of all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import engine_options
from opensearch_neural.engines import ENGINES, Engines, open_engines
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.corpus.judgements import BeirData
    from opensearch_neural.evaluation.engine_comparison import CommonOnly, EngineResult
    from opensearch_neural.evaluation.expectations import Expectation
    from opensearch_neural.evaluation.results import Summary

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
    from opensearch_neural.evaluation import engine_comparison, engine_report
    from opensearch_neural.evaluation.expectations import parse_expectation
    from opensearch_neural.evaluation.measures import parse_measures

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
        expectations = [parse_expectation(text, chosen, names) for text in expect]
        warn_of_absent(*engine_comparison.absent_documents(client, index, judged.qrels), index)
        warn_of_queries(judged)
        own = engine_comparison.own_documents(client, index, judged.queries, judged.qrels)
        warn_of_own_documents(own)
        results, lost = searched(client, opened, judged, chosen, names, own, timed)
        summary = summarize(client, opened, judged, data, results, against, lost, expectations, seed)
    if record is not None:
        print(f"wrote {summary.write(record)}", file=sys.stderr)
    if as_json:
        print(json.dumps(summary.to_json(), ensure_ascii=False, indent=1))
    else:
        engine_report.print_tables(summary, results, against, lost)
        if per_query:
            engine_report.print_per_query(judged.queries, results, names[0], against, SHOWN)
    if out is not None:
        engine_report.write_runs(out, results)
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


def warn_of_absent(absent: int, relevant: int, index: str) -> None:
    if absent:
        print(
            f"warning: {absent:,} of the {relevant:,} documents judged relevant are not in the index {index!r}; "
            "no engine can find these",
            file=sys.stderr,
        )


def warn_of_queries(judged: BeirData) -> None:
    """Say on stderr which judged queries the numbers leave out."""
    without_relevant = sum(1 for grades in judged.qrels.values() if not any(grade > 0 for grade in grades.values()))
    if without_relevant:
        print(
            f"warning: {without_relevant:,} judged queries have no relevant document and are left out", file=sys.stderr
        )


def warn_of_own_documents(own: Collection[str]) -> None:
    if own:
        print(
            f"warning: {len(own):,} queries are documents of the index themselves, of the same id and text; "
            "each is left out of its own hits, as in BEIR",
            file=sys.stderr,
        )


def searched(
    client: OpenSearch,
    opened: Engines,
    judged: BeirData,
    chosen: Sequence[str],
    measures: Sequence[str],
    own_documents: Collection[str],
    timed: int,
) -> tuple[list[EngineResult], CommonOnly | None]:
    """(what each engine did with the queries, what high-IDF-first puts last; None if it is not measured)."""
    from opensearch_neural.evaluation import engine_comparison
    from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

    queries, qrels, index = judged.queries, judged.qrels, opened.index
    bodies = {engine: opened.body_of(engine) for engine in chosen}
    fast = bodies.get("high-idf-first")
    passes = len(chosen) * len(engine_comparison.sizes_of(measures))
    passes += sum(issubclass(ENGINES[engine], Windowed) for engine in chosen)
    passes += 0 if fast is None else 1 + ("sparse" not in chosen)
    with progress_bar(len(queries) * passes + len(chosen) * min(timed, len(queries))) as advance:
        results = [
            engine_comparison.run_engine(
                client, index, engine, body_of, queries, qrels, measures, own_documents=own_documents, progress=advance
            )
            for engine, body_of in bodies.items()
        ]
        results = [
            replace(result, certified=certain)
            for result in results
            for certain in [
                engine_comparison.certified_queries(client, opened, result.engine, queries.values(), progress=advance)
            ]
        ]
        if timed:
            texts = list(queries.values())[:timed]
            times = engine_comparison.time_engines(client, index, bodies, texts, progress=advance)
            results = [
                replace(result, latency=times[result.engine][0], encode_ms=times[result.engine][1])
                for result in results
            ]
        if fast is None:
            return results, None
        size = engine_comparison.PAGE
        pages = next((result.runs.get(size) for result in results if result.engine == "sparse"), None)
        if pages is None:
            sparse = OpenSearchRetriever(client, index, "sparse", opened.body_of("sparse"), progress=advance)
            pages = sparse.retrieve(queries, size)
        return results, engine_comparison.common_only(client, index, fast, queries, pages, qrels, progress=advance)


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


def summarize(
    client: OpenSearch,
    opened: Engines,
    judged: BeirData,
    folder: Path,
    results: Sequence[EngineResult],
    baseline: str | None,
    lost: CommonOnly | None,
    expectations: Sequence[Expectation],
    seed: int,
) -> Summary:
    """The result file of this evaluation."""
    from opensearch_neural.evaluation import engine_comparison
    from opensearch_neural.evaluation.provenance import machine_facts
    from opensearch_neural.evaluation.results import Summary, data_facts

    rows = engine_comparison.engine_rows(judged.name, results, baseline=baseline, seed=seed)
    if lost is not None:
        rows += engine_comparison.common_only_rows(judged.name, lost)
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
    means = {(result.engine, name): value for result in results for name, value in result.measured.mean.items()}
    title = f"{judged.name} ({judged.split}): {documents:,} documents, {results[0].measured.queries:,} queries"
    return Summary.of_this_run(
        machine={**machine_facts(), "opensearch": client.info()["version"]["number"]},
        data=[data_facts(folder, [path.relative_to(folder).as_posix() for path in files])],
        seeds=[seed],
        rows=rows,
        goals=[expectation.goal(means[expectation.engine, expectation.measure]) for expectation in expectations],
        title=title + (f"; {', '.join(models)}" if models else ""),
    )
