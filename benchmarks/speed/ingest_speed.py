"""Writing speed compared with opensearch-py's `parallel_bulk`.

    osn bench ingest --data scifact

Each arm in turn writes the same prepared documents (a corpus and lexical vectors, as dicts in memory) into new indexes, with
the same threads and the same number of documents in a request, so that other work of the machine slows all arms alike; every
round is a pair for the ratio. The clock stops when the last document is acknowledged.

The cluster is that of OSN_URL or --url, else a local node that is started for it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from benchmarks.experiment import publish
from benchmarks.local_cluster import cluster_or_node, write_in_threads
from benchmarks.turns import SEED, in_turn, rate, ratio, ratio_row, say
from ingest.writing.bulk import Action
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import output_option
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.evaluation.results import Goal, Row
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import IndexMeta, SparseMeta

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

BASELINE = "opensearch-py parallel_bulk"
OSN = "osn"

Sources = Sequence[tuple[str, dict[str, Any]]]
"""(id, source) of the documents to index."""
ROUNDS = 10
THREADS = 2
"""Threads that send requests, of each arm."""
CHUNK = 500
"""Documents in a request, of each arm."""


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True, help="A corpus.")
@click.option(
    "--rounds", type=click.IntRange(min=2), default=ROUNDS, show_default=True, help="How often each arm writes."
)
@output_option("Write summary.json there.", file_okay=False)
@connection_options
def ingest_speed(connection: ConnectionSettings, data: Path, rounds: int, out: Path | None) -> None:
    """Compare writing speed with opensearch-py's."""
    with cluster_or_node(connection, f"osn-bench-{os.getpid()}") as client:
        documents = prepared(data)
        times = race(client, documents, rounds)
    publish(
        list(rows(data.resolve().name, times, len(documents))),
        goals(times),
        title="Writing documents, beside opensearch-py",
        data=[data],
        seeds=[SEED],
        record=out,
    )


def prepared(corpus: Path) -> Sources:
    """The corpus with lexical vectors in memory, as `osn ingest` writes it."""
    from ingest.vectorizers import Encoders
    from ingest.writing.bulk_actions import prepare
    from opensearch_neural.models.sparse.lexical import build_lexical

    documents = list(read_corpus(corpus))
    model = build_lexical(document.contents for document in documents)
    say(f"{len(documents)} documents")
    return [
        (action.id, orjson.loads(action.source)) for action in prepare(documents, Encoders(model), IndexMeta()).actions
    ]


def with_parallel_bulk(client: OpenSearch, index: str, documents: Sources) -> None:
    from opensearchpy.helpers import parallel_bulk

    actions = ({"_index": index, "_id": id, "_source": source} for id, source in documents)
    for ok, item in parallel_bulk(client, actions, thread_count=THREADS, chunk_size=CHUNK):
        assert ok, item


def with_osn(client: OpenSearch, index: str, documents: Sources) -> None:
    actions = (Action(id, orjson.dumps(source)) for id, source in documents)
    write_in_threads(client, index, actions, batch=CHUNK, threads=THREADS)


ARMS = {BASELINE: with_parallel_bulk, OSN: with_osn}
"""{arm: writes documents into an index, which is there}"""


def race(client: OpenSearch, documents: Sources, rounds: int) -> dict[str, list[float]]:
    """{arm: its seconds in each round}: every arm writes once a round, in a changing order. An extra first round only warms
    up the node."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for round in range(-1, rounds):
        for arm in in_turn(ARMS, round):
            seconds = written(client, arm, documents)
            if round >= 0:
                times[arm].append(seconds)
                say(f"round {round + 1} of {rounds}: {arm}: {len(documents) / seconds:,.0f} documents/s")
    return times


def written(client: OpenSearch, arm: str, documents: Sources) -> float:
    """The seconds of writing a new index, which is checked and deleted."""
    index = f"osn-bench-{uuid.uuid4().hex[:10]}"
    body = index_body(
        IndexMeta(sparse=SparseMeta("lexical", "-", "-")), replicas=0, settings={"refresh_interval": "-1"}
    )
    client.indices.create(index=index, body=body)
    try:
        begun = time.perf_counter()
        ARMS[arm](client, index, documents)
        seconds = time.perf_counter() - begun
        client.indices.refresh(index=index)
        count = client.count(index=index)["count"]
        assert count == len(documents), f"{count} of {len(documents)} documents are there"
    finally:
        client.indices.delete(index=index)
    return seconds


# ---------------------------------------------------------------- results


def rows(set_: str, times: dict[str, list[float]], documents: int) -> Iterator[Row]:
    """documents: those of a round"""
    for arm, seconds in times.items():
        yield Row(set_, arm, "documents/s", *rate(seconds, documents), documents * len(seconds))
        if arm != BASELINE:
            yield ratio_row(set_, arm, BASELINE, ratio(times[BASELINE], seconds), len(seconds))


def goals(times: dict[str, list[float]]) -> list[Goal]:
    """The goal, in its original words."""
    value, low, _ = ratio(times[BASELINE], times[OSN])
    return [
        Goal(
            "at least the documents per second of opensearch-py's parallel_bulk with equal threads and chunks on the same "
            "prepared documents",
            1.0,
            round(value, 3),
            low >= 1.0,
        )
    ]
