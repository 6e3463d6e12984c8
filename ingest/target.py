"""The index being written: create it or check it, set it up for loading, finish and verify it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural import __version__
from opensearch_neural.errors import ClusterError, ModelError
from opensearch_neural.index.mapping import IndexMeta, index_body

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

# A new index is loaded without refreshes and replicas. What they are to be, and which corpus is being loaded, is kept in
# the index's `_meta`, so that a run which continues a killed one sets them too.
LOADING = "loading"


@dataclass(frozen=True)
class Target:
    """An index that takes documents.

    index: its own name, where the user gave an alias
    loading_corpus: the corpus for which the index was created, until that is written; then the index holds it alone
    """

    index: str
    uuid: str
    meta: IndexMeta
    loading_corpus: str | None


def read_meta(client: OpenSearch, index: str) -> IndexMeta | None:
    """The record of what wrote the index (or the one index an alias names); None when there is no such index.

    Raises ClusterError for a pattern, even if it matches one index: it might match another tomorrow.
    """
    if index == "_all" or index.startswith("<") or any(sign in index for sign in "*,"):
        raise ClusterError(f"{index!r} is a pattern, not the name of an index", "name one index, or an alias")
    if not client.indices.exists(index=index):
        return None
    mappings = client.indices.get_mapping(index=index)
    if len(mappings) > 1:
        raise ClusterError(
            f"{index!r} names {len(mappings)} indexes: {', '.join(sorted(mappings))}", "name one of them"
        )
    (mapping,) = mappings.values()
    return IndexMeta.from_mapping(mapping["mappings"], index)


def check_unchanged_models(index: str, wrote: IndexMeta, wanted: IndexMeta) -> None:
    """Raise ModelError when documents of `wanted`'s models do not belong into the index."""
    for kind in ("sparse", "quantized", "dense"):  # codes before vectors that may be made of them
        old, new = getattr(wrote, kind), getattr(wanted, kind)
        if (old is None) != (new is None):
            has, lacks = ("holds", "brings none") if new is None else ("does not hold", "brings them")
            raise ModelError(
                f"the index {index!r} {has} {kind} vectors, and this ingest {lacks}",
                "use the same models as before, or another --index",
            )
        if old is not None and new is not None and old.hash != new.hash:
            raise ModelError(
                f"the index {index!r} was written with the {kind} model {old.name} ({old.hash}), "
                f"and this is {new.name} ({new.hash})",
                "use the same model as before, or another --index",
            )
    if wrote.dense and wanted.dense and wrote.dense.reconstructed != wanted.dense.reconstructed:
        has, brings = ("codes", "them") if wrote.dense.reconstructed else ("texts", "codes")
        raise ModelError(
            f"the dense vectors of the index {index!r} are made of the {has}, and this ingest makes them of {brings}",
            "leave out --dense, which is then as it was, or give another --index",
        )
    if wrote.dense and wanted.dense and wrote.dense.type != wanted.dense.type:
        raise ModelError(
            f"the index {index!r} stores its dense vectors as {wrote.dense.type}, not as {wanted.dense.type}",
            f"give --dense-type {wrote.dense.type}, or another --index",
        )


def open_target(
    client: OpenSearch,
    index: str,
    wanted: IndexMeta,
    *,
    corpus_name: str,
    shards: int = 1,
    replicas: int | None = None,
    keep_replicas: bool = False,
    store_vectors: bool = False,
    extra: Mapping[str, Any] | None = None,
    patience: float = 60.0,
) -> Target:
    """Create the index, set up for loading, or check that the existing one takes documents of these models.

    An index that already serves searches keeps its replicas and its refreshes; one whose loading was interrupted is
    still set up for loading.

    keep_replicas: have the replicas from the first document on: everything is written twice, and a lost node costs
        nothing.
    extra: further entries of a new index's `_meta.osn`
    patience: seconds that the index's primary shards may take to be there.

    Raises ClusterError for a name that OpenSearch refuses, or an index whose primary shards are not there (red).
    """
    wrote = read_meta(client, index)
    if wrote is None:
        wanted_replicas = 1 if replicas is None else replicas
        restore: dict[str, Any] = {"refresh_interval": None}
        if not keep_replicas:
            restore |= {"number_of_replicas": wanted_replicas}
        body = index_body(
            _with(wanted, {LOADING: {"restore": restore, "corpus": corpus_name}, **(extra or {})}),
            shards=shards,
            replicas=wanted_replicas if keep_replicas else 0,
            store_vectors=store_vectors,
            settings={"refresh_interval": "-1"},
        )
        # Not waiting for its shards here: what keeps them away is told below.
        client.indices.create(index=index, body=body, params={"wait_for_active_shards": "0"})
        wrote = read_meta(client, index)
        assert wrote is not None
    else:
        check_unchanged_models(index, wrote, wanted)
        if replicas is not None and LOADING in wrote.extra:
            wrote = _with_replicas(client, index, wrote, replicas)
    name, settings = _settings(client, index)
    wait_for_primaries(client, name, patience)
    return Target(name, settings["uuid"], wrote, wrote.extra.get(LOADING, {}).get("corpus"))


