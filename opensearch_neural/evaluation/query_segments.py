"""Segments of the judged queries, measured separately: head, torso and tail by frequency, or any named segments.

segments = by_frequency({"q1": 900, "q2": 40, "q3": 1}, ["head", "torso", "tail"])
rows = segment_rows("docs", results, segments, baseline="bm25")
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opensearch_neural.corpus.documents import Defect, fields_of, identifier
from opensearch_neural.corpus.json_lines import parse_object
from opensearch_neural.corpus.judgements import QUERY_NAMES
from opensearch_neural.corpus.text_files import BadLine, decoded, open_binary, read_lines
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.engine_comparison import UNJUDGED, EngineResult
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.result_rows import holm_rows, rows
from opensearch_neural.evaluation.results import Row
from opensearch_neural.evaluation.run_files import NUMBER

SEGMENT = ("segment",)
FREQUENCY = ("frequency", "count", "searches")


def read_query_values(path: str | Path, names: Sequence[str]) -> dict[str, str]:
    """{query id: value} from a tsv or csv of two columns, with or without header, or from jsonl (`_id` and one of `names`).

    Raises InputError with file and line at the first invalid line, or at a second value for a query.
    """
    return {query: value for _, query, value in _query_values(path, names)}


def _query_values(path: str | Path, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(file and line, query id, value) of each query. Raises InputError as `read_query_values` does."""
    stream, file = open_binary(str(path))
    values: dict[str, str] = {}
    for number, line in read_lines(stream, file):
        where = f"{file}, line {number}"
        try:
            if isinstance(line, BadLine):
                raise Defect(line.reason)
            query, value = _json_value(line, names) if line.lstrip()[:1] == b"{" else _cells(line, names)
        except Defect as defect:
            raise InputError(f"{where}: {defect}") from None
        if value in names and not values:
            continue  # the header
        if values.setdefault(query, value) != value:
            raise InputError(f"{where}: the query {query!r} has another {names[0]} on an earlier line")
        yield where, query, value


def _json_value(line: bytes, names: Sequence[str]) -> tuple[str, str]:
    record = parse_object(line)
    id_name, name = QUERY_NAMES.find(record, "id"), next((name for name in names if name in record), None)
    if id_name is None or name is None:
        raise Defect(f"expected _id and {' or '.join(names)}; {fields_of(record)}")
    if record[name] is None:
        raise Defect(f"the {name} is null")
    return identifier(record[id_name], id_name), str(record[name])


def _cells(line: bytes, names: Sequence[str]) -> tuple[str, str]:
    text = decoded(line).strip()
    try:
        *first, value = text.rsplit("\t", 1) if "\t" in text else next(csv.reader([text], skipinitialspace=True), [""])
    except csv.Error as error:
        raise Defect(f"the line is not csv: {error}") from None
    query = ",".join(first)  # an id may hold a comma
    if not query.strip() or not value.strip() or "\t" in query.strip():
        raise Defect(f"expected a query id and its {names[0]}, with a tab or a comma between them, found {text[:80]!r}")
    return query.strip(), value.strip()


def read_frequencies(path: str | Path) -> dict[str, float]:
    """{query id: number of searches}. Raises InputError as `read_query_values` does, and for an invalid number."""
    frequencies = {}
    for where, query, text in _query_values(path, FREQUENCY):
        frequency = float(text) if NUMBER.fullmatch(text) else math.nan
        if not 0 <= frequency < math.inf:
            raise InputError(
                f"{where}: the frequency of the query {query!r} is not a number of searches: {text[:40]!r}"
            )
        frequencies[query] = frequency
    return frequencies


def by_frequency(frequencies: Mapping[str, float], names: Sequence[str]) -> dict[str, str]:
    """{query id: segment}: the most frequent queries are in the first segment, and all segments have about as many searches.

    If a query's searches span several segments, the middle of them decides.
    """
    total, before = math.fsum(frequencies.values()) or 1.0, 0.0
    segments = {}
    for query, frequency in sorted(frequencies.items(), key=lambda item: (-item[1], item[0])):
        middle = (before + frequency / 2) / total
        segments[query] = names[min(len(names) - 1, int(middle * len(names)))]
        before += frequency
    return segments


def segment_rows(
    data: str, results: Sequence[EngineResult], segments: Mapping[str, str], *, baseline: str | None, seed: int = 0
) -> list[Row]:
    """The rows of each segment, as a separate set: "docs: head". p-values are corrected for all segments together."""
    made: list[Row] = []
    for segment in dict.fromkeys(segments.values()):
        queries = {query for query, of in segments.items() if of == segment}
        parts = {result.engine: restricted(result.measured, queries) for result in results}
        if not (count := next(iter(parts.values())).queries):
            continue
        name = f"{data}: {segment}"
        made += rows(name, parts, baseline=baseline, seed=seed)
        for result in results:
            if (share := result.unjudged_share(queries)) is not None:
                made.append(Row(name, result.engine, UNJUDGED, share, None, None, count))
    return made + holm_rows(made)


def restricted(measured: Measured, queries: set[str]) -> Measured:
    """The measures over some of the queries only."""
    per_query = {
        name: {query: value for query, value in values.items() if query in queries}
        for name, values in measured.per_query.items()
    }
    count = len(next(iter(per_query.values())))
    mean = {name: math.fsum(values.values()) / max(1, count) for name, values in per_query.items()}
    return replace(measured, per_query=per_query, mean=mean, queries=count)
