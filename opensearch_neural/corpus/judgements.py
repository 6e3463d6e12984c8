"""Queries and their relevance judgements (qrels), in the formats of BEIR and TREC.

data = BeirData.load("scifact", "test")
judged = JudgedQueries.of_files("queries.jsonl", "clicks.qrels")  # without a corpus
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from opensearch_neural.corpus.documents import (
    EMPTY,
    Defect,
    Document,
    FieldNames,
    Rejected,
    fields_of,
    identifier,
    raise_rejected,
    string,
)
from opensearch_neural.corpus.json_lines import parse_object
from opensearch_neural.corpus.reader import COMPRESSIONS, format_of, is_folder
from opensearch_neural.corpus.separated_values import read_csv, read_tsv
from opensearch_neural.corpus.text_files import BadLine, open_binary, read_lines, read_texts
from opensearch_neural.corpus.topics import is_topics, read_topics
from opensearch_neural.errors import InputError
from opensearch_neural.files import write_json_lines, write_text

log = logging.getLogger(__name__)

QUERY_NAMES = FieldNames(
    id=("_id", "id", "qid", "query_id", "query-id"),
    title=(),
    text=("text", "query", "question", "title"),
    url=(),
    others=False,
)


@dataclass(slots=True)
class JudgedQueries:
    """Queries and their judgements, with or without a corpus."""

    name: str
    """Name of the folder, or of the file of judgements without its ending."""
    split: str
    """The split of the BEIR folder; "" if single files were named."""
    queries: dict[str, str]
    """{query id: text} of the judged queries"""
    qrels: dict[str, dict[str, float]]
    """{query id: {document id: grade}}"""
    files: tuple[Path, ...]
    """The files that were read: queries and judgements."""

    @classmethod
    def of_files(cls, queries: str | Path, qrels: str | Path) -> JudgedQueries:
        """Raises InputError if a file is missing or broken, or if no judged query has a text."""
        queries, qrels = Path(queries), Path(qrels)
        return cls(qrels.name.partition(".")[0], "", *_judged(queries, qrels), (queries, qrels))

    @classmethod
    def of_folder(cls, folder: str | Path, split: str = "test") -> JudgedQueries:
        """One split of a folder in BEIR layout, which needs no corpus. Raises InputError as `of_files`."""
        folder = Path(folder)
        if not is_folder(folder):
            raise InputError(f"{folder} is not a folder", "expected a folder in BEIR layout")
        splits: dict[str, Path] = {}
        for path in sorted((folder / "qrels").glob("*.tsv*")):
            name, _, compression = path.name.partition(".tsv")
            if compression in COMPRESSIONS:
                splits.setdefault(name, path)  # the plain file before a compressed one, as for queries and corpus
        if split not in splits:
            available = ", ".join(splits)
            raise InputError(
                f"{folder} has no judgements for the split {split!r} (qrels/{split}.tsv)",
                f"available: {available}" if available else "it has no qrels/*.tsv at all",
            )
        files = _query_file(folder), splits[split]
        return cls(folder.resolve().name, split, *_judged(*files), files)


@dataclass(slots=True)
class BeirData(JudgedQueries):
    """One split of a test collection in BEIR layout."""

    corpus_path: Path
    """The corpus: a file that `osn ingest` reads."""

    @classmethod
    def load(cls, folder: str | Path, split: str = "test") -> BeirData:
        """Raises InputError if a file is missing or broken, or if no judged query has a text."""
        if not is_folder(Path(folder)):
            raise InputError(f"{folder} is not a folder", "expected a folder in BEIR layout")
        corpus_path = Path(format_of(folder, "beir")[1])
        judged = JudgedQueries.of_folder(folder, split)
        return cls(judged.name, split, judged.queries, judged.qrels, judged.files, corpus_path)


def write_beir(
    folder: Path, documents: Iterable[Document], queries: Mapping[str, str], splits: Mapping[str, Iterable[str]]
) -> None:
    """Write a folder in BEIR layout.

    queries: {query id: text}; splits: {split: lines of its judgements, each a query, a document and a grade between tabs}
    """
    write_json_lines(folder / "corpus.jsonl", (document.record() for document in documents))
    write_json_lines(folder / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items()))
    for split, lines in splits.items():
        write_text(folder / "qrels" / f"{split}.tsv", "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


def _judged(query_file: Path, qrels_file: Path) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """(texts, judgements) of the judged queries that have a text."""
    qrels, texts = read_qrels(qrels_file), read_queries(query_file)
    judged = {query: grades for query, grades in qrels.items() if query in texts}
    if without_text := len(qrels) - len(judged):
        first = next(query for query in qrels if query not in texts)
        if not judged:
            raise InputError(
                f"{qrels_file} judges {without_text:,} queries, and {query_file} has the text of none of "
                f"them, for instance {first!r}",
                f"the queries have ids like {next(iter(texts))!r}",
            )
        log.warning(
            "%s: %s judged queries are left out, %r first: %s has no text of them",
            qrels_file, f"{without_text:,}", first, query_file.name,
        )  # fmt: skip
    return {query: texts[query] for query in judged}, judged


def read_queries(path: str | Path) -> dict[str, str]:
    """{query id: text} from jsonl (`_id` and `text`), tsv (id and text, with or without header) or TREC topics, also
    compressed.

    Raises InputError with file and line at the first line that is not a query, or repeats an id with another text, and for a
    file without any query.
    """
    place = Path(path)
    if is_folder(place):
        place = _query_file(place)
    queries: dict[str, str] = {}
    stream, file = open_binary(str(place))
    entries: Iterable[tuple[int, str, str]]
    if is_topics(place):
        stream.close()
        entries = read_topics(place)
    elif place.name.removesuffix(".gz").removesuffix(".zst").endswith((".tsv", ".txt", ".csv")):
        read_rows = read_csv if ".csv" in place.suffixes else read_tsv
        entries = _separated_queries(read_rows, stream, file)
    else:
        entries = _json_queries(stream, file)
    for line, id, text in entries:
        if queries.setdefault(id, text) != text:
            raise InputError(f"{file}, line {line}: the query id {id!r} occurs twice with different texts")
    if not queries:
        raise InputError(f"{file} holds no query", 'expected lines {"_id": …, "text": …}, or ids and texts in columns')
    return queries


def _separated_queries(
    read_rows: Callable[..., Iterator[Document]], stream: BufferedReader, file: str
) -> Iterator[tuple[int, str, str]]:
    empty: list[Rejected] = []

    def reject(rejected: Rejected) -> None:
        (empty.append if rejected.reason == EMPTY else raise_rejected)(rejected)

    for query in read_rows(stream, file, QUERY_NAMES, reject):
        yield query.line or 0, query.id, query.text
    _tell_empty(file, len(empty))


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
    _tell_empty(file, empty)


def _tell_empty(file: str, count: int) -> None:
    if count:
        log.warning("%s: %s queries are empty and left out", file, f"{count:,}")


def _query_file(folder: Path) -> Path:
    for compression in COMPRESSIONS:
        if (folder / f"queries.jsonl{compression}").exists():
            return folder / f"queries.jsonl{compression}"
    raise InputError(
        f"{folder} holds no queries", "expected in it: queries.jsonl, queries.jsonl.gz or queries.jsonl.zst"
    )


def read_qrels(path: str | Path) -> dict[str, dict[str, float]]:
    """{query id: {document id: grade}} from a BEIR tsv (with header) or a TREC file (query, 0, document, grade).

    Blanks at the end of a line are ignored, as in trec_eval. A grade may be a fraction, as from clicks, and is kept
    (trec_eval would truncate it); a whole grade is an int. Lines that begin with # are comments, unless they judge a query
    such as "#1"; a warning counts the comments.
    Raises InputError with file and line at the first line that is not a judgement, that contradicts an earlier one, or whose
    grade is above HIGHEST_GRADE, and for a file without any judgement.
    """
    qrels: dict[str, dict[str, float]] = {}
    order: tuple[int, int, int] | None = None
    comments = 0
    for where, line in read_texts(path):
        text = line.rstrip()
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) < 3:
            cells = text.split()
        if _is_comment(text, cells):
            comments += 1
            continue
        if order is None:
            header = {cell.lower().replace("_", "-"): index for index, cell in enumerate(cells)}
            if "query-id" in header:
                if not {"corpus-id", "score"} <= set(header):
                    raise InputError(f"{where}: expected the header query-id, corpus-id, score")
                order = header["query-id"], header["corpus-id"], header["score"]
                continue
            order = (0, 1, 2) if len(cells) == 3 else (0, 2, 3)
        if len(cells) != (3 if max(order) == 2 else 4) or not all(cells[index] for index in order):
            raise InputError(f"{where}: not a judgement: {text[:80]!r}", f"{_QRELS}; found {len(cells)} columns")
        query, document, grade = (cells[index] for index in order)
        if not _GRADE.fullmatch(grade):
            raise InputError(f"{where}: the grade must be a number, found {grade[:40]!r}")
        value = int(float(grade)) if float(grade).is_integer() else float(grade)
        if value > HIGHEST_GRADE:
            raise InputError(
                f"{where}: the grade {grade} is above {HIGHEST_GRADE:,}",
                "is it a number of clicks, a time or an id? A grade says how relevant the document is, such as 0 to 3",
            )
        if qrels.setdefault(query, {}).setdefault(document, value) != value:
            raise InputError(f"{where}: {query!r} and {document!r} were judged otherwise before")
    if comments:
        log.warning("%s: %s comments are left out", path, f"{comments:,}")
    if not qrels:
        raise InputError(f"{path} holds no judgement", _QRELS)
    return qrels


def _is_comment(text: str, cells: Sequence[str]) -> bool:
    """Whether a line begins with # and judges no query such as "#1"."""
    return text.startswith("#") and (text[1:2].isspace() or len(cells) not in (3, 4) or not _GRADE.fullmatch(cells[-1]))


HIGHEST_GRADE = 1_000_000
"""trec_eval's memory grows with the highest grade: with too little of it, nDCG and AP were 0 without a message."""
_QRELS = "expected query-id, corpus-id, score (tabs; BEIR), or query, 0, document, grade (TREC)"
_GRADE = re.compile(r"[+-]?(\d{1,20}(\.\d*)?|\.\d+)([eE](-\d{1,2}|\+?0?\d))?", re.ASCII)
