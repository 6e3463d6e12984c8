"""TREC run files, with `query Q0 document rank score tag` on each line.

The format has no ids with white space. A run with such ids is written with all its ids percent-encoded (RFC 3986, section
2.1): white space and the percent sign itself, in UTF-8, so that `a b` is `a%20b`. Its tag says so, and only of such a run
are ids decoded: an id like https://example.org/a%20b stays as it is in all others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from opensearch_neural.corpus.text_files import read_texts
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank
from opensearch_neural.files import write_text
from opensearch_neural.retrievers import Run

ENCODED = ":percent-encoded"
"""The end of the tag of a run whose ids are percent-encoded."""


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> bool:
    """Write a TREC run file; returns whether its ids are percent-encoded, because some of them have white space.

    Queries in the run's order; documents by score descending, then id ascending; ranks from 1; scores with all their
    digits; white space in the tag is percent-encoded, too. Raises InputError for an empty id or tag, and for a score that
    is not a finite number.
    """
    lines = []
    encoded = any(_WHITE_SPACE.search(id) for query, hits in run.items() for id in (query, *hits))
    written = _percent_encoded if encoded else str
    _require_some(tag, "the run's tag")
    label = _WHITE_SPACE.sub(_percent, tag) + (ENCODED if encoded else "")
    for query, hits in run.items():
        _require_some(query, "the query id")
        for document, score in hits.items():
            _require_some(document, f"query {query}: the document id")
            if not math.isfinite(score):
                raise InputError(f"query {query}: the score of document {document} is not a finite number ({score})")
        for at, (document, score) in enumerate(rank(hits), start=1):
            lines.append(f"{written(query)} Q0 {written(document)} {at} {float(score)!r} {label}\n")
    write_text(Path(path), "".join(lines))
    return encoded


def _percent_encoded(id: str) -> str:
    """The id with white space and percent signs percent-encoded."""
    return _WHITE_SPACE_OR_PERCENT.sub(_percent, id)


def _percent(match: re.Match[str]) -> str:
    return quote(match[0], safe="")


_WHITE_SPACE = re.compile(r"\s")
_WHITE_SPACE_OR_PERCENT = re.compile(r"[\s%]")


def read_run(path: Path) -> Run:
    """A TREC run file, compressed or not, as {query: {document: score}}, best first; ids that `write_run` percent-encoded
    are decoded.

    Scores give the order, as in trec_eval, not the rank column.
    Raises InputError, with file and line, for a line without exactly six fields, a score that is not a finite number, and a
    document that occurs twice for a query; also for an empty file, and for one that is not text.
    """
    run: Run = {}
    for where, line in read_texts(path):
        fields = line.split()
        if len(fields) != 6:
            raise InputError(f"{where}: {len(fields)} fields", "expected six: query Q0 document rank score tag")
        query, _, document, _, text, tag = fields
        if tag.endswith(ENCODED):
            query, document = unquote(query), unquote(document)
        score = float(text) if NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(score):
            raise InputError(f"{where}: the score {text[:40]!r} is not a finite number", "expected one like 12.5")
        hits = run.setdefault(query, {})
        if document in hits:
            raise InputError(f"{where}: query {query} has the document {document} twice")
        hits[document] = score
    if not run:
        raise InputError(f"{path} holds no hit", "expected lines: query Q0 document rank score tag")
    return {query: dict(rank(hits)) for query, hits in run.items()}


NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
"""A number as programs write it: Python also reads 1_000."""


def _require_some(text: str, what: str) -> None:
    if not text:
        raise InputError(f"{what} is empty, which a TREC run file does not allow")
