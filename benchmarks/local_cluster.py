"""The cluster that a benchmark searches: the one that the user names, else a node that it starts and stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@contextmanager
def cluster_or_node(connection: ConnectionSettings, name: str, *, keep: bool = False) -> Iterator[OpenSearch]:
    """The cluster of OSN_URL or --url, else a local node that ends with this block (or with this process, however it ends).

    With `keep` the local node goes on after a block that succeeded.
    """
    from opensearch_neural import node

    if os.environ.get("OSN_URL") or click.get_current_context().params.get("osn_urls"):
        yield connect(settings=connection)
        return

    def report(line: str) -> None:
        click.echo(line, err=True)

    running = node.start(port=0, name=name, attached=not keep, report=report)
    succeeded = False
    try:
        print(f"OpenSearch answers at {running.url}")
        yield connect(running.url)
        succeeded = True
    finally:
        if keep and succeeded:
            print(f"kept: the node (export OSN_URL={running.url}); osn node stop --name {name} --purge ends it")
        else:
            node.stop(name=name, purge=True, report=report)
