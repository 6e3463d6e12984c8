"""The dead-letter file: every rejected document, with the reason, so that it can be corrected and ingested again.

One JSON object per line:

    {"dead_letter": 1, "reason": "…", "status": 400, "file": "docs.jsonl", "line": 17, "document": {…}}

`document` is the record as `osn ingest` read it; for a line that could not be read, `raw` holds its text instead, which can
be corrected to a JSON object in place. `osn ingest FILE` recognizes such a file and reads the documents from it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

from ingest.record_digests import text_digest
from opensearch_neural.corpus.documents import (
    Defect,
    Document,
    FieldNames,
    OnReject,
    Rejected,
    Warn,
    as_document,
    reserved,
)
from opensearch_neural.corpus.json_lines import ONLY_TITLE, parse_object
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.corpus.text_files import printable
from opensearch_neural.errors import InputError
from opensearch_neural.locks import locked

log = logging.getLogger(__name__)

EXIT_WITH_LETTERS = 3
"""The exit status of a command that finished but rejected documents."""


USUAL = FieldNames()
STORED = FieldNames(text=("text",))
"""The names in a letter's `document`: an own field called `body` is not its text, not even if the text is empty."""
# Not U+0085, U+2028 and U+2029, which a string of JSON may hold.
_LINE_ENDS = re.compile(r"[\n\v\f\r\x1c-\x1e]+")


class DeadLetters:
    """Appends to the dead-letter file, which is created with the first letter.

    A run that continues another one meets some of its documents again; letters that are in the file are not added twice. If
    a document has another reason now, its letter with the former reason is removed when the file is closed.
    Letters are written whole, under a lock. Only the user may read the file, since it holds documents.
    Raises InputError at once if the file could not be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first_reason: str | None = None
        self._waiting: list[str] = []
        self._mended = False
        self._before: dict[bytes, Any] = {}
        """{document or text: its reason and status} of the letters that the file held"""
        self._added: set[bytes] = set()
        """Documents and texts of this run's letters."""
        self._outdated = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise InputError(
                f"dead letters cannot be written to {path}: {error.strerror}", "give another file with --dead-letters"
            ) from None
        if path.exists():
            for letter in letters_of(path):
                content = _content_digest(letter)
                self._outdated |= content in self._before  # a run was killed before it removed the former letter
                self._before[content] = _said(letter)

    def add(self, item: Document | Rejected, reason: str, status: int | None = None) -> None:
        self.first_reason = self.first_reason or reason
        letter: dict[str, Any] = {"dead_letter": 1, "reason": reason}
        if status is not None:
            letter["status"] = status
        letter |= _content(item)
        content = _content_digest(letter)
        if content in self._added:
            return
        self._added.add(content)
        before = self._before.get(content)
        if before != _said(letter):
            self._outdated |= before is not None
            self._waiting.append(json.dumps(letter, default=str) + "\n")

    def keep(self, item: Document | Rejected) -> None:
        """Note that a letter of the continued run is one of this run's, too."""
        self._added.add(_content_digest(_content(item)))

    def drop_superseded(self, files: Collection[str], accepted: Callable[[str], bool], names: FieldNames) -> None:
        """Remove letters of earlier runs whose documents are accepted now: mended, they would bring their old texts back.

        To be called when all records were read. Letters of this run stay, and texts in which no id can be read.
        files: the files of the records. accepted: whether a document of this id was. names: the field names in the records
        """
        self.sync()

        def superseded(letter: dict[str, Any]) -> bool:
            if letter.get("file") not in files or _content_digest(letter) in self._added:
                return False
            id = _id_of(letter, names)
            return id is not None and accepted(id)

        if self.path.exists() and any(map(superseded, letters_of(self.path))):
            with locked(self.path.resolve()):
                _keep_last(self.path.resolve(), superseded)
            self._outdated = False

    def close(self) -> None:
        """Write the letters so far, and remove those whose document has a later letter, with another reason."""
        self.sync()
        if self._outdated:
            with locked(self.path.resolve()):
                _keep_last(self.path.resolve())
            self._outdated = False

    def sync(self) -> None:
        """Write the letters so far, so that they survive a crash of the machine."""
        if not self._waiting:
            return
        with locked(self.path.resolve()):
            private = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(private, "a+b") as file:
                if not self._mended:
                    _mend_end(file)
                    self._mended = True
                file.write("".join(self._waiting).encode("utf-8", "surrogatepass"))
                file.flush()
                os.fsync(file.fileno())
        self._waiting.clear()


