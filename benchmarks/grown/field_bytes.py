"""What each field costs on disk, measured by writing it alone: Lucene keeps all fields in the same files, and OpenSearch
does not report them apart."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from benchmarks.grown.index import BATCH
from benchmarks.load.server import index_facts
from ingest.vectorizers import Vectorizer
from ingest.writing.bulk_actions import prepare
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import DenseMeta, IndexMeta
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.queries import forward_index

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

STORED = "_source (title, text, url)"


class Alone(NamedTuple):
    """A field, with the mapping and the vectorizer that write it and no other."""

    field: str | None
    """None: an index with no field of vectors."""
    meta: IndexMeta
    """The record that gives the field its mapping."""
    vectorizer: Vectorizer
    """Makes the vectors, of which only this field's are written."""


def bytes_by_field(
    client: OpenSearch,
    meta: IndexMeta,
    documents: Sequence[Document],
    vectorizer: Vectorizer,
    others: Mapping[str, Alone] | None = None,
) -> dict[str, float]:
    """{field: bytes a document}, each of an index with this field alone, merged to one segment and deleted again.

    `contents` is the field that BM25 searches. What every index has (ids, sequence numbers) is subtracted.
    others: {name in the result: a field with another mapping or vectorizer}. Raises ClusterError if the cluster refuses.
    """
    meta = replace(meta, forward_index=meta.sparse is not None)
    model_of = {"sparse": meta.sparse, forward_index.FIELD: meta.sparse, "dense": meta.dense, "pq": meta.quantized}
    fields = [None, "contents", *(field for field, model in model_of.items() if model is not None), STORED]
    parts = {field: Alone(field, meta, vectorizer) for field in fields} | dict(others or {})
    index_of: dict[str | None, str] = {}
    try:
        with translate_errors():
            for name, part in parts.items():
                index_of[name] = f"osn-bench-field-{uuid.uuid4().hex[:8]}"
                _create(client, index_of[name], part)
            # At least two segments: merging leaves a single one as it is, with what OpenSearch keeps for replicas.
            size = min(BATCH, -(-len(documents) // 2))
            for at in range(0, len(documents), size):
                _write(client, documents[at : at + size], {index_of[name]: part for name, part in parts.items()})
            # Merge after all indexes are written: a merge waits half a minute, until OpenSearch drops what it keeps.
            sizes = {name: _merged_size(client, index) for name, index in index_of.items()}
    finally:
        for index in index_of.values():
            client.indices.delete(index=index, params={"ignore_unavailable": "true"})
    empty = sizes.pop(None)
    return {str(name): max(0.0, (size - empty) / len(documents)) for name, size in sizes.items()}


def _create(client: OpenSearch, index: str, part: Alone) -> None:
    body = index_body(part.meta, replicas=0, settings={"refresh_interval": "-1"})
    mapping = body["mappings"]
    mapping["dynamic"] = "false"
    mapping.pop("dynamic_templates", None)
    mapping["_source"] = {"enabled": part.field == STORED}
    properties = mapping["properties"]
    mapping["properties"] = {part.field: properties[part.field]} if part.field in properties else {}
    client.indices.create(index=index, body=body)


def _write(client: OpenSearch, documents: Sequence[Document], parts: Mapping[str, Alone]) -> None:
    """Write each document into all indexes. Each vectorizer encodes it only once, since encoding takes most of the time."""
    encoded: dict[tuple[int, DenseMeta | None], list[tuple[str, dict[str, Any]]]] = {}
    for index, (field, meta, vectorizer) in parts.items():
        made_by = (id(vectorizer), meta.dense)
        if made_by not in encoded:
            actions = prepare(documents, vectorizer, meta).actions
            encoded[made_by] = [(action.id, orjson.loads(action.source)) for action in actions]
        lines: list[bytes] = []
        for id_, source in encoded[made_by]:
            lines += [orjson.dumps({"index": {"_id": id_}}), _only(source, field)]
        answer = client.bulk(index=index, body=b"\n".join(lines) + b"\n", params={"refresh": "true"})
        if answer["errors"]:
            raise ClusterError(f"the cluster rejected documents of {index}")


def _merged_size(client: OpenSearch, index: str) -> int:
    merge_segments(client, index, least=0)
    return index_facts(client, index).bytes


def _only(source: dict[str, Any], field: str | None) -> bytes:
    if field == STORED:
        return orjson.dumps({name: source[name] for name in ("title", "text", "url") if name in source})
    if field == "contents":
        return orjson.dumps({"contents": f"{source.get('title', '')} {source['text']}".strip()})
    return orjson.dumps({field: source[field]} if field in source else {})
