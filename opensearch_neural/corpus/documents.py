"""A document of a corpus, and how a record becomes one: names of its fields, and defects that are refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from typing import Any

from opensearch_neural.errors import InputError

# Fields of the index that osn writes; a record's own field of the same name would overwrite them.
INDEX_FIELDS = frozenset(
    {"title", "text", "url", "contents", "sparse", "sparse_forward", "dense", "pq", "parent", "passage"}
)
# OpenSearch refuses a document that has one of its metadata fields among its own.
METADATA_FIELDS = frozenset(
    {"_id", "_index", "_source", "_routing", "_field_names", "_ignored", "_nested_path", "_seq_no", "_primary_term"}
    | {"_version", "_doc_count", "_data_stream_timestamp", "_size", "_tier"}
)
RESERVED_FIELDS = INDEX_FIELDS | METADATA_FIELDS

MAX_ID_BYTES = 512  # OpenSearch's limit, in UTF-8
MAX_DEPTH = 50  # OpenSearch maps 20 levels by default; far deeper ones overflow JSON encoders

BETWEEN = {"title": " ", "text": "\n"}
"""What joins the strings of a list: a line end in texts, where it ends a sentence; a blank in titles, which are one line."""


@dataclass(slots=True)
class Document:
    """One document of a corpus."""

    id: str
    """Its `_id` in the index."""
    text: str
    """Without the title; may be empty if there is a title."""
    title: str = ""
    """Empty: it has none."""
    url: str | None = None
    """None: it has none."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The record's other fields."""
    file: str | None = None
    """The file or other source of the record; None if not known."""
    line: int | None = None
    """The line in the file, from 1; for parquet and data sets, the row."""
    lists: dict[str, list[str | None]] = field(default_factory=dict)
    """{"title" or "text": the list of strings that the record has there}. Empty: both are strings in the record."""

    @property
    def contents(self) -> str:
        """Title and text together, which models encode and BM25 searches."""
        return f"{self.title.strip()} {self.text.strip()}".strip()

    def record(self) -> dict[str, Any]:
        """The document as a BEIR record, which `read_corpus` can read."""
        url = {} if self.url is None else {"url": self.url}
        return {"_id": self.id, "title": self.stored("title"), "text": self.stored("text"), **url, **self.fields}

    def stored(self, part: str) -> str | list[str | None]:
        """The title or the text as the index stores it: a list if the record has one. part: "title" or "text" """
        string: str = getattr(self, part)
        strings = self.lists.get(part)
        # A list whose string was changed since no longer belongs to this document.
        return string if strings is None or text_of(strings, BETWEEN[part]) != string else strings


