"""`osn bench grow` and `osn bench scale`: an index of any size, and what each engine costs by the number of documents."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.demo import python_docs
from benchmarks.grown.index import Growth, grown_to_sizes
from benchmarks.grown.index import grow as grow_index
from benchmarks.load import result
from benchmarks.load.command import finish, load_settings, measuring_options, queries_of, run
from benchmarks.load.measurement import Measurement
from benchmarks.load.run import measuring_code
from benchmarks.load.variants import parse_variants
from benchmarks.load.workload import allowed_target, prepared
from benchmarks.local_cluster import HEAP, NODE, reachable
from benchmarks.options import NumberList, of_options, setting, setting_options
from benchmarks.turns import say
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import Renamed, seed_option
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import data_facts

FOLDER = click.Path(path_type=Path, file_okay=False)
CORPUS_DOCUMENTS = 20_000  # of the documentation strings, if no corpus is named


@click.command()
@click.option("--corpus", required=True, help="A corpus, as for `osn ingest`.")
@click.option("--index", required=True, help="The index to write.")
@click.option("--documents", type=click.IntRange(min=1), required=True, help="Number of documents.")
@seed_option("Seed of the resampling.")
@setting_options(Growth)
@connection_options
def grow(connection: ConnectionSettings, corpus: str, index: str, documents: int, **values: Any) -> None:
    """Write an index of N documents resampled from a corpus: text and vectors drawn together, no exact duplicates.

    The corpus's own documents come first, once each. Run the same command again to continue an interrupted run.

    \b
    osn bench grow --corpus data/scifact --index scifact-100k --documents 100000
    osn bench grow --corpus data/scifact --index pruned --documents 100000 --prune top_k:100
    """
    growth = of_options(Growth, values, corpus=corpus, index=index, documents=documents, seed=values["seed"])
    grow_index(connect(settings=connection), growth, say=say)
    print(f"{documents:,} documents in {index}")


@dataclass(frozen=True)
class ScaleOptions:
    """What `osn bench scale` measures, besides the options of growing and of load tests."""

    data: Path | None = setting(None, "BEIR folder.  [default: documentation strings]", type=click.Path(path_type=Path))
    split: str = setting("test", "Split whose queries are searched.")
    limit_queries: int | None = setting(None, "Only the first N queries.")
    documents: tuple[int, ...] = setting(
        (10_000, 100_000, 1_000_000),
        "Documents of each index.",
        shown="10000,100000,1000000",
        type=NumberList(int, distinct=True, least=1),
    )
    engines: str = setting("sum,paper,two-phase", "As for `osn bench load`.")
    prefix: str = setting("osn-scale", "Indexes are called INDEX-DOCUMENTS.", option="--index")
    out: Path = setting(
        Path("load-scale"), "Where measurements and tables go.", option="--output --out", cls=Renamed, type=FOLDER
    )
    heap: str = setting("2g", HEAP)
    record: Path | None = setting(None, "Write summary.json there too.", type=FOLDER)
    restart: bool = setting(False, "Measure anew, whatever --output holds.")
    keep: bool = setting(
        False, "Keep the indexes (and the local node's data).", option="--keep-indexes --keep", cls=Renamed
    )


@click.command()
@setting_options(ScaleOptions)
@setting_options(Growth)
@measuring_options
@connection_options
def scale(connection: ConnectionSettings, owned: bool, **values: Any) -> None:
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
    options = of_options(ScaleOptions, values)
    if not options.documents:
        raise InputError("--documents names no number of documents", "for instance --documents 10000,100000")
    variants = parse_variants(options.engines)
    folder = corpus_or_docstrings(options.data, options.out)
    documents, seed = min(options.documents), values["seed"]
    first = of_options(Growth, values, corpus=str(folder), index=options.prefix, documents=documents, seed=seed)
    settings = load_settings(values)
    _, texts = queries_of(None, folder, options.split, options.limit_queries)
    runs: dict[int, Measurement] = {}
    with reachable(connection, NODE, keep=options.keep, goes_on=True, heap=options.heap) as chosen:
        client = connect(settings=chosen)
        target = allowed_target(chosen, owned=owned)
        say("encoding the corpus")
        facts, complete = [data_facts(folder)], True
        for drawn in grown_to_sizes(client, first, options.documents, say=say):
            place = options.out / str(drawn.documents)
            prepares = prepared(client, target, drawn.index, variants, texts)
            measured = run(client, prepares, settings, place, restart=options.restart, code=measuring_code())
            runs[drawn.documents] = measured
            complete &= finish(measured, place, False, facts, _title({drawn.documents: measured}, folder.name))
            if measured.partial:
                break
        summary = result.summary(*runs.values(), data=facts, title=_title(runs, folder.name))
        for to in (options.out if len(runs) > 1 else None, options.record):
            if to is not None:
                print(f"wrote {summary.write(to)}", file=sys.stderr)
        if any(measured.partial for measured in runs.values()):
            sys.exit(1)  # inside `reachable`, which then keeps the node's data, so that the same command can continue
        for measured in () if options.keep else runs.values():
            client.indices.delete(index=measured.index, params={"ignore_unavailable": "true"})
    if not complete:
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


def _title(runs: Mapping[int, Measurement], corpus: str) -> str:
    if len(runs) > 1:
        return f"Cost by number of documents, resampled from {corpus}"
    return f"Load: {next(iter(runs)):,} documents resampled from {corpus}"
