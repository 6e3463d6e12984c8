"""An index under an alias, rebuilt beside the serving index: build, verify, swap atomically, keep the old index.

`docs` is an alias of `docs-20260314-150926`. The next build is another index; searches see it only when it is complete, and
then all at once. Its `_meta.osn.build` records the build and the index that it replaced:

    {"index": "docs-20260314-150926", "alias": "docs", "corpus": "/data/docs.jsonl",
     "replaced": "docs-20260201-091500", "swapped": true}

`index` is its own name: a clone, a restore under another name or a copy of the mapping has the record, too, and is no build.
`replaced` is written before the swap and `swapped` after it: the same command continues from any interruption. `waits` is
there if the build was finished with `--no-swap`, or by `osn index finish`: others may have written into it since, so no
ingest continues it.
`alias_says` is there if an index template gave the build its alias: the filter, routing and flags of the first swap.
`template_aliases` is there if it gave the build other aliases: the swap adds them, and takes them from the build before.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ingest.documents import other_to_write
from ingest.writing import target as targets
from opensearch_neural.cluster.errors import allowed, reason_of, translate_errors
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index import hidden_index
from opensearch_neural.index.health import index_health
from opensearch_neural.index.record import IndexMeta, existing_record, record_in, refuse_pattern, write_record

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

NOT_IN_NAMES = '\\/*?"<>| ,#:'
"""Characters that OpenSearch does not take in the name of an index."""
LONGEST_NAME = 160
"""The most bytes of an alias with builds: an index and a file have 255, and builds, journals and dead letters add to it."""
REPLICA_PATIENCE = 300.0
"""Seconds that a swap waits for replicas that are created now or later."""
ROLLBACK_PATIENCE = 5.0
"""Seconds that a rollback waits for the primary shards of its target."""


@dataclass(frozen=True)
class Version:
    """One build of an alias."""

    index: str
    """The build's own name."""
    created: int
    """Milliseconds since 1970."""
    serving: bool
    """Whether the alias names it."""
    meta: IndexMeta
    """The record of the index."""
    other_aliases: tuple[str, ...] = ()
    """Further aliases that name it."""

    @property
    def complete(self) -> bool:
        """Whether its whole corpus is written."""
        return self.meta.loading is None

    @property
    def served(self) -> bool:
        """Whether it serves, or has served. An incomplete one does not, even if an index template gave it the alias."""
        return (self.serving and self.complete) or bool(self.meta.build.get("swapped"))


@translate_errors()
def versions(client: OpenSearch, alias: str, *, closed: bool = False) -> list[Version]:
    """All builds of an alias, the newest first. It reads no shards, so it also works with red indexes.

    closed: whether closed ones are listed, too
    """
    serving = indexes_of(client, alias)
    builds = []
    which = {"allow_no_indices": "true", "expand_wildcards": "open,closed" if closed else "open"}
    for name, index in client.indices.get(index=f"{alias}-*", params=which).items():
        meta = record_in(index["mappings"], name)
        if meta is None or alias_of_build(name, meta) != alias:
            continue
        created = int(index["settings"]["index"]["creation_date"])
        others = [other for other in targets.aliases_of_users(index["aliases"]) if other != alias]
        builds.append(Version(name, created, name in serving, meta, tuple(others)))
    return sorted(builds, key=lambda version: (version.created, version.index), reverse=True)


def alias_of_build(index: str, meta: IndexMeta | None) -> str | None:
    """The alias that the index is a build of; None for a copy of a build, and for any other index.

    Records of earlier versions lack the build's own name, which had a date and a time.
    """
    build = {} if meta is None else meta.build
    alias, own = build.get("alias"), build.get("index")
    if alias is None:
        return None
    dated = rf"{re.escape(alias)}-\d{{8}}-\d{{6}}(-\d+)?"
    return alias if own == index or (own is None and re.fullmatch(dated, index)) else None


@translate_errors()
def builds_of(client: OpenSearch, aliases: Sequence[str]) -> list[Version]:
    """All builds of the aliases. An alias of several indexes is passed over: it is for searches, and has no builds."""
    return [
        version
        for alias in aliases
        if len(client.indices.get_alias(name=alias)) == 1
        for version in versions(client, alias)
    ]


def indexes_of(client: OpenSearch, alias: str) -> list[str]:
    """The indexes that an alias names; none if there is no such alias."""
    return sorted(client.indices.get_alias(name=alias)) if client.indices.exists_alias(name=alias) else []


