"""Read a corpus of any format.

    for document in read_corpus("scifact"):                              a BEIR folder
    for document in read_corpus("docs.jsonl.zst", text_field="body"):    lines of JSON, compressed or not
    for document in read_corpus("hf:BeIR/scifact:corpus:corpus"):        a Hugging Face data set

Everything is streamed: memory holds one record, whatever the size of the corpus. A bad record is passed to `on_reject` with
its file, its line and its content; without `on_reject` the first bad record raises InputError. Damage of unknown extent
(half a gzip file, a stream that breaks off) always raises InputError.
The reader does not detect ids that occur twice, which would need memory for all ids; ingest does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from opensearch_neural.corpus.data_sets import SAVED, read_data_set
from opensearch_neural.corpus.documents import Document, FieldNames, OnReject, Warn, raise_rejected
from opensearch_neural.corpus.first_records import FIRST_RECORDS, LookAhead
from opensearch_neural.corpus.json_lines import read_json_lines
from opensearch_neural.corpus.parquet import partition_of, read_parquet
from opensearch_neural.corpus.separated_values import read_csv, read_tsv
from opensearch_neural.corpus.text_files import not_there, open_binary, reason_of
from opensearch_neural.errors import InputError

log = logging.getLogger(__name__)

COMPRESSIONS = ("", ".gz", ".zst")

Read = Callable[[str, FieldNames, OnReject, Warn], Iterator[Document]]
"""(path, name or "-", names of fields, takes bad records, takes doubts) → documents"""


@dataclass(frozen=True)
class Format:
    """How a corpus of one format is read, and how it is recognised."""

    read: Read
    """Streams the documents. Raises InputError at once if there is nothing to read."""
    suffixes: tuple[str, ...] = ()
    """Ends of the names of files that are read as this format, before `.gz` or `.zst`."""
    from_standard_input: bool = False
    """Whether a stream will do: the file is read once, from its beginning."""


def _parquet(place: str, names: FieldNames, on_reject: OnReject, warn: Warn) -> Iterator[Document]:
    folder = Path(place)
    if not folder.is_dir():
        return read_parquet(folder, names, on_reject)
    files = _data_files(folder)
    if others := [file for file in files if _format_of(file) != "parquet"]:
        warn(f"{place}: its parquet files are read, and not {len(others):,} others, such as {others[0]}")
    return (
        document
        for file in files
        if _format_of(file) == "parquet"
        for document in read_parquet(file, names, on_reject, partition_of(file.relative_to(folder)))
    )


def _csv(place: str, names: FieldNames, on_reject: OnReject, warn: Warn) -> Iterator[Document]:
    return read_csv(*open_binary(place), names, on_reject)


def _tsv(place: str, names: FieldNames, on_reject: OnReject, warn: Warn, *, quoted: bool = False) -> Iterator[Document]:
    return read_tsv(*open_binary(place), names, on_reject, warn, quoted=quoted)


def _json_lines(place: str, names: FieldNames, on_reject: OnReject, warn: Warn) -> Iterator[Document]:
    return read_json_lines(*open_binary(place), names, on_reject, warn)


def _data_set(place: str, names: FieldNames, on_reject: OnReject, warn: Warn) -> Iterator[Document]:
    return read_data_set(place, names, on_reject)


FORMATS: dict[str, Format] = {
    "beir": Format(_json_lines),  # a folder, of which `format_of` finds the corpus.jsonl
    "jsonl": Format(_json_lines, (".jsonl", ".ndjson", ".json"), from_standard_input=True),
    "parquet": Format(_parquet, (".parquet", ".pq")),
    "csv": Format(_csv, (".csv",), from_standard_input=True),
    "tsv": Format(_tsv, (".tsv",), from_standard_input=True),
    "quoted-tsv": Format(partial(_tsv, quoted=True), from_standard_input=True),
    "hf": Format(_data_set),
}
"""{name for --format: how it is read}. A format that a single file can have needs nothing else here."""
_SUFFIXES = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}


def read_corpus(
    path: str | Path,
    *,
    format: str | None = None,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    url_field: str | None = None,
    names: FieldNames | None = None,
    limit: int | None = None,
    on_reject: OnReject | None = None,
    warn: Warn = log.warning,
    check_first: bool = False,
) -> Iterator[Document]:
    """Stream the documents of a corpus.

    `path` is a BEIR folder (with `corpus.jsonl`, `.gz` or `.zst`), a file (jsonl, csv, tsv, each also `.gz` or `.zst`;
    parquet), a data set of the `datasets` library saved to disk, "hf:NAME[[:CONFIG]:SPLIT]", or "-" for lines of JSON
    on standard input. `format` (one of FORMATS) overrides the name's suffix. `names` are the possible field names of the
    parts that no `…_field` names; by default the usual ones. `limit` counts documents, not unreadable records: a sample
    has the size that was asked for. `check_first` first checks in some records whether ids look like ids and texts like
    texts (see `first_records`).

    Raises InputError at once if there is nothing to read, at damage of unknown extent, and, without `on_reject`, at the
    first bad record.
    """
    names = FieldNames.of(names, id=id_field, title=title_field, text=text_field, url=url_field)
    format, place = format_of(path, format)
    on_reject = on_reject or raise_rejected
    ahead = LookAhead(on_reject) if check_first and place != "-" else None  # a pipe may expect an answer to each line
    if ahead is not None:
        on_reject = ahead.reject
    documents = FORMATS[format].read(place, names, on_reject, warn)
    if ahead is not None:
        most = FIRST_RECORDS if limit is None else min(limit, FIRST_RECORDS)
        documents = ahead.checked(
            documents, str(path), most=most, id_named=id_field is not None, text_named=text_field is not None
        )
    return documents if limit is None else islice(documents, limit)


def format_of(path: str | Path, format: str | None) -> tuple[str, str]:
    """(format, path or name to open) of a corpus. format: the user's choice; None: by name and content.

    Raises InputError if it does not exist, or its format is unknown.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown corpus format {format!r}", f"known formats: {', '.join(FORMATS)}")
    name = str(path)
    if name.startswith("hf:") and format in (None, "hf"):
        return "hf", name[3:]
    if name == "-":
        if format is not None and not FORMATS[format].from_standard_input:
            raise InputError(f"{format} cannot be read from standard input", "write it to a file first")
        return format or "jsonl", name
    place = Path(path)
    if is_folder(place):
        return _format_in_folder(place, format)
    if format == "hf":
        return "hf", name
    if format == "beir":
        raise InputError(f"{place} is not a folder", "a BEIR corpus is a folder with corpus.jsonl in it")
    if format is None:
        format = _format_of(place)
        if format is None:
            raise InputError(
                f"{place}: the name does not say what kind of corpus it is",
                f"end it in one of {' '.join(_SUFFIXES)} (text formats also with .gz or .zst), or name the format "
                f"({', '.join(FORMATS)})",
            )
    return format, name


