"""The cluster of a benchmark, and writing to it: the cluster that the user names, else a node that it starts and stops."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingest.job import Job, run_job
from ingest.writing.bulk import Action, BulkWriter
from opensearch_neural import node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError
from opensearch_neural.evaluation.engine_comparison import EngineResult, own_documents, run_retriever
from opensearch_neural.evaluation.measures import Qrels
from opensearch_neural.retrievers import Retriever

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

NODE = "osn-bench"
"""The name of the local node on which benchmarks write indexes of their own."""
HEAP = "Java heap of the local node, if no cluster is named."
"""The help of --heap."""


@contextmanager
def cluster_or_node(connection: ConnectionSettings, name: str, *, keep: bool = False) -> Iterator[OpenSearch]:
    """A client of the cluster of OSN_URL or --url, else of a local node; see `reachable`."""
    with reachable(connection, name, keep=keep) as settings:
        yield connect(settings=settings)


@contextmanager
def reachable(
    connection: ConnectionSettings, name: str, *, keep: bool = False, goes_on: bool = False, heap: str | None = None
) -> Iterator[ConnectionSettings]:
    """Settings of the cluster of OSN_URL or --url, else of a local node that ends with this block.

    keep: the node keeps running after a successful block. goes_on: the node's data stay after a failed block, so that the
    same command can continue; else the node ends with this process, however that ends. heap: the node's Java heap.
    """
    if os.environ.get("OSN_URL") or click.get_current_context().params.get("osn_url"):
        yield connection
        return

    def report(line: str) -> None:
        click.echo(line, err=True)

    running = node.start(port=0, name=name, heap=heap, attached=not (keep or goes_on), report=report)
    succeeded = False
    try:
        click.echo(f"OpenSearch answers at {running.url}", err=True)
        yield replace(connection, urls=tuple(running.urls))
        succeeded = True
    finally:
        if keep and succeeded:
            click.echo(f"kept: the node (export OSN_URL={running.url}); osn node stop --name {name} --purge ends it")
        else:
            node.stop(name=name, purge=succeeded or not goes_on, report=report)


@contextmanager
def ingested(client: OpenSearch, job: Job, *, show_progress: bool = True) -> Iterator[str]:
    """Ingest by `job`, and yield the name of the index, which is deleted when the block ends.

    A job without an index gets a new one; rejected documents are kept only if the job names a file for them.
    """
    index = job.index or f"osn-bench-{uuid.uuid4().hex[:8]}"
    delete = {"index": index, "params": {"ignore_unavailable": "true"}}
    with tempfile.TemporaryDirectory(prefix="osn-dead-letters-") as folder:
        letters = job.dead_letters or Path(folder) / "dead-letters.jsonl"
        client.indices.delete(**delete)  # what an interrupted run left
        try:
            run_job(client, replace(job, index=index, dead_letters=letters), show_progress=show_progress)
            yield index
        finally:
            client.indices.delete(**delete)


def judged_result(
    client: OpenSearch,
    index: str,
    retriever: Retriever,
    queries: Mapping[str, str],
    qrels: Qrels,
    measures: Iterable[str],
) -> EngineResult:
    """What a search of the index finds for judged queries. A query that is a document of the index itself is left out of its
    own hits, as in `osn eval`. Raises as `run_retriever`."""
    own = own_documents(client, index, queries, qrels)
    return run_retriever(retriever, queries, qrels, measures, own_documents=own)


@contextmanager
def created_with(client: OpenSearch, index: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """An index of this name that is created within the block has these settings. Some, such as its sorting and its
    similarity, can only be set then."""
    name = f"osn-bench-{index}"
    body = {"index_patterns": [index], "priority": 1000, "template": {"settings": {"index": settings}}}
    client.indices.put_index_template(name=name, body=body)
    try:
        yield
    finally:
        client.indices.delete_index_template(name=name)


def write_in_threads(client: OpenSearch, index: str, actions: Iterable[Action], *, batch: int, threads: int) -> None:
    """Write as an ingest does: this thread makes batches, others send them, with limited requests at once.

    Raises ClusterError, and makes no more batches, if the cluster rejects a document.
    """
    writer, stream = BulkWriter(client, index), iter(actions)

    def write(part: list[Action]) -> None:
        if failures := writer.write(part).failures:
            raise ClusterError(f"the cluster rejected documents of {index}: {failures[0].reason}")

    with ThreadPoolExecutor(threads) as pool:
        sent: deque[Future[None]] = deque()
        while part := list(islice(stream, batch)):
            if len(sent) == 2 * threads:
                sent.popleft().result()
            sent.append(pool.submit(write, part))
        for request in sent:
            request.result()
