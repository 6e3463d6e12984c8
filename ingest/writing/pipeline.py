"""Read, encode, write: one corpus into one index, so that a second run continues where the first one stopped.

The main thread reads and encodes; meanwhile other threads send a bounded number of batches to OpenSearch. Acknowledged
batches are journalled in the order of the corpus.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.corpus import Records, everything, occurs_twice
from ingest.dead_letters import DeadLetters
from ingest.error_limit import ErrorLimit, TooManyErrors
from ingest.record_digests import changed_corpus, digest
from ingest.settings import Writing
from ingest.vectorizers import Vectorizer
from ingest.writing import stored_documents
from ingest.writing import target as targets
from ingest.writing.bulk import BulkWriter, Outcome
from ingest.writing.bulk_actions import Prepared, prepare_batches
from ingest.writing.journal import Identity, Journal, WrittenBatch, journal_path
from ingest.writing.stored_documents import Counts
from ingest.writing.target import Target
from ingest.writing.verification import Verification
from opensearch_neural.corpus.documents import Document, FieldNames, Rejected
from opensearch_neural.errors import InputError, OsnError
from opensearch_neural.progress import Progress

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from ingest.index_content import Content

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long an interrupted ingest waits for the answers to its last requests."""


@dataclass(frozen=True)
class Report:
    """The result of an ingest."""

    index: str
    """The index's own name."""
    documents: int
    """Documents (or passages) of the corpus that are in the index now. The other counts are of the same."""
    letters: int
    """Rejected records and documents."""
    skipped: int
    """Documents that an interrupted run had written before."""
    retries: int
    """Requests that were sent again."""
    seconds: float
    """How long this run took."""
    dead_letters: Path | None
    """The file of the rejected documents; None if there are none."""
    alias: str | None = None
    """The alias that names the index now."""
    waits_for: str | None = None
    """The alias that does not name it yet, with --no-swap."""
    replaced: str | None = None
    """The index that the alias named before."""
    counts: Counts | None = None
    """Documents of the new index, and of the one that the alias named before; None without an alias."""
    others: int = 0
    """Other documents in the index: of other corpora, or no longer in this one."""
    without_tokens: int | None = None
    """Documents of the index with no word in the sparse model's vocabulary; None without a sparse model."""
    without_rows: int | None = None
    """Documents of the index that have lost their vector; None without a forward index, which shows it."""
    first_reason: str | None = None
    """The reason of the first rejection in this run."""
    passages: bool = False
    """Whether the index holds documents in passages."""


@dataclass(frozen=True)
class CorpusOfRun:
    """The corpus that a run writes, and the file of the documents that are rejected."""

    name: str
    """Distinguishes corpora in the journal."""
    reading: str
    """Distinguishes ways of reading one corpus in the journal."""
    dead_letters: Path
    """The file for rejected documents."""
    letters_named: bool = True
    """Whether the caller named the dead-letter file. If not, a run that continues another one uses the other run's file."""
    whole_documents: bool = True
    """Whether the corpus has all passages of each document. Further passages in the index are removed."""
    whole: FieldNames | None = None
    """The field names in a corpus that is read to its end: letters of it that are superseded are removed from a dead-letter
    file that the caller did not name. None: it is a part."""


class Completion:
    """What a caller of `ingest` does while the index is written and at its end; here: nothing."""

    def still_ours(self) -> None:
        """Called after each batch and before the end. Raises if another ingest has taken the index over."""

    def when_written(self) -> None:
        """Called when every document is in the index. If it raises, the index does not become complete."""

    def when_complete(self, skipped: int) -> None:
        """Called when the index is complete. skipped: how many documents an interrupted run had written.

        A run that is killed meanwhile can be continued like any other.
        """


