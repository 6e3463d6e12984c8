"""Add, update and delete single documents of an index that `osn ingest` wrote, encoded in the same way.

    with Documents(client, "docs") as documents:
        documents.add([{"_id": "a", "title": "Rainbows", "text": "…"}])
        documents.update("a", {"title": "Rain bows", "lang": "en"})
        documents.delete(["a"])

The models that wrote the index are found on this machine by their hashes, and loaded once. For a whole corpus use `run_job`,
which keeps a journal, retries for minutes and writes dead letters; here refused documents are returned.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from ingest.chosen_models import splitting_tokenizer
from ingest.counted_idf import with_kept_table
from ingest.stored_query_data import raising
from ingest.vectorizers import Encoders, NotingLargest, for_index
from ingest.writing import stored_documents
from ingest.writing import target as targets
from ingest.writing.bulk import DROPPED, BulkWriter, is_dropped, refusal_reason
from ingest.writing.bulk_actions import nested_by_dots, prepare, unfit_id
from ingest.writing.target import Target
from opensearch_neural.cluster.errors import reason_of, translate_errors
from opensearch_neural.cluster.patience import RetryPolicy, patience
from opensearch_neural.corpus.documents import (
    BETWEEN,
    INDEX_FIELDS,
    Document,
    FieldNames,
    document_of,
    lists_of,
    taken,
    text_of,
)
from opensearch_neural.corpus.passages import Passage, joined, split
from opensearch_neural.errors import ClusterError, InputError, ModelError, OsnError
from opensearch_neural.index import segments
from opensearch_neural.index.hidden_index import LARGEST
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta, documents_of, existing_named_record, existing_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, keep_shard_documents
from opensearch_neural.index.sparse_scale import keep_sparse_scale
from opensearch_neural.models import directory
from opensearch_neural.models.sparse.corpus_statistics import has_query_table
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.retrievers.opensearch import passages_of, search

if TYPE_CHECKING:
    from types import TracebackType

    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

BATCH = 256
PASSAGES = 100
"""Passages that are read at once: an index may return few hits, and to read its settings needs a right of its own."""
# How often an update starts again because another process wrote the same document in between.
CONFLICTS = 5


@dataclass(frozen=True)
class Refused:
    """A document that was refused, and why."""

    id: str
    """The `_id` of the document."""
    reason: str
    """What is wrong with it, or why OpenSearch refused it."""


@dataclass
class Written:
    """The result of writing documents; a document split into passages counts once."""

    created: int = 0
    """How many documents are new."""
    replaced: int = 0
    """How many documents existed before."""
    refused: list[Refused] = field(default_factory=list)
    """Documents that are not in the index as given."""


class Documents:
    """The documents of one index, or of the index that an alias names.

    sparse, dense, pq: directories of the models that wrote the index, if they are not found by its record
    trust_remote_code: whether the sparse model's own code may run
    patience: seconds to retry each request of a write

    Close it at the end, or use it in a `with`: it then counts the documents of a shard and stores the number in the index's
    record, for the windows of searches, as `osn ingest` does. If the index has more than doubled, it also measures the scale
    of the sparse scores again, for the weight of bm25-sparse. In long use it does so whenever the index may have doubled.

    Raises ModelError if a model is not on this machine or is not the index's, ClusterError if there is no such index.
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
            self.meta = meta = existing_record(client, index)
        if sparse is not None and meta.sparse is not None:
            splade = directory.locate(sparse, code=trust_remote_code)
            if not has_query_table(splade):
                with translate_errors():
                    folder = with_kept_table(client, meta.sparse, splade, trust_remote_code, index=index)
                sparse = sparse if folder is None else str(folder)
        self.names = FieldNames.of_index(meta.names)
        """The possible field names of the parts of a document."""
        models = IndexModels(
            index,
            meta,
            sparse=sparse,
            dense=dense,
            quantized=pq,
            device=device,
            trust_remote_code=trust_remote_code,
            remedy="name the model that wrote the index with --sparse, --dense or --pq DIR",
        )
        self._encoders = Encoders(
            sparse=models.sparse if meta.sparse else None,
            quantized=models.quantized if meta.quantized else None,
            dense=models.dense if meta.dense and not meta.reconstructed else None,
            reconstructed=meta.reconstructed is not None,
            prune=Pruning.parse(meta.prune) if meta.prune else None,
        )
        self._vectorizer = NotingLargest(self._encoders)
        self._raised: tuple[str, str | None, str | None] | None = None
        """(OpenSearch's id of the index, id of its largest weights, which are raised, how its postings are pruned)"""
        self._tokenizer = (
            splitting_tokenizer(self._encoders.sparse, self._encoders.dense or self._encoders.quantized, None)
            if meta.passages
            else None
        )
        self._policy = RetryPolicy(patience)
        self._created: Counter[str] = Counter()
        """{index: documents created since the last count}"""
        self._counted: dict[str, int] = {}
        """{index: documents of a shard at the last count}"""

    def __enter__(self) -> Documents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Store what searches use in the record of each index that got documents (`_keep_measures`)."""
        for index, created in self._created.items():
            if created:
                self._keep_measures(index)

    def _keep_measures(self, index: str) -> None:
        """Store the number of a shard's documents and the scale of the sparse scores, each if the index has outgrown it."""
        created, self._created[index] = self._created[index], 0
        measure = "number of documents of a shard"
        try:
            with translate_errors():
                if existing_record(self.client, index).unfinished:
                    return  # the ingest that is writing stores both at its end
                segments.refresh(self.client, index)
                self._counted[index] = keep_shard_documents(self.client, index)
                if self._encoders.sparse is not None:
                    measure = "scale"
                    keep_sparse_scale(self.client, index, self._encoders.sparse.query)
        except OsnError as error:
            self._counted[index] += created  # so that not every write tries this and warns
            log.warning("the %s of %s could not be stored: %s", measure, index, error.message)

    @translate_errors()
    def add(self, documents: Iterable[Document | Mapping[str, Any]], *, refresh: bool = True) -> Written:
        """Write documents; a document replaces the one with the same id. Mappings are records as in a corpus.

        refresh: whether searches find them when this returns.
        Raises ClusterError if the cluster does not accept them within `patience` seconds, or if the index is not complete;
        InputError for a single document.
        """
        _refuse_single(documents)
        written = Written()
        stream = iter(documents)
        number = 0
        with patience(self._policy.patience):
            while part := list(islice(stream, BATCH)):
                by_id: dict[str, Document] = {}
                for each in part:
                    number += 1
                    try:
                        document = each if isinstance(each, Document) else self._document_of(each, number)
                    except InputError as error:
                        written.refused.append(Refused(self._id_of(each), error.message))
                        continue
                    by_id[document.id] = document  # of two documents with one id, the later counts
                self._write(list(by_id.values()), written)
            if refresh:
                segments.refresh(self.client, self.index)
        for index, created in self._created.items():
            if created > self._counted[index]:
                self._keep_measures(index)
        return written

    def _id_of(self, record: object) -> str:
        """The id that a record has under one of the names of this index, whatever else is wrong with it."""
        record = self.names.lifted(record) if isinstance(record, Mapping) else {}
        name = self.names.find(record, "id")
        return "" if name is None else str(record[name])

    def _document_of(self, record: Mapping[str, Any], number: int) -> Document:
        return document_of(record, where=f"document {number}", names=self.names)

    def _target(self) -> Target:
        """The index to write; an alias may now name another index than when this was opened.

        Raises ModelError if that index was written with other models or settings, ClusterError if it is not complete.
        """
        target = targets.existing_target(self.client, self.index)
        name, meta = target.index, target.meta
        _refuse_loading(name, meta)
        if other := other_to_write(self.meta, meta):
            raise ModelError(
                f"{self.index!r} names {name!r} now, which was written with {other}", "open Documents again"
            )
        raised = (target.uuid, meta.extra.get(LARGEST), meta.prune_postings)
        if self._raised != raised or self._vectorizer.larger is None:
            query = None if self._encoders.sparse is None else self._encoders.sparse.query
            vectorizer = for_index(self._encoders, meta, query)
            self._vectorizer = NotingLargest(vectorizer, raising(self.client, name, meta))
            self._raised = raised
        return target

    def _write(self, documents: list[Document], written: Written) -> None:
        written_to = self._target()
        target, meta = written_to.index, written_to.meta
        parts: list[Document] = []
        for document in documents:
            try:
                parts.extend(self._parts(document))
            except InputError as error:
                written.refused.append(Refused(document.id, error.message))
        counts = Counter(_document_id(part) for part in parts)
        there = self._there(target, counts)
        prepared = prepare(parts, self._vectorizer, meta)
        # The index may have been deleted while documents were encoded, which may take long: OpenSearch would create it anew,
        # with mappings that it guesses. A write alias, as `osn ingest` has, would change the cluster's state at each write.
        targets.verify_unchanged_index(self.client, written_to)
        # Write by the index's own name: if an alias is swapped in between, the vectors must not go to another index.
        outcome = BulkWriter(self.client, target, policy=self._policy).write(prepared.actions)
        reasons = {_document_id(parts[position]): reason for position, reason in prepared.unfit.items()}
        for failure in outcome.failures:
            reasons[_document_id(parts[prepared.positions[failure.position]])] = failure.reason
        written.refused.extend(Refused(id, reason) for id, reason in reasons.items())
        if self.meta.passages is not None:
            segments.refresh(self.client, target)
            single = {document.parent for document in documents if isinstance(document, Passage)}
            whole = {id: number for id, number in counts.items() if id not in reasons and id not in single}
            stored_documents.remove_last_passages(self.client, target, whole)
        accepted = counts.keys() - reasons.keys()
        written.replaced += len(accepted & there)
        written.created += len(accepted - there)
        if meta.sparse is not None:
            self._counted.setdefault(target, meta.extra.get(SHARD_DOCUMENTS) or 0)
            self._created[target] += sum(counts[id] for id in accepted - there)

    def _there(self, target: str, ids: Iterable[str]) -> set[str]:
        """The ids of the documents that the index holds already."""
        first = {id if self.meta.passages is None else f"{id}#0001": id for id in ids}
        missing = stored_documents.missing_ids(self.client, target, list(first))
        return {*first.values()} - {first[id] for id in missing}

    def _parts(self, document: Document) -> list[Document]:
        passages = self.meta.passages
        if passages is None or self._tokenizer is None or isinstance(document, Passage):
            return [document]
        return list(split(document, self._tokenizer, passages.tokens, passages.stride))

    def get(self, id: str | int) -> Document | None:
        """The document as the index stores it; None if there is none."""
        return read_document(self.client, self.index, id)

    @translate_errors()
    def update(self, id: str | int, changes: Mapping[str, Any], *, refresh: bool = True) -> Document:
        """Change some fields of a document, and encode it again; a field given as None is removed. `a.b` is a field of the
        object `a`; `a` alone replaces the whole object.

        Title, text and url may have any name that `add` accepts (of a text: text, body, content, …), unless the document has
        another field with that name. If such a name is `a.b`, they stay when `a` is changed or removed without it.

        The index keeps no vectors in its `_source`, so OpenSearch's own partial update would lose them. If two updates
        happen at the same time, both take effect (except in an index of passages, where the later one wins).

        Raises InputError if there is no such document, or if the changed document is refused.
        """
        id = str(id)
        with patience(self._policy.patience):
            for _ in range(CONFLICTS):
                target = self._target()
                stored = _read(self.client, target.index, self.meta, id)
                if stored is None:
                    raise InputError(f"{self.index!r} holds no document {id!r}", "add it with all its fields")
                document, condition = stored
                record = _with_changes(document.record(), self._in_index(changes, document))
                if "_id" in changes and str(changes["_id"]) != id:
                    raise InputError(
                        "the id of a document cannot be changed", "add it with the new id, and delete the old document"
                    )
                remaining = {key: value for key, value in record.items() if value is not None}
                # Title, url and a stored text, also an empty one, have the index's names here.
                stored_text = isinstance(remaining.get("text"), str | list)
                names = FieldNames(text=("text",) if stored_text else self.names.text)
                changed = document_of(remaining, where=id, names=names)
                changed.fields = nested_by_dots(changed.fields)
                if self.meta.passages is not None:
                    written = self.add([changed], refresh=refresh)
                    if written.refused:
                        raise InputError(f"{id}: {written.refused[0].reason}")
                    return changed
                if self._replace(target, changed, condition, refresh):
                    return changed
            raise ClusterError(f"another process changed {id!r} {CONFLICTS} times in a row", "try again")

    def _in_index(self, changes: Mapping[str, Any], document: Document) -> dict[str, Any]:
        """The changes, with title, text and url under the names that they have in the index."""
        parts = ("text", "title", "url")  # if one field is title and text, it is the text, as `add` reads it
        own = {part: {name for name in getattr(self.names, part) if taken(document.fields, name)} for part in parts}
        others: dict[str, Any] = {
            part: tuple(name for name in getattr(self.names, part) if name not in own[part]) for part in parts
        }
        lifted = replace(self.names, id=(), **others).lifted(changes)
        # An object that held nothing but such parts replaces the document's object, too.
        renamed = dict.fromkeys(changes.keys() - lifted.keys()) | dict(lifted)
        for part in parts:
            name = self.names.find(lifted, part)
            # Beside an object of the part's name, which is refused, it keeps its own name.
            if name in renamed and name not in own[part] and (name == part or renamed.get(part) is None):
                renamed[part] = renamed.pop(name)
        return renamed

    def _replace(self, target: Target, document: Document, condition: dict[str, int], refresh: bool) -> bool:
        """Whether the document was written; False if another write came in between."""
        from opensearchpy.exceptions import ConflictError, RequestError

        prepared = prepare([document], self._vectorizer, target.meta)
        if prepared.unfit:
            raise InputError(f"{document.id}: {prepared.unfit[0]}")
        targets.verify_unchanged_index(self.client, target)
        params = {**condition, "refresh": "true" if refresh else "false"}
        try:
            answer = self.client.index(
                index=target.index, id=document.id, body=orjson.loads(prepared.actions[0].source), params=params
            )
        except ConflictError:
            return False
        except RequestError as error:
            answered: Any = error.info
            has_reasons = isinstance(answered, dict) and isinstance(answered.get("error"), dict)
            reason = refusal_reason(answered) if has_reasons else reason_of(error)[1]
            raise InputError(f"{document.id}: {reason}") from error
        if is_dropped(answer):
            raise InputError(f"{document.id}: {DROPPED}")
        return True

    def delete(self, ids: Iterable[str | int]) -> int:
        """Delete documents, with all their passages; returns how many existed. Raises InputError for a single id."""
        with patience(self._policy.patience):
            return delete_documents(self.client, self.index, ids)