def serving_index(client: OpenSearch, alias: str) -> str | None:
    """The index that an alias names; None if there is no such alias.

    Raises InputError for an empty name, ClusterError if the alias names several indexes, or if the name is an index.
    """
    if not alias:
        raise InputError("the name of the alias is empty", "name one alias")
    refuse_pattern(alias)
    names = indexes_of(client, alias)
    if not names and client.indices.exists(index=alias):
        raise ClusterError(
            f"{alias!r} is an index, so no alias can have its name",
            f"name an alias, or a new one for `osn ingest --alias`; once it serves, the index {alias!r} can be deleted",
        )
    if len(names) > 1:
        raise ClusterError(
            f"the alias {alias!r} names {len(names)} indexes: {', '.join(names)}", "remove all but one of them from it"
        )
    return names[0] if names else None


@translate_errors()
def open_build(client: OpenSearch, alias: str, corpus_name: str, *, restart: bool = False) -> str:
    """The name of the index to build: a build of this corpus that was interrupted, else a new name.

    Raises InputError if a build of this corpus waits to be served, or if OpenSearch takes no index of such a name.
    """
    check_build_name(alias)
    since = serving_since(client, alias)
    if not restart:
        for version in versions(client, alias):
            if version.served or version.meta.build.get("corpus") != corpus_name:
                continue
            if not version.meta.build.get("waits"):
                log.info("continuing %s", version.index)
                return version.index
            if version.created > since:
                raise InputError(
                    f"{version.index} is a finished build of {corpus_name} that waits to be served; to continue it would "
                    "undo what was written into it since",
                    f"`osn index serve {alias} {version.index}` serves it, `osn index abort {version.index}` deletes it, "
                    "--restart begins another build",
                )
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    name = f"{alias}-{stamp}"
    number = 1
    while client.indices.exists(index=name):
        number += 1
        name = f"{alias}-{stamp}-{number}"
    return name


