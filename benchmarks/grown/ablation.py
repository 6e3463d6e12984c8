"""`osn bench ablation`: every idea for a faster search, each on its own, in one table beside BM25.

What a request can change is tried on one index; what only ingest or the index's settings can change, on indexes of the
same documents that differ in that one thing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.grown.scale import (
    cluster,
    corpus_options,
    corpus_or_docstrings,
    growing_options,
    growth_of,
    leave,
    node_options,
    say,
)
from benchmarks.load.command import finish, load_settings, measuring_options, queries_of, run
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings

if TYPE_CHECKING:
    from benchmarks.grown.index import Growth

SEGMENTS = 8
COARSE_BITS = 3


@click.command(context_settings={"default_map": {"clients": "20", "rounds": 10, "minutes": 40.0}})
@corpus_options
@click.option("--documents", type=click.IntRange(min=2), default=100_000, show_default=True, help="Of each index.")
@click.option("--index", "prefix", default="osn-ablation", show_default=True, help="Indexes are called INDEX-IDEA.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("load-ablation"),
    show_default=True,
    help="Where measurements, report and plots go.",
)
@node_options
@growing_options
@measuring_options
@connection_options
def ablation(
    connection: ConnectionSettings,
    data: Path | None,
    split: str,
    limit_queries: int | None,
    documents: int,
    prefix: str,
    out: Path,
    heap: str,
    record: Path | None,
    restart: bool,
    keep: bool,
    owned: bool,
    **options: Any,
) -> None:
    """What each idea for a faster search gives by itself: of the request, of the documents, of the index.

    Six indexes of the same documents are drawn (`osn bench grow`): as they are, pruned, with coarser weights, sorted, in
    eight segments, and in eight segments searched concurrently. Quality is overlap@10 with the exact result of the first.

    Uses the cluster of OSN_URL (or --url) if one is named, else starts a local node. Interrupted, the same command
    again continues.

    \b
    osn bench ablation --data data/scifact
    osn bench ablation --data data/scifact --documents 20000 --clients 5,80
    """
    from benchmarks.grown import index as growth
    from benchmarks.load.variants import parse_variants
    from benchmarks.load.workload import ModelChoice, allowed_target
    from opensearch_neural.evaluation.results import data_facts

    folder = corpus_or_docstrings(data, out)
    first = growth_of(str(folder), prefix, documents, options["seed"], options)
    settings = load_settings(options)
    _, texts = queries_of(None, folder, split, limit_queries)
    indexes = variations(first)
    variants = parse_variants(",".join(["ablation", *asked_of(indexes)]))
    with cluster(connection, heap, keep) as (client, chosen):
        target = allowed_target(chosen, owned=owned)
        say("encoding the corpus")
        prepared = growth.resampler_of(first)
        for wanted in indexes:
            growth.grow(client, wanted, prepared, say=say)
        measured = run(client, target, first.index, variants, texts, ModelChoice(), settings, None, out, restart)
        title = f"Ideas for a faster search, each on its own: {documents:,} documents resampled from {folder.name}"
        whole = finish(measured, out, None, False, [data_facts(folder)], title, record)
        leave(client, [each.index for each in indexes], [measured], keep=keep)
    if not whole:
        sys.exit(1)


def variations(first: Growth) -> list[Growth]:
    """`first`, and the indexes that differ from it in one thing each."""
    from opensearch_neural.queries import Rare

    # "auto" is concurrent for aggregations only, of which there are none here.
    mode = "search.concurrent_segment_search.mode"
    concurrent, sequential = {**first.settings, mode: "all"}, {**first.settings, mode: "none"}
    changes: dict[str, dict[str, Any]] = {
        "pruned": {"prune": Rare("share", 0.9)},
        "coarse": {"weight_bits": COARSE_BITS},
        "sorted": {"settings": {**first.settings, "sort.field": "url"}},
        "segments": {"segments": SEGMENTS, "settings": sequential},
        "concurrent": {"segments": SEGMENTS, "settings": concurrent},
    }
    return [first, *(replace(first, index=f"{first.index}-{name}", **change) for name, change in changes.items())]


def asked_of(indexes: Sequence[Growth]) -> list[str]:
    """The engines that are asked on the indexes of `variations`, as `variants.parse_variants` takes them.

    BM25 too, where what differs is not the sparse field.
    """
    first, *others = indexes
    engines = []
    for other in others:
        name = other.index.removeprefix(f"{first.index}-")
        engines.append(f"high-idf-first:{name}=high-idf-first+index={other.index}")
        if (other.prune, other.weight_bits) == (first.prune, first.weight_bits):
            engines.append(f"bm25:{name}=bm25+index={other.index}")
    return engines
