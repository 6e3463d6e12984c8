"""Read, encode, write: one corpus into one index, so that the same command again continues where this one stopped.

The main thread reads and encodes; a bounded number of batches is on its way to OpenSearch meanwhile, each in a thread of
its own. What OpenSearch acknowledged is journalled in the order of the corpus.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ingest import target as targets
from ingest.bulk import BulkWriter, Outcome
from ingest.bulk_actions import Prepared, prepare, prepare_batches
from ingest.corpus import Records, ignore
from ingest.dead_letters import DeadLetters
from ingest.duplicate_ids import FirstRecords
from ingest.journal import Batch, Identity, Journal, changed_corpus, digest
from ingest.progress import Progress
from ingest.settings import Writing
from ingest.target import Target
from ingest.vectorizers import Vectorizer
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import ClusterError, OsnError
from opensearch_neural.home import home
from opensearch_neural.index import segments
from opensearch_neural.index.names import checked_name

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long an ingest that is interrupted waits for the answers to its last requests."""


@dataclass(frozen=True)
class Report:
    """What an ingest did."""

    index: str
    documents: int
    """Documents (or passages) of the corpus now in the index."""
    letters: int
    """Records and documents that were not taken."""
    skipped: int
    """Documents that an interrupted run had written."""
    retries: int
    """Requests that were sent again."""
    seconds: float
    dead_letters: Path | None
    """The file that holds what was not taken."""
    alias: str | None = None
    """The alias that names the index now."""
    replaced: str | None = None
    """The index that the alias named before."""


class TooManyErrors(OsnError):
    """More documents were refused than `max_errors` allows."""


def ingest(
    client: OpenSearch,
    target: Target,
    records: Records,
    vectorizer: Vectorizer,
    *,
    corpus_name: str,
    dead_letters: Path,
    reader: str = "",
    writing: Writing | None = None,
    whole_documents: bool = True,
    serve: Callable[[], str | None] | None = None,
    total: int | None = None,
    pads: bool = False,
    show_progress: bool = True,
) -> Report:
    """Write all documents that `records` yields into the target, then finish and verify it.

    `records` is called with a function that takes what a reader rejects; it must yield the same records in the same
    order at every call. `corpus_name` distinguishes corpora in the journal, `reader` ways of reading one. Where documents
    are split, `whole_documents` says that all passages of each are there: what an index holds beyond them is removed.
    `serve` is called when the index is complete, before what could continue the run is removed; it returns the index that
    this one replaced. Then nothing else may be in the index. `pads`: the vectorizer is faster with several batches at once.

    Raises:
        ClusterError: OpenSearch did not take the documents, or the verification failed.
        TooManyErrors: more than `writing.max_errors` documents were set aside.
        InputError: the corpus is not the one that an interrupted run began.
    After each of these, and after KeyboardInterrupt or a kill, the same call again continues.
    """
    writing = writing or Writing()
    meta = target.meta
    identity = Identity(
        target.uuid,
        corpus_name,
        meta.sparse.hash if meta.sparse else None,
        meta.dense.hash if meta.dense else None,
        reader,
        meta.quantized.hash if meta.quantized else None,
    )
    letters = DeadLetters(dead_letters)
    journal = Journal(journal_path(target, identity), identity, restart=writing.restart)
    together = writing.writers + 1 if pads else 1
    run = _Run(client, target, vectorizer, journal, letters, writing, whole_documents, together)
    started = time.monotonic()
    try:
        with Progress(f"ingest → {target.index}", total=total, show=show_progress) as progress:
            run.write_all(records, progress)
        return run.finish(records, started, corpus_name, serve)
    finally:
        run.letters.close()
        run.journal.close()


def journal_path(target: Target, identity: Identity) -> Path:
    """Raises ClusterError for a name that could lead out of the folder: both come from the server."""
    index, uuid = checked_name(target.index), checked_name(target.uuid)
    return home() / "ingest" / f"{index}-{uuid}-{identity.hash}.journal"


