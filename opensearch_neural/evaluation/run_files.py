"""TREC run files, with `query Q0 document rank score tag` on each line."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank, require_numbers
from opensearch_neural.files import write_text
from opensearch_neural.retrievers import Run


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Write a TREC run file.

    Queries in the run's order; documents by score descending, then id ascending; ranks from 1; scores with all their
    digits. Raises InputError for an id or a tag with white space, which the format does not allow, and for a score that is
    not a number.
    """
    lines = []
    _require_word(tag, "the run's tag")
    for query, hits in run.items():
        _require_word(query, "the query id")
        require_numbers(query, hits)
        for at, (document, score) in enumerate(rank(hits), start=1):
            _require_word(document, f"query {query}: the document id")
            lines.append(f"{query} Q0 {document} {at} {float(score)!r} {tag}\n")
    write_text(Path(path), "".join(lines))


def read_run(path: Path) -> Run:
    """A TREC run file (.gz too) as {query: {document: score}}, best first.

    Scores give the order, as in trec_eval, not the rank column.
    Raises InputError, with file and line, for a line without exactly six fields, a score that is not a number, or a
    document that occurs twice for a query.
    """
    run: Run = {}
    for number, line in enumerate(_lines(Path(path)), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"{path}, line {number}: {len(fields)} fields", "expected six: query Q0 document rank score tag"
            )
        query, _, document, _, text, _ = fields
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise InputError(f"{path}, line {number}: the score {text!r} is not a number", "expected one like 12.5")
        hits = run.setdefault(query, {})
        if document in hits:
            raise InputError(f"{path}, line {number}: query {query} has the document {document} twice")
        hits[document] = score
    return {query: dict(rank(hits)) for query, hits in run.items()}


def _lines(path: Path) -> Iterator[str]:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:  # some editors begin a file with a byte order mark
            yield from file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"the run file {path} cannot be read: {error}") from None


def _require_word(text: str, what: str) -> None:
    if text.split() != [text]:
        raise InputError(f"{what} {text!r} is empty or contains white space, which a TREC run file does not allow")