@dataclass(slots=True)
class Rejected:
    """A record that was refused."""

    file: str
    """The file or other source of the record."""
    line: int | None
    """The line, from 1; for parquet and data sets, the row."""
    reason: str
    """What is wrong with it."""
    raw: str
    """The record, unchanged."""

    @property
    def place(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


OnReject = Callable[[Rejected], None]
Warn = Callable[[str], None]
"""Takes a doubt about a corpus that is read all the same."""


def raise_rejected(rejected: Rejected) -> None:
    """The `OnReject` of a reader that accepts no defects."""
    raise InputError(str(rejected))


EMPTY = "text and title are both empty"
"""The defect of a record without any text."""


class Defect(Exception):
    """An error in one record."""


@dataclass(slots=True, frozen=True)
class FieldNames:
    """Field names for each part of a document; the first name that a record has is used. A field that is null or empty
    counts only if the others are, too.

    `a.b` is a field of this name, else the field `b` of the object `a`.
    """

    id: tuple[str, ...] = ("_id", "id", "pid", "docid", "doc_id", "docno")
    """Names of the identifier; every record must have one."""
    title: tuple[str, ...] = ("title",)
    """Names of the title, which a record may lack."""
    text: tuple[str, ...] = ("text", "contents", "content", "body", "passage", "segment")
    """Names of the text; a record may lack it if it has a title."""
    url: tuple[str, ...] = ("url",)
    """Names of the address, which a record may lack."""
    others: bool = True
    """Whether other fields are kept. They must not have names that the index uses itself."""

    @classmethod
    def of(cls, others: FieldNames | None = None, **names: str | None) -> FieldNames:
        """The given name for each part. Parts that are None have the names in `others`, or the usual ones."""
        possible: dict[str, Any] = {part: (name,) for part, name in names.items() if name is not None}
        return replace(others or cls(), **possible)

    @classmethod
    def of_index(cls, names: Mapping[str, str]) -> FieldNames:
        """The names in documents for an index that already exists.

        names: {part: name} that the ingest which created the index was given (`IndexMeta.names`). Such a part has this name
            in a record that lacks the name which the part has in the index.
        """
        usual = cls()
        both: dict[str, Any] = {}
        for part, name in names.items():
            own: str = getattr(usual, part)[0]
            # In a record with text.body, `text` is the object around the text.
            both[part] = (name, own) if name.startswith(f"{own}.") else (own, name)
        return cls(**both)

    def find(self, record: Mapping[str, Any], part: str) -> str | None:
        """The name that a part ("id", "title", "text", "url") has in a record; None if it has none.

        record: as `lifted` returns it, if names may be those of fields in objects
        """
        names: tuple[str, ...] = getattr(self, part)
        return next((name for name in names if name in record), None)

    def lifted(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record, with each part that lies in an object as a field `a.b` beside the rest of the object, and without a
        part's empty fields if a later one has a value.
        """
        for part in ("id", "title", "text", "url"):
            empty: list[str] = []
            for name in getattr(self, part):
                if name in record:
                    value, lifted = record[name], record
                elif "." in name and (inside := taken(record, name)) is not None:
                    value, rest = inside
                    lifted = {**rest, name: value}
                else:
                    continue
                words = "" if value is None else text_of(value, " ")
                if words is not None and not words.strip():
                    record = record if empty else lifted
                    empty.append(name)
                elif not empty:
                    record = lifted
                    break
                elif words or part == "id":  # what is neither, such as an object, is a field of the record's own
                    record = {key: lifted[key] for key in lifted if key not in empty}
                    break
        return record


def taken(tree: Any, path: str) -> tuple[Any, Any] | None:
    """(the value at a path such as `a.b`, the tree without it and without objects that held nothing else); None if the tree
    has nothing there. Of a list of objects, the values are a list, with None for each object without one.
    """
    if isinstance(tree, list):
        each = [taken(inner, path) for inner in tree]
        if not any(each):
            return None
        values: list[Any] = []
        for pair in each:
            value = None if pair is None else pair[0]
            values += value if isinstance(value, list) else [value]
        rest = [inner if pair is None else pair[1] for inner, pair in zip(tree, each, strict=True)]
        return values, [] if all(inner in ({}, []) for inner in rest) else rest
    if not isinstance(tree, Mapping):
        return None
    if path in tree:
        return tree[path], {key: value for key, value in tree.items() if key != path}
    for key, below in ways_down(path):
        if (inside := taken(tree.get(key), below)) is not None:
            value, rest = inside
            return value, {name: rest if name == key else old for name, old in tree.items() if name != key or rest}
    return None


def ways_down(path: str) -> Iterator[tuple[str, str]]:
    """(the name of an object, the path below it) for each dot of a path."""
    parts = path.split(".")
    for at in range(1, len(parts)):
        yield ".".join(parts[:at]), ".".join(parts[at:])


def document_of(record: Mapping[str, Any], *, where: str = "the record", names: FieldNames | None = None) -> Document:
    """An application's record as a Document, checked like a line of a corpus.

    names: the possible field names of its parts; None: the usual ones
    Raises InputError that names `where` the record came from and what was expected.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"{where}: expected an object of fields, found {str(record)[:80]!r}")
    try:
        return as_document({str(key): plain(value) for key, value in record.items()}, names or FieldNames(), where, 0)
    except Defect as defect:
        raise InputError(f"{where}: {defect}") from None


def as_document(record: Mapping[str, Any], names: FieldNames, file: str, line: int) -> Document:
    """A record as a Document; raises Defect."""
    record = names.lifted(record)
    id_name = names.find(record, "id")
    if id_name is None:
        raise Defect(f"no id: expected a field {' or '.join(names.id)}; {fields_of(record)}")
    text_name = names.find(record, "text")
    title_name = names.find(record, "title")
    url_name = names.find(record, "url")
    id = identifier(record[id_name], id_name)
    text = joined_string(record, text_name, "text")
    title = "" if title_name == text_name else joined_string(record, title_name, "title")
    url = string(record, url_name) or None
    if not text.strip() and not title.strip():
        if text_name is None:
            raise Defect(f"no text: expected a field {' or '.join(names.text)}; {fields_of(record)}")
        raise Defect(EMPTY)
    part_names = (id_name, text_name, title_name, url_name)
    fields = {key: value for key, value in record.items() if key not in part_names} if names.others else {}
    for key in fields:
        if not all(part.strip() for part in key.split(".")):
            raise Defect(nameless(key))
        # "sparse.x" is a field x inside sparse.
        if key in RESERVED_FIELDS or key.partition(".")[0] in RESERVED_FIELDS:
            raise Defect(reserved(key))
    return Document(id, text, title, url, fields, file, line, lists_of(record, title_name, text_name))


def document_of_row(
    row: Mapping[str, Any], names: FieldNames, file: str, number: int, on_reject: OnReject
) -> Document | None:
    """A Document from a row of a format other than JSON; None if it was rejected.

    row: {column: value, or the error that its conversion raised}
    """
    try:
        record = {str(key): plain(value) for key, value in row.items() if value is not None}
        return as_document(record, names, file, number)
    except Defect as defect:
        on_reject(Rejected(file, number, str(defect), json.dumps(row, default=_to_mend)))
        return None


def _to_mend(value: Any) -> Any:
    """A value that JSON lacks, as the record would have it; what it cannot have, as a text.

    Bytes that are not UTF-8 become lone surrogates, so that the record is refused again until they are mended.
    """
    try:
        return plain(value)
    except Defect:
        data = value.object if isinstance(value, UnicodeDecodeError) else value
        return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else str(data)


def check_columns(columns: list[str], names: FieldNames, where: str, objects: Collection[str] = ()) -> None:
    """Raises InputError if a table has no id or text column, a column without a name, or a name twice.

    objects: the columns that hold objects, in which an id or a text may lie
    """
    for at, name in enumerate(columns, start=1):
        if not name.strip():
            raise InputError(
                f"{where}: column {at} of {len(columns)} has no name, and OpenSearch does not accept such a field",
                "name it; if it is the index of pandas, write with to_csv(…, index=False)",
            )
    counts = Counter(columns)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} occurs twice", "rename one of them")
    for part, choices in (("id", names.id), ("text", (*names.text, *names.title))):
        if not set(columns) & set(choices) and not any(
            key in objects for name in choices for key, _ in ways_down(name)
        ):
            if len(columns) == 1 and ";" in columns[0]:
                raise InputError(
                    f"{where}: the columns are separated by semicolons: {columns[0][:300]}",
                    "write it with commas (.csv) or tabs (.tsv)",
                )
            raise InputError(
                f"{where}: no {part} column; its columns are: {', '.join(columns)[:300]}",
                f"name a column {' or '.join(choices)}, or say which column it is (--{part}-field)",
            )
    # Last, because without a header the cells of the first row are not names.
    for name in columns:
        if not all(part.strip() for part in name.split(".")):
            raise InputError(f"{where}: {nameless(name)}")


