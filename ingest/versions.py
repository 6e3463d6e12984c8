"""An index under an alias, rebuilt beside the one that serves: build, verify, swap atomically, keep the old one.

`docs` is an alias of `docs-20260314-150926`; the next build is an index of its own, and searches see it at once and
whole, when every document of it is there. What a build is, and what it replaced, stands in its `_meta.osn.build`:

    {"alias": "docs", "corpus": "/data/docs.jsonl", "replaced": "docs-20260201-091500", "swapped": true}
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ingest import target as targets
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.health import index_health
from opensearch_neural.index.record import IndexMeta, existing_record, write_record

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

BUILD = "build"


@dataclass(frozen=True)
class Version:
    """One build of an alias. `documents` is its count, `created` in milliseconds since 1970."""

    index: str
    created: int
    serving: bool
    complete: bool
    documents: int
    build: dict[str, Any]
    meta: IndexMeta


@translate_errors()
def versions(client: OpenSearch, alias: str) -> list[Version]:
    """All builds of an alias, the newest first."""
    serving = serving_index(client, alias)
    found = []
    for name, index in client.indices.get(index=f"{alias}-*", params={"allow_no_indices": "true"}).items():
        try:
            meta = IndexMeta.from_mapping(index["mappings"], name)
        except ModelError:
            continue  # not ours
        build = meta.extra.get(BUILD, {})
        if build.get("alias") != alias:
            continue
        complete = targets.LOADING not in meta.extra
        created = int(index["settings"]["index"]["creation_date"])
        count = int(client.count(index=name)["count"])
        found.append(Version(name, created, name == serving, complete, count, build, meta))
    return sorted(found, key=lambda each: (each.created, each.index), reverse=True)


def serving_index(client: OpenSearch, alias: str) -> str | None:
    """The index that an alias names; None where there is no such alias.

    Raises ClusterError where it names several, or is no alias but an index.
    """
    if not client.indices.exists(index=alias):
        return None
    if not client.indices.exists_alias(name=alias):
        raise ClusterError(
            f"{alias!r} is an index, so no alias can have its name",
            f"give another --alias; once it serves, delete the index {alias!r} and rename the alias",
        )
    names = sorted(client.indices.get_alias(name=alias))
    if len(names) > 1:
        raise ClusterError(f"the alias {alias!r} names {len(names)} indexes: {', '.join(names)}", "leave it one")
    return names[0]


@translate_errors()
def open_build(client: OpenSearch, alias: str, corpus_name: str, *, restart: bool = False) -> str:
    """The name of the index to build: that of an interrupted build of this corpus, else a new one.

    Interrupted is also what is complete and was never served.
    """
    serving_index(client, alias)
    if not restart:
        for version in versions(client, alias):
            if not version.build.get("swapped") and version.build.get("corpus") == corpus_name:
                log.info("going on with %s", version.index)
                return version.index
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    name = f"{alias}-{stamp}"
    number = 1
    while client.indices.exists(index=name):
        number += 1
        name = f"{alias}-{stamp}-{number}"
    return name


def build_record(alias: str, corpus_name: str) -> dict[str, Any]:
    return {BUILD: {"alias": alias, "corpus": corpus_name, "swapped": False}}


@translate_errors()
def serve(client: OpenSearch, alias: str, index: str, *, patience: float = 300.0) -> str | None:
    """Have the alias name the index, in one step for all searches; returns the index that it named before.

    Waits `patience` seconds for the index's replicas, so that it serves at full strength from its first query, and goes
    on without those that no node has room for. Raises ClusterError when the index is not complete.
    """
    meta = existing_record(client, index)
    if targets.LOADING in meta.extra:
        raise ClusterError(f"the index {index!r} is not complete", "run its `osn ingest` command again")
    _wait_for_replicas(client, index, patience)
    previous = serving_index(client, alias)
    record = dict(meta.extra.get(BUILD, {}))
    if not record.get("swapped"):
        record |= {"alias": alias, "swapped": True, "replaced": previous}
    # Before the swap: a kill in between leaves an index that only looks as if it had served.
    write_record(client, index, meta.with_extra(**{BUILD: record}))
    actions: list[dict[str, Any]] = [{"add": {"index": index, "alias": alias}}]
    if previous is not None and previous != index:
        actions.insert(0, {"remove": {"index": previous, "alias": alias, "must_exist": True}})
    client.indices.update_aliases(body={"actions": actions})
    return previous if previous != index else None


def _wait_for_replicas(client: OpenSearch, index: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        health = index_health(client, index)
        if health is None:
            return  # this user may not ask
        if health["status"] == "green" or health["initializing_shards"] == health["relocating_shards"] == 0:
            break  # green, or what is missing is not on its way
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if health["status"] != "green":
        log.warning("%s has %d replicas that no node holds yet", index, health["unassigned_shards"])


@translate_errors()
def rollback(client: OpenSearch, alias: str, to: str | None = None) -> tuple[str, str]:
    """Have the alias name the build before the present one, or `to`; returns (present one, the one before).

    Raises ClusterError when there is none, or it is gone.
    """
    present = serving_index(client, alias)
    if present is None:
        raise ClusterError(f"there is no alias {alias!r}", "`osn ingest --alias` makes one")
    known = {version.index: version for version in versions(client, alias)}
    if to is None:
        to = known[present].build.get("replaced") if present in known else None
        if to is None:
            others = [name for name, version in known.items() if version.complete and name != present]
            raise ClusterError(
                f"{present} replaced no other index",
                f"name one with --to: {', '.join(others)}" if others else "there is nothing to go back to",
            )
    if not client.indices.exists(index=to):
        raise ClusterError(f"the index {to!r}, which {alias!r} named before, is gone")
    if to == present:
        raise InputError(f"{alias!r} names {to!r} already")
    serve(client, alias, to)
    return to, present


@translate_errors()
def prune(client: OpenSearch, alias: str, *, keep: int = 1) -> list[str]:
    """Delete the builds of an alias but the one that serves and the `keep` newest others; returns what was deleted."""
    others = [version for version in versions(client, alias) if not version.serving]
    if serving_index(client, alias) is None:
        raise ClusterError(f"there is no alias {alias!r}", "`osn ingest --alias` makes one")
    gone = [version.index for version in others[keep:]]
    for index in gone:
        client.indices.delete(index=index)
    return gone
