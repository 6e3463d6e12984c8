"""Add, update and delete single documents of an index that `osn ingest` wrote, encoded as it encodes.

    with Documents(client, "docs") as documents:
        documents.add([{"_id": "a", "title": "Rainbows", "text": "…"}])
        documents.update("a", {"title": "Rain bows", "lang": "en"})
        documents.delete(["a"])

The models are those that wrote the index, found on this machine by their hashes, and loaded once. For a whole corpus
`run_job` is the way: it journals, retries for minutes and keeps dead letters; here what is refused is returned.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from ingest.kept_for_searches import raising
from ingest.models import splitting_tokenizer
from ingest.splade import with_kept_table
from ingest.vectorizers import Encoders, NotingLargest, for_index
from ingest.writing import stored_documents
from ingest.writing import target as targets
from ingest.writing.bulk import DROPPED, BulkWriter, is_dropped
from ingest.writing.bulk_actions import prepare
from ingest.writing.target import Target
from opensearch_neural.cluster.errors import reason_of, translate_errors
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.corpus.documents import INDEX_FIELDS, Document, FieldNames, document_of
from opensearch_neural.corpus.passages import Passage, joined, split
from opensearch_neural.errors import ClusterError, InputError, ModelError, OsnError
from opensearch_neural.index import segments
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta, existing_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, keep_shard_documents
from opensearch_neural.models import directory
from opensearch_neural.models.sparse.corpus_statistics import has_query_table
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import MOST_HITS
from opensearch_neural.retrievers.opensearch import search

if TYPE_CHECKING:
    from types import TracebackType

    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

BATCH = 256
# How often an update is begun anew because somebody else wrote the same document in between.
CONFLICTS = 5


@dataclass(frozen=True)
class Refused:
    """A document that was not taken, and why."""

    id: str
    reason: str


@dataclass
class Written:
    """The result of a change of documents; passages are counted as their documents."""

    created: int = 0
    """How many documents are new."""
    replaced: int = 0
    """How many documents existed before."""
    refused: list[Refused] = field(default_factory=list)


class Documents:
    """The documents of one index, or of the index that an alias names.

    sparse, dense, pq: directories of the models that wrote the index, where they are not found by its record
    trust_remote_code: whether the sparse model's own code may run

    To be closed at the end, or used in a `with`: the documents of a shard are then counted, and kept in the index's record
    for the windows of searches, as `osn ingest` does. In long use that is done whenever the index may have doubled.

    Raises ModelError when a model is not on this machine or another than that of the index, ClusterError when there is
    no such index.
    """

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        *,
        sparse: str | None = None,
        dense: str | None = None,
        pq: str | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
        patience: float = 60.0,
    ) -> None:
        self.client = client
        self.index = index
        with translate_errors():
            self.meta = existing_record(client, index)
        if sparse is not None and self.meta.sparse is not None:
            splade = directory.locate(sparse, code=trust_remote_code)
            if not has_query_table(splade):
                with translate_errors():
                    kept = with_kept_table(client, self.meta.sparse, splade, trust_remote_code, index=index)
                sparse = sparse if kept is None else str(kept)
        models = IndexModels(
            index,
            self.meta,
            sparse=sparse,
            dense=dense,
            quantized=pq,
            device=device,
            trust_remote_code=trust_remote_code,
            remedy="name the model that wrote the index with --sparse, --dense or --pq DIR",
        )
        self._encoders = _encoders(models, self.meta)
        self._vectorizer = NotingLargest(self._encoders)
        self._raised: tuple[str, str | None] | None = None
        """The index whose largest weights are raised, and how its postings are pruned."""
        self._tokenizer = (
            splitting_tokenizer(self._encoders.sparse, self._encoders.dense or self._encoders.pq, None)
            if self.meta.passages
            else None
        )
        self._policy = RetryPolicy(patience)
        self._created: Counter[str] = Counter()
        """{index: documents created since those of a shard were counted}"""
        self._counted: dict[str, int] = {}
        """{index: documents of a shard when they were counted last}"""

    def __enter__(self) -> Documents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Keep the documents of a shard in the record of each index that documents were added to."""
        for index, created in self._created.items():
            if created:
                self._keep_shard_documents(index)

    def _keep_shard_documents(self, index: str) -> None:
        created, self._created[index] = self._created[index], 0
        try:
            with translate_errors():
                if existing_record(self.client, index).unfinished:
                    return  # the ingest that is writing keeps the number at its end
                segments.refresh(self.client, index)
                self._counted[index] = keep_shard_documents(self.client, index)
        except OsnError as error:
            self._counted[index] += created  # so that this is not tried, and told, at each write
            log.warning("the documents of a shard of %s could not be stored: %s", index, error.message)

    @translate_errors()
    def add(self, documents: Iterable[Document | Mapping[str, Any]], *, refresh: bool = True) -> Written:
        """Write documents; one whose id is there already is replaced. Mappings are records as in a corpus.

        refresh: have searches find them when this returns.
        Raises ClusterError when the cluster does not take them within `patience` seconds.
        """
        written = Written()
        stream = iter(documents)
        number = 0
        while part := list(islice(stream, BATCH)):
            taken: dict[str, Document] = {}
            for each in part:
                number += 1
                try:
                    document = each if isinstance(each, Document) else document_of(each, where=f"document {number}")
                except InputError as error:
                    id = str(each.get("_id", each.get("id", ""))) if isinstance(each, Mapping) else ""
                    written.refused.append(Refused(id, error.message))
                    continue
                taken[document.id] = document  # of two with one id the later counts, as if written one after the other
            self._write(list(taken.values()), written)
        if refresh:
            segments.refresh(self.client, self.index)
        for index, created in self._created.items():
            if created > self._counted[index]:
                self._keep_shard_documents(index)
        return written

    def _target(self) -> Target:
        """The index that is written now; an alias may name another one than when this was opened.

        Raises ModelError when its vectors are made otherwise than these models make them.
        """
        target = targets.existing_target(self.client, self.index)
        name, record = target.index, target.meta
        made = ("sparse", "dense", "quantized", "passages", "prune")
        if any(getattr(record, part) != getattr(self.meta, part) for part in made):
            raise ModelError(
                f"{self.index!r} names {name!r} now, which was written with other models or settings",
                "open Documents again",
            )
        if self._raised != (name, record.prune_postings) or self._vectorizer.larger is None:
            query = None if self._encoders.sparse is None else self._encoders.sparse.query
            vectorizer = for_index(self._encoders, record, query)
            self._vectorizer = NotingLargest(vectorizer, raising(self.client, name, record))
            self._raised = (name, record.prune_postings)
        return target

    def _write(self, documents: list[Document], written: Written) -> None:
        written_to = self._target()
        target, record = written_to.index, written_to.meta
        parts: list[Document] = []
        for document in documents:
            try:
                parts.extend(self._parts(document))
            except InputError as error:
                written.refused.append(Refused(document.id, error.message))
        counts = Counter(_document_id(part) for part in parts)
        there = self._there(target, counts)
        prepared = prepare(parts, self._vectorizer, record)
        self._check_unchanged(written_to)
        # By its own name: an alias that is swapped in between must not lead these vectors into another index.
        outcome = BulkWriter(self.client, target, policy=self._policy).write(prepared.actions)
        reasons = {_document_id(parts[unfit.position]): unfit.reason for unfit in prepared.unfit}
        for failure in outcome.failures:
            reasons[_document_id(parts[prepared.positions[failure.position]])] = failure.reason
        written.refused.extend(Refused(id, reason) for id, reason in reasons.items())
        if self.meta.passages is not None:
            segments.refresh(self.client, target)
            single = {document.parent for document in documents if isinstance(document, Passage)}
            whole = {id: number for id, number in counts.items() if id not in reasons and id not in single}
            stored_documents.remove_last_passages(self.client, target, whole)
        taken = counts.keys() - reasons.keys()
        written.replaced += len(taken & there)
        written.created += len(taken - there)
        if record.sparse is not None:
            self._counted.setdefault(target, record.extra.get(SHARD_DOCUMENTS) or 0)
            self._created[target] += sum(counts[id] for id in taken - there)

    def _check_unchanged(self, target: Target) -> None:
        """Raise ClusterError if the index was deleted while documents were encoded, which may take long: OpenSearch would
        create it anew, with mappings that it guesses.

        A write alias, through which `osn ingest` writes, would change the state of the cluster twice a write.
        """
        targets.verify_unchanged_index(self.client, target)

    def _there(self, target: str, ids: Iterable[str]) -> set[str]:
        """Those of the documents that the index holds."""
        first = {id if self.meta.passages is None else f"{id}#0001": id for id in ids}
        missing = stored_documents.missing_ids(self.client, target, list(first))
        return {*first.values()} - {first[id] for id in missing}

    def _parts(self, document: Document) -> list[Document]:
        passages = self.meta.passages
        if passages is None or self._tokenizer is None or isinstance(document, Passage):
            return [document]
        return list(split(document, self._tokenizer, passages.tokens, passages.stride))

    def get(self, id: str) -> Document | None:
        """The document as the index has it; None if there is none."""
        return read_document(self.client, self.index, id)

    @translate_errors()
    def update(self, id: str, changes: Mapping[str, Any], *, refresh: bool = True) -> Document:
        """Change some fields of a document, and encode it anew; a field given as None is removed.

        The text goes by the names that `add` knows it by (text, body, content, …), unless the document has another field of
        that name.

        The index keeps no vectors in its `_source`, so OpenSearch's own partial update would lose them. Of two updates at
        the same time none is lost (except in an index of passages, where the later one wins).

        Raises InputError when there is no such document, or the changed one is refused.
        """
        for _ in range(CONFLICTS):
            target = self._target()
            held = _read(self.client, target.index, self.meta, id)
            if held is None:
                raise InputError(f"{self.index!r} holds no document {id!r}", "add it with all its fields")
            document, condition = held
            text_name = FieldNames().find(changes, "text")
            if text_name is not None and text_name not in document.fields:  # as `add` reads it
                changes = {"text" if name == text_name else name: value for name, value in changes.items()}
            record = {**document.record(), **changes}
            if "_id" in changes and changes["_id"] != id:
                raise InputError(
                    "the id of a document cannot be changed", "add it under the new id, delete the old one"
                )
            changed = document_of({key: value for key, value in record.items() if value is not None}, where=id)
            if self.meta.passages is not None:
                written = self.add([changed], refresh=refresh)
                if written.refused:
                    raise InputError(f"{id}: {written.refused[0].reason}")
                return changed
            if self._replace(target, changed, condition, refresh):
                return changed
        raise ClusterError(f"{id!r} was changed by somebody else {CONFLICTS} times in a row", "try again")

    def _replace(self, target: Target, document: Document, condition: dict[str, int], refresh: bool) -> bool:
        """Whether the document was written; False when another write came in between."""
        from opensearchpy.exceptions import ConflictError, RequestError

        prepared = prepare([document], self._vectorizer, target.meta)
        if prepared.unfit:
            raise InputError(f"{document.id}: {prepared.unfit[0].reason}")
        self._check_unchanged(target)
        params = {**condition, "refresh": "true" if refresh else "false"}
        try:
            answer = self.client.index(
                index=target.index, id=document.id, body=orjson.loads(prepared.actions[0].source), params=params
            )
        except ConflictError:
            return False
        except RequestError as error:
            raise InputError(f"{document.id}: {reason_of(error)[1]}") from error
        if is_dropped(answer):
            raise InputError(f"{document.id}: {DROPPED}")
        return True

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents, with all their passages; returns how many of them were there."""
        return delete_documents(self.client, self.index, ids)


@translate_errors()
def read_document(client: OpenSearch, index: str, id: str) -> Document | None:
    """The document as the index has it; None if there is none. One in passages is put together again."""
    held = _read(client, index, existing_record(client, index), id)
    return None if held is None else held[0]


@translate_errors()
def delete_documents(client: OpenSearch, index: str, ids: Iterable[str]) -> int:
    """Delete documents, with all their passages; returns how many of them were there. No model is needed."""
    meta = existing_record(client, index)
    segments.refresh(client, index)
    deleted = 0
    for part in stored_documents.by_thousands(dict.fromkeys(ids)):
        if meta.passages is None:
            deleted += stored_documents.delete_by_query(client, index, {"ids": {"values": part}})
            continue
        query = {"terms": {"parent": part}}
        there = {"there": {"cardinality": {"field": "parent", "precision_threshold": 40_000}}}
        answer = search(client, index, {"query": query, "size": 0, "aggs": there})
        deleted += answer["aggregations"]["there"]["value"]
        stored_documents.delete_by_query(client, index, query)
    return deleted


def _read(client: OpenSearch, index: str, meta: IndexMeta, id: str) -> tuple[Document, dict[str, int]] | None:
    """(document, what a conditional write of it takes)."""
    if meta.passages is not None:
        return _join(client, index, id)
    answer = client.get(index=index, id=id, params={"ignore": 404})
    if not answer.get("found"):
        return None
    condition = {"if_seq_no": answer["_seq_no"], "if_primary_term": answer["_primary_term"]}
    return _document(id, answer["_source"]), condition


def _join(client: OpenSearch, index: str, id: str) -> tuple[Document, dict[str, int]] | None:
    """The document of all its passages. Raises ClusterError if a shard, and with it a passage, may be missing."""
    segments.refresh(client, index)
    body = {"query": {"term": {"parent": id}}, "size": MOST_HITS, "sort": [{"passage.number": "asc"}]}
    hits = search(client, index, body)["hits"]["hits"]
    if not hits:
        return None
    text = joined((hit["_source"]["passage"]["start"], hit["_source"]["text"]) for hit in hits)
    return _document(id, {**hits[0]["_source"], "text": text}), {}


def _encoders(models: IndexModels, meta: IndexMeta) -> Encoders:
    return Encoders(
        sparse=models.sparse if meta.sparse else None,
        pq=models.quantized if meta.quantized else None,
        dense=models.dense if meta.dense and not meta.reconstructed else None,
        reconstructed=meta.reconstructed is not None,
        prune=Pruning.parse(meta.prune) if meta.prune else None,
    )


def _document(id: str, source: Mapping[str, Any]) -> Document:
    fields = {key: value for key, value in source.items() if key not in INDEX_FIELDS}
    return Document(id, source.get("text", ""), source.get("title", ""), source.get("url"), fields)


def _document_id(part: Document) -> str:
    return part.parent if isinstance(part, Passage) else part.id
