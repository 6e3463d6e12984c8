"""Read a corpus, its queries and its judgements.

    for document in read_corpus("scifact"):                              a BEIR folder
    for document in read_corpus("docs.jsonl.zst", text_field="body"):    lines of JSON, compressed or not
    for document in read_corpus("hf:BeIR/scifact:corpus:corpus"):        a Hugging Face data set
    data = BeirData.load("scifact", "test")                              its queries and judgements

Everything is streamed: memory holds one record, whatever the size of the corpus. What cannot be taken is handed to
`on_reject` with its file, its line and the record as it was; without `on_reject` the first such record raises
InputError. Whether an id occurs twice is not known here (it would need memory for all ids): the ingest sees that.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

from opensearch_neural.corpus.text_lines import MAX_LINE_BYTES, BadLine, open_binary, printable, read_lines, reason_of
from opensearch_neural.errors import InputError, MissingExtra

log = logging.getLogger(__name__)

# Names under which the parts of a document are looked for, first match first.
ID_FIELDS = ("_id", "id", "docid", "doc_id", "docno")
TITLE_FIELDS = ("title",)
TEXT_FIELDS = ("text", "contents", "content", "body", "passage")
URL_FIELDS = ("url",)
QUERY_ID_FIELDS = ("_id", "id", "qid", "query_id", "query-id")
QUERY_TEXT_FIELDS = ("text", "query", "question", "title")

# Fields of the index that this project writes; a record that brings its own of that name would overwrite them.
INDEX_FIELDS = frozenset({"title", "text", "url", "contents", "sparse", "dense", "pq", "parent", "passage"})
# OpenSearch refuses a document that has one of its metadata fields among its own.
METADATA_FIELDS = frozenset(
    {"_id", "_index", "_source", "_routing", "_field_names", "_ignored", "_nested_path", "_seq_no", "_primary_term"}
    | {"_version", "_doc_count", "_data_stream_timestamp", "_size", "_tier"}
)
RESERVED_FIELDS = INDEX_FIELDS | METADATA_FIELDS

MAX_ID_BYTES = 512  # OpenSearch's limit, in UTF-8
MAX_DEPTH = 50  # OpenSearch maps 20 levels by default; far deeper ones overflow JSON encoders

FORMATS = ("beir", "jsonl", "parquet", "csv", "tsv", "hf")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSIONS = ("", ".gz", ".zst")


@dataclass(slots=True)
class Document:
    """One document of a corpus. `fields` holds what the record had beside id, title, text and URL."""

    id: str
    text: str
    title: str = ""
    url: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    line: int | None = None

    @property
    def contents(self) -> str:
        """Title and text together: what is encoded, and what BM25 sees."""
        return f"{self.title.strip()} {self.text.strip()}".strip()

    def record(self) -> dict[str, Any]:
        """The document as a BEIR record, which `read_corpus` reads again."""
        url = {} if self.url is None else {"url": self.url}
        return {"_id": self.id, "title": self.title, "text": self.text, **url, **self.fields}


@dataclass(slots=True)
class Rejected:
    """A record that could not be taken. `line` counts from 1 (rows in parquet and data sets); `raw` is the record."""

    file: str
    line: int | None
    reason: str
    raw: str

    @property
    def place(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


OnReject = Callable[[Rejected], None]


class _Defect(Exception):
    """What is wrong with one record."""


@dataclass(slots=True, frozen=True)
class _Names:
    """The names under which a record's parts are looked for."""

    id: tuple[str, ...] = ID_FIELDS
    title: tuple[str, ...] = TITLE_FIELDS
    text: tuple[str, ...] = TEXT_FIELDS
    url: tuple[str, ...] = URL_FIELDS