def ingest(
    client: OpenSearch,
    target: Target,
    content: Content,
    corpus: CorpusOfRun,
    *,
    writing: Writing,
    alone: bool = False,
    completion: Completion | None = None,
    show_progress: bool = True,
) -> Report:
    """Write all documents of the content into the target, then verify and finish it.

    Args:
        content: its `records` must yield the same records in the same order at every call.
        alone: whether the index may hold nothing else in any case, and not only if it was created for this corpus.
        completion: what else belongs to the end. None: nothing.

    Raises:
        ClusterError: OpenSearch did not accept the documents, or the verification failed.
        TooManyErrors: more than `writing.max_errors` documents were rejected.
        InputError: the corpus differs from that of the interrupted run, or holds no document.
    After each of these, and after KeyboardInterrupt or a kill, the same call continues the ingest.
    """
    completion = completion or Completion()
    journal, letters = _open_records(target, content, corpus, restart=writing.restart)
    alone = alone or target.loading_corpus == corpus.name
    if "empty_at_first" not in journal.notes:
        # Batches without notes come from an older version: it is unknown whether the index was empty before them.
        empty = alone and not journal.batches and stored_documents.is_empty(client, target.index)
        journal.note(empty_at_first=empty)
    verification = Verification(client, target, alone, journal.notes["empty_at_first"], corpus.whole_documents)
    together = writing.writers + 1 if content.pads else 1
    run = _Run(client, target, content.vectorizer, journal, letters, writing, verification, completion, together)
    records = content.records if content.table is None else content.table.counting(content.records)
    started = time.monotonic()
    try:
        with Progress(f"ingest → {target.index}", total=content.total, show=show_progress) as progress:
            run.write_all(records, progress, lambda: targets.mark_adding(client, target, corpus.name))
        if not run.written and not run.letter_count:
            raise holds_nothing(corpus.name)
        completion.still_ours()
        in_index, retries = verification.verify(content.records, run.written, run.writer, content.vectorizer)
        run.retries += retries
        run.letter_count -= in_index - run.written  # of what an interrupted run could not write some may be taken now
        run.written = in_index
        if writing.remove_others and not alone:
            verification.remove_others(run.unread)
        try:
            completion.when_written()
        except OsnError:
            if run.letter_count:  # which may be why
                first = f"; the first in this run: {letters.first_reason}" if letters.first_reason else ""
                log.warning("%d documents were rejected: see %s%s", run.letter_count, letters.path, first)
            raise
        others = 0 if alone else stored_documents.count(client, target.index) - run.written
        without_tokens = stored_documents.count_without_tokens(client, target.index) if target.meta.sparse else None
        without_rows = stored_documents.count_without_rows(client, target.index) if target.meta.forward_index else None
        targets.finish(client, target, merge=writing.merge, corpus_name=corpus.name)
        completion.when_complete(run.skipped)
        if corpus.whole is not None and not corpus.letters_named:
            letters.drop_superseded(run.files, verification.accepted, corpus.whole)
        run.journal.remove()
    finally:
        run.letters.close()
        run.journal.close()
    return Report(
        target.index,
        run.written,
        run.letter_count,
        run.skipped,
        run.retries,
        time.monotonic() - started,
        letters.path if run.letter_count else None,
        others=max(0, others),
        without_tokens=without_tokens,
        without_rows=without_rows,
        first_reason=letters.first_reason,
        passages=target.meta.passages is not None,
    )


def holds_nothing(corpus_name: str) -> InputError:
    return InputError(f"{corpus_name} holds no document", "name a corpus with at least one")


def _open_records(
    target: Target, content: Content, corpus: CorpusOfRun, *, restart: bool
) -> tuple[Journal, DeadLetters]:
    """(journal, dead letters) of a run, or of the run that it continues."""
    meta = target.meta
    identity = Identity(
        target.uuid,
        corpus.name,
        content.splade or (meta.sparse.hash if meta.sparse else None),
        meta.dense.hash if meta.dense else None,
        corpus.reading,
        meta.quantized.hash if meta.quantized else None,
    )
    journal = Journal(journal_path(target, identity), identity, restart=restart)
    dead_letters = corpus.dead_letters
    if not corpus.letters_named and "dead_letters" in journal.notes:
        dead_letters = Path(journal.notes["dead_letters"])  # of the continued run, from any folder
    try:
        letters = DeadLetters(dead_letters)
    except InputError:
        journal.close()
        raise
    journal.note(dead_letters=str(dead_letters.resolve()))
    return journal, letters


