"""The index being written: create it or check it, set it up for loading, finish and verify it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingest.settings import NewIndex
from opensearch_neural import __version__
from opensearch_neural.cluster.errors import allowed, reason_of
from opensearch_neural.cluster.zones import balanced_replicas, demanded_copies
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.health import all_shards_answer, index_health
from opensearch_neural.index.mapping import index_body, search_analyzer_of
from opensearch_neural.index.record import IndexMeta, check_unchanged_models, existing_record, read_record, write_record
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.queries.body_parts import forward_clause

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

# A new index is loaded without refreshes and replicas. Its `_meta` holds their final settings and the corpus that is being
# loaded, so that a run which continues a killed one restores them too.
LOADING = "loading"
ADDING = "adding"
"""Key in the `_meta` of an index that was complete before: the corpora that are being written into it."""
WRITE_ALIAS = "osn-write-"
ALIAS_SAYS = "alias_says"
"""Key in the `build` of a record: what an index template says of the alias besides its index: its filter, its routing."""
TEMPLATE_ALIASES = "template_aliases"
"""Key in the `build` of a record: {alias: what it says} of the other aliases that an index template gave the build."""
FIELD_LIMIT = "mapping.total_fields.limit"
NO_REFRESHES = "-1"


@dataclass(frozen=True)
class Target:
    """An index that is being written."""

    index: str
    """Its own name, even if the user gave an alias."""
    uuid: str
    """OpenSearch's id of the index, which another index of this name would not have."""
    meta: IndexMeta
    """The record of the index."""
    loading_corpus: str | None
    """The corpus for which the index was created; until it is written, the index holds no other. None after that."""
    write_alias: str | None = None
    """An alias to write through, so that no request creates the index again if it is deleted; None: there is none."""


def open_target(
    client: OpenSearch,
    index: str,
    new_meta: IndexMeta,
    settings: NewIndex,
    *,
    corpus_name: str,
    fields: Mapping[str, Any] | None = None,
    flat_objects: bool = False,
    longs: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    patience: float = 60.0,
) -> Target:
    """Create the index, set up for loading, or check that the existing index fits these models and settings.

    An index that already serves searches keeps its replicas and its refreshes; an index whose loading was interrupted is
    still set up for loading.

    new_meta: the record of an index with these models and settings
    fields: mappings of the caller's own fields; an existing index gets the fields that it lacks
    flat_objects: whether a new index maps objects as flat objects
    longs: fields whose whole numbers a new index maps as longs
    extra: further entries of a new index's `_meta.osn`
    patience: seconds to wait until the primary shards are assigned

    Raises InputError for settings that an existing index cannot get, ClusterError for a name that OpenSearch refuses, or
    for an index whose primary shards are not assigned (red).
    """
    from opensearchpy.exceptions import AuthorizationException

    meta = read_record(client, index)
    created = meta is None
    if meta is None:
        complete = _complete(new_meta, settings).with_extra(**(extra or {}))
        _create(client, index, complete, settings, corpus_name, fields, flat_objects, longs)
        meta = existing_record(client, index)
        check_unchanged_models(index, meta, new_meta)
    else:
        check_unchanged_models(index, meta, new_meta)
        _check_existing(client, index, meta, settings)
        meta = _adapt(client, index, meta, settings, fields)
    if meta.loading and meta.build:
        meta = _without_aliases(client, index, meta, created=created)
    name, of_index = _settings(client, index)
    wait_for_primaries(client, name, patience)
    if meta.loading:
        meta = _set_up_for_loading(client, index, meta, of_index)
    if meta.loading and meta.forward_index:
        meta = _without_refused_scripts(client, index, meta, name, int(of_index["number_of_shards"]))
    target = Target(name, of_index["uuid"], meta, meta.loading, f"{WRITE_ALIAS}{of_index['uuid']}")
    try:
        client.indices.put_alias(index=name, name=target.write_alias, body={"is_hidden": True})
    except AuthorizationException:
        log.warning("this user may not create an alias, so a deletion of the index during the ingest may go unnoticed")
        return replace(target, write_alias=None)
    return target


def _complete(new_meta: IndexMeta, settings: NewIndex) -> IndexMeta:
    """The record of a new index, with what `settings` says of it. Raises InputError for pruned postings without rows."""
    # Passages are collapsed to their documents, and OpenSearch cannot collapse and rescore in one search.
    rows = new_meta.sparse is not None and new_meta.passages is None and settings.forward_index
    prune = None if settings.prune_postings is None else str(settings.prune_postings)
    if prune is not None and not rows:
        raise _needs_rows(prune, new_meta)
    return replace(new_meta, version=__version__, forward_index=rows, prune_postings=prune)


