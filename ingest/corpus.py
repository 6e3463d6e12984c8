"""The corpus of an ingest: its place, how its records are read, and whether they are split into passages."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingest.corpus_from_index import PREFIX, CopiedIndex, copy_index, is_index
from ingest.dead_letters import is_dead_letter_file, mended
from ingest.record_digests import FirstRecords
from opensearch_neural.commands.option_groups import Command, options_of
from opensearch_neural.corpus.documents import Document, FieldNames, Rejected
from opensearch_neural.corpus.passages import Passage, split
from opensearch_neural.corpus.reader import format_of, read_corpus
from opensearch_neural.corpus.text_files import open_binary
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.locks import hold, is_held

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

Records = Callable[[Callable[[Rejected], None]], Iterator[Document]]
"""A function that reads a corpus from its beginning at each call, and passes unreadable records to the given function."""


@dataclass(frozen=True)
class CorpusSource:
    """The place of a corpus, and how its records are read."""

    path: str
    """A BEIR folder, a file, hf:NAME, or - for standard input. Empty: the corpus that stored vectors were encoded of."""
    format: str | None = None
    """The format. None: from the file's name."""
    id_field: str | None = None
    """The field that holds a record's id. None: the first of the usual names; likewise for the next three."""
    title_field: str | None = None
    """The field that holds its title."""
    text_field: str | None = None
    """The field that holds its text."""
    url_field: str | None = None
    """The field that holds its URL."""
    limit: int | None = None
    """How many documents are read; unreadable records do not count. None: all."""

    @property
    def name(self) -> str:
        if self.path == "-":
            return "stdin"
        return self.path if self.path.startswith("hf:") or is_read_once(self.path) else str(Path(self.path).resolve())

    @property
    def names(self) -> FieldNames:
        """The possible field names of the parts of a document."""
        return FieldNames.of(None, **self.named)

    @property
    def named(self) -> dict[str, str]:
        """{part of a document: the field that was named for it}."""
        fields = {"id": self.id_field, "title": self.title_field, "text": self.text_field, "url": self.url_field}
        return {part: name for part, name in fields.items() if name is not None}

    @property
    def reading(self) -> str:
        """The settings that decide how a record is read, without `limit`, which only decides how many are."""
        return json.dumps([self.format, self.id_field, self.title_field, self.text_field, self.url_field])

    def is_table(self, place: str) -> bool:
        """Whether it is a csv or tsv, where numbers are strings. place: the file where the corpus is now"""
        if is_dead_letter_file(Path(place)):
            return False
        try:
            return format_of(place, self.format)[0] in ("csv", "tsv", "quoted-tsv")
        except InputError:  # its reader says what is wrong
            return False

    def reader(self, place: str, usual: FieldNames | None = None) -> Records:
        """A function that reads the corpus from its beginning at each call.

        place: the file where the corpus is now
        usual: the possible names of parts whose field is None; None: the usual names

        It gives each warning once, however often the corpus is read.
        """
        file = self.name if is_read_once(self.path) else place
        warned: set[str] = set()

        def warn(message: str) -> None:
            if message not in warned:
                warned.add(message)
                log.warning(message.replace(place, file))

        if is_dead_letter_file(Path(place)):
            return lambda on_reject: islice(
                mended(Path(place), on_reject, FieldNames.of(usual, **self.named), warn=warn, file=file), self.limit
            )

        def read(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
            return read_corpus(
                place,
                format=self.format,
                id_field=self.id_field,
                title_field=self.title_field,
                text_field=self.text_field,
                url_field=self.url_field,
                names=usual,
                limit=self.limit,
                on_reject=on_reject,
                warn=warn,
                check_first=True,
            )

        return read if file == place else _named(read, place, file)


def corpus_options(*, required: bool) -> Callable[[Command], Command]:
    """Add the options that name a corpus to a click command, which gets `corpus: CorpusSource`, or None without any.

    The corpus is the command's argument; its former name `--corpus` still works. The path is empty if only the way of
    reading is given.
    """
    options = [
        click.argument("corpus", required=False),
        click.option("--corpus", "named", hidden=True),
        click.option("--format", help="The corpus's format, if its name does not show it."),
        click.option(
            "--id-field", help="Field with the ids; `a.b` is in an object.  [default: the first of the usual names]"
        ),
        click.option("--title-field", help="Field with the titles, likewise.  [default: the first of the usual names]"),
        click.option("--text-field", help="Field with the texts, likewise.  [default: the first of the usual names]"),
        click.option("--url-field", help="Field with the URLs, likewise.  [default: the first of the usual names]"),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            help="Read only the first N documents; unreadable records do not count.",
        ),
    ]

    def source(corpus: str | None, named: str | None, **reading: Any) -> CorpusSource | None:
        if corpus is not None and named is not None:
            raise click.UsageError(f"two corpora, {corpus!r} and {named!r}: name one")
        path = named if corpus is None else corpus
        if path == "":
            raise click.UsageError("the name of the corpus is empty")
        if path is None and required:
            raise click.UsageError("name a corpus: a BEIR folder, a file, hf:NAME, or - for standard input")
        if path is None and not any(reading.values()):
            return None
        return CorpusSource(path or "", **reading)

    return options_of(source, "corpus", *options)


def is_read_once(corpus: str) -> bool:
    """Whether a corpus cannot be read a second time, or may have changed then: standard input, a pipe, an index."""
    if corpus == "-" or is_index(corpus):
        return True
    try:
        mode = Path(corpus).stat().st_mode
    except (OSError, ValueError):  # it does not exist, which its reader reports
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


class _TooMany(Exception):
    """No more records are read."""


KEPT_BYTES = 1 << 20
"""Bytes of rejected records that wait in memory for the next document; more wait in a temporary file."""