class _Run:
    def __init__(
        self,
        client: OpenSearch,
        target: Target,
        vectorizer: Vectorizer,
        journal: Journal,
        letters: DeadLetters,
        writing: Writing,
        whole_documents: bool,
        together: int,
    ) -> None:
        self.whole_documents = whole_documents
        self.together = together
        self.client = client
        self.target = target
        self.vectorizer = vectorizer
        self.journal = journal
        self.letters = letters
        self.writing = writing
        self.stop = threading.Event()
        self.writer = BulkWriter(
            client, target.index, policy=writing.retry, chunk_bytes=writing.chunk_bytes, stop=self.stop
        )
        self.ids = FirstRecords()
        self.refused: set[str] = set()
        """Ids of documents that cannot be in the index, as far as this run has met them."""
        self.written = 0
        self.letter_count = 0
        self.skipped = 0
        self.retries = 0

    def write_all(self, records: Records, progress: Progress) -> None:
        """Encode in this thread, write in others, and journal in the order of the corpus."""
        pending: deque[tuple[_Encoded, Future[Outcome]]] = deque()
        taken: list[_Taken] = []

        def encode_and_write() -> None:
            # What is encoded now is in flight too.
            while len(pending) + len(taken) > self.writing.in_flight:
                self._settle_first(pending, progress)
            for encoded in self._encode(taken):
                pending.append((encoded, pool.submit(self.writer.write, encoded.prepared.actions)))
                while pending and pending[0][1].done():
                    self._settle_first(pending, progress)
            taken.clear()

        pool = ThreadPoolExecutor(self.writing.writers, "osn-bulk")
        try:
            for start, items in self._batches(records):
                earlier = self.journal.batches.get(start)
                if earlier is not None and earlier.end == start + len(items):
                    self._skip(earlier, items)
                    progress.update(len(items), skipped=True)
                    continue
                taken.append(self._take(start, items))
                if len(taken) == self.together:
                    encode_and_write()
            encode_and_write()
            while pending:
                self._settle_first(pending, progress)
        except BaseException:
            # What is on its way arrives soon, or gives up at its next attempt, or is sent again by the next run. What
            # arrived is journalled.
            self.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait([future for _, future in pending], timeout=GRACE_SECONDS)
            self._settle_arrived(pending, progress)
            raise
        pool.shutdown(wait=True)

    def _settle_first(self, pending: deque[tuple[_Encoded, Future[Outcome]]], progress: Progress) -> None:
        self._settle(*pending[0], progress)
        pending.popleft()  # only now: an interrupt in between must not lose sight of it

    def _settle_arrived(self, pending: deque[tuple[_Encoded, Future[Outcome]]], progress: Progress) -> None:
        for encoded, future in pending:
            if not future.done() or future.cancelled() or future.exception() is not None:
                continue  # a gap in the journal, which the next run fills
            with suppress(TooManyErrors):
                self._settle(encoded, future, progress)

    def _batches(self, records: Records) -> Iterator[tuple[int, list[Document | Rejected]]]:
        """(number of the first record, records) of batches of the corpus: the journal's where it has some."""
        rejected: deque[Rejected] = deque()
        items: list[Document | Rejected] = []
        start = characters = 0

        def full() -> bool:
            if earlier := self.journal.batches.get(start):
                return len(items) == earlier.end - earlier.start
            return len(items) >= self.writing.batch_documents or characters >= self.writing.batch_characters

        def add(item: Document | Rejected) -> Iterator[tuple[int, list[Document | Rejected]]]:
            nonlocal items, start, characters
            items.append(item)
            characters += len(item.text) if isinstance(item, Document) else len(item.raw)
            if full():
                yield start, items
                start, items, characters = start + len(items), [], 0

        for document in records(rejected.append):
            while rejected:
                yield from add(rejected.popleft())
            yield from add(document)
        while rejected:
            yield from add(rejected.popleft())
        if items:
            yield start, items

    def _skip(self, earlier: Batch, items: list[Document | Rejected]) -> None:
        """Pass over what an earlier run wrote; only the ids are remembered."""
        if digest(items) != earlier.digest:
            raise changed_corpus(earlier.start, earlier.end)
        for number, item in enumerate(items, earlier.start):
            if isinstance(item, Document):
                self.ids.first(item.id, number)
        self.skipped += earlier.written
        self.written += earlier.written
        self.letter_count += earlier.letters

    def _take(self, start: int, items: list[Document | Rejected]) -> _Taken:
        documents: list[Document] = []
        set_aside: list[tuple[Document | Rejected, str]] = []
        for number, item in enumerate(items, start):
            if isinstance(item, Rejected):
                set_aside.append((item, item.reason))
            elif (first := self.ids.first(item.id, number)) != number:
                set_aside.append((item, f"the id {item.id!r} occurs twice: first in record {first + 1} of the corpus"))
            else:
                documents.append(item)
        return _Taken(start, len(items), digest(items), documents, set_aside)

    def _encode(self, taken: list[_Taken]) -> Iterator[_Encoded]:
        batches = [batch.documents for batch in taken]
        for batch, prepared in zip(
            taken, prepare_batches(batches, self.vectorizer, self.target.meta.dense), strict=True
        ):
            unfit = [(batch.documents[each.position], each.reason) for each in prepared.unfit]
            batch.set_aside.extend(unfit)
            self.refused.update(document.id for document, _ in unfit)
            yield _Encoded(batch, prepared)

    def _settle(self, encoded: _Encoded, future: Future[Outcome], progress: Progress) -> None:
        """Take note of a batch that OpenSearch answered: letters first, then the journal, so that no letter is lost."""
        outcome = future.result()
        batch, prepared = encoded.batch, encoded.prepared
        for item, reason in batch.set_aside:
            self.letters.add(item, reason)
        for failure in outcome.failures:
            document = batch.documents[prepared.positions[failure.position]]
            self.letters.add(document, failure.reason, failure.status)
            self.refused.add(document.id)
        letters = len(batch.set_aside) + len(outcome.failures)
        self.letters.sync()
        written = len(prepared.actions) - len(outcome.failures)
        self.journal.done(Batch(batch.start, batch.start + batch.length, batch.digest, written, letters))
        self.written += written
        self.letter_count += letters
        self.retries += outcome.retries
        if self.letter_count:
            progress.remark(f"{self.letter_count} set aside")
        progress.update(batch.length)
        if self.letter_count > self.writing.max_errors:
            raise TooManyErrors(
                f"{self.letter_count} documents were not taken, more than --max-errors {self.writing.max_errors} allows",
                f"read the reasons in {self.letters.path}; the same command again continues",
            )

    def finish(
        self, records: Records, started: float, corpus_name: str, serve: Callable[[], str | None] | None
    ) -> Report:
        """Verify and open the index for searching; then there is nothing left to continue."""
        targets.verify_unchanged_index(self.client, self.target)
        segments.refresh(self.client, self.target.index)
        self._verify(records, corpus_name, alone=serve is not None)
        if self.target.meta.passages and self.target.loading_corpus is None and self.whole_documents:
            self._remove_last_passages(records)
        targets.finish(self.client, self.target, merge=self.writing.merge)
        replaced = serve() if serve else None
        self.journal.remove()
        return Report(
            self.target.index,
            self.written,
            self.letter_count,
            self.skipped,
            self.retries,
            time.monotonic() - started,
            self.letters.path if self.letter_count else None,
            replaced=replaced,
        )

    def _verify(self, records: Records, corpus_name: str, *, alone: bool) -> None:
        """Raise ClusterError unless the index holds a document of each id of the corpus that was taken.

        A count shows it where the index holds this corpus alone; otherwise each id is looked up. What was acknowledged
        and is not there (the last copy of a shard was given up, its translog is not synced with each request, somebody
        else deleted it) is written again. Contents are not compared. `alone`: nothing else may be there.
        """
        counted = targets.count(self.client, self.target.index)
        if (alone or self.target.loading_corpus == corpus_name) and counted == self.written:
            return
        if alone and counted > self.written:
            raise ClusterError(
                f"{self.target.index!r} holds {counted} documents, {counted - self.written} more than the corpus",
                "the corpus has changed since the build began: build anew with --restart",
            )
        for _ in range(3):
            missing = sum(self._look_up(documents) for documents in _by_thousands(records(ignore)))
            if not missing:
                return
            log.warning("%d documents that %r had acknowledged were not in it", missing, self.target.index)
        raise ClusterError(
            f"{self.target.index!r} lacks {missing} documents of the corpus that it had taken, again and again",
            "is something else deleting them? Look at the cluster's log; the same command again continues",
        )

    def _remove_last_passages(self, records: Records) -> None:
        """Documents that the index held before may have become shorter."""
        documents = groupby((each for each in records(ignore) if isinstance(each, Passage)), lambda each: each.parent)
        counts = ((parent, max(passage.number for passage in passages)) for parent, passages in documents)
        while part := dict(islice(counts, 1000)):
            targets.remove_last_passages(self.client, self.target.index, part)

    def _look_up(self, documents: list[Document]) -> int:
        """How many of the documents were not in the index and can be; they are written again.

        The dead-letter file would not tell which cannot: it may hold an id that was taken too, because it occurs twice or
        was mended since.
        """
        ids = list(dict.fromkeys(document.id for document in documents))
        lacking = set(targets.missing_ids(self.client, self.target.index, ids)) - self.refused
        if not lacking:
            return 0
        again = list({document.id: document for document in reversed(documents) if document.id in lacking}.values())
        prepared = prepare(again, self.vectorizer, self.target.meta.dense)
        outcome = self.writer.write(prepared.actions)
        self.retries += outcome.retries
        positions = [each.position for each in prepared.unfit]
        positions += [prepared.positions[failure.position] for failure in outcome.failures]
        self.refused.update(again[position].id for position in positions)
        return len(lacking - self.refused)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch of the corpus: the documents to encode, and what was set aside."""

    start: int
    length: int
    digest: str
    documents: list[Document]
    set_aside: list[tuple[Document | Rejected, str]]


@dataclass(frozen=True, slots=True)
class _Encoded:
    batch: _Taken
    prepared: Prepared


def _by_thousands(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while part := list(islice(documents, 1000)):
        yield part