def _set_up_for_loading(client: OpenSearch, index: str, meta: IndexMeta, of_index: Mapping[str, Any]) -> IndexMeta:
    """The record, after refreshes and replicas are turned off. The loading ends with those of an index template.

    of_index: the settings of the index
    """
    loading = meta.extra[LOADING]
    restore, now = dict(loading["restore"]), {}
    if of_index.get("refresh_interval") != NO_REFRESHES:
        now["refresh_interval"] = NO_REFRESHES
        restore["refresh_interval"] = of_index.get("refresh_interval", restore.get("refresh_interval"))
    if restore.get("number_of_replicas", 0) is None:
        now["number_of_replicas"] = "0"
        restore["number_of_replicas"] = int(of_index["number_of_replicas"])
    if restore != loading["restore"]:
        meta = meta.with_extra(**{LOADING: {**loading, "restore": restore}})
        write_record(client, index, meta)
    if now:
        _put_settings(client, index, now)
    return meta


def aliases_of_users(aliases: Mapping[str, Any]) -> dict[str, Any]:
    """{alias: its definition} of an index, without the alias by which `osn` itself writes."""
    return {alias: definition for alias, definition in aliases.items() if not alias.startswith(WRITE_ALIAS)}


def _without_aliases(client: OpenSearch, index: str, meta: IndexMeta, *, created: bool) -> IndexMeta:
    """The record of a build, after aliases that an index template gave it are removed: they would show it half-made.

    created: whether the build was created just now. If not, aliases are a person's and stay, but for the one that it is to
        serve.
    """
    build = meta.build
    aliases = aliases_of_users(client.indices.get_alias(index=index)[index]["aliases"])
    if not created:
        aliases = {alias: says for alias, says in aliases.items() if alias == build["alias"]}
    if not aliases:
        return meta
    # With the flag, the template could not give the alias to the next build: an alias has one write index.
    others = {alias: says for alias, says in aliases.items() if alias != build["alias"]}
    of_template = {ALIAS_SAYS: without_write_flag(aliases.get(build["alias"], {})), TEMPLATE_ALIASES: others}
    if entries := {key: says for key, says in of_template.items() if says}:
        meta = meta.with_extra(build={**build, **entries})
        write_record(client, index, meta)
    client.indices.update_aliases(body={"actions": [{"remove": {"index": index, "aliases": list(aliases)}}]})
    if created:
        log.warning(
            "an index template gave %s the aliases %s: removed until the swap, since it is not complete",
            index,
            ", ".join(aliases),
        )
    else:
        log.warning("the alias %s named %s: removed until the swap, since it is not complete", build["alias"], index)
    return meta


def without_write_flag(says: Mapping[str, Any]) -> dict[str, Any]:
    """What an alias says besides its index, without `"is_write_index": true`. An alias of one index needs no such flag."""
    return {key: value for key, value in says.items() if (key, value) != ("is_write_index", True)}


def _without_refused_scripts(client: OpenSearch, index: str, meta: IndexMeta, name: str, shards: int) -> IndexMeta:
    """The record; if the cluster refuses scripts, without the forward index. Raises ClusterError if postings need it."""
    refused = _scripts_refused(client, name, shards)
    if refused is None:
        return meta
    if meta.prune_postings is not None:
        raise ClusterError(
            f"{index!r} cannot have pruned postings, because this cluster refuses scripts, which the forward index "
            f"needs: {refused}",
            f"`osn index abort {index}` deletes it; then leave out --prune-postings",
        )
    log.warning("%r gets no forward index, because this cluster refuses scripts: %s", index, refused)
    without = replace(meta, forward_index=False)
    write_record(client, index, without)
    return without


def existing_target(client: OpenSearch, index: str) -> Target:
    """The index of this name, or the one that an alias of this name leads to now. Raises as `existing_record` does."""
    from opensearchpy.exceptions import NotFoundError

    try:
        name, settings = _settings(client, index)
    except (NotFoundError, ValueError):
        name, settings = index, {"uuid": ""}  # that there is none, or that there are several, is told next
    meta = existing_record(client, name)  # by its own name: the alias may lead to another one by now
    return Target(name, settings["uuid"], meta, meta.loading, f"{WRITE_ALIAS}{settings['uuid']}")