def read_corpus(
    path: str | Path,
    *,
    format: str | None = None,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    url_field: str | None = None,
    limit: int | None = None,
    on_reject: OnReject | None = None,
) -> Iterator[Document]:
    """Stream the documents of a corpus.

    `path` is a BEIR folder (with `corpus.jsonl`, `.gz` or `.zst`), a file (jsonl, csv, tsv, each also `.gz` or `.zst`;
    parquet), a data set of the `datasets` library saved to disk, "hf:NAME[[:CONFIG]:SPLIT]", or "-" for lines of JSON
    on standard input. `format` (one of FORMATS) overrides what the name says.

    Raises InputError at once where there is nothing to read, and, without `on_reject`, at the first bad record.
    """
    names = _Names(
        ID_FIELDS if id_field is None else (id_field,),
        TITLE_FIELDS if title_field is None else (title_field,),
        TEXT_FIELDS if text_field is None else (text_field,),
        URL_FIELDS if url_field is None else (url_field,),
    )
    reject = on_reject or _raise
    format, place = _locate(path, format)
    documents: Iterator[Document]
    if format == "hf":
        documents = _hugging_face(place, names, reject)
    elif format == "parquet":
        files = sorted(Path(place).rglob("*.parquet")) if Path(place).is_dir() else [Path(place)]
        documents = (document for file in files for document in _parquet(file, names, reject))
    elif format in ("csv", "tsv"):
        stream, name = open_binary(place)
        documents = _separated(stream, name, names, reject, "\t" if format == "tsv" else ",")
    else:
        stream, name = open_binary(place)
        documents = _json_lines(stream, name, names, reject)
    return documents if limit is None else islice(documents, limit)


def _raise(rejected: Rejected) -> None:
    raise InputError(str(rejected))


def _locate(path: str | Path, format: str | None) -> tuple[str, str]:
    """(format, what to open) of a corpus named by the user."""
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown corpus format {format!r}", f"known formats: {', '.join(FORMATS)}")
    name = str(path)
    if name.startswith("hf:") and format in (None, "hf"):
        return "hf", name[3:]
    if name == "-":
        if format not in (None, "jsonl", "csv", "tsv"):
            raise InputError(f"{format} cannot be read from standard input", "write it to a file first")
        return format or "jsonl", name
    place = Path(path)
    if _is_folder(place):
        return _locate_in_folder(place, format)
    if format == "hf":
        return "hf", name
    if format == "beir":
        raise InputError(f"{place} is not a folder", "a BEIR corpus is a folder with corpus.jsonl in it")
    if format is None:
        stem = place.name.lower().removesuffix(".gz").removesuffix(".zst")
        format = _SUFFIXES.get(Path(stem).suffix)
        if format is None:
            raise InputError(
                f"{place}: the name does not say what kind of corpus it is",
                f"end it in one of {' '.join(_SUFFIXES)} (text formats also with .gz or .zst), or name the format "
                f"({', '.join(FORMATS)})",
            )
    return format, name


def _is_folder(place: Path) -> bool:
    try:
        place.stat()
    except FileNotFoundError:
        raise InputError(f"{place} does not exist", "check the path of the corpus") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: {reason_of(error)}") from None
    return place.is_dir()


def _locate_in_folder(folder: Path, format: str | None) -> tuple[str, str]:
    try:
        present = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise InputError(f"{folder}: {reason_of(error)}") from None
    for name in (f"corpus.jsonl{compression}" for compression in _COMPRESSIONS):
        if name in present and format in (None, "beir", "jsonl"):
            return "jsonl", str(folder / name)
    if format == "hf" or (format is None and present & {"dataset_info.json", "dataset_dict.json"}):
        return "hf", str(folder)
    if format in (None, "parquet") and any(name.endswith(".parquet") for name in present):
        return "parquet", str(folder)
    raise InputError(
        f"{folder} holds no corpus" + ("" if format is None else f" of format {format}"),
        "expected in it: corpus.jsonl, corpus.jsonl.gz or corpus.jsonl.zst (BEIR), *.parquet, or a saved data set",
    )


# ---------------------------------------------------------------- records


