"""Corpora in csv and tsv: a header, then a row a document."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from typing import Any

from opensearch_neural.corpus.documents import (
    Defect,
    Document,
    FieldNames,
    OnReject,
    Rejected,
    as_document,
    check_columns,
    plain,
)
from opensearch_neural.corpus.text_files import MAX_LINE_BYTES, BadLine, printable, read_lines
from opensearch_neural.errors import InputError

log = logging.getLogger(__name__)


class _Misshapen(Exception):
    """A row that is no row, or has other columns than the header."""


class _Lines:
    """The lines of a file as the csv module wants them, and those that its present row was made of."""

    def __init__(self, stream: BufferedReader, file: str, on_reject: OnReject) -> None:
        self.numbered = read_lines(stream, file, blanks=True)
        self.file = file
        self.on_reject = on_reject
        self.number = 0
        """Of the last line that was read."""
        self.of_row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for number, line in self.numbered:
            self.number = number
            if isinstance(line, BadLine):
                self.on_reject(Rejected(self.file, number, line.reason, printable(line.raw)))
                continue
            # Bytes that are no UTF-8 become lone surrogates, which are seen once the row is known.
            self.of_row.append(line.decode("utf-8", "surrogateescape"))
            yield self.of_row[-1] + "\n"

    @property
    def raw(self) -> str:
        return printable("\n".join(self.of_row).encode("utf-8", "surrogateescape"))


def read_separated(
    stream: BufferedReader, file: str, names: FieldNames, on_reject: OnReject, delimiter: str
) -> Iterator[Document]:
    """Rows of csv or tsv. A tsv of two columns without a header is id and text, unquoted, as MS MARCO has it.

    Raises InputError for a header without id or text, and for a quotation mark that takes lines of other rows with it.
    """
    lines = _Lines(stream, file, on_reject)
    text_lines = iter(lines)
    first = next((line for line in text_lines if line.strip()), None)
    if first is None:
        return
    # The default limit of 128 KiB a field refuses ordinary long texts. It is a setting of the whole process.
    csv.field_size_limit(MAX_LINE_BYTES)
    text_lines = chain([first], text_lines)
    bare = delimiter == "\t" and first.count("\t") == 1 and len(names.id) > 1 and not _has_header(first, names)
    if bare:
        log.warning("%s: no header with an id and a text column: its two columns are taken as these", file)
        rows = csv.reader(text_lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
        header, names = ["_id", "text"], FieldNames()
    else:
        rows = csv.reader(text_lines, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(rows)]
        except csv.Error as error:
            raise InputError(f"{file}, line {lines.number}: the header cannot be read: {error}") from None
        check_columns(header, names, f"{file}, line {lines.number}")
        lines.of_row.clear()
    known = {*names.id, *names.text, *names.title, *names.url}
    start = lines.number if bare else lines.number + 1
    while True:
        try:
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise _Misshapen(f"not a row of {'csv' if delimiter == ',' else 'tsv'}: {error}") from None
            if row is None:
                return
            if row:
                if len(row) != len(header):
                    raise _Misshapen(f"expected {len(header)} columns as in the header, found {len(row)}")
                # csv has no null: an empty cell is no value, not an empty one (a date or number would be refused).
                record = {name: cell for name, cell in zip(header, row, strict=True) if cell or name in known}
                yield as_document(_plain_row(record), names, file, start)
        except _Misshapen as error:
            if len(lines.of_row) > 1:
                raise InputError(
                    f"{file}, line {start}: a quotation mark makes one row of the lines {start} to {lines.number}: {error}",
                    "close it, or double each quotation mark within a cell: how many rows it takes cannot be known",
                ) from None
            on_reject(Rejected(file, start, str(error), lines.raw))
        except Defect as defect:
            on_reject(Rejected(file, start, str(defect), lines.raw))
        lines.of_row.clear()
        start = lines.number + 1


def _plain_row(record: dict[str, str]) -> dict[str, Any]:
    """`plain` of a row that was decoded with surrogateescape."""
    try:
        return {name: plain(cell) for name, cell in record.items()}
    except Defect:
        if any("\udc80" <= letter <= "\udcff" for cell in record.values() for letter in cell):
            raise Defect("invalid UTF-8") from None
        raise


def _has_header(line: str, names: FieldNames) -> bool:
    cells = {cell.strip().strip('"') for cell in line.split("\t")}
    return bool(cells & {*names.id} and cells & {*names.text, *names.title})
