"""Counts click logs: how often a document was shown at a place for a query, and how often it was clicked there.

    csv, tsv   one row per shown document: query, document, position (from 1), clicked (0 or 1)
    UBI        User Behavior Insights 1.x: a file or index of queries, and another of events

Queries that differ only in case and blanks are the same query.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from opensearch_neural.corpus.documents import Defect, fields_of
from opensearch_neural.corpus.json_lines import parse_object
from opensearch_neural.corpus.text_files import BadLine, open_binary, read_lines
from opensearch_neural.errors import InputError
from opensearch_neural.index.result_window import most_hits
from trainers.data import formats

COLUMNS = {
    "query": ("query", "user_query", "query_text"),
    "document": ("document", "doc", "doc_id", "document_id", "object_id"),
    "position": ("position", "rank", "place"),
    "clicked": ("clicked", "click", "clicks"),
}
"""{content of a column: the names that it may have}"""
YES_NO = {"1": 1, "true": 1, "0": 0, "false": 0}


@dataclass
class ClickLog:
    """The counts of a click log."""

    shown: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """{(query, document, place from 1): impressions}"""
    clicked: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """{(query, document, place from 1): impressions that were clicked}"""
    searches: Counter[str] = field(default_factory=Counter)
    """{query: number of searches}; a csv or tsv does not name searches: then the impressions of the most shown place"""
    left_out: Counter[str] = field(default_factory=Counter)
    """{reason: number of records}"""

    def add(self, query: str, document: str, place: int, clicked: int, depth: int) -> None:
        if place > depth:
            self.left_out[f"impressions below place {depth}"] += 1
            return
        if set("\t\r\n") & set(document):
            self.left_out["impressions of a document whose id a file of judgements cannot hold"] += 1
            return
        key = same_words(query), document, place
        self.shown[key] += 1
        self.clicked[key] += clicked


def same_words(query: str) -> str:
    """A query in lower case, as analyzers write it: casefold() would write "strasse" for "straße"."""
    return " ".join(query.split()).lower()


def read_rows(path: Path, depth: int) -> ClickLog:
    """The counts of a csv or tsv with a header. Raises InputError with file and line at the first invalid row."""
    log = ClickLog()
    # A value of a csv in quotation marks may hold blank lines; a tsv has such values only if its header has.
    lines = (f"{line}\n" for _, line in formats.read_lines(path, blanks=True))
    first = next(lines, "")
    is_tsv = ".tsv" in path.suffixes
    rows = csv.reader(
        chain([first], lines),
        delimiter="\t" if is_tsv else ",",
        strict=True,
        quoting=csv.QUOTE_NONE if is_tsv and not first.startswith('"') else csv.QUOTE_MINIMAL,
    )
    header: list[str] = []
    columns: dict[str, int] = {}
    try:
        for row in rows:
            if not row:
                continue
            where = f"{path}, line {rows.line_num}"
            if not header:
                header = [name.strip().lower() for name in row]
                columns = _columns(header, where)
                continue
            if len(row) != len(header):
                raise InputError(f"{where}: expected {len(header)} columns, found {len(row)}")
            query, document = row[columns["query"]], row[columns["document"]].strip()
            place, clicked = row[columns["position"]].strip(), row[columns["clicked"]].strip().lower()
            if not query.strip() or not document:
                raise InputError(f"{where}: the query or the document is empty")
            if not place.isdecimal() or len(place) > 9 or int(place) < 1:
                raise InputError(f"{where}: the position must be a number from 1, found {place[:40]!r}")
            if clicked not in YES_NO:
                raise InputError(f"{where}: clicked must be 0 or 1, found {clicked[:40]!r}")
            log.add(query, document, int(place), YES_NO[clicked], depth)
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: not a row of csv: {error}") from None
    at_place: Counter[tuple[str, int]] = Counter()
    for (query, _, at), count in log.shown.items():
        at_place[query, at] += count
    for (query, _), count in at_place.items():
        log.searches[query] = max(log.searches[query], count)
    return log


def _columns(header: list[str], where: str) -> dict[str, int]:
    at = {part: next((header.index(name) for name in names if name in header), -1) for part, names in COLUMNS.items()}
    for part, column in at.items():
        if column < 0:
            raise InputError(f"{where}: no column {' or '.join(COLUMNS[part])}; its columns are {', '.join(header)}")
    return at


LogRecords = Iterable[tuple[str, Mapping[str, Any]]]
"""(file and line, or index and id, of the record; record)"""


def read_records(path: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Reads JSON lines of records, or of hits with a `_source`. Raises InputError with file and line for other lines."""
    stream, file = open_binary(str(path))
    for number, line in read_lines(stream, file):
        where = f"{file}, line {number}"
        try:
            if isinstance(line, BadLine):
                raise Defect(line.reason)
            record = parse_object(line)
        except Defect as defect:
            raise InputError(f"{where}: {defect}") from None
        source = record.get("_source")
        yield where, source if isinstance(source, dict) else record