def other_to_write(encoded_for: IndexMeta, meta: IndexMeta) -> str | None:
    """How `meta` differs from the record that documents were encoded for, so that they do not fit; None if they fit.

    Models are compared by their hashes: a model may have been named by its hub id once, and by its folder another time.
    """
    for part, name in (("sparse", "sparse model"), ("dense", "dense model"), ("quantized", "quantized model")):
        before, now = getattr(encoded_for, part), getattr(meta, part)
        if before is None or now is None:
            if before is not now:
                return f"no {name}" if now is None else f"a {name}, {now.name} ({now.hash})"
        elif now.hash != before.hash:
            return f"another {name}: {now.name} ({now.hash}), not {before.name} ({before.hash})"
        elif replace(now, name=before.name) != before:
            return "another IDF table" if part == "sparse" else f"other vectors of the {name} {now.name}"
    if encoded_for.passages != meta.passages:
        return f"{documents_of(meta)}, not {documents_of(encoded_for)}"
    if encoded_for.prune != meta.prune:
        now, before = (f"pruned by {each.prune}" if each.prune else "whole" for each in (meta, encoded_for))
        return f"sparse vectors that are {now}, not {before}"
    return None


@translate_errors()
def read_document(client: OpenSearch, index: str, id: str | int) -> Document | None:
    """The document as the index stores it; None if there is none. Its passages are joined again."""
    name, meta = existing_named_record(client, index)
    stored = _read(client, name, meta, str(id))
    return None if stored is None else stored[0]


