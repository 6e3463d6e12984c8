"""The checks before an alias is moved to a new index."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.versions.builds import (
    REPLICA_PATIENCE,
    check_can_serve,
    record_if_ours,
    serve,
    serving_index,
    serving_since,
    versions,
)
from ingest.versions.tunings import carry_tunings
from ingest.writing import stored_documents
from ingest.writing.lease import Lease
from ingest.writing.stored_documents import Counts
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.commands.option_groups import FiniteRange, options_of, setting, setting_options
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.health import index_health
from opensearch_neural.index.record import existing_record
from opensearch_neural.index.segments import refresh
from opensearch_neural.retrievers.opensearch import scores_of, search

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from ingest.settings import Models

log = logging.getLogger(__name__)

TOP = 10


class SwapRefused(ClusterError):
    """The new index fails a check before the swap."""


@dataclass(frozen=True)
class Requirement:
    """A query that must find a document."""

    query: str
    """The text to search for."""
    id: str
    """The `_id` of the document to find."""
    k: int = TOP
    """The document must be among the first k hits."""


@dataclass(frozen=True)
class Gate:
    """The checks before an alias is moved to a new index, and how long its replicas are waited for."""

    allow_shrink: bool = setting(
        False, "Swap even if the new index is empty or has fewer documents than --least-share says."
    )
    least_share: float = setting(
        0.9, "Swap only if the new index has this share of the current index's documents.", type=FiniteRange(0, 1)
    )
    require: tuple[Requirement, ...] = setting(
        (),
        "Swap only if the query finds the document in its first 10 hits ('QUERY => ID @3': first 3). Repeatable.",
        multiple=True,
        metavar="'QUERY => ID'",
        callback=lambda context, option, texts: tuple(map(parse_requirement, texts)),
    )
    replica_patience: float = setting(
        REPLICA_PATIENCE,
        "Seconds to wait, before the swap, for replicas that nodes have yet to copy.",
        "--wait-for-replicas",
        metavar="SECONDS",
        type=FiniteRange(min=0),
    )


def parse_requirement(text: str) -> Requirement:
    """QUERY => ID, or QUERY => ID @K. Raises InputError for anything else."""
    query, arrow, rest = text.rpartition("=>")
    id, at, k = rest.rpartition(" @")
    id, number = (id.strip(), k.strip()) if at else (rest.strip(), str(TOP))
    is_number = re.fullmatch("[0-9]{1,5}", number) is not None
    if not arrow or not query.strip() or not id or not is_number or not 1 <= int(number) <= 10_000:
        raise InputError(f"--require {text!r}: expected 'QUERY => ID', or 'QUERY => ID @K' for the first K hits")
    return Requirement(query.strip(), id, int(number))


gate_options = options_of(Gate, "gate", *setting_options(Gate).values())


def check_swap(client: OpenSearch, alias: str, index: str, gate: Gate) -> Counts:
    """The documents of both indexes. The new index must have been refreshed.

    Raises SwapRefused if the alias must not be moved to it, ClusterError if shards do not answer.
    """
    serving = serving_index(client, alias)
    before = None if serving is None or serving == index else _before(client, serving, gate)
    counts = Counts(_documents(client, index), before)
    remedy = f"{alias!r} stays as it is; add --allow-shrink to swap all the same"
    if not counts.documents and not gate.allow_shrink:
        raise SwapRefused(f"the new index {index!r} holds no document", remedy)
    if before is not None and counts.documents < gate.least_share * before and not gate.allow_shrink:
        raise SwapRefused(
            f"the new index {index!r} holds {counts.documents} documents, the current index {serving!r} "
            f"{before}, and at least {gate.least_share:.0%} of them are asked for",
            remedy,
        )
    for required in gate.require:
        engines = open_engines(client, index)
        body = engines.body(engines.default, required.query, size=required.k)
        ids = list(scores_of(body, search(client, index, body), required.k))
        if required.id not in ids:
            raise SwapRefused(
                f"{required.query!r} does not find {required.id!r} among the first {required.k} hits in "
                f"{index!r}, but {', '.join(ids[:3]) or 'nothing'}",
                f"{alias!r} stays as it is; leave out this --require to swap all the same",
            )
    return counts


@dataclass(frozen=True)
class Swap:
    """An alias that was moved, or may be."""

    index: str
    """The index that the alias names now, or will."""
    replaced: str | None
    """The index that it named before."""
    counts: Counts
    """Documents of both indexes."""


@translate_errors()
def serve_build(client: OpenSearch, alias: str, build: str | None, gate: Gate, *, dry_run: bool = False) -> Swap:
    """Move an alias to a finished build that passes the gate.

    build: the build's own name; None: the only finished build that never served and is newer than the serving index
    dry_run: check everything, and move nothing
    Raises SwapRefused as `check_swap`; InputError if no build waits, or several, and for an index that is no build of the
    alias, or has served; ClusterError if the build is being written, or its writing was interrupted; and as
    `check_can_serve`.
    """
    with Lease(client, f"alias:{alias}") as alias_lease:
        index = _waiting(client, alias) if build is None else build
        _refuse_others(client, alias, index)
        with Lease(client, f"index:{index}") as index_lease:

            def still_ours() -> None:
                alias_lease.check()
                index_lease.check()

            _refuse_adding(client, index)
            check_can_serve(client, alias, index)
            refresh(client, index)
            counts = check_swap(client, alias, index, gate)
            carry_tunings(client, alias, index, store=not dry_run)
            if dry_run:
                return Swap(index, serving_index(client, alias), counts)
            replaced = serve(client, alias, index, patience=gate.replica_patience, still_ours=still_ours)
            return Swap(index, replaced, counts)


def _waiting(client: OpenSearch, alias: str) -> str:
    """The finished build that never served and is newer than the serving index. Raises InputError for none or several."""
    since = serving_since(client, alias)
    finished = [version for version in versions(client, alias) if version.complete and not version.served]
    newer = [version.index for version in finished if version.created > since]
    if len(newer) > 1:
        raise InputError(
            f"{alias!r} has {len(newer)} finished builds that never served", f"name one: {', '.join(newer)}"
        )
    if newer:
        return newer[0]
    if older := [version.index for version in finished]:
        raise InputError(
            f"no finished build of {alias!r} waits that is newer than the serving index",
            f"to serve an older one, name it: {', '.join(older)}",
        )
    raise InputError(f"no finished build of {alias!r} waits", "`osn ingest --alias … --no-swap` makes one")


def _refuse_others(client: OpenSearch, alias: str, index: str) -> None:
    """Raise InputError for an index that is no build of the alias, by its own name, or has served before."""
    builds = {version.index: version for version in versions(client, alias, closed=True)}
    build = builds.get(index)
    if build is None:
        never = [name for name, version in builds.items() if version.complete and not version.served]
        raise InputError(
            f"{index!r} is not the name of a build of {alias!r}",
            f"name one: {', '.join(never)}" if never else "`osn ingest --alias … --no-swap` makes one",
        )
    if build.served and not build.serving:
        raise InputError(
            f"{index!r} has served {alias!r} before", f"`osn index rollback {alias} --to {index}` goes back to it"
        )


def _refuse_adding(client: OpenSearch, index: str) -> None:
    if adding := existing_record(client, index).adding:
        raise ClusterError(
            f"the writing of {', '.join(adding)} into {index!r} was interrupted",
            f"run that `osn ingest --index {index}` again, or accept the build as it is: `osn index finish {index}`",
        )


def check_vectors(client: OpenSearch, alias: str, index: str, models: Models) -> None:
    """Raise SwapRefused if a build would lack a kind of vectors of the current index.

    A new build takes no models from the one before, and an ingest without `--sparse` would leave BM25 alone. "none" says
    that this is meant. index: the build, begun or not
    """
    serving = serving_index(client, alias)
    serving_meta = None if serving is None else record_if_ours(client, serving)
    if serving_meta is None:
        return
    begun = record_if_ours(client, index) if client.indices.exists(index=index) else None
    lacking: dict[str, str] = {}
    for kind, option in (("sparse", "sparse"), ("dense", "dense"), ("quantized", "pq")):
        model, chosen = getattr(serving_meta, kind), getattr(models, option)
        if model is None or chosen == "none":
            continue
        encoded = chosen is not None or (kind == "dense" and models.reconstruct)
        if not (encoded if begun is None else getattr(begun, kind) is not None):
            lacking[option] = f"{kind} vectors of {model.name}"
    if lacking:
        from_codes = serving_meta.dense is not None and serving_meta.dense.reconstructed
        give = ["--dense-from-codes" if option == "dense" and from_codes else f"--{option} MODEL" for option in lacking]
        without = " ".join(f"--{option} none" for option in lacking)
        again = "" if begun is None else "--restart "
        raise SwapRefused(
            f"the current index {serving!r} has {' and '.join(lacking.values())}, and the build would have none",
            f"give {again}{' '.join(give)}, or {without} to build without them",
        )


def _before(client: OpenSearch, serving: str, gate: Gate) -> int | None:
    """The documents of the current index; None if it is red, or cannot be counted and need not be."""
    if (index_health(client, serving) or {}).get("status") == "red":
        log.warning("the documents of the current index %s are not counted, because it is red", serving)
        return None
    try:
        with translate_errors():
            return _documents(client, serving)
    except ClusterError as error:
        if not gate.allow_shrink:
            raise
        log.warning("the documents of the current index %s are not counted: %s", serving, error.message)
        return None


def _documents(client: OpenSearch, index: str) -> int:
    """Documents of an index; of passages, the first of each document counts. Raises ClusterError if shards do not answer."""
    record = record_if_ours(client, index)
    if record is None or record.passages is None:
        return stored_documents.count(client, index)
    return stored_documents.count(client, index, {"term": {"passage.number": 1}})
