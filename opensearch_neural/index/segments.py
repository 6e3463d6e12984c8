"""The segments of an index: written documents made visible to searches, and segments merged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

LEASE_PATIENCE = 90.0
"""Seconds; OpenSearch renews retention leases every 30."""
MERGES = 3
"""How often a merge is asked for whose task was lost with its node."""


def refresh(client: OpenSearch, index: str) -> None:
    """Raises ClusterError when a shard could not be refreshed, because what it holds is then not known."""
    answer = client.indices.refresh(index=index, params={"request_timeout": 600})
    if answer["_shards"]["failed"]:
        reasons = [failure["reason"].get("reason", "") for failure in answer["_shards"].get("failures", ())]
        raise ClusterError(
            f"{answer['_shards']['failed']} shards of {index!r} cannot be refreshed{': ' + reasons[0] if reasons else ''}",
            "look at the cluster's health and disk; run the same command again to continue",
        )


def merge_segments(client: OpenSearch, index: str, segments: int = 1, *, least: int = 256 << 20) -> None:
    """Merge to this number of segments a shard, once OpenSearch may drop what it keeps for recovery.

    With vectors excluded from `_source`, the whole document is kept beside it (`_recovery_source`) until a merge that comes
    after the retention leases have advanced, and after a flush. An index merged before that is twice as large as it need be,
    for good. least: the bytes from which on an index is worth the wait.

    Merging is a task that is asked after, so no gateway ends a request that takes hours.
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
        refresh(client, index)  # searches hold the segments from before the merge until then, and so they are counted


def _most_segments(client: OpenSearch, index: str) -> int:
    """The most segments that a shard has. Deleted documents count for one more: they are still there."""
    most = 0
    for shards in client.indices.segments(index=index)["indices"].values():
        for copies in shards["shards"].values():
            for copy in copies:
                parts = [part for part in copy["segments"].values() if part["search"]]
                most = max(most, len(parts) + any(part["deleted_docs"] for part in parts))
    return most


def _merge_task(client: OpenSearch, index: str, segments: int) -> str:
    """The task that merges the index: one that is running already, for instance of a run that was killed, or a new one."""
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
    """Raises ClusterError when the task failed. A task that the cluster has forgotten is over."""
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
                    f"merging failed: {error.get('reason', error)}", "look at the cluster's log and disk"
                )
            return
        time.sleep(wait)
        wait = min(5.0, wait * 2)


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
