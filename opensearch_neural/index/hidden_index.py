"""What searches need from a sparse model, stored on the cluster: its query encoder, and the largest weights.

So an application needs no model files. Both are stored in the hidden index `osn-query-encoders`, whose documents are never
searched:

    encoder-<hash>          {"name", "bytes", "sha256", "parts": ["encoder-<hash>-<sha256>-0", …], "users": [index, …]}
    encoder-<hash>-…-0      {"content": base64 of a part of the bytes from `TableEncoder.to_bytes`}
    largest-<uuid>          {"index": own name, "content": base64 of gzip of {token: weight}}    for the index with this uuid

The content comes from others, so its size is limited, it is checked, and nothing in it is executed. The largest weights
never decrease. Every writer raises them before it writes documents (`raise_largest`), so they bound every document.

`users` are the indexes that search with an encoder: an ingest adds its index, and what deletes an index removes it. The
encoder goes with the last one. Mappings alone do not tell who uses it, since a cluster with the Security plugin may show
each user only their own indexes. Encoders of earlier versions list no users, and are never deleted.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opensearch_neural import queries
from opensearch_neural.cluster.errors import reason_of
from opensearch_neural.cluster.zones import balanced_replicas, demanded_copies
from opensearch_neural.errors import ClusterError, ModelError
from opensearch_neural.files import packed_json, unpacked_json
from opensearch_neural.index.record import TO_SEARCH, IndexMeta, check_same_model
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.table_encoder import QUERY_FILES, TableEncoder

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch, OpenSearch

    from opensearch_neural.index.record import SparseMeta

log = logging.getLogger(__name__)
Encoder = TypeVar("Encoder", bound=TableEncoder)

INDEX = "osn-query-encoders"
LARGEST = "largest_weights"
"""The entry of an index's record that holds the id of the document with its largest weights."""
PART_BYTES = 3_000_000
"""4 MB in base64: clusters refuse requests above 100 MB, and some proxies refuse smaller ones."""
MOST_BYTES = 64_000_000
"""A query encoder takes some hundred kB, or 5 MB with a vocabulary of 250,000 tokens."""
AT_ONCE = 500
"""Searches in one request."""
CONFLICTS = 20


@dataclass(frozen=True)
class LargestWeights:
    """The largest stored weight of each token in any document of an index; a token without one is in no document."""

    index: str
    """The index's own name."""
    weights: dict[str, float]
    """{token: weight}"""
    version: tuple[int, int]
    """(sequence number, primary term) of the document that holds them."""


def store_encoder(client: OpenSearch, index: str, hash: str, name: str, content: bytes) -> None:
    """Store the query encoder of an index under its hash. The document that names the parts is written last, so no part is
    missing.

    index: the index's own name, which is added to the encoder's users
    Raises ClusterError if others keep changing them at the same time.
    """
    from opensearchpy.exceptions import ConflictError

    make_hidden_index(client, INDEX, {"enabled": False})
    digest = hashlib.sha256(content).hexdigest()
    parts = {}
    for number, start in enumerate(range(0, len(content), PART_BYTES)):
        part = content[start : start + PART_BYTES]
        parts[f"encoder-{hash}-{digest[:16]}-{number}"] = {"content": base64.b64encode(part).decode()}
    header = {"name": name, "bytes": len(content), "sha256": digest, "parts": list(parts)}
    for _ in range(CONFLICTS):
        before = client.get(index=INDEX, id=f"encoder-{hash}", params={"ignore": 404})
        for id, document in parts.items():
            client.index(index=INDEX, id=id, body=document)
        users = _users(before) if before.get("found") else set()
        listed = {} if users is None else {"users": sorted(users | {index})}
        try:
            client.index(index=INDEX, id=f"encoder-{hash}", body=header | listed, params=_unchanged(before))
            return
        except ConflictError:
            continue
    raise ClusterError(f"others changed the query encoder of {name} {CONFLICTS} times in a row", "try again")


def read_encoder(client: OpenSearch, hash: str) -> bytes | None:
    """The query encoder with this hash; None if the cluster has none, or this user may not read it.

    Raises ModelError if it is damaged.
    """
    from opensearchpy.exceptions import AuthorizationException

    try:
        header = client.get(index=INDEX, id=f"encoder-{hash}", params={"ignore": 404}).get("_source")
        if header is None:
            return None
        parts = client.mget(index=INDEX, body={"ids": _part_ids(header, hash)})
    except AuthorizationException:
        _warn_unreadable()
        return None
    return _joined(header, parts)


async def read_encoder_async(client: AsyncOpenSearch, hash: str) -> bytes | None:
    """As `read_encoder`."""
    from opensearchpy.exceptions import AuthorizationException

    try:
        header = (await client.get(index=INDEX, id=f"encoder-{hash}", params={"ignore": 404})).get("_source")
        if header is None:
            return None
        parts = await client.mget(index=INDEX, body={"ids": _part_ids(header, hash)})
    except AuthorizationException:
        _warn_unreadable()
        return None
    return _joined(header, parts)