def _content(item: Document | Rejected) -> dict[str, Any]:
    """What a letter holds of a record: its place, and the document or the text."""
    content: dict[str, Any] = {"file": item.file, "line": item.line}
    content = {key: value for key, value in content.items() if value is not None}
    return content | ({"document": item.record()} if isinstance(item, Document) else {"raw": item.raw})


def _id_of(letter: dict[str, Any], names: FieldNames) -> str | None:
    """The id of a letter's document, whatever else is wrong with it. names: the field names in a text that was not read"""
    record = letter.get("document")
    if record is None:
        try:
            record = json.loads(letter["raw"]) if isinstance(letter["raw"], str) else letter["raw"]
        except (ValueError, RecursionError):
            return None
    else:
        names = USUAL
    if not isinstance(record, dict):
        return None
    record = names.lifted(record)
    name = names.find(record, "id")
    return None if name is None else str(record[name])


def _content_digest(letter: dict[str, Any]) -> bytes:
    """The same for two letters of one document, or of one text that could not be read."""
    content = letter.get("document", letter.get("raw"))
    return text_digest(json.dumps([letter.get("file"), letter.get("line"), content], sort_keys=True, default=str), 16)


def _said(letter: dict[str, Any]) -> tuple[Any, Any]:
    return letter.get("reason"), letter.get("status")


def _keep_last(path: Path, superseded: Callable[[dict[str, Any]], bool] = lambda letter: False) -> None:
    """Remove the letters whose document has a later letter, and superseded ones. Other lines stay, and a file without any is
    removed. A reader sees the old file or the new one."""
    last: dict[bytes, int] = {}
    former: set[int] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file):
            letter = _letter(line.decode("utf-8", "replace"))
            if letter is None:
                continue
            content = _content_digest(letter)
            if content in last:
                former.add(last[content])
            last[content] = number
            if superseded(letter):
                former.add(number)
    with tempfile.TemporaryDirectory(prefix=".dead-letters-", dir=path.parent) as temporary:
        beside = Path(temporary) / "kept"
        with path.open("rb") as file, beside.open("wb") as kept:
            kept.writelines(line for number, line in enumerate(file) if number not in former)
            kept.flush()
            os.fsync(kept.fileno())
        if not beside.stat().st_size:
            path.unlink()
            return
        shutil.copymode(path, beside)
        beside.replace(path)


def _mend_end(file: IO[bytes]) -> None:
    """Make the file end with a whole line. A letter cut off by a kill is dropped: the next run writes it again."""
    file.seek(0)
    end = b""
    for line in file:
        end = line
    if not end or end.endswith(b"\n"):
        return
    if end.startswith(b'{"dead_letter"') and _letter(end.decode("utf-8", "replace")) is None:
        file.truncate(file.seek(0, os.SEEK_END) - len(end))
    else:
        file.write(b"\n")


def letters_path(named: Path | None, index: str, corpus: str) -> Path:
    """The dead-letter file of an ingest, which is never the file that it reads: of letters of this index, the next.

    Raises InputError if `named` is the corpus.
    """
    path, read = named or Path(f"{index}.dead-letters.jsonl"), Path(corpus)
    same = corpus != "-" and path.exists() and read.exists() and path.samefile(read)
    if named is not None and same:
        raise InputError(f"{named} is the corpus; it cannot be the dead-letter file too", "give another --dead-letters")
    earlier = re.fullmatch(rf"{re.escape(path.stem)}\.\d+{re.escape(path.suffix)}", read.name) is not None
    return next_path(read) if named is None and (same or earlier) else path


def next_path(path: Path) -> Path:
    """docs.dead-letters.jsonl → docs.dead-letters.2.jsonl → docs.dead-letters.3.jsonl"""
    match = re.fullmatch(r"(.*\.dead-letters)(?:\.(\d+))?", path.stem)
    stem, number = (match[1], int(match[2] or 1)) if match else (path.stem, 1)
    return path.with_name(f"{stem}.{number + 1}{path.suffix}")


