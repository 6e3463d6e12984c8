"""Counts, lists, looks up and deletes the documents of an index."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from opensearch_neural import queries
from opensearch_neural.cluster.patience import Attempts, may_pass_later
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.mapping import NO_TOKEN
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.index.segments import refresh
from opensearch_neural.queries import forward_index

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

T = TypeVar("T")

LENGTHS = 200
"""Different lengths of documents in one query: each needs three clauses, and a query may have 1,024."""


@dataclass(frozen=True)
class Counts:
    """Documents of a new index beside those of the one that it replaces. Passages count as their documents."""

    documents: int
    """Of the new index."""
    before: int | None = None
    """None: the new index replaces no other, or that one cannot be counted."""

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.documents:,} documents"
        share = f" ({self.documents / self.before:.1%})" if self.before else ""
        return f"{self.documents:,} documents, before {self.before:,}{share}"


def by_thousands(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of up to a thousand items, as many as one request asks for."""
    stream = iter(items)
    while part := list(islice(stream, 1000)):
        yield part


def count(client: OpenSearch, index: str, query: dict[str, Any] | None = None) -> int:
    """The number of documents in the index, or of those that match a query, once every shard answers.

    Raises ClusterError if shards are missing, because the number would be too small.
    """
    for attempt in range(10):
        # Only primaries are counted, since a replica may still be catching up.
        answer = client.count(index=index, body=query and {"query": query}, params={"preference": "_primary"})
        # A shard that no node holds is counted neither as failed nor as successful.
        missing = answer["_shards"]["total"] - answer["_shards"]["successful"]
        if not missing:
            return int(answer["count"])
        time.sleep(0.5 * 2 ** min(attempt, 4))
    raise ClusterError(f"{missing} shards of {index!r} do not answer", "look at the cluster's health")


def count_without_tokens(client: OpenSearch, index: str) -> int:
    """The number of documents whose sparse vector is empty, because none of their words is in the model's vocabulary."""
    return int(client.count(index=index, body={"query": _no_token()})["count"])


def count_without_rows(client: OpenSearch, index: str) -> int:
    """The number of documents without a vector, of an index with a forward index: neither a row nor the mark of no token.

    OpenSearch's own `_update` and `_reindex` lose it, and so may an ingest pipeline. Other clients write none.
    """
    return int(client.count(index=index, body={"query": _no_row()})["count"])


def ids_without_rows(client: OpenSearch, index: str) -> Iterator[str]:
    """The ids of these documents. Raises as `all_ids` does."""
    return all_ids(client, index, _no_row())


def _no_row() -> dict[str, Any]:
    return {"bool": {"must_not": [{"exists": {"field": forward_index.FIELD}}, _no_token()]}}


def _no_token() -> dict[str, Any]:
    """The query for documents whose sparse vector is empty."""
    return queries.neural_sparse({NO_TOKEN: 1.0}, plugin=False)["query"]


def is_empty(client: OpenSearch, index: str) -> bool:
    refresh(client, index)
    return count(client, index) == 0


def all_ids(client: OpenSearch, index: str, query: Mapping[str, Any] | None = None) -> Iterator[str]:
    """The ids of all documents that searches see, or that a query finds. Raises ClusterError if shards do not answer."""
    from opensearchpy.helpers import scan
    from opensearchpy.helpers.errors import ScanError

    try:
        body = {"query": query or {"match_all": {}}, "_source": False}
        for hit in scan(client, index=index, query=body, size=most_hits(client, index, 5000)):
            yield hit["_id"]
    except ScanError as error:
        raise ClusterError(
            f"the documents of {index!r} cannot be listed: {error}", "look at the cluster's health"
        ) from None


def delete_ids(client: OpenSearch, index: str, ids: Sequence[str]) -> None:
    """Delete documents; missing ids are no error.

    A deletion that fails for a temporary reason, such as a full disk, is tried again for as long as the `patience` around
    this call allows.
    Raises ClusterError if a document cannot be deleted.
    """
    attempts = Attempts(0.0)
    while True:
        lines = "".join(json.dumps({"delete": {"_id": id}}) + "\n" for id in ids)
        answer = client.bulk(index=index, body=lines, params={"request_timeout": 120})
        failed = [item["delete"] for item in answer["items"] if item["delete"]["status"] not in (200, 404)]
        if not failed:
            return
        wait = attempts.next_wait()
        if wait is None or not all(may_pass_later(item["status"]) for item in failed):
            raise ClusterError(
                f"{len(failed)} documents of {index!r} could not be deleted: {failed[0].get('error')}",
                "run the same command again to continue",
            )
        log.warning("trying to delete %d documents again in %.1f s (%s)", len(failed), wait, failed[0].get("error"))
        time.sleep(wait)
        ids = [item["_id"] for item in failed]


def missing_ids(client: OpenSearch, index: str, ids: Sequence[str]) -> list[str]:
    """The ids that the index does not hold."""
    missing: list[str] = []
    for part in by_thousands(ids):
        answer = client.mget(index=index, body={"ids": part}, params={"_source": "false"})
        missing.extend(document["_id"] for document in answer["docs"] if not document.get("found"))
    return missing


def remove_last_passages(client: OpenSearch, index: str, counts: Mapping[str, int]) -> int:
    """Delete surplus last passages of documents that have become shorter; returns their number.

    counts: {document: its number of passages now}. Passages that searches do not see yet are not deleted.
    """
    parents: dict[int, list[str]] = {}
    for parent, number in counts.items():
        parents.setdefault(number, []).append(parent)
    behind = [
        {"bool": {"filter": [{"terms": {"parent": group}}, {"range": {"passage.number": {"gt": number}}}]}}
        for number, group in parents.items()
    ]
    removed = 0
    for start in range(0, len(behind), LENGTHS):
        query = {"bool": {"should": behind[start : start + LENGTHS]}}
        removed += delete_by_query(client, index, query, refreshed=False)
    return removed


def delete_by_query(client: OpenSearch, index: str, query: dict[str, Any], *, refreshed: bool = True) -> int:
    """Delete the matching documents; returns their number. refreshed: whether to refresh, so that searches see it at once.

    Raises ClusterError if a document could not be deleted.
    """
    answer = client.delete_by_query(
        index=index,
        body={"query": query},
        params={"refresh": "true" if refreshed else "false", "conflicts": "proceed", "request_timeout": 600},
    )
    if answer["failures"] or answer["version_conflicts"]:
        raise ClusterError(
            f"{len(answer['failures']) + answer['version_conflicts']} documents of {index!r} could not be deleted",
            "they were being written at the same time, or a shard is missing: try again",
        )
    return int(answer["deleted"])
