"""The segments of an index: make written documents visible to searches, and merge segments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

LEASE_PATIENCE = 90.0
"""Seconds; OpenSearch renews retention leases every 30."""
MERGES = 3
"""How often a merge is started, as its task may be lost with a node."""


def refresh(client: OpenSearch, index: str) -> None:
    """Refresh all shards. Raises ClusterError if a shard fails, because its content is then unknown."""
    answer = client.indices.refresh(index=index, params={"request_timeout": 600})
    if answer["_shards"]["failed"]:
        reasons = [reasons_on_one_line(failure["reason"]) for failure in answer["_shards"].get("failures", ())]
        raise ClusterError(
            f"{answer['_shards']['failed']} shards of {index!r} cannot be refreshed{': ' + reasons[0] if reasons else ''}",
            "look at the cluster's health and disk; run the same command again to continue",
        )


def merge_segments(client: OpenSearch, index: str, segments: int = 1, *, least: int = 256 << 20) -> None:
    """Merge each shard to this number of segments, after OpenSearch may drop the sources that it keeps for recovery.

    With vectors excluded from `_source`, OpenSearch keeps the whole document in `_recovery_source`. Only a merge after a
    flush, and after the retention leases have advanced, drops it. An index that is merged earlier stays twice as large as
    necessary. least: bytes; a smaller index is merged without waiting.

    The merge runs as a task that is polled, so that no gateway ends a request that takes hours.
    Raises ClusterError as `refresh` does.
    """
    deadline = time.monotonic() + LEASE_PATIENCE
    while time.monotonic() < deadline and not _sources_are_free(client, index, least):
        time.sleep(1)
    client.indices.flush(index=index, params={"force": "true", "request_timeout": 600})
    refresh(client, index)
    for _ in range(MERGES):
        if _most_segments(client, index) <= segments:
            break
        _wait_for_task(client, _merge_task(client, index, segments))
        refresh(client, index)  # until then searches hold the old segments, and `_most_segments` counts them


def _most_segments(client: OpenSearch, index: str) -> int:
    """The largest number of segments in a shard. Deleted documents that are still stored count as one more segment."""
    most = 0
    for shards in client.indices.segments(index=index)["indices"].values():
        for copies in shards["shards"].values():
            for copy in copies:
                parts = [part for part in copy["segments"].values() if part["search"]]
                most = max(most, len(parts) + any(part["deleted_docs"] for part in parts))
    return most


def _merge_task(client: OpenSearch, index: str, segments: int) -> str:
    """The task that merges the index: a running one, for instance from a run that was killed, or a new one."""
    listed = client.tasks.list(params={"actions": "indices:admin/forcemerge", "detailed": "true"})
    for node in listed.get("nodes", {}).values():
        for id, task in node["tasks"].items():
            if f"[{index}]" in task.get("description", ""):
                return str(id)
    answer = client.indices.forcemerge(
        index=index, params={"max_num_segments": segments, "wait_for_completion": "false"}
    )
    return str(answer["task"])


def _wait_for_task(client: OpenSearch, task: str) -> None:
    """Wait until the task ends. Raises ClusterError if it failed. A task that the cluster does not know has ended."""
    from opensearchpy.exceptions import NotFoundError

    wait = 0.05
    while True:
        try:
            answer = client.tasks.get(task_id=task)
        except NotFoundError:
            return
        if answer["completed"]:
            if error := answer.get("error"):
                raise ClusterError(
                    f"merging failed: {reasons_on_one_line(error)}", "look at the cluster's log and disk"
                )
            return
        time.sleep(wait)
        wait = min(5.0, wait * 2)


def _sources_are_free(client: OpenSearch, index: str, least: int) -> bool:
    """Whether the index is small, or no retention lease still keeps operations for a replica."""
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