def _no_constant(name: str) -> Any:
    raise _Defect(f"{name} is not JSON: write null, or a number")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise _Defect(f"the number {number[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
# Escapes that valid JSON may hold and UTF-8 or an id may not: only where one occurs are all strings looked at.
_SUSPECT = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def _parse_json(line: bytes) -> dict[str, Any]:
    """The object of one line; raises _Defect."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Defect(f"invalid UTF-8 at byte {error.start + 1} of the line") from None
    try:
        record = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _Defect(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    except RecursionError:
        raise _Defect(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # an integer of thousands of digits
        raise _Defect("a number has too many digits") from None
    if not isinstance(record, dict):
        kind = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
        raise _Defect(f"expected a JSON object, found {kind.get(type(record), 'a number')}")
    if text.count("{") + text.count("[") > MAX_DEPTH or _SUSPECT.search(text):
        _plain(record)
    return record


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it; raises _Defect where it cannot be written as JSON in UTF-8."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise _Defect("a null character (U+0000) in a string")
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                code = ord(value[error.start])
                raise _Defect(f"half a surrogate pair (U+{code:04X}) in a string") from None
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Defect(f"{value} in a field: expected null or a number")
        return value
    if depth >= MAX_DEPTH:
        raise _Defect(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_plain(str(key), depth + 1): _plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, depth + 1) for entry in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return _plain(float(value))
    if isinstance(value, bytes):
        try:
            return _plain(value.decode("utf-8"))
        except UnicodeDecodeError:
            raise _Defect("binary data, or invalid UTF-8, in a field") from None
    raise _Defect(f"a value of type {type(value).__name__} cannot be written as JSON")


def _find(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in record), None)


def _known(record: Mapping[str, Any]) -> str:
    keys = ", ".join(str(key)[:40] for key in islice(record, 12))
    return f"the record has: {keys}" if keys else "the record is empty"


def _identifier(value: Any, name: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise _Defect(f"the id ({name}) must be a string or an integer, found {json.dumps(value, default=str)[:80]}")
    if not value.strip():
        raise _Defect(f"the id ({name}) is empty")
    size = len(value.encode("utf-8"))
    if size > MAX_ID_BYTES:
        raise _Defect(f"the id ({name}) is {size} bytes long in UTF-8; OpenSearch takes at most {MAX_ID_BYTES}")
    return value


def _string(record: Mapping[str, Any], name: str | None) -> str:
    value = None if name is None else record[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Defect(f"{name} must be a string, found {json.dumps(value, default=str)[:80]}")
    return value


def _document(record: Mapping[str, Any], names: _Names, file: str, line: int) -> Document:
    """A record as a Document; raises _Defect."""
    id_name = _find(record, names.id)
    if id_name is None:
        raise _Defect(f"no id: expected a field {' or '.join(names.id)}; {_known(record)}")
    text_name = _find(record, names.text)
    title_name = _find(record, names.title)
    url_name = _find(record, names.url)
    id = _identifier(record[id_name], id_name)
    text = _string(record, text_name)
    title = _string(record, title_name)
    url = _string(record, url_name) or None
    if not text.strip() and not title.strip():
        if text_name is None:
            raise _Defect(f"no text: expected a field {' or '.join(names.text)}; {_known(record)}")
        raise _Defect("text and title are both empty")
    taken = (id_name, text_name, title_name, url_name)
    fields = {key: value for key, value in record.items() if key not in taken}
    for key in fields:
        # "sparse.x" is a field x inside sparse.
        if key in RESERVED_FIELDS or key.partition(".")[0] in RESERVED_FIELDS:
            owner = "OpenSearch" if key in METADATA_FIELDS else "the index"
            raise _Defect(f"the field {key!r} has a name that {owner} uses itself: rename it")
    return Document(id, text, title, url, fields, file, line)


def document_of(record: Mapping[str, Any], *, where: str = "the record") -> Document:
    """A record of an application's own, checked like a line of a corpus.

    Raises InputError, naming `where` it came from and what was expected.
    """
    try:
        return _document({str(key): _plain(value) for key, value in record.items()}, _Names(), where, 0)
    except _Defect as defect:
        raise InputError(f"{where}: {defect}") from None


# ---------------------------------------------------------------- formats


def _json_lines(stream: BufferedReader, file: str, names: _Names, reject: OnReject) -> Iterator[Document]:
    told = False
    for number, line in read_lines(stream, file):
        if isinstance(line, BadLine):
            reject(Rejected(file, number, line.reason, printable(line.raw)))
            continue
        try:
            document = _document(_parse_json(line), names, file, number)
        except _Defect as defect:
            if number == 1 and line.lstrip()[:1] == b"[":
                raise InputError(
                    f"{file} is one JSON array, not lines of JSON", f"write one object per line: jq -c '.[]' {file}"
                ) from None
            reject(Rejected(file, number, str(defect), printable(line)))
            continue
        if not document.text and not told:
            told = True
            log.warning("%s, line %d: no text, only a title (told once per file)", file, number)
        yield document


def _separated(
    stream: BufferedReader, file: str, names: _Names, reject: OnReject, delimiter: str
) -> Iterator[Document]:
    """Rows of csv or tsv. A tsv of two columns without a header is id and text, unquoted, as MS MARCO has it."""
    reached = 0  # the last line that was read
    row_lines: list[str] = []  # the lines of the present row

    def text_lines() -> Iterator[str]:
        nonlocal reached
        for number, line in read_lines(stream, file, blanks=True):
            reached = number
            if isinstance(line, BadLine):
                reject(Rejected(file, number, line.reason, printable(line.raw)))
                continue
            # Bytes that are no UTF-8 become lone surrogates, which are found once the row is known.
            row_lines.append(line.decode("utf-8", "surrogateescape"))
            yield row_lines[-1] + "\n"

    def raw() -> str:
        return printable("\n".join(row_lines).encode("utf-8", "surrogateescape"))

    lines = text_lines()
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        return
    # The default limit of 128 KiB a field refuses ordinary long texts. It is a setting of the whole process.
    csv.field_size_limit(MAX_LINE_BYTES)
    bare = delimiter == "\t" and first.count("\t") == 1 and len(names.id) > 1 and not _has_header(first, names)
    if bare:
        log.warning("%s: no header with an id and a text column: its two columns are taken as these", file)
        rows = csv.reader(_again(first, lines), delimiter=delimiter, quoting=csv.QUOTE_NONE)
        header, names = ["_id", "text"], _Names()
    else:
        rows = csv.reader(_again(first, lines), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(rows)]
        except csv.Error as error:
            raise InputError(f"{file}, line {reached}: the header cannot be read: {error}") from None
        _check_header(header, names, f"{file}, line {reached}")
        row_lines.clear()
    known = {*names.id, *names.text, *names.title, *names.url}
    first_is_row = bare
    while True:
        line = reached if first_is_row else reached + 1
        first_is_row = False
        try:
            row = next(rows, None)
            if row is None:
                return
            if row:
                if len(row) != len(header):
                    raise _Defect(f"expected {len(header)} columns as in the header, found {len(row)}")
                # csv has no null: an empty cell is no value, not an empty one (a date or number would be refused).
                record = {name: cell for name, cell in zip(header, row, strict=True) if cell or name in known}
                yield _document(_plain_row(record), names, file, line)
        except csv.Error as error:
            reject(Rejected(file, line, f"not a row of {'tsv' if delimiter != ',' else 'csv'}: {error}", raw()))
        except _Defect as defect:
            reject(Rejected(file, line, str(defect), raw()))
        row_lines.clear()


def _plain_row(record: dict[str, str]) -> dict[str, Any]:
    """`_plain` of a row that was decoded with surrogateescape."""
    try:
        return {name: _plain(cell) for name, cell in record.items()}
    except _Defect:
        if any("\udc80" <= letter <= "\udcff" for cell in record.values() for letter in cell):
            raise _Defect("invalid UTF-8") from None
        raise


def _again(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _has_header(line: str, names: _Names) -> bool:
    cells = {cell.strip().strip('"') for cell in line.split("\t")}
    return bool(cells & {*names.id} and cells & {*names.text, *names.title})


def _check_header(header: list[str], names: _Names, where: str) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} occurs twice", "rename one of them")
    for role, choices in (("id", names.id), ("text", (*names.text, *names.title))):
        if not set(header) & set(choices):
            raise InputError(
                f"{where}: no {role} column; its columns are: {', '.join(header)[:300]}",
                f"name a column {' or '.join(choices)}, or say which column it is (--{role}-field)",
            )


def _parquet(file: Path, names: _Names, reject: OnReject) -> Iterator[Document]:
    """Rows of one parquet file; a damaged row group is rejected as one, and the next one read."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("reading parquet", "corpora") from None
    errors = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError, TypeError, IndexError)
    try:
        source = parquet.ParquetFile(file)
        sizes = [source.metadata.row_group(group).num_rows for group in range(source.metadata.num_row_groups)]
        columns = source.schema_arrow.names
    except errors as error:
        reason = _first_line(error)
        reject(Rejected(str(file), None, f"cannot be read as parquet (truncated or damaged?): {reason}", ""))
        return
    with source:
        _check_header(columns, names, str(file))
        start = 0
        for group, size in enumerate(sizes):
            row = start
            start += size
            try:
                for batch in source.iter_batches(batch_size=1024, row_groups=[group]):
                    for record in _batch_rows(batch, errors):
                        row += 1
                        yield from _row(record, names, str(file), row, reject)
            except errors as error:
                reason = f"row group {group + 1} is damaged from row {row + 1} on, {start - row:,} rows lost: "
                reject(Rejected(str(file), row + 1, reason + _first_line(error), ""))


