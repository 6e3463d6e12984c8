"""TREC run files, with `query Q0 document rank score tag` on each line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from opensearch_neural.corpus.text_files import read_texts
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank
from opensearch_neural.files import write_text
from opensearch_neural.retrievers import Run


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Write a TREC run file.

    Queries in the run's order; documents by score descending, then id ascending; ranks from 1; scores with all their
    digits. Raises InputError for an id or a tag with white space, which the format does not allow, and for a score that is
    not a finite number.
    """
    lines = []
    _require_word(tag, "the run's tag")
    for query, hits in run.items():
        _require_word(query, "the query id")
        for document, score in hits.items():
            _require_word(document, f"query {query}: the document id")
            if not math.isfinite(score):
                raise InputError(f"query {query}: the score of document {document} is not a finite number ({score})")
        for at, (document, score) in enumerate(rank(hits), start=1):
            lines.append(f"{query} Q0 {document} {at} {float(score)!r} {tag}\n")
    write_text(Path(path), "".join(lines))


def read_run(path: Path) -> Run:
    """A TREC run file, compressed or not, as {query: {document: score}}, best first.

    Scores give the order, as in trec_eval, not the rank column.
    Raises InputError, with file and line, for a line without exactly six fields, a score that is not a finite number, and a
    document that occurs twice for a query; also for an empty file, and for one that is not text.
    """
    run: Run = {}
    for where, line in read_texts(path):
        fields = line.split()
        if len(fields) != 6:
            raise InputError(f"{where}: {len(fields)} fields", "expected six: query Q0 document rank score tag")
        query, _, document, _, text, _ = fields
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


def _require_word(text: str, what: str) -> None:
    if text.split() != [text]:
        raise InputError(f"{what} {text!r} is empty or contains white space, which a TREC run file does not allow")