@translate_errors()
def delete_documents(client: OpenSearch, index: str, ids: Iterable[str | int]) -> int:
    """Delete documents, with all their passages; returns how many existed. No model is needed.

    Raises InputError for a single id, whose letters would each be taken for one, ClusterError for an index that is not
    complete.
    """
    _refuse_single(ids)
    # As documents are added: the filter or routing of an alias would hide some, and leave them.
    index, meta = existing_named_record(client, index)
    _refuse_loading(index, meta)
    segments.refresh(client, index)
    deleted = 0
    given = (str(id) for id in ids if id is not None)
    for part in stored_documents.by_thousands(dict.fromkeys(id for id in given if id)):
        if meta.passages is None:
            deleted += stored_documents.delete_by_query(client, index, {"ids": {"values": part}})
            continue
        query = {"terms": {"parent": part}}
        there = {"there": {"cardinality": {"field": "parent", "precision_threshold": 40_000}}}
        answer = search(client, index, {"query": query, "size": 0, "aggs": there})
        deleted += answer["aggregations"]["there"]["value"]
        stored_documents.delete_by_query(client, index, query)
    return deleted


def _refuse_loading(index: str, meta: IndexMeta) -> None:
    """Raise ClusterError for an index that is not complete: its ingest would undo at its end what is changed meanwhile."""
    if meta.loading is not None:
        raise ClusterError(
            f"the index {index!r} is not complete: {meta.loading} is being written into it, or that was interrupted, and at "
            "its end the ingest removes what is not in that corpus",
            f"run the same `osn ingest` again if it was interrupted, or accept the index with `osn index finish {index}`",
        )