def check_build_name(alias: str) -> None:
    """Raise InputError for an alias whose builds OpenSearch would refuse, since their names begin with that of the alias."""
    if not alias:
        raise InputError("the name of the alias is empty", "name one with --alias")
    refuse_pattern(alias)
    if len(alias.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        raise InputError(
            f"the alias '{alias[:80]}…' is longer than {LONGEST_NAME} bytes, which leaves no room for the names of its "
            "builds and files",
            "give the alias another name",
        )
    taken = sorted({*alias} & {*NOT_IN_NAMES})
    if taken:
        wrong = f"hold {' '.join(map(repr, taken))}"
    elif alias.lower() != alias:
        wrong = "hold capital letters"
    elif alias.startswith(("_", "-", "+")):
        wrong = f"begin with {alias[0]!r}"
    else:
        return
    raise InputError(
        f"the alias {alias[:80]!r}: its builds are indexes whose names begin with it, and may not {wrong}",
        "give the alias another name",
    )


def serving_since(client: OpenSearch, alias: str) -> int:
    """When the index was created that an alias names, in milliseconds since 1970; 0 if there is no such alias.

    Raises as `serving_index`.
    """
    serving = serving_index(client, alias)
    if serving is None:
        return 0
    return int(client.indices.get(index=serving)[serving]["settings"]["index"]["creation_date"])


def note_waiting(client: OpenSearch, index: str) -> None:
    """Record that a finished build waits for `osn index serve`."""
    meta = existing_record(client, index)
    write_record(client, index, meta.with_extra(build={**meta.build, "waits": True}))


def build_record(index: str, alias: str, corpus_name: str) -> dict[str, Any]:
    return {"build": {"index": index, "alias": alias, "corpus": corpus_name, "swapped": False}}


@translate_errors()
def serve(
    client: OpenSearch,
    alias: str,
    index: str,
    *,
    patience: float = REPLICA_PATIENCE,
    still_ours: Callable[[], object] = lambda: None,
) -> str | None:
    """Move the alias to the index, in one step for all searches; returns the index that it named before.

    Waits up to `patience` seconds for replicas that are created now or later, so that the index serves with all its copies
    from the first query.

    still_ours: called after the wait; raises if another process has taken the alias or the index over
    Raises ClusterError if the index is not complete, or if the alias is moved by another process at the same time.
    """
    _refuse_incomplete(client, index)
    _wait_for_replicas(client, index, patience)
    still_ours()
    meta = record_if_ours(client, index)  # others may have stored something meanwhile
    previous = serving_index(client, alias)
    if meta is not None and not meta.build.get("swapped") and previous != index:
        write_record(client, index, meta.with_extra(build={**meta.build, "alias": alias, "replaced": previous}))
    if previous is not None and previous != index:
        _note_swapped(client, previous)  # a kill may have prevented this before
        warn_of_running(client, previous, meta or IndexMeta(), index)
    _name(client, alias, index, previous)
    _note_swapped(client, index)
    return previous if previous != index else None


def _name(client: OpenSearch, alias: str, index: str, previous: str | None) -> None:
    """Move the alias to the index, with its filter, its routing and whatever else it says, or an index template says of it.

    If the answer to the request is lost, check the alias: it may have been moved.
    Raises ClusterError if the alias does not name `previous` any more.
    """
    from opensearchpy.exceptions import ConnectionError as LostConnection
    from opensearchpy.exceptions import TransportError

    if previous is None:
        definition = build_of(client, index).get(targets.ALIAS_SAYS, {})
    else:
        serving = client.indices.get_alias(name=alias)
        if previous not in serving:
            raise ClusterError(
                f"the alias {alias!r} was moved from {previous} to {', '.join(serving)} meanwhile",
                "run the same command again if it is still to be moved",
            )
        definition = serving[previous]["aliases"][alias]
    actions: list[dict[str, Any]] = [{"add": {"index": index, "alias": alias, **definition}}]
    actions += _of_template(client, alias, index, previous)
    if previous is not None and previous != index:
        actions.insert(0, {"remove": {"index": previous, "alias": alias, "must_exist": True}})
    try:
        client.indices.update_aliases(body={"actions": actions})
    except (LostConnection, TransportError):
        if serving_index(client, alias) != index:
            raise
        log.info("the answer to the swap was lost, and %s names %s", alias, index)


def _of_template(client: OpenSearch, alias: str, index: str, previous: str | None) -> list[dict[str, Any]]:
    """The actions at a swap of `alias` for other aliases that an index template gave the build, or the build before.

    One that names the build before moves with the swap, as it is there. Of the others a build gets its own at its first
    swap; later a person may have removed them. An alias that names the build already stays as it is: a person put it there.
    An alias that has builds of its own is left alone, whatever a template says: it serves one of these.
    """
    build = build_of(client, index)
    of_template = {other: says for other, says in build.get(targets.TEMPLATE_ALIASES, {}).items() if other != alias}
    (answer,) = client.indices.get_alias(index=index).values()  # `index` may be an alias
    here = answer["aliases"]
    own = {} if build.get("swapped") else of_template
    of_previous: dict[str, Any] = {}
    if previous is not None and previous != index:
        of_both = of_template | build_of(client, previous).get(targets.TEMPLATE_ALIASES, {})
        of_previous = client.indices.get_alias(index=previous)[previous]["aliases"]
        of_previous = {other: says for other, says in of_previous.items() if other in of_both and other != alias}
    served = {other for other in own.keys() | of_previous.keys() if _has_builds(client, other)}
    if refused := sorted(served & own.keys() - here.keys()):
        log.warning(
            "an index template gave %s the aliases %s: it does not get them, since they have builds of their own",
            index,
            ", ".join(refused),
        )
    moved = {other: says for other, says in of_previous.items() if other not in served}
    own = {
        other: _as_written(client, other, says, {index, previous}) for other, says in own.items() if other not in served
    }
    added = {other: says for other, says in {**own, **moved}.items() if other not in here}
    return [{"remove": {"index": previous, "alias": other, "must_exist": False}} for other in moved] + [
        {"add": {"index": index, "alias": other, **says}} for other, says in added.items()
    ]


def _as_written(
    client: OpenSearch, alias: str, says: Mapping[str, Any], ours: Collection[str | None]
) -> Mapping[str, Any]:
    """What a template says of an alias, without the write flag unless another index, which has none, holds the alias, too:
    without a flag nobody could write by an alias of two indexes then."""
    answer = allowed(lambda: client.indices.get_alias(name=alias)) or {}
    others = [each["aliases"][alias] for name, each in answer.items() if name not in ours]
    flagged = any(each.get("is_write_index") for each in others)
    return says if others and not flagged else targets.without_write_flag(says)


def _has_builds(client: OpenSearch, alias: str) -> bool:
    """Whether there are builds of an alias, also closed ones or such that never served. False if the user may not ask."""
    which = {"allow_no_indices": "true", "expand_wildcards": "open,closed"}
    mappings = allowed(lambda: client.indices.get_mapping(index=f"{alias}-*", params=which)) or {}
    metas = {name: record_in(answer["mappings"], name) for name, answer in mappings.items()}
    return any(alias_of_build(name, meta) == alias for name, meta in metas.items())


def record_if_ours(client: OpenSearch, index: str) -> IndexMeta | None:
    """The record of an index; None if `osn` did not write it. Raises ClusterError if there is no such index."""
    try:
        return existing_record(client, index)
    except ModelError:
        return None


def build_of(client: OpenSearch, index: str) -> dict[str, Any]:
    """`IndexMeta.build` of an index; empty if `osn` did not write it. Raises ClusterError if there is no such index."""
    meta = record_if_ours(client, index)
    return {} if meta is None else meta.build


def _note_swapped(client: OpenSearch, index: str) -> None:
    meta = record_if_ours(client, index)
    if meta and meta.build and not meta.build.get("swapped"):
        write_record(client, index, meta.with_extra(build={**meta.build, "swapped": True}))


def _wait_for_replicas(client: OpenSearch, index: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        health = index_health(client, index)
        if health is None:
            return  # this user may not ask
        if health["status"] == "green" or time.monotonic() > deadline:
            break
        if health["initializing_shards"] == health["relocating_shards"] == 0 and not _replicas_to_come(client, index):
            break
        time.sleep(0.5)
    if health["status"] != "green":
        log.warning("%s has %d replicas that no node holds yet", index, health["unassigned_shards"])


def _replicas_to_come(client: OpenSearch, index: str) -> bool:
    """Whether a replica is being copied by now, or will be later: nodes copy others first, or nothing is decided yet.

    False if no node may hold it (as on a single node), and if this user may not ask.
    """
    shards = allowed(lambda: client.cat.shards(index=index, params={"format": "json", "h": "shard,state"})) or []
    if any(shard["state"] == "INITIALIZING" for shard in shards):
        return True  # its copying began after the health was asked for
    for shard in sorted({int(shard["shard"]) for shard in shards if shard["state"] == "UNASSIGNED"}):
        body = {"index": index, "shard": shard, "primary": False}
        explanation = allowed(lambda: client.cluster.allocation_explain(body=body))  # noqa: B023
        if explanation is not None and explanation.get("can_allocate") != "no":
            return True
    return False


@translate_errors()
def rollback(client: OpenSearch, alias: str, to: str | None = None) -> tuple[str, str]:
    """Move the alias to the build that the present build replaced, or to `to`; returns (new index, index before).

    Reads no documents but of these two indexes, and does not wait for replicas.
    Raises ClusterError if there is no earlier build, or if it is deleted, closed, red or incomplete; InputError if `to` is
    neither a build of the alias nor an index that a build replaced.
    """
    if to == "":
        raise InputError("the name of the index is empty", "name one with --to, or leave the option out")
    present = serving_index(client, alias)
    if present is None:
        raise ClusterError(f"there is no alias {alias!r}", "`osn ingest --alias` makes one")
    if to is None:
        to = build_of(client, present).get("replaced")
        if to is None:
            raise ClusterError(f"{present} replaced no other index", _earlier_builds(client, alias))
    if not client.indices.exists(index=to):
        raise ClusterError(
            f"the index {to!r}, which {alias!r} named before, was deleted", _earlier_builds(client, alias)
        )
    _refuse_others(client, alias, to)
    check_can_serve(client, alias, to)
    serve(client, alias, to, patience=0)
    return to, present


def _refuse_others(client: OpenSearch, alias: str, index: str) -> None:
    """Raise InputError for an index that is no build of the alias, unless a build of it replaced that index."""
    of = alias_of_build(index, record_if_ours(client, index))
    builds = [] if of == alias else versions(client, alias, closed=True)
    if of == alias or any(version.meta.build.get("replaced") == index for version in builds):
        return
    raise InputError(
        f"{index!r} is {f'a build of {of!r}' if of else 'no build'}, and {alias!r} goes back only to builds of its own",
        _earlier_builds(client, alias),
    )


def _earlier_builds(client: OpenSearch, alias: str) -> str:
    """The remedy that names the builds to which an alias can go back."""
    others = [version.index for version in versions(client, alias) if version.complete and not version.serving]
    return f"name one with --to: {', '.join(others)}" if others else "there is nothing to go back to"


def check_can_serve(client: OpenSearch, alias: str, index: str) -> None:
    """Raise ClusterError for an index that is missing, not complete, closed or red, InputError if the alias names it."""
    if serving_index(client, alias) == index:
        raise InputError(f"{alias!r} names {index!r} already")
    _refuse_incomplete(client, index)
    _refuse_closed(client, index)
    targets.wait_for_primaries(client, index, ROLLBACK_PATIENCE)


def _refuse_incomplete(client: OpenSearch, index: str) -> None:
    meta = record_if_ours(client, index)
    if meta is not None and meta.loading is not None:
        raise ClusterError(f"the index {index!r} is not complete", "run its `osn ingest` command again")


def _refuse_closed(client: OpenSearch, index: str) -> None:
    """Raise ClusterError for a closed index, whose health is that of an open one. Other refusals say nothing about that."""
    from opensearchpy.exceptions import TransportError

    try:
        client.count(index=index)
    except TransportError as error:
        if reason_of(error)[0] == "index_closed_exception":
            raise ClusterError(f"the index {index!r} is closed", f"open it first (POST {index}/_open)") from None


def warn_of_running(client: OpenSearch, present: str | None, meta: IndexMeta, to: str) -> None:
    """Warn if requests or vectors made for the present index are wrong for another index, `to`, with the record `meta`."""
    present_meta = None if present is None or present == to else record_if_ours(client, present)
    if present_meta is None:
        return
    requests, writes = other_for_requests(present_meta, meta), other_to_write(present_meta, meta)
    if requests or writes:
        opened = " and ".join(filter(None, ("their engines" * bool(requests), "`Documents`" * bool(writes))))
        log.warning(
            "%s has %s, unlike %s: applications that are running must open %s again once it serves",
            to,
            requests or writes,
            present,
            opened,
        )


def other_for_requests(before: IndexMeta, after: IndexMeta) -> str | None:
    """What makes requests for an index with the record `before` wrong for another one; None if nothing does."""
    if before.forward_index and not after.forward_index:
        return "no forward index, so that requests which read it fail"
    if after.prune_postings is not None and before.prune_postings is None:
        return "pruned postings"
    if (before.passages is None) != (after.passages is None):
        return "whole documents" if after.passages is None else "passages"
    if before.sparse is not None and (after.sparse is None or after.sparse.query_hash != before.sparse.query_hash):
        if after.sparse is None:
            return "no sparse model"
        return "an IDF table that is counted anew" if after.counting else "another sparse model or IDF table"
    # A model may have been named by its hub id once, and by its folder another time.
    if before.dense is not None and (
        after.dense is None or replace(after.dense, name=before.dense.name) != before.dense
    ):
        return "no dense model" if after.dense is None else "another dense model, or another type of its vectors"
    codes = after.quantized
    if before.quantized is not None and (codes is None or codes.hash != before.quantized.hash):
        return "no quantized model" if codes is None else "another quantized model"
    return None


@translate_errors()
def prune(client: OpenSearch, alias: str, *, keep: int = 1) -> list[str]:
    """Delete old builds of an alias that have served; returns the deleted indexes.

    It keeps the serving build, the `keep` newest others that are open and as many closed ones. Beside these it keeps, with a
    warning, builds that another alias names, and every build that has not served yet, since it may be being written (`osn
    index abort` deletes it by its name).
    """
    if serving_index(client, alias) is None:
        raise ClusterError(f"there is no alias {alias!r}", "`osn ingest --alias` makes one")
    listed = versions(client, alias, closed=True)
    opened = {version.index for version in versions(client, alias)}
    old = [version for version in listed if version.served and version.complete and not version.serving]
    others = [version for version in old if not version.other_aliases]
    to_keep = [version for version in others if version.index in opened][:keep]
    to_keep += [version for version in others if version.index not in opened][:keep]
    for version in old:
        if version.other_aliases:
            log.warning("%s is kept: it is named by %s", version.index, ", ".join(version.other_aliases))
    to_delete = [version for version in others if version not in to_keep]
    for version in to_delete:
        client.indices.delete(index=version.index)
        hidden_index.forget(client, version.index, version.meta)
    return [version.index for version in to_delete]