def nameless(name: str) -> str:
    """The error message for a field name with an empty part (a dot separates the fields of objects)."""
    return f"the field {name!r} has a name that is empty, or empty beside a dot: rename it"


def reserved(name: str) -> str:
    """The error message for a field with a name in RESERVED_FIELDS, or with one that lies in such a field."""
    owner = "OpenSearch" if name in METADATA_FIELDS else "the index"
    return f"the field {name!r} has a name that {owner} uses itself: rename it"


def plain(value: Any, depth: int = 0) -> Any:
    """A value converted to JSON's types; raises Defect if it cannot be written as JSON in UTF-8."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise Defect("a null character (U+0000) in a string")
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                code = ord(value[error.start])
                raise Defect(f"half a surrogate pair (U+{code:04X}) in a string") from None
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Defect(f"{value} in a field: expected null or a number")
        return value
    if depth >= MAX_DEPTH:
        raise Defect(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {plain(str(key), depth + 1): plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, depth + 1) for entry in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        # A double would round ids of a column such as decimal(38, 0).
        return int(value) if value.as_tuple().exponent == 0 else plain(float(value))
    if isinstance(value, bytes):
        try:
            return plain(value.decode("utf-8"))
        except UnicodeDecodeError:
            raise Defect("binary data, or invalid UTF-8, in a field") from None
    if isinstance(value, UnicodeDecodeError):
        raise Defect("invalid UTF-8")
    if isinstance(value, Exception):
        raise Defect(first_line(value))
    raise Defect(f"a value of type {type(value).__name__} cannot be written as JSON")


def identifier(value: Any, name: str) -> str:
    """The id in the field `name` as a string; raises Defect."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Defect(f"the id ({name}) must be a string or an integer, found {json.dumps(value, default=str)[:80]}")
    if not value.strip():
        raise Defect(f"the id ({name}) is empty")
    size = len(value.encode("utf-8"))
    if size > MAX_ID_BYTES:
        raise Defect(f"the id ({name}) is {size} bytes long in UTF-8; OpenSearch takes at most {MAX_ID_BYTES}")
    return value


