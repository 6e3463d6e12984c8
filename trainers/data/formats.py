"""Reads files of training data as one stream of records.

Formats: DPR json, MS MARCO triples (texts or ids), sentence-transformers jsonl, and the output of
`osn data generate-queries`. BEIR folders are read by `opensearch_neural.corpus`. Everything is streamed, from plain, gzip or
zstandard files; errors name the file, the line (or entry) and the expected content.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensearch_neural.corpus import text_files
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError

QUERY_FIELDS = ("query", "anchor", "question", "sentence1")
POSITIVE_FIELDS = ("positive", "pos", "positives", "answer", "sentence2", "passage", "document")
NEGATIVE_FIELDS = ("negative", "neg", "negatives", "hard_negatives", "sentence3")
SCORE_FIELDS = ("scores", "score")
LABEL_FIELDS = ("labels", "label")

BEYOND = "a number of thousands of digits, or nested too deeply"
"""What JSON allows and Python does not read."""

_BETWEEN = re.compile(r"[\s,]*")
_NUMBERED = re.compile(r"negative_([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class RecordDocument:
    """A document of a record, given by id, text, or both."""

    id: str | None
    """None if the file has only texts"""
    text: str | None = None
    """the text to encode: title and text together"""


@dataclass(frozen=True, slots=True)
class Record:
    """One query with some of its documents, as given in a file."""

    query_id: str | None
    """None if the file has no ids of queries"""
    query: str | None
    """the text; None if the file has only ids"""
    positives: list[RecordDocument]
    """the relevant documents"""
    negatives: list[RecordDocument]
    """documents to be ranked below these"""
    scores: list[float] | None
    """one per document, positives first, then negatives"""
    where: str
    """file and line (or entry), for messages"""


def read_lines(path: Path, *, blanks: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of `path`, compressed or not, with their numbers from 1, without line ends; skips empty lines unless
    `blanks`."""
    stream, name = text_files.open_binary(str(path))
    for number, line in text_files.read_lines(stream, name, blanks=blanks):
        if isinstance(line, text_files.BadLine):
            raise InputError(f"{path}, line {number}: {line.reason}")
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line)") from None
        if blanks or text.strip():
            yield number, text


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of a .jsonl file with their line numbers."""

    def no_constant(name: str) -> Any:
        raise InputError(f"{path}, line {number}: {name} is not JSON: write a number, or leave the field out")

    for number, line in read_lines(path):
        try:
            yield number, json.loads(line, parse_constant=no_constant)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not valid JSON ({error.msg}, column {error.colno})") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not valid JSON ({BEYOND})") from error


def _read_text(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in text_files.decompressed(*text_files.open_binary(str(path))):
        try:
            yield decoder.decode(piece)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 ({error.reason})") from None


def parse_json_array(pieces: Iterator[str], name: str) -> Iterator[tuple[int, Any]]:
    """The entries of a JSON array, from 1, that comes in pieces of any size; name: of the file, for errors.

    DPR's training files are arrays of several gigabytes: only one entry and one piece are in memory.
    """
    decoder = json.JSONDecoder()
    text = ""
    while not text and (piece := next(pieces, None)) is not None:
        text = piece.lstrip("\ufeff \t\r\n")
    if not text.startswith("["):
        raise InputError(f"{name}: expected a JSON array, found {text[:20]!r}")
    at, number = 1, 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(text, at)
            # A number or literal at the end of a piece may continue in the next; other values have a closing mark.
            complete = isinstance(value, (dict, list, str)) or end < len(text)
        except json.JSONDecodeError:
            complete = False
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}, entry {number + 1}: not valid JSON ({BEYOND})") from error
        if complete:
            number += 1
            at = end
            yield number, value
            continue
        # Parse an entry again only when its text has doubled: else the cost grows with the square of its length.
        more, size = [text[at:]], 0
        while size < max(len(more[0]), 1) and (piece := next(pieces, None)) is not None:
            more.append(piece)
            size += len(piece)
        if not size:
            raise InputError(f"{name}, after entry {number}: the JSON array is cut off or broken")
        text, at = "".join(more), 0


def read_dpr(path: Path) -> Iterator[Record]:
    """DPR's json (Karpukhin et al., 2020): `question`, `positive_ctxs`, `hard_negative_ctxs`, `negative_ctxs`.

    Takes the hard negatives; if a question has none, the other negatives, as DPR does.
    """
    for number, entry in parse_json_array(_read_text(path), str(path)):
        where = f"{path}, entry {number}"
        entry = _expect(entry, dict, where, "an object with 'question' and 'positive_ctxs'")
        question = _expect(entry.get("question"), str, where, "a text in 'question'")
        positives = _contexts(entry, "positive_ctxs", where)
        negatives = _contexts(entry, "hard_negative_ctxs", where) or _contexts(entry, "negative_ctxs", where)
        yield Record(None, question, positives, negatives, None, where)


def _contexts(entry: Mapping[str, Any], field: str, where: str) -> list[RecordDocument]:
    items = _expect(entry.get(field) or [], list, where, f"a list in {field!r}")
    return [_context(item, where, field) for item in items]


def _context(item: Any, where: str, field: str) -> RecordDocument:
    item = _expect(item, dict, where, f"objects in {field!r}")
    text = _expect(item.get("text"), str, where, f"a 'text' in every object of {field!r}")
    identifier = item.get("passage_id", item.get("psg_id"))
    title = _expect(item.get("title") or "", str, where, f"a text as 'title' in every object of {field!r}")
    document = Document("" if identifier is None else str(identifier), text, title)
    return RecordDocument(document.id or None, document.contents)


def read_triples(path: Path, *, by_id: bool) -> Iterator[Record]:
    """MS MARCO triples: query, positive and negative, as texts or ids, separated by tabs."""
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        columns = line.split("\t")
        if len(columns) != 3:
            raise InputError(
                f"{where}: expected 3 columns (query, positive, negative) separated by tabs, found {len(columns)}"
            )
        query, positive, negative = columns
        if by_id:
            yield Record(query, None, [RecordDocument(positive)], [RecordDocument(negative)], None, where)
        else:
            yield Record(None, query, [RecordDocument(None, positive)], [RecordDocument(None, negative)], None, where)


def read_pairs(path: Path) -> Iterator[Record]:
    """sentence-transformers jsonl: pairs, triples, several negatives, scores.

    A line is an object (`query`|`anchor`|`question`, `positive`|`pos`|…, `negative`|`neg`|`negative_1`…, each a text or
    a list of texts, and `scores`, one number per document, positives first) or a list [query, positive, negative, …].
    If there are `labels`, one integer per document, documents with a label above 0 are relevant, in whichever field.
    """
    for number, value in read_json_lines(path):
        where = f"{path}, line {number}"
        if isinstance(value, list):
            if len(value) < 2 or not all(isinstance(text, str) for text in value):
                raise InputError(f"{where}: expected a list of texts [query, positive, negative, …]")
            query, positives, negatives, scores = value[0], value[1:2], value[2:], None
        else:
            value = _expect(value, dict, where, "an object or a list of texts")
            if "_id" in value and "text" in value and _first(value, QUERY_FIELDS) is None:
                raise InputError(
                    f"{where}: found a document, expected a question and its answer",
                    "for a corpus without questions, set `questions: title`, first-sentence or a query generator "
                    "(osn train sparse and jpq), or use osn data generate-queries",
                )
            query = _expect(_first(value, QUERY_FIELDS), str, where, f"a text in one of {', '.join(QUERY_FIELDS)}")
            positives = _texts(_first(value, POSITIVE_FIELDS), where, f"one of {', '.join(POSITIVE_FIELDS)}")
            negatives = _texts(_first(value, NEGATIVE_FIELDS) or [], where, f"one of {', '.join(NEGATIVE_FIELDS)}")
            numbered = sorted((int(match[1]), match[0]) for match in map(_NUMBERED.fullmatch, value) if match)
            for _, field in numbered:
                negatives += _texts(value[field], where, field)
            documents = positives + negatives
            scores = _numbers(_first(value, SCORE_FIELDS), len(documents), where, SCORE_FIELDS)
            labels = _labels(_first(value, LABEL_FIELDS), len(documents), where)
            if labels is not None:
                order = sorted(range(len(documents)), key=lambda at: labels[at] == 0)
                positives = [documents[at] for at in order if labels[at]]
                negatives = [documents[at] for at in order if not labels[at]]
                scores = None if scores is None else [scores[at] for at in order]
        yield Record(
            None, query, [RecordDocument(None, text) for text in positives],
            [RecordDocument(None, text) for text in negatives], scores, where,
        )  # fmt: skip


def _first(value: Mapping[str, Any], fields: tuple[str, ...]) -> Any:
    return next((value[field] for field in fields if field in value), None)


def _texts(value: Any, where: str, field: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: expected a text or a list of texts in {field}")
    return list(texts)


def _numbers(value: Any, documents: int, where: str, fields: tuple[str, ...]) -> list[float] | None:
    """One number per document. Raises InputError for other values, or another number of them."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    wrong = InputError(f"{where}: expected numbers in one of {', '.join(fields)}")
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in values):
        raise wrong
    if len(values) != documents:
        raise InputError(f"{where}: {len(values)} {fields[0]} for {documents} documents (positives, then negatives)")
    try:
        numbers = [float(number) for number in values]
    except OverflowError:
        raise wrong from None
    if not all(map(math.isfinite, numbers)):
        raise wrong
    return numbers