def _batch_rows(batch: Any, errors: tuple[type[Exception], ...]) -> Iterator[dict[str, Any] | Exception]:
    """The rows of a record batch, each alone where they cannot be converted together (invalid UTF-8 in one)."""
    try:
        yield from batch.to_pylist()
    except errors:
        for index in range(len(batch)):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except errors as error:
                yield error


def _row(
    record: Mapping[str, Any] | Exception, names: _Names, file: str, row: int, reject: OnReject
) -> Iterator[Document]:
    """A document of a row that is not from JSON, or nothing and a rejection."""
    try:
        if isinstance(record, UnicodeDecodeError):
            raise _Defect("invalid UTF-8")
        if isinstance(record, Exception):
            raise _Defect(_first_line(record))
        plain = {str(key): _plain(value) for key, value in record.items() if value is not None}
        document = _document(plain, names, file, row)
    except _Defect as defect:
        raw = "" if isinstance(record, Exception) else json.dumps(record, default=str)
        reject(Rejected(file, row, str(defect), raw))
        return
    yield document


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _hugging_face(name: str, names: _Names, reject: OnReject) -> Iterator[Document]:
    """Rows of a data set: saved to disk, or what `datasets.load_dataset` finds under that name."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("reading Hugging Face data sets", "corpora") from None
    folder, config, split = _data_set_name(name)
    label = f"hf:{name}"
    try:
        if Path(folder).is_dir() and any(
            (Path(folder) / marker).exists() for marker in ("dataset_info.json", "dataset_dict.json")
        ):
            found: Any = datasets.load_from_disk(folder)
        elif Path(folder).is_file():
            kind = _SUFFIXES.get(Path(folder.lower().removesuffix(".gz").removesuffix(".zst")).suffix, "jsonl")
            builder, options = {"jsonl": ("json", {}), "tsv": ("csv", {"sep": "\t"})}.get(kind, (kind, {}))
            found = datasets.load_dataset(builder, data_files=folder, streaming=True, **options)
        else:
            found = datasets.load_dataset(folder, config, streaming=True)
    except Exception as error:  # the library raises dozens of kinds, its dependencies' included
        raise InputError(
            f"{label}: cannot be loaded: {_first_line(error)}",
            "expected hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT with a hub name, a saved data set or a file",
        ) from None
    if hasattr(found, "keys"):
        splits = list(found.keys())
        if split is None and len(splits) == 1:
            split = splits[0]
        if split not in splits:
            problem = "has several splits" if split is None else f"has no split {split!r}"
            raise InputError(f"{label} {problem}: {', '.join(splits)}", f"write hf:{folder}:{splits[0]}")
        found = found[split]
    elif split is not None and str(getattr(found, "split", split)) not in (split, "None"):
        raise InputError(f"{label} has no split {split!r}; it is the split {found.split}", f"write hf:{folder}")
    rows = iter(found)
    row = 0
    while True:
        row += 1
        try:
            record = next(rows, None)
        except Exception as error:
            reason = f"cannot be read from row {row} on: {_first_line(error)}"
            reject(Rejected(label, row, reason, ""))
            return
        if record is None:
            return
        yield from _row(record, names, label, row, reject)


def _data_set_name(name: str) -> tuple[str, str | None, str | None]:
    """(name or folder, config, split) of NAME, NAME:SPLIT or NAME:CONFIG:SPLIT."""
    if not name.strip():
        raise InputError("hf: names no data set", "expected hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    if os.path.exists(name):  # noqa: PTH110 (Path would refuse some names that are none)
        return name, None, None
    parts = name.split(":")
    if len(parts) > 3:
        raise InputError(f"hf:{name}: too many colons", "expected hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    if len(parts) == 3:
        return parts[0], parts[1] or None, parts[2] or None
    return parts[0], None, parts[1] if len(parts) == 2 else None


# ---------------------------------------------------------------- queries and judgements


def read_queries(path: str | Path) -> dict[str, str]:
    """{query id: text} of jsonl (BEIR's `_id` and `text`) or tsv (id and text, header or not), also compressed.

    Raises InputError with file and line at the first line that is not a query, or repeats an id with another text.
    """
    place = Path(path)
    if _is_folder(place):
        place = _query_file(place)
    stream, file = open_binary(str(place))
    names = _Names(QUERY_ID_FIELDS, (), QUERY_TEXT_FIELDS, ())
    queries: dict[str, str] = {}
    if place.name.removesuffix(".gz").removesuffix(".zst").endswith((".tsv", ".txt", ".csv")):
        delimiter = "," if ".csv" in place.suffixes else "\t"
        found = _separated(stream, file, names, _raise, delimiter)
        entries: Iterable[tuple[int, str, str]] = ((query.line or 0, query.id, query.text) for query in found)
    else:
        entries = _query_lines(stream, file)
    for line, id, text in entries:
        if queries.setdefault(id, text) != text:
            raise InputError(f"{file}, line {line}: the query id {id!r} occurs twice with different texts")
    return queries


def _query_lines(stream: BufferedReader, file: str) -> Iterator[tuple[int, str, str]]:
    for number, line in read_lines(stream, file):
        try:
            if isinstance(line, BadLine):
                raise _Defect(line.reason)
            record = _parse_json(line)
            id_name, text_name = _find(record, QUERY_ID_FIELDS), _find(record, QUERY_TEXT_FIELDS)
            if id_name is None or text_name is None:
                raise _Defect(f"expected a query with _id and text; {_known(record)}")
            text = _string(record, text_name)
            if not text.strip():
                raise _Defect("the query is empty")
            yield number, _identifier(record[id_name], id_name), text
        except _Defect as defect:
            raise InputError(f"{file}, line {number}: {defect}") from None


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """{query id: {document id: grade}} of a BEIR tsv (with header) or a TREC file (query, 0, document, grade).

    Raises InputError with file and line at the first line that is neither, or that contradicts an earlier one.
    """
    stream, file = open_binary(str(path))
    qrels: dict[str, dict[str, int]] = {}
    order: tuple[int, int, int] | None = None
    for number, line in read_lines(stream, file):
        if isinstance(line, BadLine):
            raise InputError(f"{file}, line {number}: {line.reason}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}, line {number}: invalid UTF-8 at byte {error.start + 1} of the line") from None
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) < 3:
            cells = text.split()
        if order is None:
            header = {cell.lower().replace("_", "-"): index for index, cell in enumerate(cells)}
            if "query-id" in header:
                if not {"corpus-id", "score"} <= set(header):
                    raise InputError(f"{file}, line {number}: expected the header query-id, corpus-id, score")
                order = header["query-id"], header["corpus-id"], header["score"]
                continue
            order = (0, 1, 2) if len(cells) == 3 else (0, 2, 3)
        if len(cells) != (3 if max(order) == 2 else 4) or not all(cells[index] for index in order):
            raise InputError(
                f"{file}, line {number}: not a judgement: {text[:80]!r}",
                "expected query-id, corpus-id, score (tabs; BEIR), or query, 0, document, grade (TREC)",
            )
        query, document, grade = (cells[index] for index in order)
        if not re.fullmatch(r"[+-]?\d{1,9}(\.0*)?", grade):
            raise InputError(f"{file}, line {number}: the grade must be an integer, found {grade[:40]!r}")
        value = int(grade.partition(".")[0])
        if qrels.setdefault(query, {}).setdefault(document, value) != value:
            raise InputError(f"{file}, line {number}: {query!r} and {document!r} were judged otherwise before")
    return qrels


def _query_file(folder: Path) -> Path:
    for compression in _COMPRESSIONS:
        if (folder / f"queries.jsonl{compression}").exists():
            return folder / f"queries.jsonl{compression}"
    raise InputError(
        f"{folder} holds no queries", "expected in it: queries.jsonl, queries.jsonl.gz or queries.jsonl.zst"
    )


@dataclass(slots=True)
class BeirData:
    """One split of a test collection in BEIR layout: the judged queries, the judgements, and where the corpus is."""

    name: str
    split: str
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    corpus_path: Path

    @classmethod
    def load(cls, folder: str | Path, split: str = "test") -> BeirData:
        """Raises InputError where a file is missing, broken, or judges a query that is not there."""
        folder = Path(folder)
        if not _is_folder(folder):
            raise InputError(f"{folder} is not a folder", "expected a folder in BEIR layout")
        corpus_path = Path(_locate_in_folder(folder, "beir")[1])
        splits = {
            path.name.partition(".tsv")[0]: path
            for path in sorted((folder / "qrels").glob("*.tsv*"))
            if path.name.partition(".tsv")[2] in _COMPRESSIONS
        }
        if split not in splits:
            available = ", ".join(splits)
            raise InputError(
                f"{folder} has no judgements for the split {split!r} (qrels/{split}.tsv)",
                f"available: {available}" if available else "it has no qrels/*.tsv at all",
            )
        qrels = read_qrels(splits[split])
        texts = read_queries(folder)
        missing = [query for query in qrels if query not in texts]
        if missing:
            raise InputError(
                f"{splits[split]} judges {len(missing)} queries that {_query_file(folder).name} does not hold, "
                f"{missing[0]!r} first",
            )
        return cls(folder.resolve().name, split, {query: texts[query] for query in qrels}, qrels, corpus_path)
