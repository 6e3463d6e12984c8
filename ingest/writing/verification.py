"""Makes the index hold exactly the corpus: missing documents are written again, surplus documents removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from ingest.corpus import Records, ignore
from ingest.record_digests import FirstRecords
from ingest.vectorizers import Vectorizer
from ingest.writing import stored_documents
from ingest.writing import target as targets
from ingest.writing.bulk import BulkWriter
from ingest.writing.bulk_actions import prepare
from ingest.writing.target import Target
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import ClusterError
from opensearch_neural.index import segments

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)


@dataclass
class Verification:
    """Notes the documents that an ingest has written, and checks that the index holds them."""

    client: OpenSearch
    """A client of the index's cluster."""
    target: Target
    """The index to check."""
    alone: bool
    """Whether the index must hold this corpus and nothing else."""
    empty_at_first: bool
    """Whether the index was empty before the first batch. If not, it may hold documents of another version of the corpus."""
    whole_documents: bool
    """Whether the corpus has all passages of each of its documents."""
    ids: FirstRecords = field(default_factory=FirstRecords)
    """The ids of written documents, each with the record that came first."""
    refused_before: set[str] = field(default_factory=set)
    """Documents that the interrupted run could not write: the index may hold an older version of each."""
    _refused: set[str] = field(default_factory=set)
    """Ids of documents that OpenSearch refused in this run."""

    @property
    def _taken(self) -> int:
        """How many documents of the corpus are to be in the index, once each of its ids was looked up."""
        return len(self.ids) - len(self._refused)

    def accepted(self, id: str) -> bool:
        """Whether the corpus has a document or a first passage of this id, and OpenSearch took it."""
        return any(
            each in self.ids and each not in self._refused and each not in self.refused_before
            for each in (id, f"{id}#0001")
        )

    def refuse(self, ids: Sequence[str]) -> None:
        """Note documents that were rejected.

        Their older versions are deleted if the index must hold only this corpus, or if it holds passages, since old and new
        passages of a document must not mix.
        """
        self._refused.update(ids)
        if ids and not (self.alone and self.empty_at_first) and (self.alone or self.target.meta.passages):
            stored_documents.delete_ids(self.client, self.target.index, ids)

    def verify(self, records: Records, written: int, writer: BulkWriter, vectorizer: Vectorizer) -> tuple[int, int]:
        """Make sure that the index holds a document for each accepted id of the corpus; returns the number of these
        documents and of the requests that were retried.

        If the index holds only this corpus and was empty at first, the count proves it; otherwise ids are compared.
        Documents that were acknowledged but are missing (the last copy of a shard was lost, its translog is not synced with
        each request, somebody deleted them) are written again. Contents are not compared.

        written: how many documents of the corpus were acknowledged. Documents that an interrupted run could not write, and
            that the cluster takes now, are added when ids are compared.
        Raises ClusterError if documents stay missing or are no longer taken, or if other documents keep appearing.
        """
        index = self.target.index
        targets.verify_unchanged_index(self.client, self.target)
        segments.refresh(self.client, index)
        if not self.alone:
            retries = self._write_missing(records, written, writer, vectorizer)
            if self.target.meta.passages and self.whole_documents:
                self._remove_last_passages(records)
            segments.refresh(self.client, index)  # surplus documents are counted next
            return self._taken, retries
        if stored_documents.count(self.client, index) == written and self.empty_at_first:
            return written, 0
        self._remove_surplus()
        retries = self._write_missing(records, written, writer, vectorizer)
        segments.refresh(self.client, index)
        counted = stored_documents.count(self.client, index)
        if counted != self._taken:
            raise ClusterError(
                f"{index!r} holds {counted} documents, but the corpus {self._taken}",
                "is something else writing to it? Run the same command again to continue",
            )
        return counted, retries

    def remove_others(self, unread: int) -> None:
        """Remove documents of other corpora, or no longer in this one, after `verify`. Those that OpenSearch refused in this
        run keep the version that is there.

        unread: how many records were rejected before their ids were known. Unless it is 0 nothing is removed: the documents
            of these records would be taken for others.
        """
        index = self.target.index
        if unread:
            were = "1 record of the corpus was" if unread == 1 else f"{unread} records of the corpus were"
            log.warning(
                "no other documents of %r were removed: %s rejected, so which documents they are is not known",
                index,
                were,
            )
            return
        self._remove_surplus()
        segments.refresh(self.client, index)

    def _remove_surplus(self) -> None:
        """Remove documents that are not in the corpus and, if the index must hold only this corpus, rejected ones."""
        index = self.target.index
        surplus = (
            id
            for id in stored_documents.all_ids(self.client, index)
            if id not in self.ids or (self.alone and id in self._refused)
        )
        removed = 0
        for part in stored_documents.by_thousands(surplus):
            stored_documents.delete_ids(self.client, index, part)
            removed += len(part)
        if removed:
            log.warning("removed %d documents from %r that are not in the corpus", removed, index)

    def _remove_last_passages(self, records: Records) -> None:
        """Remove surplus passages of documents that have become shorter."""
        passages = (document for document in records(ignore) if isinstance(document, Passage))
        documents = groupby(passages, lambda passage: passage.parent)
        counts = ((parent, max(passage.number for passage in group)) for parent, group in documents)
        for part in stored_documents.by_thousands(counts):
            stored_documents.remove_last_passages(self.client, self.target.index, dict(part))

    def _write_missing(self, records: Records, written: int, writer: BulkWriter, vectorizer: Vectorizer) -> int:
        """Write what the index lacks, look again, and return how many requests were retried."""
        retries = 0
        acknowledged = written
        for _ in range(3):
            missing = 0
            for documents in stored_documents.by_thousands(records(ignore)):
                missing_here, retried = self._look_up(documents, writer, vectorizer)
                missing, retries = missing + missing_here, retries + retried
            if self._taken < written:
                raise ClusterError(
                    f"{self.target.index!r} lacks {written - self._taken} documents of the corpus that it had taken, and "
                    "does not take them again",
                    "was its mapping, or an ingest pipeline of the cluster, changed? --restart writes the corpus anew",
                )
            if not missing:
                return retries
            if lost := missing - (self._taken - acknowledged):
                lacked, were = ("1 document", "was") if lost == 1 else (f"{lost} documents", "were")
                log.warning("%s that %r had acknowledged %s not in it", lacked, self.target.index, were)
            acknowledged = self._taken
        raise ClusterError(
            f"{self.target.index!r} repeatedly lacks {missing} documents of the corpus that it had acknowledged",
            "is something else deleting them? Check the cluster's log; run the same command again to continue",
        )

    def _look_up(self, documents: list[Document], writer: BulkWriter, vectorizer: Vectorizer) -> tuple[int, int]:
        """Write the documents again that the index lacks, and those that an interrupted run could not write; returns (how
        many the index accepts now, retried requests).

        The dead-letter file does not show which documents were rejected: it may hold an id that was also accepted, because
        the id occurs twice or was corrected since.
        """
        ids = list(dict.fromkeys(document.id for document in documents))
        missing = stored_documents.missing_ids(self.client, self.target.index, ids)
        lacking = {*missing, *self.refused_before.intersection(ids)} - self._refused
        if not lacking:
            return 0, 0
        again = list({document.id: document for document in reversed(documents) if document.id in lacking}.values())
        prepared = prepare(again, vectorizer, self.target.meta)
        outcome = writer.write(prepared.actions)
        failed = [prepared.positions[failure.position] for failure in outcome.failures]
        self.refuse([again[position].id for position in [*prepared.unfit, *failed]])
        self.refused_before -= lacking
        return len(lacking - self._refused), outcome.retries