def read_ubi(queries: LogRecords, events: LogRecords, depth: int, clicks: str, impressions: str) -> ClickLog:
    """The counts of a log in UBI's format.

    clicks, impressions: the `action_name` of clicks and of impressions. A search without logged impressions counts as
    having shown its `query_response_hit_ids`, down to `depth`; one without either is left out. A document's place is its
    place among these ids, else `position.ordinal`. Raises InputError for a record without a field that UBI requires.
    """
    searches: dict[str, tuple[str, list[str]]] = {}
    log = ClickLog()
    for where, record in queries:
        ids = record.get("query_response_hit_ids") or []
        words = "" if record.get("user_query") is None else record["user_query"]  # UBI does not require it
        if not isinstance(record.get("query_id"), str) or not isinstance(words, str):
            raise InputError(f"{where}: expected query_id and user_query as texts; {fields_of(record)}")
        if not isinstance(ids, list):
            raise InputError(f"{where}: query_response_hit_ids must be a list")
        searches[record["query_id"]] = words, [str(id) for id in ids]
    seen: dict[str, dict[str, int]] = {}
    clicked: dict[str, dict[str, int]] = {}
    for where, record in events:
        action, search = record.get("action_name"), record.get("query_id")
        if not isinstance(action, str):
            raise InputError(f"{where}: expected action_name as a text; {fields_of(record)}")
        if action not in (clicks, impressions):
            continue
        document = _inside(record, "event_attributes", "object", "object_id")
        if not isinstance(search, str) or search not in searches or document is None:
            log.left_out["events of an unknown query_id or without object.object_id"] += 1
            continue
        ids = searches[search][1]
        ordinal = _inside(record, "event_attributes", "position", "ordinal")
        place = ids.index(str(document)) + 1 if str(document) in ids else ordinal
        if not isinstance(place, int) or place < 1:
            log.left_out["events of a document whose place is not known"] += 1
            continue
        (clicked if action == clicks else seen).setdefault(search, {})[str(document)] = place
    for search, (text, ids) in searches.items():
        if not text.strip():
            log.left_out["searches without words"] += 1
            continue
        log.searches[same_words(text)] += 1
        listed = {document: place for place, document in enumerate(ids[:depth], start=1)}
        shown, of_search = seen.get(search) or listed, clicked.get(search, {})
        if of_search and not shown:
            # With the clicked documents alone, every impression would be a click.
            log.left_out["searches with clicks, whose shown documents are not logged"] += 1
            continue
        for document, place in (shown | of_search).items():
            log.add(text, document, place, document in of_search, depth)
    return log


def _inside(record: Any, *fields: str) -> Any:
    """The value of nested fields; None if one of them is missing, or is no object."""
    for field_name in fields:
        record = record.get(field_name) if isinstance(record, Mapping) else None
    return record


def index_records(connect: Callable[[], Any], index: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from opensearchpy.helpers import scan

    client = connect()
    for hit in scan(client, index=index, query={"query": {"match_all": {}}}, size=most_hits(client, index, 5000)):
        yield f"{index}, {hit['_id']}", hit["_source"]