def _check_existing(client: OpenSearch, index: str, meta: IndexMeta, requested: NewIndex) -> None:
    """Raise InputError for requested settings that differ from the index's and cannot be changed any more."""
    name, settings = _settings(client, index)
    loading = meta.extra.get(LOADING)
    mapping = client.indices.get_mapping(index=index)[name]["mappings"]
    has: dict[str, Any] = {
        "analyzer": meta.analyzer,
        "search_analyzer": search_analyzer_of(mapping, meta),
        "shards": int(settings["number_of_shards"]),
    }
    replicas = int(settings["number_of_replicas"])
    if loading is None and replicas < (requested.replicas or 0):  # more than requested may be needed to balance zones
        has["replicas"] = replicas
    different = [
        f"--{setting.replace('_', '-')} {getattr(requested, setting)} (it has {value})"
        for setting, value in has.items()
        if getattr(requested, setting) not in (None, value)
    ]
    if requested.store_vectors and mapping.get("_source", {}).get("excludes"):
        different.append("--store-vectors")
    if requested.keep_replicas and loading is not None and "number_of_replicas" in loading["restore"]:
        different.append("--keep-replicas")
    if loading is None and requested.replicas is not None and requested.replicas < replicas:
        log.warning(
            "%r has %d replicas and keeps them: --replicas %d is for a new index; change the setting "
            "index.number_of_replicas of this one",
            index,
            replicas,
            requested.replicas,
        )
    if different:
        remedy = "leave it out, or write another index"
        if loading is not None:
            remedy += (
                " (--restart)" if meta.build else f"; `osn index abort {index}` deletes this one, which is not complete"
            )
        raise InputError(f"the index {index!r} exists already, without {', '.join(different)}", remedy)
    if meta.forward_index and not requested.forward_index:
        raise InputError(f"the index {index!r} exists already, with a forward index", "leave out --no-forward-index")
    if requested.prune_postings is not None and str(requested.prune_postings) != meta.prune_postings:
        are = f"pruned by {meta.prune_postings}" if meta.prune_postings else "whole"
        raise InputError(
            f"the postings of the index {index!r} are {are}, not pruned by {requested.prune_postings}",
            "leave out --prune-postings, or write another index",
        )


def _needs_rows(prune: str, new_meta: IndexMeta) -> InputError:
    if new_meta.sparse is None:
        why, remedy = "this ingest writes no sparse vectors", "give --sparse MODEL too"
    elif new_meta.passages is not None:
        why, remedy = "an index of passages has no forward index", "leave out --passages, or prune with --prune"
    else:
        why, remedy = "--no-forward-index excludes it", "leave out --no-forward-index, or prune with --prune"
    return InputError(f"--prune-postings {prune} needs the forward index, which holds whole vectors: {why}", remedy)


def _adapt(
    client: OpenSearch, index: str, meta: IndexMeta, requested: NewIndex, fields: Mapping[str, Any] | None
) -> IndexMeta:
    """Apply settings that an existing index can still get: replicas at the end of its loading, more fields.

    Raises InputError if the index maps one of the fields differently.
    """
    from opensearchpy.exceptions import RequestError

    if requested.replicas is not None and LOADING in meta.extra:
        meta = _with_replicas(client, index, meta, requested.replicas)
    if requested.field_limit is not None:
        client.indices.put_settings(index=index, body={"index": {FIELD_LIMIT: requested.field_limit}})
    if fields:
        try:
            client.indices.put_mapping(index=index, body={"properties": dict(fields)})
        except RequestError as error:
            raise InputError(
                f"--mapping does not fit the index {index!r}, which exists already: {reason_of(error)[1]}",
                "leave that field out, or write another index",
            ) from error
    return meta


def _scripts_refused(client: OpenSearch, index: str, shards: int) -> str | None:
    """Why the cluster refuses the script that reads a forward index; None if it runs it, or if the user may not ask."""
    from opensearchpy.exceptions import ConnectionError, RequestError, TransportError

    # A new index is yellow before its primaries are assigned.
    index_health(client, index, wait_for_active_shards=str(shards), timeout="20s", request_timeout=50, ignore=408)
    try:
        client.search(index=index, body={"query": forward_clause({"-": 1.0}, "sparse"), "size": 0})
    except RequestError as error:
        return reason_of(error)[1]
    except ConnectionError:
        raise
    except TransportError as error:  # this user may not search, or the index cannot be searched yet
        log.info("whether this cluster runs scripts is not known: %s", reason_of(error)[1])
        return None
    return None