def _refuse_single(several: object) -> None:
    if isinstance(several, str | int | Mapping):
        raise InputError(f"expected a list, found a single one: {str(several)[:80]!r}", "write it in a list")


def _read(client: OpenSearch, index: str, meta: IndexMeta, id: str) -> tuple[Document, dict[str, int]] | None:
    """(document, parameters of a write that fails if the document has changed)."""
    if unfit_id(id):  # no document has such an id, and OpenSearch cannot be asked for it
        return None
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
    sources = list(passages_of(client, index, id, PASSAGES))
    if not sources:
        return None
    text = joined((source["passage"]["start"], source["text"]) for source in sources)
    return _document(id, {**sources[0], "text": text}), {}


def _with_changes(record: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The record with some fields changed, and without those that are changed to None.

    A field with a name as `a.b` may lie in an object `a` of the record. Raises InputError if it lies in a list of objects.
    """
    changed = dict(record)
    for name, value in changes.items():
        changed = _without(changed, name)
        if value is not None:
            changed[name] = value
    return changed


def _without(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The tree without a field, and without the objects that held nothing else."""
    remaining: dict[str, Any] = {}
    for key, value in tree.items():
        if key == name:
            continue
        rest = name.removeprefix(f"{key}.")
        if rest == name:
            remaining[key] = value
        elif isinstance(value, dict):
            inner = _without(value, rest)
            if inner or not value:
                remaining[key] = inner
        else:
            if isinstance(value, list) and any(
                _without(part, rest) != part for part in value if isinstance(part, dict)
            ):
                raise InputError(
                    f"{key!r} is a list of objects, so {rest!r} of one of them cannot be changed",
                    f"change {key!r} as a whole",
                )
            remaining[key] = value
    return remaining


def _document(id: str, source: Mapping[str, Any]) -> Document:
    fields = {key: value for key, value in source.items() if key not in INDEX_FIELDS}
    text, title = (text_of(source.get(part), BETWEEN[part]) or "" for part in ("text", "title"))
    return Document(id, text, title, source.get("url"), fields, lists=lists_of(source, "title", "text"))


def _document_id(part: Document) -> str:
    return part.parent if isinstance(part, Passage) else part.id
