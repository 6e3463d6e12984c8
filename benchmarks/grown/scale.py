"""`osn bench grow` and `osn bench scale`: an index of any size, and what each engine costs by the number of documents."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.demo import python_docs
from benchmarks.grown import index as growth
from benchmarks.grown.index import Growth
from benchmarks.load import result
from benchmarks.load.command import finish, load_settings, measuring_options, queries_of, run
from benchmarks.load.measurement import Measurement
from benchmarks.load.variants import parse_variants
from benchmarks.load.workload import allowed_target, prepared
from benchmarks.local_cluster import NODE, heap_option, reachable
from benchmarks.options import NumberList, of_options, setting_options
from benchmarks.record_result import record_option
from benchmarks.speed.turns import say
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import taking
from opensearch_neural.commands.option_groups import seed_option
from opensearch_neural.commands.renamed import Renamed, output_option
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row, Summary, data_facts

CORPUS_DOCUMENTS = 20_000  # of the documentation strings, if no corpus is named


def growing_options(command: Any) -> Any:
    """Add the options for the documents to write."""
    options = [
        setting_options(Growth),
        click.option(
            "--setting",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            callback=lambda _context, _option, texts: dict(map(_setting, texts)),
            help="Index setting; repeatable.",
        ),
    ]
    return taking(command, options)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"--setting {text!r}: expected KEY=VALUE")
    return key.removeprefix("index."), value


def growth_of(corpus: str, index: str, documents: int, options: Mapping[str, Any]) -> Growth:
    """The `Growth` of the options of `growing_options` and --seed. Raises InputError."""
    more = {name: options[name] for name in ("settings", "seed")}
    return of_options(Growth, options, corpus=corpus, index=index, documents=documents, **more)


@click.command()
@click.option("--corpus", required=True, help="A corpus, as for `osn ingest`.")
@click.option("--index", required=True, help="The index to write.")
@click.option("--documents", type=click.IntRange(min=1), required=True, help="Number of documents.")
@seed_option("Seed of the resampling.")
@growing_options
@connection_options
def grow(connection: ConnectionSettings, corpus: str, index: str, documents: int, **options: Any) -> None:
    """Write an index of N documents resampled from a corpus: text and vectors drawn together, no exact duplicates.

    The corpus's own documents come first, once each. Run the same command again to continue an interrupted run.

    \b
    osn bench grow --corpus data/scifact --index scifact-100k --documents 100000
    osn bench grow --corpus data/scifact --index pruned --documents 100000 --prune top_k:100
    """
    wanted = growth_of(corpus, index, documents, options)
    growth.grow(connect(settings=connection), wanted, say=say)
    print(f"{documents:,} documents in {index}")


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=None, help="BEIR folder.  [default: documentation strings]"
)
@click.option("--split", default="test", show_default=True, help="Split whose queries are searched.")
@click.option("--limit-queries", type=click.IntRange(min=1), default=None, help="Only the first N queries.")
@click.option(
    "--documents",
    type=NumberList(int, distinct=True),
    default="10000,100000,1000000",
    show_default=True,
    help="Documents of each index.",
)
@click.option("--engines", default="sum,paper,two-phase", show_default=True, help="As for `osn bench load`.")
@click.option("--index", "prefix", default="osn-scale", show_default=True, help="Indexes are called INDEX-DOCUMENTS.")
@output_option("Where measurements and tables go.", file_okay=False, default=Path("load-scale"), show_default=True)
@heap_option("2g")
@record_option("Write summary.json there too.")
@click.option("--restart", is_flag=True, help="Do not continue interrupted runs in --output.")
@click.option(
    "--keep-indexes", "--keep", "keep", cls=Renamed, is_flag=True, help="Keep the indexes (and the local node's data)."
)
@growing_options
@measuring_options
@connection_options
def scale(
    connection: ConnectionSettings,
    data: Path | None,
    split: str,
    limit_queries: int | None,
    documents: tuple[int, ...],
    engines: str,
    prefix: str,
    out: Path,
    heap: str,
    record: Path | None,
    restart: bool,
    keep: bool,
    owned: bool,
    **options: Any,
) -> None:
    """The load benchmark at several sizes: how each engine's cost grows with the number of documents.

    For each number of documents an index is resampled from the corpus (`osn bench grow`), then `osn bench load` runs on
    it. Judgements are not valid for resampled documents, so quality is overlap@10 with the exact result,
    and the score kept.

    It uses the cluster of OSN_URL or --url, else it starts a local node. Run the same command again to continue an
    interrupted run.

    \b
    osn bench scale --documents 100000                 a load test on 100,000 documents
    osn bench scale --documents 10000,100000,1000000   and how cost grows
    """
    sizes = sorted(set(documents))
    if not sizes or sizes[0] < 1:
        raise InputError("--documents takes numbers above 0")
    variants = parse_variants(engines)
    folder = corpus_or_docstrings(data, out)
    first = growth_of(str(folder), "", sizes[0], options)
    settings = load_settings(options)
    _, texts = queries_of(None, folder, split, limit_queries)
    with reachable(connection, NODE, keep=keep, goes_on=True, heap=heap) as chosen:
        client = connect(settings=chosen)
        target = allowed_target(chosen, owned=owned)
        say("encoding the corpus")
        drawn = growth.resampler_of(first)
        runs: dict[int, Measurement] = {}
        facts, whole = [data_facts(folder)], True
        rows: list[Row] = []
        for size in sizes:
            wanted = replace(first, index=f"{prefix}-{size}", documents=size)
            growth.grow(client, wanted, drawn, say=say)
            place = out / str(size)
            prepares = prepared(client, target, wanted.index, variants, texts)
            measured = run(client, prepares, settings, place, restart=restart)
            rows += result.rows(measured)
            runs[size] = measured
            whole &= finish(measured, place, False, facts, _title({size: measured}, folder.name))
            if measured.partial:
                break
        partial = any(measured.partial for measured in runs.values())
        summary = Summary.of_this_run(
            machine=result.environment(measured),
            data=facts,
            seeds=[settings.seed],
            rows=rows,
            title=f"{_title(runs, folder.name)}{' (partial)' if partial else ''}",
        )
        for to in (out if len(runs) > 1 else None, record):
            if to is not None:
                print(f"wrote {summary.write(to)}", file=sys.stderr)
        if partial:
            sys.exit(1)  # inside `reachable`, which then keeps the node's data, so that the same command can continue
        for measured in () if keep else runs.values():
            client.indices.delete(index=measured.index, params={"ignore_unavailable": "true"})
    if not whole:
        sys.exit(1)


def corpus_or_docstrings(data: Path | None, out: Path) -> Path:
    """`data`, or the corpus that every machine has: documentation strings, made once below the output folder."""
    if data is not None:
        return data
    folder = out / "corpus"
    if not folder.exists():
        say("making a corpus of the documentation strings of Python and of the packages installed here")
        python_docs.build(folder, CORPUS_DOCUMENTS, train_queries=0, test_queries=1000)
    return folder


def _title(runs: dict[int, Measurement], corpus: str) -> str:
    if len(runs) > 1:
        return f"Cost by number of documents, resampled from {corpus}"
    return f"Load: {next(iter(runs)):,} documents resampled from {corpus}"