def _create(
    client: OpenSearch,
    index: str,
    meta: IndexMeta,
    settings: NewIndex,
    corpus_name: str,
    fields: Mapping[str, Any] | None,
    flat_objects: bool,
    longs: Sequence[str],
) -> None:
    """Create the index. On a cluster that balances its zones, it gets a balanced number of replicas from the beginning.

    It is no error if the index exists by now: the answer to its creation may have been lost, and the request sent again.
    A build is also created if an index template would make it another write index of an alias: the alias keeps its own.
    """
    from opensearchpy.exceptions import RequestError, TransportError

    limit = {} if settings.field_limit is None else {FIELD_LIMIT: settings.field_limit}

    def create(replicas: int | None, loading_replicas: int | None) -> None:
        restore = {"refresh_interval": None} | ({} if settings.keep_replicas else {"number_of_replicas": replicas})
        body = index_body(
            meta.with_extra(**{LOADING: {"restore": restore, "corpus": corpus_name}}),
            shards=settings.shards,
            replicas=loading_replicas,
            store_vectors=settings.store_vectors,
            fields=fields,
            flat_objects=flat_objects,
            longs=longs,
            search_analyzer=settings.search_analyzer,
            settings=limit,
        )
        aliases: dict[str, Any] = {}  # in place of those of an index template
        while True:
            try:
                # Do not wait for its shards here; `wait_for_primaries` does, and reports why they are missing.
                client.indices.create(index=index, body=body, params={"wait_for_active_shards": "0"})
                return
            except TransportError as error:
                alias = re.match(r"alias \[(.+)\] has more than one write index", reason_of(error)[1])
                if alias is None or alias[1] in aliases or not meta.build:
                    raise
                aliases[alias[1]] = _at_write_index(client, alias[1])
                body["aliases"] = aliases

    replicas = settings.replicas  # None: those of an index template, which are read and turned off when it is there
    try:
        create(replicas, replicas if settings.keep_replicas or replicas is None else 0)
    except RequestError as error:
        if reason_of(error)[0] == "resource_already_exists_exception":
            return
        zones = demanded_copies(error)
        if zones is None:
            raise
        balanced = balanced_replicas(1 if replicas is None else replicas, zones)
        log.warning("this cluster balances %d zones: %s gets %d replicas, from the beginning", zones, index, balanced)
        create(balanced, balanced)


def _at_write_index(client: OpenSearch, alias: str) -> dict[str, Any]:
    """What an alias says of its write index besides the flag; nothing if it has none."""
    answer = allowed(lambda: client.indices.get_alias(name=alias)) or {}
    definitions = [each["aliases"][alias] for each in answer.values() if each["aliases"][alias].get("is_write_index")]
    return without_write_flag(definitions[0]) if definitions else {}


def _with_replicas(client: OpenSearch, index: str, meta: IndexMeta, replicas: int) -> IndexMeta:
    """Change the number of replicas of an index that is still loading: at the end, or now if it is loaded with replicas."""
    loading = meta.extra[LOADING]
    if "number_of_replicas" not in loading["restore"]:
        if int(_settings(client, index)[1]["number_of_replicas"]) != replicas:
            _put_settings(client, index, {"number_of_replicas": replicas})
    elif loading["restore"]["number_of_replicas"] != replicas:
        changed = {**loading, "restore": {**loading["restore"], "number_of_replicas": replicas}}
        meta = meta.with_extra(**{LOADING: changed})
        write_record(client, index, meta)
    return meta


def own_name(client: OpenSearch, index: str) -> str:
    """The name of the index that an alias names; `index` itself if it is an index or does not exist."""
    from opensearchpy.exceptions import NotFoundError

    try:
        return _settings(client, index)[0]
    except NotFoundError:
        return index


def wait_for_primaries(client: OpenSearch, index: str, patience: float) -> None:
    """Raise ClusterError, with the cluster's own explanation, if a primary shard is not assigned in time."""
    deadline = time.monotonic() + patience
    while True:
        seconds = max(1, min(20, int(deadline - time.monotonic())))
        # For an index that stays red, the answer has status 408 and its health. (Without request_timeout, opensearch-py
        # would use the server's timeout as its own.)
        health = index_health(
            client, index, wait_for_status="yellow", timeout=f"{seconds}s", request_timeout=seconds + 30, ignore=408
        )
        if health["status"] != "red" if health is not None else all_shards_answer(client, index):
            return
        if health is None:
            time.sleep(1.0)
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"the index {index!r} is red: {_why_unassigned(client, index)}",
                "repair the cluster (`osn doctor` shows heap and disk), then run the same command again",
            )