def is_dead_letter_file(path: Path) -> bool:
    """Whether a file holds dead letters. A pipe is not read, since it gives its content only once."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(16).replace(b" ", b"").startswith(b'{"dead_letter"')
    except (OSError, ValueError):
        return False


def mended(
    path: Path, on_reject: OnReject, names: FieldNames = USUAL, *, warn: Warn = log.warning, file: str | None = None
) -> Iterator[Document]:
    """The documents of a dead-letter file, read as if they were in their corpus, with the field names `names`.

    A record (or the text of a line) that is still invalid is passed to `on_reject` again, with its original file and line.
    file: the name of the dead-letter file in messages. None: its path.
    """
    here = file or str(path)
    warned = False
    for number, content in _lines(path):
        letter = _letter(content)
        if letter is None:
            reason = "not a dead letter: a line of JSON with `document` or `raw`"
            on_reject(Rejected(here, number, reason, content))
            continue
        record = letter.get("document")
        if isinstance(record, dict):
            text = json.dumps(record)
        else:
            raw = letter["raw"]  # a line of text; whoever mends it may write the object itself
            text = (_LINE_ENDS.sub(" ", raw) if isinstance(raw, str) else json.dumps(raw)) or "null"
        origin = str(letter.get("file", here)), letter.get("line")
        try:
            if not isinstance(record, dict):
                text = _by_usual_names(text, names)
            found = STORED if isinstance(record, dict) and "text" in record else USUAL
            document = _document(parse_object(text.encode("utf-8", "surrogatepass")), found, here, number)
        except Defect as defect:
            on_reject(Rejected(*origin, str(defect), printable(text.encode("utf-8", "surrogatepass"))))
            continue
        if not document.text and not warned:
            warned = True
            warn(f"{here}, line {number}: {ONLY_TITLE}")
        document.file, document.line = origin
        yield document


def _by_usual_names(raw: str, names: FieldNames) -> str:
    """A record in JSON, with the parts that have other names in `names` renamed to the usual ones.

    Raises Defect if another field of the record has the usual name, as `text` has in {"text": {"body": …, "lang": …}}.
    """
    parts = [part for part in ("id", "title", "text", "url") if getattr(names, part) != getattr(USUAL, part)]
    try:
        record = json.loads(raw) if parts else None
        if not isinstance(record, dict):
            return raw
        record = names.lifted(record)
        named = {getattr(USUAL, part)[0]: name for part in parts if (name := names.find(record, part)) is not None}
        kept = {name: value for name, value in record.items() if name not in named.values()}
        if both := sorted(named.keys() & kept.keys()):
            raise Defect(reserved(both[0]))
        return json.dumps({**kept, **{part: record[name] for part, name in named.items()}})
    except (ValueError, RecursionError):  # its reader says what is wrong
        return raw


def _document(record: dict[str, Any], names: FieldNames, file: str, line: int) -> Document:
    """The document, or passage, of a record; raises Defect."""
    if not (isinstance(record.get("passage"), dict) and "parent" in record):
        return as_document(record, names, file, line)
    parent, place = str(record.pop("parent")), record.pop("passage")
    document = as_document(record, names, file, line)
    try:
        number, start, end = (int(place.get(part, least)) for part, least in (("number", 1), ("start", 0), ("end", 0)))
    except (TypeError, ValueError):
        raise Defect(f"the number, start and end of a passage must be whole numbers, found {place}") from None
    return Passage(
        document.id,
        document.text,
        document.title,
        document.url,
        document.fields,
        lists=document.lists,
        parent=parent,
        number=number,
        start=start,
        end=end,
    )


def letters_of(path: Path) -> Iterator[dict[str, Any]]:
    """The letters of a file; other lines (such as a last line that a kill cut off) are skipped."""
    for _, line in _lines(path):
        if (letter := _letter(line)) is not None:
            yield letter


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines that are not empty."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip("\n")


def _letter(line: str) -> dict[str, Any] | None:
    try:
        letter = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(letter, dict) and ("raw" in letter or isinstance(letter.get("document"), dict)):
        return letter
    return None
