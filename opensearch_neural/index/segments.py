"""The segments of an index: written documents made visible to searches, and segments merged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

LEASE_PATIENCE = 90.0
"""Seconds; OpenSearch renews retention leases every 30."""


def refresh(client: OpenSearch, index: str) -> None:
    """Raises ClusterError when a shard could not be refreshed, because what it holds is then not known."""
    answer = client.indices.refresh(index=index, params={"request_timeout": 600})
    if answer["_shards"]["failed"]:
        reasons = [failure["reason"].get("reason", "") for failure in answer["_shards"].get("failures", ())]
        raise ClusterError(
            f"{answer['_shards']['failed']} shards of {index!r} cannot be refreshed{': ' + reasons[0] if reasons else ''}",
            "look at the cluster's health and disk; the same command again continues",
        )


def merge_segments(client: OpenSearch, index: str, segments: int = 1, *, least: int = 256 << 20) -> None:
    """Merge to this number of segments a shard, once OpenSearch may drop what it keeps for recovery.

    With vectors excluded from `_source`, the whole document is kept beside it (`_recovery_source`) until a merge that comes
    after the retention leases have advanced, and after a flush. An index merged before that is twice as large as it need be,
    for good. least: the bytes from which on an index is worth the wait.

    Raises ClusterError as `refresh` does.
    """
    deadline = time.monotonic() + LEASE_PATIENCE
    while time.monotonic() < deadline and not _sources_are_free(client, index, least):
        time.sleep(1)
    client.indices.flush(index=index, params={"force": "true", "request_timeout": 600})
    client.indices.forcemerge(index=index, params={"max_num_segments": segments, "request_timeout": 7200})
    refresh(client, index)


def _sources_are_free(client: OpenSearch, index: str, least: int) -> bool:
    """Whether no retention lease holds an operation that a replica might still ask for, or the index is small."""
    stats = client.indices.stats(index=index, metric="store,docs", params={"level": "shards"})
    if stats["_all"]["primaries"]["store"]["size_in_bytes"] < least:
        return True
    (of_index,) = stats["indices"].values()
    return all(
        lease["retaining_seq_no"] > copy["seq_no"]["max_seq_no"]
        for copies in of_index["shards"].values()
        for copy in copies
        for lease in copy.get("retention_leases", {}).get("leases", ())
    )
