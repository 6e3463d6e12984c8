"""Corpora in JSON lines: one object in each line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from opensearch_neural.corpus.documents import (
    MAX_DEPTH,
    Defect,
    Document,
    FieldNames,
    OnReject,
    Rejected,
    Warn,
    as_document,
    plain,
)
from opensearch_neural.corpus.text_files import STANDARD_INPUT, BadLine, Unterminated, cut_off, printable, read_lines
from opensearch_neural.errors import InputError

ONLY_TITLE = "no text, only a title (reported once per file)"


def read_json_lines(
    stream: BufferedReader, file: str, names: FieldNames, on_reject: OnReject, warn: Warn
) -> Iterator[Document]:
    """The documents of a file. Raises InputError for a JSON array or another format of OpenSearch's documents, for damage,
    and for a file that ends within a record."""
    warned = False
    for number, line in read_lines(stream, file):
        if isinstance(line, BadLine):
            on_reject(Rejected(file, number, line.reason, printable(line.raw)))
            continue
        try:
            document = as_document(parse_object(line), names, file, number)
        except Defect as defect:
            if number == 1 and line.lstrip()[:1] == b"[":
                remedy = "write one object per line: " + _jq("-c '.[]'", file)
                raise InputError(f"{file} is one JSON array, not lines of JSON", remedy) from None
            if number == 1 and (other := _other_format(line)) is not None:
                raise InputError(f"{file} holds {other.holds}", other.remedy(file)) from None
            if isinstance(line, Unterminated) and line.lstrip().startswith(b"{") and isinstance(defect, NotJson):
                raise cut_off(file, number) from None
            on_reject(Rejected(file, number, str(defect), printable(line)))
            continue
        if not document.text and not warned:
            warned = True
            warn(f"{file}, line {number}: {ONLY_TITLE}")
        yield document


ACTIONS = {"index", "create", "update", "delete"}


@dataclass(frozen=True)
class _OtherFormat:
    """A format in which OpenSearch takes or gives documents."""

    holds: str
    """What a file of it holds."""
    jq: str | None
    """The arguments of jq that make documents of it; None: they are not all in it."""

    def remedy(self, file: str) -> str:
        """How to make a corpus of the file."""
        return "write documents, one object per line" if self.jq is None else f"write documents: {_jq(self.jq, file)}"


def _jq(arguments: str, file: str) -> str:
    """A command that reads a file with jq, which does not unpack files. file: its name in messages"""
    for end, unpack in ((".gz", "gzip -dc"), (".zst", "zstd -dc")):
        if file.lower().endswith(end):
            return f"{unpack} {file} | jq {arguments}"
    return f"jq {arguments}" if file == STANDARD_INPUT else f"jq {arguments} {file}"


def _other_format(line: bytes) -> _OtherFormat | None:
    """The format of a file, if its first line is no document, but as OpenSearch takes or gives documents; else None."""
    try:
        record = parse_object(line)
    except Defect:
        return None
    if isinstance(record.get("_source"), dict):
        return _OtherFormat("hits with a `_source`, not documents", "-c '{_id} + ._source'")
    name = next(iter(record), "")
    if len(record) == 1 and name in ACTIONS and isinstance(record[name], dict):
        jq = "-cn 'inputs | (.index // .create)._id as $id | input | {_id: $id} + .'"
        whole = name in ("index", "create")  # an update may hold a part of a document, a deletion holds none
        return _OtherFormat("the lines of a bulk request, with actions between the documents", jq if whole else None)
    return None


class NotJson(Defect):
    """A line that is not JSON: at the end of a file it may have been cut."""


def _no_constant(name: str) -> Any:
    raise Defect(f"{name} is not JSON: write null, or a number")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise Defect(f"the number {number[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
# Escapes that JSON allows, but UTF-8 or OpenSearch does not. Only a record with such an escape has all its strings checked.
_SUSPECT = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def parse_object(line: bytes) -> dict[str, Any]:
    """The object of one line; raises Defect."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"invalid UTF-8 at byte {error.start + 1} of the line") from None
    try:
        record = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    except RecursionError:
        raise Defect(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # an integer of thousands of digits
        raise Defect("a number has too many digits") from None
    if not isinstance(record, dict):
        kind = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
        raise Defect(f"expected a JSON object, found {kind.get(type(record), 'a number')}")
    if text.count("{") + text.count("[") > MAX_DEPTH or _SUSPECT.search(text):
        plain(record)
    return record
