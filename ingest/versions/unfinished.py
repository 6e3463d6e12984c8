"""Indexes whose writing was interrupted: accept one as it is, or delete it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.versions.builds import alias_of_build, note_waiting, versions
from ingest.writing import target as targets
from ingest.writing.lease import held
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index import hidden_index, segments
from opensearch_neural.index.record import existing_named_record, existing_record, refuse_pattern

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@translate_errors()
def finish(client: OpenSearch, name: str) -> str:
    """Finish an interrupted index as it is; returns its own name. A build does not serve yet: it waits for
    `osn index serve`, and no ingest continues it.

    Raises InputError if it is complete already or its IDF table is not counted, ClusterError if it is being written.
    """
    index, _ = _unfinished(client, name, closed=False)
    meta = existing_record(client, index)
    if meta.unfinished is None:
        raise InputError(f"the index {index!r} is complete")
    if meta.counting:
        raise InputError(
            f"the index {index!r} has no IDF table, which needs a whole pass over {meta.unfinished}",
            "run its `osn ingest` again, which continues where it stopped; or delete the index with `osn index abort`",
        )
    targets.finish(client, targets.existing_target(client, index), merge=False)
    alias = alias_of_build(index, meta)
    if alias is not None and index in _never_served(client, alias, closed=False):
        note_waiting(client, index)
    segments.refresh(client, index)
    return index


@translate_errors()
def abort(client: OpenSearch, name: str) -> str:
    """Delete an interrupted index, or a build that never served; returns its own name.

    Raises InputError if it is complete, or was so before another corpus was added, or if other aliases name it and `name` is
    not its own; ClusterError if it is being written.
    """
    index, was_complete = _unfinished(client, name, closed=True)
    if was_complete:
        raise InputError(
            f"the index {index!r} was complete before the writing that was interrupted",
            "`osn index finish` accepts it as it is",
        )
    if name != index and (others := _other_aliases(client, index, name)):
        raise InputError(
            f"the index {index!r} is also named by {', '.join(others)}",
            f"`osn index abort {index}` deletes it all the same",
        )
    meta = existing_record(client, index)
    client.indices.delete(index=index)
    hidden_index.forget(client, index, meta)
    return index


def _unfinished(client: OpenSearch, name: str, *, closed: bool) -> tuple[str, bool]:
    """(index, whether it was complete before) of this name; of an alias, its only build that has not served.

    closed: whether closed builds count, too
    Raises InputError if it is complete now, ClusterError if it is being written.
    """
    if not name:
        raise InputError("the name of the index is empty", "name one index, or the alias of a build")
    refuse_pattern(name)
    waiting = _never_served(client, name, closed) if _is_alias(client, name) else []
    if len(waiting) > 1:
        raise InputError(f"{name!r} has {len(waiting)} builds that never served", f"name one: {', '.join(waiting)}")
    index, meta = existing_named_record(client, waiting[0] if waiting else name)
    alias = alias_of_build(index, meta)
    never_served = alias is not None and index in _never_served(client, alias, closed)
    was_complete = meta.loading is None and not never_served
    if was_complete and meta.unfinished is None:
        raise InputError(
            f"the index {index!r} is complete",
            "there is nothing to finish or to abort; OpenSearch's own DELETE deletes it",
        )
    for lease in (f"index:{index}", f"alias:{alias}"):
        if held(client, lease):
            raise ClusterError(f"the index {index!r} is being written now", "stop that ingest first")
    return index, was_complete


def _never_served(client: OpenSearch, alias: str, closed: bool) -> list[str]:
    return [version.index for version in versions(client, alias, closed=closed) if not version.served]


def _other_aliases(client: OpenSearch, index: str, name: str) -> list[str]:
    aliases = client.indices.get_alias(index=index)[index]["aliases"]
    return sorted(alias for alias in targets.aliases_of_users(aliases) if alias != name)


def _is_alias(client: OpenSearch, name: str) -> bool:
    return not client.indices.exists(index=name) or bool(client.indices.exists_alias(name=name))