def string(record: Mapping[str, Any], name: str | None) -> str:
    """The string in the field `name`, "" if there is none; raises Defect for another type."""
    value = None if name is None else record[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        inside = f": a field in it is called {name}.{next(iter(value))}" if isinstance(value, dict) and value else ""
        raise Defect(f"{name} must be a string, found {json.dumps(value, default=str)[:80]}{inside}")
    return value


def joined_string(record: Mapping[str, Any], name: str | None, part: str) -> str:
    """The string in the field `name`, or its list of strings as one; "" if there is none; raises Defect for another type.

    part: "title" or "text", which decides what joins the strings
    """
    value = None if name is None else record[name]
    if not isinstance(value, list):
        return string(record, name)
    text = text_of(value, BETWEEN[part])
    if text is None:
        other = next(each for each in value if each is not None and not isinstance(each, str))
        raise Defect(
            f"{name} must be a string or a list of strings, and its list holds {json.dumps(other, default=str)[:80]}"
        )
    return text


def text_of(value: Any, between: str) -> str | None:
    """A string, or a list of strings (and nulls) joined by `between`; None for any other value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(each is None or isinstance(each, str) for each in value):
        return between.join(filter(None, value))
    return None


def lists_of(record: Mapping[str, Any], title_name: str | None, text_name: str | None) -> dict[str, list[str | None]]:
    """The title and the text of a record, where they are lists: `Document.lists`."""
    values = {"title": record.get(title_name or ""), "text": record.get(text_name or "")}
    return {part: value for part, value in values.items() if isinstance(value, list)}


def fields_of(record: Mapping[str, Any]) -> str:
    """The fields of a record, for a message about a missing one."""
    keys = ", ".join(str(key)[:40] for key in islice(record, 12))
    return f"the record has: {keys}" if keys else "the record is empty"


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