def everything(
    records: Records, too_many: Callable[[int, int], bool] = lambda rejected, records: False
) -> Iterator[Document | Rejected]:
    """Documents and rejected records in the corpus's order. Memory holds few of them, even if all records are rejected.

    too_many: called with the rejected records since the last document and all records so far; True ends the reading
    """
    passed = rejected = 0
    with tempfile.SpooledTemporaryFile(KEPT_BYTES) as waiting:

        def reject(record: Rejected) -> None:
            nonlocal rejected
            waiting.write(json.dumps([record.file, record.line, record.reason, record.raw]).encode() + b"\n")
            rejected += 1
            if too_many(rejected, passed + rejected):
                raise _TooMany

        def taken() -> Iterator[Rejected]:
            """The rejected records so far, which do not wait any longer."""
            nonlocal passed, rejected
            waiting.seek(0)
            yield from (Rejected(*json.loads(line)) for line in waiting)
            waiting.seek(0)
            waiting.truncate()
            passed, rejected = passed + rejected, 0

        with suppress(_TooMany):
            for document in records(reject):
                if rejected:
                    yield from taken()
                passed += 1
                yield document
        yield from taken()


def _named(records: Records, place: str, name: str) -> Records:
    """The records, with `name` instead of `place`, the file where they are now, in errors and as their file. The file of
    one of several indexes is its own index."""

    def file_of(record: Document | Rejected) -> str:
        return place.file_of(record.line, name) if isinstance(place, CopiedIndex) else name

    def read(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
        try:
            for document in records(lambda rejected: on_reject(replace(rejected, file=file_of(rejected)))):
                document.file = file_of(document)
                yield document
        except InputError as error:
            raise InputError(error.message.replace(place, name), error.remedy) from None

    return read


COPY = "osn-corpus-"
"""How the names of copied corpora begin."""
NEW_SECONDS = 5.0
"""A copy that was changed within this time may not be locked yet."""


def _remove_abandoned_copies() -> None:
    """Remove the copies of processes that were killed: each is as large as its corpus."""
    for copy in Path(tempfile.gettempdir()).glob(f"{COPY}*"):
        with suppress(OSError):
            if time.time() - copy.stat().st_mtime > NEW_SECONDS and not is_held(copy):
                copy.unlink()


@contextmanager
def spooled(
    corpus: str, client: OpenSearch | None = None, *, id_field: str | None = None, usual_id: str | None = None
) -> Iterator[str]:
    """A place where the corpus can be read more than once.

    Standard input, a pipe, or an index of `client`'s cluster is copied to a temporary file. Raises InputError for an index
    without a client, and if the temporary folder is full. Copies that killed processes left there are removed.

    id_field: the field that was named for ids; an index's documents then have no `_id` beside it
    usual_id: the field that was named when the index to be written was made: documents that have it have no `_id` beside it
    """
    if not is_read_once(corpus):
        yield corpus
        return
    is_pipe = corpus != "-" and not is_index(corpus)
    copied = False
    try:
        _remove_abandoned_copies()
        suffix = "".join(Path(corpus).suffixes) if is_pipe else ".jsonl"
        with tempfile.NamedTemporaryFile(prefix=COPY, suffix=suffix) as file:
            hold(file)
            place = file.name
            if corpus == "-":
                shutil.copyfileobj(sys.stdin.buffer, file)
            elif is_pipe:
                stream, _ = open_binary(corpus)
                with stream:
                    shutil.copyfileobj(stream, file)
            elif client is None:
                raise InputError(f"only `osn ingest` reads an index ({corpus})", "name a file, or use `osn ingest`")
            else:
                place = CopiedIndex(file.name)
                other_id = usual_id if id_field is None and usual_id != "_id" else None
                copy_index(client, corpus, file, place.note, ids=id_field in (None, "_id"), other_id=other_id)
            file.flush()
            copied = True
            yield place
    except OSError as error:
        if copied or error.errno != errno.ENOSPC:
            raise
        twice = " (of an index, twice its documents as JSON)" if is_index(corpus) else ""
        raise InputError(
            f"the temporary folder {tempfile.gettempdir()} is full; {corpus} is copied there{twice} before it is read",
            "free space there, or name another folder in the variable TMPDIR",
        ) from None


def as_passages(records: Records, tokenizer: Tokenizer, passages: PassageMeta | None) -> Records:
    """The records, with each document split into passages; if `passages` is None, unchanged.

    Documents are rejected if their passages' ids would be too long, or if their id occurs twice, since two documents must
    not mix passages.
    """

    if passages is None:
        return records

    def read(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
        seen = FirstRecords()
        for number, document in enumerate(records(on_reject)):
            if isinstance(document, Passage):  # a dead letter
                yield document
                continue
            if seen.first(document.id, number) != number:
                on_reject(_rejected(document, occurs_twice(document)))
                continue
            try:
                yield from split(document, tokenizer, passages.tokens, passages.stride)
            except InputError as error:
                on_reject(_rejected(document, error.message))

    return read


def occurs_twice(document: Document, first: int | None = None) -> str:
    """The reason to reject a document whose id an earlier one has. first: the number of that record, from 0"""
    where = "" if first is None else f": first in record {first + 1} of the corpus"
    if document.file is not None and is_index(document.file):
        where += f"; this is the document of {document.file.removeprefix(PREFIX)!r}"
    return f"the id {document.id!r} occurs twice{where}"


def _rejected(document: Document, reason: str) -> Rejected:
    return Rejected(document.file or "", document.line, reason, json.dumps(document.record(), default=str))


def ignore(_: object) -> None:
    """Ignores rejected records in passes that only read; the pass that writes sets them aside."""