def _labels(value: Any, documents: int, where: str) -> list[int] | None:
    """Each document's label: an integer, 0 if it is not relevant. Raises InputError for other values."""
    labels = _numbers(value, documents, where, LABEL_FIELDS)
    if labels is None:
        return None
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(label, int) and label >= 0 for label in values):
        raise InputError(
            f"{where}: a label must be an integer, 0 for a document that is not relevant, 1 for a relevant document",
            "put a teacher's numbers into `scores`",
        )
    return values


def read_generated(path: Path) -> Iterator[Record]:
    """The output of `osn data generate-queries`: the positive of each query is the passage that it was made from."""
    for number, value in read_json_lines(path):
        where = f"{path}, line {number}"
        value = _expect(value, dict, where, "an object with '_id' and 'queries'")
        if "osn" in value:
            continue  # The header, which says what made the file.
        document = _expect(value.get("_id"), str, where, "a document id in '_id'")
        seen: set[str] = set()
        for index, query in enumerate(_expect(value.get("queries"), list, where, "a list in 'queries'")):
            text = _expect(query.get("text") if isinstance(query, dict) else None, str, where, "a 'text' in each query")
            # Sampling may give a passage the same query twice.
            if text.strip() and text.strip() not in seen:
                seen.add(text.strip())
                yield Record(f"{document}#{index}", text, [RecordDocument(document)], [], None, where)


def read_id_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Lines `id<TAB>text`, as in MS MARCO's collection.tsv and queries.tsv."""
    for number, line in read_lines(path):
        identifier, tab, text = line.partition("\t")
        if not tab:
            raise InputError(f"{path}, line {number}: expected an id and a text separated by a tab")
        yield identifier, text


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """The header of a file that `osn` wrote. Raises InputError if the file is of another kind."""
    _, value = next(read_json_lines(path), (0, None))
    if not isinstance(value, dict) or value.get("osn") != kind:
        raise InputError(f'{path}, line 1: expected a header {{"osn": "{kind}", …}}', f"is this the right {kind} file?")
    return value


def _expect(value: Any, kind: type, where: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{where}: expected {expected}")
    return value