@dataclass
class _Run:
    """The state of one ingest."""

    client: OpenSearch
    """A client of the index's cluster."""
    target: Target
    """The index that the batches are written to."""
    vectorizer: Vectorizer
    """Makes or reads the vectors of each batch."""
    journal: Journal
    """Notes each batch once it is written whole."""
    letters: DeadLetters
    """The open file of rejected documents."""
    writing: Writing
    """Batches, retries, and how many documents may be rejected."""
    verification: Verification
    """Knows the written ids, and checks the index at the end."""
    completion: Completion
    """Called after each batch and at the end."""
    together: int
    """Batches that are encoded together."""
    written: int = 0
    """Documents of the corpus in the index."""
    letter_count: int = 0
    """Rejected records and documents."""
    unread: int = 0
    """Those of them that were rejected before their ids were known."""
    records: int = 0
    """Records of the corpus that are finished, or were skipped."""
    skipped: int = 0
    """Documents that an earlier run wrote."""
    retries: int = 0
    """Requests that were sent again."""
    files: set[str] = field(default_factory=set)
    """The files of the records."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the waiting of writers between attempts."""

    def __post_init__(self) -> None:
        self.limit = ErrorLimit(self.writing.max_errors)
        self.writer = BulkWriter(
            self.client,
            self.target.index,
            alias=self.target.write_alias,
            policy=self.writing.retry,
            chunk_bytes=self.writing.chunk_bytes,
            stop=self.stop,
        )

    def write_all(self, records: Records, progress: Progress, at_first: Callable[[], None]) -> None:
        """Encode in this thread, write in others, and journal in the order of the corpus.

        at_first: called before the first document is written, if any is.
        """
        pending: deque[_Sent] = deque()
        to_encode: list[_Taken] = []
        begun = False

        def encode_and_write() -> None:
            nonlocal begun
            # The batches that are encoded now count as in flight.
            while len(pending) + len(to_encode) > self.writing.in_flight:
                self._settle_first(pending, progress)
            for batch, prepared in self._encode(to_encode):
                if prepared.actions and not begun:
                    at_first()
                    begun = True
                pending.append((batch, prepared, pool.submit(self.writer.write, prepared.actions)))
                while pending and pending[0][2].done():
                    self._settle_first(pending, progress)
            to_encode.clear()

        pool = ThreadPoolExecutor(self.writing.writers, "osn-bulk")
        try:
            for start, items in self._batches(records):
                earlier = self.journal.batches.get(start)
                if earlier is not None and earlier.end == start + len(items):
                    self._skip(earlier, items)
                    progress.update(len(items), skipped=True)
                    continue
                to_encode.append(self._take(start, items))
                if len(to_encode) == self.together:
                    encode_and_write()
            encode_and_write()
            while pending:
                self._settle_first(pending, progress)
            self.limit.check(self.letter_count, self.records, self.letters.path, ended=True)
        except BaseException:
            # Requests in flight are answered soon, give up at their next attempt, or are sent again by the next run.
            # Acknowledged batches are journalled.
            self.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # `wait` treats a cancelled future as done only after a thread has seen it, which will not happen.
            wait([future for *_, future in pending if not future.cancelled()], timeout=GRACE_SECONDS)
            self._settle_arrived(pending, progress)
            raise
        pool.shutdown(wait=True)

    def _settle_first(self, pending: deque[_Sent], progress: Progress) -> None:
        self._settle(*pending[0], progress)
        pending.popleft()  # only now, so that an interrupt in between does not lose the batch

    def _settle_arrived(self, pending: deque[_Sent], progress: Progress) -> None:
        for batch, prepared, future in pending:
            if not future.done() or future.cancelled() or future.exception() is not None:
                continue  # leaves a gap in the journal, which the next run fills
            with suppress(TooManyErrors):
                self._settle(batch, prepared, future, progress)

    def _batches(self, records: Records) -> Iterator[tuple[int, list[Document | Rejected]]]:
        """(number of the first record, records) of the batches of the corpus, cut as in the journal if it has them."""
        items: list[Document | Rejected] = []
        start = size = 0

        def full() -> bool:
            if earlier := self.journal.batches.get(start):
                return len(items) == earlier.end - earlier.start
            return len(items) >= self.writing.batch_documents or size >= self.writing.batch_bytes

        for item in everything(records, self.limit.too_many):
            items.append(item)
            self.files.add(item.file or "")
            size += size_of(item)
            if full():
                yield start, items
                start, items, size = start + len(items), [], 0
        if items:
            yield start, items

    def _skip(self, earlier: WrittenBatch, items: list[Document | Rejected]) -> None:
        """Skip a batch that an earlier run wrote; only the ids and the letters are remembered."""
        if digest(items) != earlier.digest:
            raise changed_corpus(earlier.start, earlier.end)
        documents = []
        for number, item in enumerate(items, earlier.start):
            if isinstance(item, Document) and self.verification.ids.first(item.id, number) == number:
                documents.append(item)
            else:
                self.letters.keep(item)
        self.verification.refused_before.update(documents[place].id for place in earlier.refused)
        self.skipped += earlier.written
        self.written += earlier.written
        self.letter_count += earlier.letters
        self.unread += sum(isinstance(item, Rejected) for item in items)
        self.records += len(items)

    def _take(self, start: int, items: list[Document | Rejected]) -> _Taken:
        documents: list[Document] = []
        set_aside: list[tuple[Document | Rejected, str]] = []
        for number, item in enumerate(items, start):
            if isinstance(item, Rejected):
                self.unread += 1
                set_aside.append((item, item.reason))
            elif (first := self.verification.ids.first(item.id, number)) != number:
                set_aside.append((item, occurs_twice(item, first)))
            else:
                documents.append(item)
        return _Taken(start, len(items), digest(items), documents, set_aside)

    def _encode(self, to_encode: list[_Taken]) -> Iterator[tuple[_Taken, Prepared]]:
        batches = [batch.documents for batch in to_encode]
        for batch, prepared in zip(to_encode, prepare_batches(batches, self.vectorizer, self.target.meta), strict=True):
            unfit = [(batch.documents[position], reason) for position, reason in prepared.unfit.items()]
            batch.set_aside.extend(unfit)
            self.verification.refuse([document.id for document, _ in unfit])
            yield batch, prepared

    def _settle(self, batch: _Taken, prepared: Prepared, future: Future[Outcome], progress: Progress) -> None:
        """Record the answer to a batch: first the dead letters, then the journal, so that no letter is lost."""
        outcome = future.result()
        self.completion.still_ours()
        for item, reason in batch.set_aside:
            self.letters.add(item, reason)
        for failure in outcome.failures:
            document = batch.documents[prepared.positions[failure.position]]
            self.letters.add(document, failure.reason, failure.status)
        failed = [prepared.positions[failure.position] for failure in outcome.failures]
        self.verification.refuse([batch.documents[place].id for place in failed])
        refused = tuple(sorted([*failed, *prepared.unfit]))
        letters = len(batch.set_aside) + len(outcome.failures)
        self.letters.sync()
        written = len(prepared.actions) - len(outcome.failures)
        end = batch.start + batch.length
        self.journal.done(WrittenBatch(batch.start, end, batch.digest, written, letters, refused))
        self.written += written
        self.letter_count += letters
        self.retries += outcome.retries
        if self.letter_count:
            progress.remark(f"{self.letter_count} set aside")
        progress.update(batch.length)
        self.records += batch.length
        self.limit.check(self.letter_count, self.records, self.letters.path)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch of the corpus: the documents to encode, and the rejected records."""

    start: int
    """The number of its first record."""
    length: int
    """The number of its records."""
    digest: str
    """Identifies its records in the journal."""
    documents: list[Document]
    """Those to encode, in the order of the corpus."""
    set_aside: list[tuple[Document | Rejected, str]]
    """(rejected record or document, reason)"""


_Sent = tuple[_Taken, Prepared, Future[Outcome]]
"""A batch whose documents are being sent to OpenSearch."""


def size_of(record: Document | Rejected) -> int:
    """About how many bytes a record takes in a request, with all its fields."""
    if isinstance(record, Rejected):
        return len(record.raw)
    size = len(record.text.encode("utf-8", "surrogatepass")) + len(record.title) + len(record.url or "")
    return size + (len(json.dumps(record.fields, default=str)) if record.fields else 0)