def _with_replicas(client: OpenSearch, index: str, wrote: IndexMeta, replicas: int) -> IndexMeta:
    """Have an index that is still loading get another number of replicas at the end than its first run wanted."""
    loading = wrote.extra[LOADING]
    if loading["restore"].get("number_of_replicas", replicas) != replicas:
        changed = {**loading, "restore": {**loading["restore"], "number_of_replicas": replicas}}
        wrote = _with(wrote, {LOADING: changed})
        put_meta(client, index, wrote)
    return wrote


def wait_for_primaries(client: OpenSearch, index: str, patience: float) -> None:
    """Raise ClusterError, with the cluster's own explanation, when a primary shard is not there in time."""
    deadline = time.monotonic() + patience
    while True:
        seconds = max(1, min(20, int(deadline - time.monotonic())))
        # An index that stays red is answered with status 408 and its health. (Without request_timeout, opensearch-py takes
        # the server's timeout for its own.)
        waiting = {
            "wait_for_status": "yellow",
            "timeout": f"{seconds}s",
            "request_timeout": seconds + 30,
            "ignore": 408,
        }
        health = client.cluster.health(index=index, params=waiting)
        if health["status"] != "red":
            return
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"the index {index!r} is red: {_why_unassigned(client, index)}",
                "mend the cluster (`osn doctor` shows heap and disk), then the same command again",
            )


def _why_unassigned(client: OpenSearch, index: str) -> str:
    shards = client.cat.shards(index=index, params={"format": "json", "h": "shard,prirep,state,unassigned.reason"})
    missing = [int(shard["shard"]) for shard in shards if shard["prirep"] == "p" and shard["state"] != "STARTED"]
    if not missing:
        return "a primary shard is not there"
    body = {"index": index, "shard": missing[0], "primary": True}
    told = client.cluster.allocation_explain(body=body)
    reasons = [told.get("allocate_explanation", "")]
    for node in told.get("node_allocation_decisions", ()):
        reasons.extend(decider["explanation"] for decider in node.get("deciders", ()))
    return "; ".join(filter(None, dict.fromkeys(reasons))) or f"shard {missing[0]} is not assigned to a node"


def refresh(client: OpenSearch, index: str) -> None:
    """Raises ClusterError when a shard could not be refreshed, because what it holds is then not known."""
    answer = client.indices.refresh(index=index, params={"request_timeout": 600})
    if answer["_shards"]["failed"]:
        reasons = [failure["reason"].get("reason", "") for failure in answer["_shards"].get("failures", ())]
        raise ClusterError(
            f"{answer['_shards']['failed']} shards of {index!r} cannot be refreshed{': ' + reasons[0] if reasons else ''}",
            "look at the cluster's health and disk; the same command again continues",
        )


def finish(client: OpenSearch, target: Target, *, merge: bool) -> None:
    """Restore replicas and refresh interval, and merge to one segment a shard when asked to."""
    if merge:
        _wait_until_sources_are_not_needed(client, target.index)
        client.indices.flush(index=target.index, params={"request_timeout": 600})
        client.indices.forcemerge(index=target.index, params={"max_num_segments": 1, "request_timeout": 3600})
        refresh(client, target.index)
    current = read_meta(client, target.index)
    if current is None or LOADING not in current.extra:
        return
    client.indices.put_settings(index=target.index, body={"index": current.extra[LOADING]["restore"]})
    extra = {key: value for key, value in current.extra.items() if key != LOADING}
    put_meta(client, target.index, _with(current, extra, replace=True))