def _why_unassigned(client: OpenSearch, index: str) -> str:
    from opensearchpy.exceptions import AuthorizationException

    try:
        shards = client.cat.shards(index=index, params={"format": "json", "h": "shard,prirep,state,unassigned.reason"})
    except AuthorizationException:
        return "a primary shard is missing, and this user may not ask why"
    missing = [int(shard["shard"]) for shard in shards if shard["prirep"] == "p" and shard["state"] != "STARTED"]
    if not missing:
        return "a primary shard is missing"
    body = {"index": index, "shard": missing[0], "primary": True}
    try:
        explanation = client.cluster.allocation_explain(body=body)
    except AuthorizationException:
        return f"shard {missing[0]} is not assigned to a node, and this user may not ask why"
    reasons = [explanation.get("allocate_explanation", "")]
    for node in explanation.get("node_allocation_decisions", ()):
        reasons.extend(decider["explanation"] for decider in node.get("deciders", ()))
    return "; ".join(filter(None, dict.fromkeys(reasons))) or f"shard {missing[0]} is not assigned to a node"


def mark_adding(client: OpenSearch, target: Target, corpus_name: str) -> None:
    """Record in the index that a corpus is being written into it, until `finish`. A new index has this record already."""
    if target.loading_corpus is not None:
        return
    meta = read_record(client, target.index)
    # If the index was deleted meanwhile, the first write request notices it.
    if meta is not None and corpus_name not in meta.adding:
        write_record(client, target.index, meta.with_extra(**{ADDING: [*meta.adding, corpus_name]}))


def finish(client: OpenSearch, target: Target, *, merge: bool, corpus_name: str | None = None) -> None:
    """Restore replicas and refresh interval and, with `merge`, merge each shard to one segment.

    The settings are restored before the merge, which may take hours.
    corpus_name: the corpus that was written. None: all corpora that were being written.
    """
    if target.write_alias is not None:
        client.indices.delete_alias(index=target.index, name=target.write_alias, params={"ignore": 404})
    meta = read_record(client, target.index)
    loading = None if meta is None else meta.extra.get(LOADING)
    if loading is not None:
        _put_settings(client, target.index, loading["restore"])
    if merge:
        merge_segments(client, target.index)
        meta = read_record(client, target.index)  # others may have stored something meanwhile
    if meta is None or meta.unfinished is None:
        return
    adding = [name for name in meta.adding if corpus_name is not None and name != corpus_name]
    if corpus_name is not None and meta.loading not in (None, corpus_name):
        adding.insert(0, str(meta.loading))  # an earlier ingest of another corpus was interrupted
    if loading is not None:
        meta = replace(meta, version=__version__)
    write_record(client, target.index, meta.with_extra(**{LOADING: None, ADDING: adding or None}))


def _put_settings(client: OpenSearch, index: str, settings: dict[str, Any]) -> None:
    """Give the index its settings. On a cluster that balances its zones, the number of replicas is raised to fit."""
    from opensearchpy.exceptions import RequestError

    try:
        client.indices.put_settings(index=index, body={"index": settings})
    except RequestError as error:
        zones = demanded_copies(error)
        if zones is None:
            raise
        balanced = balanced_replicas(int(settings["number_of_replicas"]), zones)
        client.indices.put_settings(index=index, body={"index": {**settings, "number_of_replicas": balanced}})


def verify_unchanged_index(client: OpenSearch, target: Target) -> None:
    """Raise ClusterError if the index was deleted, or replaced by another of the same name, while it was being written."""
    from opensearchpy.exceptions import NotFoundError

    try:
        unchanged = _settings(client, target.index)[1]["uuid"] == target.uuid
    except NotFoundError:
        unchanged = False
    if not unchanged:
        raise ClusterError(
            f"the index {target.index!r} was deleted or replaced while it was being written",
            "run the same command again to start over",
        )


def _settings(client: OpenSearch, index: str) -> tuple[str, dict[str, Any]]:
    """(own name, settings) of an index, or of the index that an alias names."""
    ((name, settings),) = client.indices.get_settings(index=index).items()
    return name, settings["settings"]["index"]
