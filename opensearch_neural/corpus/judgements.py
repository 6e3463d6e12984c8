"""Queries and what is judged relevant to them (qrels), in the formats of BEIR and TREC.

data = BeirData.load("scifact", "test")
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from opensearch_neural.corpus.documents import Defect, FieldNames, fields_of, identifier, raise_rejected, string
from opensearch_neural.corpus.json_lines import parse_object
from opensearch_neural.corpus.reader import COMPRESSIONS, format_of, is_folder
from opensearch_neural.corpus.separated_values import read_csv, read_tsv
from opensearch_neural.corpus.text_files import BadLine, open_binary, read_lines
from opensearch_neural.errors import InputError

log = logging.getLogger(__name__)

QUERY_NAMES = FieldNames(
    id=("_id", "id", "qid", "query_id", "query-id"), title=(), text=("text", "query", "question", "title"), url=()
)


@dataclass(slots=True)
class BeirData:
    """One split of a test collection in BEIR layout."""

    name: str
    split: str
    queries: dict[str, str]
    """{query id: text} of the judged queries"""
    qrels: dict[str, dict[str, int]]
    """{query id: {document id: grade}}"""
    corpus_path: Path

    @classmethod
    def load(cls, folder: str | Path, split: str = "test") -> BeirData:
        """Raises InputError if a file is missing or broken, or if no judged query has a text."""
        folder = Path(folder)
        if not is_folder(folder):
            raise InputError(f"{folder} is not a folder", "expected a folder in BEIR layout")
        corpus_path = Path(format_of(folder, "beir")[1])
        splits = {
            path.name.partition(".tsv")[0]: path
            for path in sorted((folder / "qrels").glob("*.tsv*"))
            if path.name.partition(".tsv")[2] in COMPRESSIONS
        }
        if split not in splits:
            available = ", ".join(splits)
            raise InputError(
                f"{folder} has no judgements for the split {split!r} (qrels/{split}.tsv)",
                f"available: {available}" if available else "it has no qrels/*.tsv at all",
            )
        qrels = read_qrels(splits[split])
        texts = read_queries(folder)
        judged = {query: grades for query, grades in qrels.items() if query in texts}
        if without_text := len(qrels) - len(judged):
            first = next(query for query in qrels if query not in texts)
            if not judged:
                raise InputError(
                    f"{splits[split]} judges {without_text:,} queries, and {_query_file(folder)} has the text of none of "
                    f"them, {first!r} first"
                )
            log.warning(
                "%s: %s judged queries are left out, %r first: %s has no text of them",
                splits[split], f"{without_text:,}", first, _query_file(folder).name,
            )  # fmt: skip
        queries = {query: texts[query] for query in judged}
        return cls(folder.resolve().name, split, queries, judged, corpus_path)


def read_queries(path: str | Path) -> dict[str, str]:
    """{query id: text} of jsonl (BEIR's `_id` and `text`) or tsv (id and text, header or not), also compressed.

    Raises InputError with file and line at the first line that is not a query, or repeats an id with another text.
    """
    place = Path(path)
    if is_folder(place):
        place = _query_file(place)
    stream, file = open_binary(str(place))
    queries: dict[str, str] = {}
    if place.name.removesuffix(".gz").removesuffix(".zst").endswith((".tsv", ".txt", ".csv")):
        read_rows = read_csv if ".csv" in place.suffixes else read_tsv
        rows = read_rows(stream, file, QUERY_NAMES, raise_rejected)
        entries: Iterable[tuple[int, str, str]] = ((query.line or 0, query.id, query.text) for query in rows)
    else:
        entries = _json_queries(stream, file)
    for line, id, text in entries:
        if queries.setdefault(id, text) != text:
            raise InputError(f"{file}, line {line}: the query id {id!r} occurs twice with different texts")
    return queries


def _json_queries(stream: BufferedReader, file: str) -> Iterator[tuple[int, str, str]]:
    empty = 0
    for number, line in read_lines(stream, file):
        try:
            if isinstance(line, BadLine):
                raise Defect(line.reason)
            record = parse_object(line)
            id_name, text_name = QUERY_NAMES.find(record, "id"), QUERY_NAMES.find(record, "text")
            if id_name is None or text_name is None:
                raise Defect(f"expected a query with _id and text; {fields_of(record)}")
            text = string(record, text_name)
            if not text.strip():
                empty += 1
                continue
            yield number, identifier(record[id_name], id_name), text
        except Defect as defect:
            raise InputError(f"{file}, line {number}: {defect}") from None
    if empty:
        log.warning("%s: %s queries are empty and left out", file, f"{empty:,}")


def _query_file(folder: Path) -> Path:
    for compression in COMPRESSIONS:
        if (folder / f"queries.jsonl{compression}").exists():
            return folder / f"queries.jsonl{compression}"
    raise InputError(
        f"{folder} holds no queries", "expected in it: queries.jsonl, queries.jsonl.gz or queries.jsonl.zst"
    )


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """{query id: {document id: grade}} of a BEIR tsv (with header) or a TREC file (query, 0, document, grade).

    As trec_eval reads them: blanks at the end of a line say nothing, and a fraction of a grade is cut off. Lines that begin
    with # are comments. What is cut or left out is counted, and a warning says so.
    Raises InputError with file and line at the first line that is no judgement, or that contradicts an earlier one.
    """
    stream, file = open_binary(str(path))
    qrels: dict[str, dict[str, int]] = {}
    order: tuple[int, int, int] | None = None
    comments = fractions = 0
    for number, line in read_lines(stream, file):
        if isinstance(line, BadLine):
            raise InputError(f"{file}, line {number}: {line.reason}")
        try:
            text = line.decode("utf-8").rstrip()
        except UnicodeDecodeError as error:
            raise InputError(f"{file}, line {number}: invalid UTF-8 at byte {error.start + 1} of the line") from None
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) < 3:
            cells = text.split()
        if text.startswith("#") and not (len(cells) in (3, 4) and _GRADE.fullmatch(cells[-1])):
            comments += 1
            continue
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
        match = _GRADE.fullmatch(grade)
        if match is None:
            raise InputError(f"{file}, line {number}: the grade must be a number, found {grade[:40]!r}")
        fractions += bool((match["fraction"] or "").strip("0"))
        value = int(match["whole"])
        if qrels.setdefault(query, {}).setdefault(document, value) != value:
            raise InputError(f"{file}, line {number}: {query!r} and {document!r} were judged otherwise before")
    if comments:
        log.warning("%s: %s comments are left out", file, f"{comments:,}")
    if fractions:
        log.warning("%s: %s grades have a fraction, which is cut off as trec_eval does", file, f"{fractions:,}")
    return qrels


_GRADE = re.compile(r"(?P<whole>[+-]?\d{1,9})(\.(?P<fraction>\d*))?")
