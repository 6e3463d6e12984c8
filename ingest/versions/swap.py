"""The swap of an alias to a new index, and the checks before it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ingest.versions.builds import serve, serving_index
from ingest.writing import stored_documents
from opensearch_neural.commands.option_groups import options_of
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.health import index_health
from opensearch_neural.index.record import existing_record
from opensearch_neural.retrievers.opensearch import scores_of, search

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

LEAST_SHARE = 0.9
"""The share of the current index's documents that the new index must hold."""
TOP = 10


class SwapRefused(ClusterError):
    """The new index fails a check before the swap."""


@dataclass(frozen=True)
class Requirement:
    """A query that must find a document."""

    query: str
    id: str
    k: int = TOP
    """The document must be among the first k hits."""


@dataclass(frozen=True)
class Gate:
    """The checks before an alias is moved to a new index."""

    allow_shrink: bool = False
    """Whether the new index may be empty, or hold less than LEAST_SHARE of the current index's documents."""
    require: tuple[Requirement, ...] = ()
    """Queries that must find their document."""


def parse_requirement(text: str) -> Requirement:
    """QUERY => ID, or QUERY => ID @K. Raises InputError for anything else."""
    query, arrow, rest = text.rpartition("=>")
    id, at, k = rest.rpartition(" @")
    id, number = (id.strip(), k.strip()) if at else (rest.strip(), str(TOP))
    if not arrow or not query.strip() or not id or not number.isdigit() or not 1 <= int(number) <= 10_000:
        raise InputError(f"--require {text!r}: expected 'QUERY => ID', or 'QUERY => ID @K' for the first K hits")
    return Requirement(query.strip(), id, int(number))


gate_options = options_of(
    Gate,
    "gate",
    click.option(
        "--allow-shrink",
        is_flag=True,
        help="Swap even if the new index is empty or has fewer than 90 % of the current index's documents.",
    ),
    click.option(
        "--require",
        multiple=True,
        metavar="'QUERY => ID'",
        callback=lambda context, option, texts: tuple(map(parse_requirement, texts)),
        help="Swap only if the query finds the document in its first 10 hits ('QUERY => ID @3': first 3). Repeatable.",
    ),
)


@dataclass(frozen=True)
class Swap:
    """An index that gets an alias once it is complete."""

    client: OpenSearch
    alias: str
    index: str
    gate: Gate

    def check(self) -> None:
        """Raise SwapRefused if a check fails. The index must have been refreshed."""
        documents = _documents(self.client, self.index)
        remedy = f"{self.alias!r} stays as it is; add --allow-shrink to swap all the same"
        if not documents and not self.gate.allow_shrink:
            raise SwapRefused(f"the new index {self.index!r} holds no document", remedy)
        serving = serving_index(self.client, self.alias)
        if serving is not None and serving != self.index and not self.gate.allow_shrink:
            if (index_health(self.client, serving) or {}).get("status") == "red":
                log.warning("the documents of the current index %s are not counted, because it is red", serving)
            elif documents < LEAST_SHARE * (before := _documents(self.client, serving)):
                raise SwapRefused(
                    f"the new index {self.index!r} holds {documents} documents, the current index {serving!r} {before}",
                    remedy,
                )
        for requirement in self.gate.require:
            self._check_requirement(requirement)

    def _check_requirement(self, requirement: Requirement) -> None:
        engines = open_engines(self.client, self.index)
        body = engines.body(engines.default, requirement.query, size=requirement.k)
        ids = list(scores_of(body, search(self.client, self.index, body), requirement.k))
        if requirement.id not in ids:
            raise SwapRefused(
                f"{requirement.query!r} does not find {requirement.id!r} among the first {requirement.k} hits in "
                f"{self.index!r}, but {', '.join(ids[:3]) or 'nothing'}",
                f"{self.alias!r} stays as it is; leave out this --require to swap all the same",
            )

    def serve(self) -> str | None:
        """Move the alias to the index; returns the index that had it before."""
        return serve(self.client, self.alias, self.index)


def _documents(client: OpenSearch, index: str) -> int:
    """Documents of an index; passages count as their documents. Raises ClusterError if shards do not answer."""
    try:
        passages = existing_record(client, index).passages
    except ModelError:  # `osn` did not write it
        passages = None
    if passages is None:
        return stored_documents.count(client, index)
    parents = {"parents": {"cardinality": {"field": "parent", "precision_threshold": 40_000}}}
    answer = search(client, index, {"size": 0, "aggs": parents})
    return int(answer["aggregations"]["parents"]["value"])
