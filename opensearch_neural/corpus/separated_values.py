"""Corpora in csv and tsv: a header, then one row for each document.

A file whose last row has no line end is refused: it may have been cut, and half a text looks like a whole one.
A csv is quoted: a cell in quotation marks may contain commas and line ends. A tsv is not: each line is a row, and quotation
marks are ordinary characters. A tsv with a header in quotation marks, or with the format "quoted-tsv", is read as a csv with
tabs.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain, islice
from typing import Any

from opensearch_neural.corpus.documents import (
    Defect,
    Document,
    FieldNames,
    OnReject,
    Rejected,
    Warn,
    as_document,
    check_columns,
    plain,
)
from opensearch_neural.corpus.text_files import (
    MAX_LINE_BYTES,
    BadLine,
    Unterminated,
    cut_off,
    perhaps_cut_off,
    printable,
    read_lines,
)
from opensearch_neural.errors import InputError

log = logging.getLogger(__name__)

FIRST_LINES = 100
"""How many lines are checked to see whether a tsv without a header has two columns."""

ID_AND_TEXT = ["_id", "text"]
"""The columns of a tsv without a header."""

NumberedLines = Iterator[tuple[int, "bytes | BadLine"]]


class _Misshapen(Exception):
    """A line that is not a row, or a row with a different number of columns than the header."""


def read_csv(stream: BufferedReader, file: str, names: FieldNames, on_reject: OnReject) -> Iterator[Document]:
    """Rows of a csv.

    Raises InputError for a header without id or text, and for a quotation mark that swallows lines of other rows.
    """
    return _quoted_rows(read_lines(stream, file, blanks=True), file, names, on_reject, ",")


def read_tsv(
    stream: BufferedReader,
    file: str,
    names: FieldNames,
    on_reject: OnReject,
    warn: Warn = log.warning,
    *,
    quoted: bool = False,
) -> Iterator[Document]:
    """Rows of a tsv. Without a header it has two columns, id and text, as in MS MARCO: all after the first tab is text.

    If the field of ids, texts or titles was named, it has a header.

    Raises InputError for a header without id or text, and for a file without a header that has more columns.
    """
    lines = read_lines(stream, file, blanks=True)
    first = next(((number, line) for number, line in lines if isinstance(line, BadLine) or line.strip()), None)
    if first is None:
        return iter(())
    lines = chain([first], lines)
    cells = _cells(first[1])
    if quoted or all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells):
        return _quoted_rows(lines, file, names, on_reject, "\t")
    part_names = {*names.text, *names.title}
    is_named = 1 in map(len, (names.id, names.text)) or (len(names.title) == 1 and names.title != FieldNames().title)
    if is_named or (set(cells) & {*names.id} and set(cells) & part_names) or len(cells) < 2:
        return _unquoted_rows(lines, file, names, on_reject, warn)
    ahead = list(islice(lines, FIRST_LINES))
    if min(len(_cells(line)) for _, line in ahead if isinstance(line, BadLine) or line.strip()) > 2:
        check_columns(cells, names, f"{file}, line {first[0]}")
    warn(f"{file}: no header with an id and a text column: its two columns are read as id and text")
    return _ids_and_texts(chain(ahead, lines), file, on_reject)


def _cells(line: bytes | BadLine) -> list[str]:
    text = printable(line.raw if isinstance(line, BadLine) else line)
    return [cell.strip() for cell in text.split("\t")]


def _unquoted_rows(
    lines: NumberedLines, file: str, names: FieldNames, on_reject: OnReject, warn: Warn
) -> Iterator[Document]:
    header: list[str] = []
    warned = False
    for number, line, cells in _split_lines(lines, file, on_reject):
        if not header:
            header = [cell.strip() for cell in cells]
            check_columns(header, names, f"{file}, line {number}")
            continue
        if not warned and any(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells):
            warned = True
            warn(
                f"{file}, line {number}: a cell in quotation marks, which are read as part of the text (reported "
                "once per file); --format quoted-tsv reads them as a csv's"
            )
        _check_end(isinstance(line, Unterminated), cells, header, file, number)
        try:
            yield _row(cells, header, names, file, number)
        except (Defect, _Misshapen) as defect:
            on_reject(Rejected(file, number, str(defect), _raw(cells, header, names, printable(line))))


def _ids_and_texts(lines: NumberedLines, file: str, on_reject: OnReject) -> Iterator[Document]:
    for number, line, cells in _split_lines(lines, file, on_reject):
        _check_end(isinstance(line, Unterminated), cells, ID_AND_TEXT, file, number)
        cells = [cells[0], "\t".join(cells[1:])] if len(cells) > 1 else cells
        try:
            if len(cells) < 2:
                raise _Misshapen("expected an id and a text, and a tab between them")
            yield _row(cells, ID_AND_TEXT, FieldNames(), file, number)
        except (Defect, _Misshapen) as defect:
            on_reject(Rejected(file, number, str(defect), _raw(cells, ID_AND_TEXT, FieldNames(), printable(line))))


def _check_end(unterminated: bool, cells: list[str], header: list[str], file: str, number: int) -> None:
    """Raise InputError for a last row without a line end: it was cut, or may have been."""
    if unterminated:
        raise cut_off(file, number) if len(cells) < len(header) else perhaps_cut_off(file, number)


def _split_lines(lines: NumberedLines, file: str, on_reject: OnReject) -> Iterator[tuple[int, bytes, list[str]]]:
    for number, line in lines:
        if isinstance(line, BadLine):
            on_reject(Rejected(file, number, line.reason, printable(line.raw)))
        elif line.strip():
            # Bytes that are not UTF-8 become lone surrogates, which `_row` detects.
            yield number, line, line.decode("utf-8", "surrogateescape").split("\t")


class _OpenCell(_Misshapen):
    """A row whose last cell has no closing quotation mark."""


class _LinesOfRows:
    """The lines of a file for the csv module, with the lines of the current row."""

    def __init__(self, lines: NumberedLines, file: str, on_reject: OnReject) -> None:
        self.lines = lines
        self.file = file
        self.on_reject = on_reject
        self.number = 0
        """The number of the last line that was read."""
        self.unterminated = False
        """Whether that line was the last one and had no line end."""
        self.of_row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for number, line in self.lines:
            self.number = number
            self.unterminated = isinstance(line, Unterminated)
            if isinstance(line, BadLine):
                self.on_reject(Rejected(self.file, number, line.reason, printable(line.raw)))
                continue
            self.of_row.append(line.decode("utf-8", "surrogateescape"))
            yield self.of_row[-1] + "\n"

    @property
    def raw(self) -> str:
        return printable("\n".join(self.of_row).encode("utf-8", "surrogateescape"))


def _quoted_rows(
    numbered: NumberedLines, file: str, names: FieldNames, on_reject: OnReject, delimiter: str
) -> Iterator[Document]:
    # The default limit of 128 KiB for a cell refuses ordinary long texts. The setting is global to the process.
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _LinesOfRows(numbered, file, on_reject)
    rows = csv.reader(iter(lines), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        start = lines.number + 1
        lines.of_row.clear()
        try:
            try:
                row = next(rows, None)
            except csv.Error as error:
                kind = _OpenCell if str(error) == "unexpected end of data" else _Misshapen
                raise kind(f"not a row of csv: {error}") from None
            if row is None:
                return
            if not row:
                continue
            if header:
                _check_end(lines.unterminated, row, header, file, start)
                yield _row(row, header, names, file, start)
            else:
                header = [name.strip() for name in row]
                check_columns(header, names, f"{file}, line {lines.number}")
        except _Misshapen as error:
            if len(lines.of_row) > 1:
                raise InputError(
                    f"{file}, line {start}: a quotation mark makes one row of the lines {start} to {lines.number}: {error}",
                    "close it, or double each quotation mark within a cell: how many rows are lost cannot be known",
                ) from None
            if isinstance(error, _OpenCell):
                raise cut_off(file, start) from None
            if not header:
                raise InputError(f"{file}, line {start}: the header cannot be read: {error}") from None
            on_reject(Rejected(file, start, str(error), lines.raw))
        except Defect as defect:
            on_reject(Rejected(file, start, str(defect), _raw(row or [], header, names, lines.raw)))


def _row(cells: list[str], header: list[str], names: FieldNames, file: str, number: int) -> Document:
    """The cells of a row, decoded with surrogateescape, as a Document; raises Defect or _Misshapen."""
    if len(cells) != len(header):
        raise _Misshapen(f"expected {len(header)} columns as in the header, found {len(cells)}")
    try:
        record = {name: plain(cell) for name, cell in _record(cells, header, names).items()}
    except Defect:
        if any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell):
            raise Defect("invalid UTF-8") from None
        raise
    return as_document(record, names, file, number)


def _record(cells: list[str], header: list[str], names: FieldNames) -> dict[str, Any]:
    known = {*names.id, *names.text, *names.title, *names.url}
    # csv has no null, so an empty cell is a missing value (OpenSearch refuses "" as a date or number).
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell or name in known}


def _raw(cells: list[str], header: list[str], names: FieldNames, line: str) -> str:
    """What the dead letter of a row holds: an object in JSON, which can be mended, if the row has the header's columns;
    else its line. Bytes that are not UTF-8 stand in the object as half a surrogate pair."""
    return json.dumps(_record(cells, header, names)) if len(cells) == len(header) else line
