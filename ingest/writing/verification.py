"""Whether the index holds exactly what the corpus holds: what is missing is written again, what is left over removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ingest.corpus import Records, ignore
from ingest.duplicate_ids import FirstRecords
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


class Verification:
    """What an ingest has written, and whether the index holds it.

    Args:
        alone: whether the index is to hold this corpus and nothing else.
        empty_at_first: whether the index held nothing when its first batch was written. Otherwise documents of another
            state of the corpus may be in it.
        whole_documents: whether the corpus holds all passages of each document that it holds a passage of.
    """

    def __init__(
        self, client: OpenSearch, target: Target, *, alone: bool, empty_at_first: bool, whole_documents: bool
    ) -> None:
        self.client = client
        self.target = target
        self.alone = alone
        self.empty_at_first = empty_at_first
        self.whole_documents = whole_documents
        self.ids = FirstRecords()
        self._refused: set[str] = set()

    @property
    def _taken(self) -> int:
        """How many documents of the corpus are to be in the index, once each of its ids was looked up."""
        return len(self.ids) - len(self._refused)

    def refuse(self, ids: Sequence[str]) -> None:
        """Note documents that cannot be in the index.

        An older version of one must not stay: in an index that is to hold this corpus alone, and beside new passages of
        the same document.
        """
        self._refused.update(ids)
        if ids and not (self.alone and self.empty_at_first) and (self.alone or self.target.meta.passages):
            stored_documents.delete_ids(self.client, self.target.index, ids)

    def verify(self, records: Records, written: int, writer: BulkWriter, vectorizer: Vectorizer) -> tuple[int, int]:
        """Have the index hold a document of each id of the corpus that was taken; returns how many documents these are, and
        how many requests were retried.

        The count shows it if the index holds this corpus alone and was empty at first; otherwise ids are compared. What
        was acknowledged and is not there (the last copy of a shard was given up, its translog is not synced with each
        request, somebody else deleted it) is written again. Contents are not compared.

        written: how many documents of the corpus were acknowledged. What an interrupted run could not write, and is taken
            now, comes to these where ids are compared.
        Raises ClusterError if documents stay missing or are no longer taken, or others keep coming.
        """
        index = self.target.index
        targets.verify_unchanged_index(self.client, self.target)
        segments.refresh(self.client, index)
        if not self.alone:
            retries = self._write_missing(records, written, writer, vectorizer)
            if self.target.meta.passages and self.whole_documents:
                self._remove_last_passages(records)
            segments.refresh(self.client, index)  # what is over is counted next
            return self._taken, retries
        if stored_documents.count(self.client, index) == written and self.empty_at_first:
            return written, 0
        removed = self._remove_surplus()
        if removed:
            log.warning("removed %d documents from %r that are not in the corpus", removed, index)
        retries = self._write_missing(records, written, writer, vectorizer)
        segments.refresh(self.client, index)
        counted = stored_documents.count(self.client, index)
        if counted != self._taken:
            raise ClusterError(
                f"{index!r} holds {counted} documents, and the corpus {self._taken}",
                "is something else writing to it? Run the same command again to continue",
            )
        return counted, retries

    def _remove_surplus(self) -> int:
        """Remove what the corpus does not hold, and documents that were refused; returns how many."""
        surplus = (
            id
            for id in stored_documents.all_ids(self.client, self.target.index)
            if id not in self.ids or id in self._refused
        )
        removed = 0
        for part in stored_documents.by_thousands(surplus):
            stored_documents.delete_ids(self.client, self.target.index, part)
            removed += len(part)
        return removed

    def _remove_last_passages(self, records: Records) -> None:
        """Documents that the index held before may have become shorter."""
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
                log.warning("%d documents that %r had acknowledged were not in it", lost, self.target.index)
            acknowledged = self._taken
        raise ClusterError(
            f"{self.target.index!r} lacks {missing} documents of the corpus that it had taken, again and again",
            "is something else deleting them? Look at the cluster's log; run the same command again to continue",
        )

    def _look_up(self, documents: list[Document], writer: BulkWriter, vectorizer: Vectorizer) -> tuple[int, int]:
        """(how many of the documents were not in the index and can be, retried requests); they are written again.

        The dead-letter file would not tell which cannot: it may hold an id that was taken too, because it occurs twice or
        was mended since.
        """
        ids = list(dict.fromkeys(document.id for document in documents))
        lacking = set(stored_documents.missing_ids(self.client, self.target.index, ids)) - self._refused
        if not lacking:
            return 0, 0
        again = list({document.id: document for document in reversed(documents) if document.id in lacking}.values())
        prepared = prepare(again, vectorizer, self.target.meta)
        outcome = writer.write(prepared.actions)
        positions = [each.position for each in prepared.unfit]
        positions += [prepared.positions[failure.position] for failure in outcome.failures]
        self._refused.update(again[position].id for position in positions)
        return len(lacking - self._refused), outcome.retries