def encoder_of(kind: type[Encoder], sparse_meta: SparseMeta, stored: bytes | None, index: str) -> Encoder:
    """The query encoder of the model that wrote an index. stored: its bytes on the cluster; None: from this machine.

    Raises ModelError if the model is neither there nor on this machine, or is another one.
    """
    if stored is None:
        try:
            folder = registry.find(sparse_meta.hash, sparse_meta.name, "sparse", files=QUERY_FILES)
        except registry.NotOnThisMachine as error:
            raise ModelError(
                f"{error.message}, and its query encoder was not found in the cluster's hidden index {INDEX!r}",
                f"`osn index store-encoder {index}` stores it there again, from a machine that has the model; "
                f"or {error.remedy}",
            ) from None
        encoder = kind.load(folder)
    else:
        encoder = kind.from_bytes(stored, name=sparse_meta.name)
    check_same_model(
        index, "sparse", (sparse_meta.name, sparse_meta.query_hash), (sparse_meta.name, encoder.hash), TO_SEARCH
    )
    return encoder


def _warn_unreadable() -> None:
    log.warning("this user may not read the index %r, where query encoders are stored", INDEX)


def _part_ids(header: Mapping[str, Any], hash: str) -> list[str]:
    parts, size = header.get("parts"), header.get("bytes")
    if not isinstance(size, int) or not 0 < size <= MOST_BYTES:
        raise _damaged(header, f"it claims {size!r} bytes; at most {MOST_BYTES:,} are read")
    if not isinstance(parts, list) or len(parts) != -(-size // PART_BYTES):
        raise _damaged(header, "it lists too few or too many parts for its size")
    if not all(isinstance(id, str) and id.startswith(f"encoder-{hash}-") for id in parts):
        raise _damaged(header, "it lists parts of another encoder")
    return parts


def _joined(header: Mapping[str, Any], answer: Mapping[str, Any]) -> bytes:
    try:
        parts = [base64.b64decode(part["_source"]["content"], validate=True) for part in answer["docs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(header, f"a part is missing or unreadable: {error}") from None
    content = b"".join(parts)
    if hashlib.sha256(content).hexdigest() != header.get("sha256"):
        raise _damaged(header, "the hash of its parts is wrong")
    return content


def _damaged(header: Mapping[str, Any], why: str) -> ModelError:
    return ModelError(
        f"the query encoder of the model {str(header.get('name'))[:80]!r}, stored in {INDEX!r}, is damaged: {why}",
        "`osn index store-encoder INDEX` stores it anew, from a machine that has the model",
    )


def store_largest(client: OpenSearch, index: str, uuid: str, weights: Mapping[str, float]) -> str:
    """Store the largest weights of an index; returns the id of their document, for the index's record."""
    make_hidden_index(client, INDEX, {"enabled": False})
    id = f"largest-{uuid}"
    client.index(index=INDEX, id=id, body=_largest_document(index, weights))
    return id


def read_largest(client: OpenSearch, id: str | None, before: LargestWeights | None = None) -> LargestWeights | None:
    """The current largest weights, by the id in the index's record; None if none are stored.

    before: what an earlier call returned. It is returned again if nothing has changed, which takes a small request.
    """
    from opensearchpy.exceptions import AuthorizationException

    if id is None:
        return None
    try:
        if before is not None:
            now = client.get(index=INDEX, id=id, params={"ignore": 404, "_source": "false"})
            if now.get("found") and (now["_seq_no"], now["_primary_term"]) == before.version:
                return before
        answer = client.get(index=INDEX, id=id, params={"ignore": 404})
    except AuthorizationException:
        return None
    if not answer.get("found"):
        return None
    try:
        source = answer["_source"]
        weights = unpacked_json(base64.b64decode(source["content"], validate=True))
        checked = {token: float(weight) for token, weight in weights.items()}
        return LargestWeights(str(source["index"]), checked, (answer["_seq_no"], answer["_primary_term"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        log.warning("the largest weights in %r, document %r, are damaged and not used: %s", INDEX, id, error)
        return None


def raise_largest(client: OpenSearch, id: str, weights: Mapping[str, float]) -> None:
    """Raise each stored weight to the given one if that is larger. Does nothing if no weights are stored.

    Raises ClusterError if others keep changing them at the same time.
    """
    from opensearchpy.exceptions import ConflictError

    for _ in range(CONFLICTS):
        stored = read_largest(client, id)
        if stored is None:
            return
        larger = {token: weight for token, weight in weights.items() if weight > stored.weights.get(token, 0.0)}
        if not larger:
            return
        condition = dict(zip(("if_seq_no", "if_primary_term"), stored.version, strict=True))
        try:
            client.index(
                index=INDEX, id=id, body=_largest_document(stored.index, {**stored.weights, **larger}), params=condition
            )
            return
        except ConflictError:
            continue
    raise ClusterError(f"others changed the largest weights of the index {CONFLICTS} times in a row", "try again")


def forget_largest(client: OpenSearch, id: str) -> None:
    """Delete the largest weights of an index. Who needs some asks the index then, until an ingest stores them anew."""
    client.delete(index=INDEX, id=id, params={"ignore": 404})


def ask_largest(client: OpenSearch, index: str, tokens: Iterable[str]) -> dict[str, float]:
    """The largest weight of each token, by one search a token. Raises ClusterError if a search fails."""
    every, largest = list(tokens), {}
    for start in range(0, len(every), AT_ONCE):
        part = every[start : start + AT_ONCE]
        lines: list[dict[str, Any]] = []
        for token in part:
            lines += [{}, queries.neural_sparse({token: 1.0}, plugin=False, size=1, source=False)]
        for token, answer in zip(part, client.msearch(index=index, body=lines)["responses"], strict=True):
            if "error" in answer or queries.partial_answer(answer):
                raise ClusterError(f"the search for the largest weight of {token!r} in {index!r} failed")
            if hits := answer["hits"]["hits"]:
                # The JSON has just enough digits to identify a float32.
                largest[token] = float(np.float32(hits[0]["_score"]))
    return largest


def forget(client: OpenSearch, index: str, meta: IndexMeta) -> None:
    """Delete what is stored for a deleted index. A query encoder stays while another index uses it."""
    from opensearchpy.exceptions import AuthorizationException

    try:
        if id := meta.extra.get(LARGEST):
            forget_largest(client, id)
        if meta.sparse is not None and meta.sparse.query_hash:
            _leave_encoder(client, index, meta.sparse.query_hash)
    except (AuthorizationException, ModelError) as error:
        log.debug("cannot delete from %r what it stores for a deleted index: %s", INDEX, error)


def _leave_encoder(client: OpenSearch, index: str, hash: str) -> None:
    """Remove an index from the users of a query encoder; without users, and if no index that this user may see names it,
    delete it."""
    from opensearchpy.exceptions import ConflictError

    id = f"encoder-{hash}"
    for _ in range(CONFLICTS):
        before = client.get(index=INDEX, id=id, params={"ignore": 404})
        users = _users(before) if before.get("found") else None
        if users is None:
            return
        others = users - {index}
        try:
            if others or hash in _hashes_in_use(client):
                if others != users:
                    header = {**before["_source"], "users": sorted(others)}
                    client.index(index=INDEX, id=id, body=header, params=_unchanged(before))
                return
            parts = client.mget(index=INDEX, body={"ids": _part_ids(before["_source"], hash)})["docs"]
            client.delete(index=INDEX, id=id, params=_unchanged(before))
        except ConflictError:
            continue
        for part in parts:
            if part.get("found"):
                with suppress(ConflictError):  # an ingest has stored it again
                    client.delete(index=INDEX, id=part["_id"], params=_unchanged(part))
        return


def _users(answer: Mapping[str, Any]) -> set[str] | None:
    """The indexes that use a query encoder; None if its document does not list them."""
    users = answer["_source"].get("users")
    return set(map(str, users)) if isinstance(users, list) else None


def _unchanged(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a write that fails if a document has changed, or was created, since this answer."""
    if not answer.get("found"):
        return {"op_type": "create"}
    return {"if_seq_no": answer["_seq_no"], "if_primary_term": answer["_primary_term"]}


def _hashes_in_use(client: OpenSearch) -> set[str]:
    params = {"expand_wildcards": "all", "filter_path": "*.mappings._meta.osn.sparse.query_hash"}
    mappings = client.indices.get_mapping(index="*", params=params)
    return {mapping["mappings"]["_meta"]["osn"]["sparse"]["query_hash"] for mapping in mappings.values()}


def _largest_document(index: str, weights: Mapping[str, float]) -> dict[str, str]:
    return {"index": index, "content": base64.b64encode(packed_json(dict(weights))).decode()}


def make_hidden_index(client: OpenSearch, index: str, mappings: Mapping[str, Any]) -> None:
    """Create an index of `osn`'s own, which patterns do not match, unless it exists.

    It has one replica, or on a cluster that balances its zones a copy in each, as far as there are data nodes.
    """
    from opensearchpy.exceptions import RequestError

    def create(most_replicas: int) -> None:
        settings = {"number_of_shards": 1, "auto_expand_replicas": f"0-{most_replicas}", "hidden": True}
        try:
            client.indices.create(index=index, body={"settings": {"index": settings}, "mappings": mappings})
        except RequestError as error:
            if reason_of(error)[0] != "resource_already_exists_exception":  # another process was faster
                raise

    if client.indices.exists(index=index):
        return
    try:
        create(1)
    except RequestError as error:
        zones = demanded_copies(error)
        if zones is None:
            raise
        create(balanced_replicas(1, zones))