def _wait_until_sources_are_not_needed(
    client: OpenSearch, index: str, *, least: int = 256 << 20, most: float = 60
) -> None:
    """Wait until a merge may drop what OpenSearch keeps for recovery: the whole source, vectors included.

    It keeps it for operations that a replica might still ask for, and says twice a minute which these are. An index
    merged before that is twice as large as it need be, for good. Small ones (`least` bytes) are not worth the wait, in
    seconds at most `most`.
    """
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        stats = client.indices.stats(index=index, metric="store,docs", params={"level": "shards"})
        if stats["_all"]["primaries"]["store"]["size_in_bytes"] < least:
            return
        shards = [shard for copies in stats["indices"][index]["shards"].values() for shard in copies]
        if all(
            lease["retaining_seq_no"] > shard["seq_no"]["max_seq_no"]
            for shard in shards
            for lease in shard.get("retention_leases", {}).get("leases", ())
        ):
            return
        time.sleep(1)


def verify_unchanged_index(client: OpenSearch, target: Target) -> None:
    """Raise ClusterError when the index was deleted, or replaced by another of its name, while it was being written."""
    if not client.indices.exists(index=target.index) or _settings(client, target.index)[1]["uuid"] != target.uuid:
        raise ClusterError(
            f"the index {target.index!r} was deleted or replaced while it was being written",
            "delete what has its name now (late writes create an index), then run the same command again: it begins anew",
        )


def count(client: OpenSearch, index: str) -> int:
    """Documents in the index, once every shard answers.

    Raises ClusterError when shards are missing, because then any number would be too small.
    """
    for attempt in range(10):
        # Of primaries: a replica may still be catching up.
        answer = client.count(index=index, params={"preference": "_primary"})
        if answer["_shards"]["failed"] == 0 and answer["_shards"]["successful"] == answer["_shards"]["total"]:
            return int(answer["count"])
        time.sleep(0.5 * 2 ** min(attempt, 4))
    raise ClusterError(
        f"{answer['_shards']['failed']} shards of {index!r} do not answer", "look at the cluster's health"
    )


def missing_ids(client: OpenSearch, index: str, ids: Sequence[str]) -> list[str]:
    """Those of `ids` that the index does not hold."""
    missing: list[str] = []
    for start in range(0, len(ids), 1000):
        part = list(ids[start : start + 1000])
        found = client.mget(index=index, body={"ids": part}, params={"_source": "false"})
        missing.extend(document["_id"] for document in found["docs"] if not document.get("found"))
    return missing


def remove_last_passages(client: OpenSearch, index: str, counts: Mapping[str, int]) -> int:
    """Delete what lies behind the last passage of documents that have become shorter; returns how many passages.

    counts: how many passages each of the documents has now. The index must have been refreshed since it was written.
    """
    removed = 0
    parents = list(counts)
    for start in range(0, len(parents), 500):
        behind = [
            {"bool": {"filter": [{"term": {"parent": parent}}, {"range": {"passage.number": {"gt": counts[parent]}}}]}}
            for parent in parents[start : start + 500]
        ]
        removed += delete_by_query(client, index, {"bool": {"should": behind}})
    return removed


def delete_by_query(client: OpenSearch, index: str, query: dict[str, Any]) -> int:
    """Delete what matches, and make that visible; returns how many documents.

    Raises ClusterError when some could not be deleted.
    """
    answer = client.delete_by_query(
        index=index,
        body={"query": query},
        params={"refresh": "true", "conflicts": "proceed", "request_timeout": 600},
    )
    if answer["failures"] or answer["version_conflicts"]:
        raise ClusterError(
            f"{len(answer['failures']) + answer['version_conflicts']} documents of {index!r} could not be deleted",
            "they were being written at the same time, or a shard is not there: try again",
        )
    return int(answer["deleted"])


def _settings(client: OpenSearch, index: str) -> tuple[str, dict[str, Any]]:
    """(own name, settings) of an index or of the one that an alias names."""
    ((name, settings),) = client.indices.get_settings(index=index).items()
    return name, settings["settings"]["index"]


def put_meta(client: OpenSearch, index: str, meta: IndexMeta) -> None:
    client.indices.put_mapping(index=index, body={"_meta": {"osn": meta.to_dict()}})


def _with(meta: IndexMeta, extra: dict[str, Any], *, replace: bool = False) -> IndexMeta:
    from dataclasses import replace as changed

    return changed(meta, version=__version__, extra=extra if replace else {**meta.extra, **extra})