def is_folder(place: Path) -> bool:
    """Whether a path is a folder. Raises InputError if nothing is there."""
    try:
        place.stat()
    except FileNotFoundError:
        raise not_there(place, "check the path of the corpus") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: {reason_of(error)}") from None
    return place.is_dir()


def _format_in_folder(folder: Path, format: str | None) -> tuple[str, str]:
    try:
        present = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise InputError(f"{folder}: {reason_of(error)}") from None
    for name in (f"corpus.jsonl{compression}" for compression in COMPRESSIONS):
        if name in present and format in (None, "beir", "jsonl"):
            return "jsonl", str(folder / name)
    if format == "hf" or (format is None and present & SAVED):
        return "hf", str(folder)
    if format in (None, "parquet") and "parquet" in map(_format_of, _data_files(folder)):
        return "parquet", str(folder)
    raise InputError(
        f"{folder} holds no corpus" + ("" if format is None else f" of format {format}"),
        "expected in it: corpus.jsonl, corpus.jsonl.gz or corpus.jsonl.zst (BEIR), *.parquet, or a saved data set",
    )


def _format_of(file: Path) -> str | None:
    """The format that the name of a file says; None if it says none."""
    return _SUFFIXES.get(Path(file.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix)


def _data_files(folder: Path) -> list[Path]:
    """The files of any format below the folder, also in folders that are links.

    Raises InputError for a folder that may not be read.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: {reason_of(error)}")

    files: list[Path] = []
    walked = {folder.resolve()}  # a link may lead back, or to a folder beside it
    for at, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        place = Path(at)
        files += [place / name for name in names if _is_data(name) and _format_of(Path(name)) is not None]
        inside = {(place / name).resolve(): name for name in sorted(folders, reverse=True) if _is_data(name)}
        folders[:] = sorted(name for real, name in inside.items() if real not in walked)
        walked |= inside.keys()
    return sorted(files)


def _is_data(name: str) -> bool:
    """Whether a file or folder is data, unlike `_temporary` or `.part.parquet`, which writers create beside their data."""
    return not name.startswith(("_", "."))
