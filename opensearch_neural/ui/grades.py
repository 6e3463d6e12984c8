"""Grades that people give on the page: one per line in a file, with person and time, so that judging can be resumed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import InputError
from opensearch_neural.locks import hold
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from opensearch_neural.evaluation.significance import Comparison

GRADES = (0, 1, 2, 3)
WHAT = {0: "not relevant", 1: "related", 2: "relevant", 3: "the answer"}


@dataclass(frozen=True)
class Grade:
    """One person's grade of a document for a query."""

    query: str
    """The query's id."""
    text: str
    """The query's text."""
    document: str
    """The document's id."""
    grade: int
    """From 0 (not relevant) upwards."""
    who: str
    """The person's name."""
    when: str
    """UTC, in ISO format."""

    @classmethod
    def of(cls, value: Any, queries: Mapping[str, str]) -> Grade:
        """A grade from the page's JSON. Raises InputError for an invalid grade."""
        value = value if isinstance(value, dict) else {}
        query, document, grade, who = (value.get(name) for name in ("query", "document", "grade", "who"))
        if not isinstance(query, str) or query not in queries:
            raise InputError(f"there is no query {query!r} in the file")
        if not isinstance(document, str) or not 0 < len(document) <= 512:
            raise InputError("a grade must name the id of a document")
        if type(grade) is not int or grade not in GRADES:
            raise InputError(f"a grade must be a whole number from 0 to 3, not {grade!r}")
        if not isinstance(who, str) or not 0 < len(who.strip()) <= 100:
            raise InputError("a grade must name the person who gives it")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(query, queries[query], document, grade, who.strip(), now)

    @classmethod
    def of_line(cls, line: bytes) -> Grade:
        """A grade from a line of the file. Raises ValueError, TypeError or RecursionError for any other line."""
        grade = cls(**json.loads(line.decode()))
        texts = grade.query, grade.text, grade.document, grade.who, grade.when
        if (
            type(grade.grade) is not int
            or grade.grade not in GRADES
            or not all(isinstance(text, str) for text in texts)
        ):
            raise ValueError
        return grade


@dataclass
class Grades:
    """The grades of a file. The last grade of a person for a document counts. Several pages may share the file."""

    path: Path | None = None
    """None: no file, and grades cannot be added."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while grades are read or written."""
    _given: dict[tuple[str, str, str], Grade] = field(default_factory=dict)
    """{(query, document, who): grade}, in the order of the file."""
    _state: tuple[int, int] | None = None
    """When the file was changed last, in nanoseconds, and its size, as it was read."""

    @classmethod
    def read(cls, path: Path) -> Grades:
        """The grades of a file, which is created if missing. Raises InputError for a file that cannot be read or written,
        and for a line that is not a grade, with its number."""
        try:
            path.open("ab").close()  # creates the file, to learn now whether it can be written
        except OSError as error:
            raise InputError(f"grades cannot be kept in {path}: {error.strerror}") from None
        grades = cls(path)
        grades.given()
        return grades

    def given(self) -> list[Grade]:
        """The last grade of each person for each document, in the order in which they were given. The file is read again if
        it has changed, because another page may have added to it. Raises InputError as `read` does."""
        with self.lock:
            try:
                if self.path is not None and self.path.exists():
                    stat = self.path.stat()
                    if (state := (stat.st_mtime_ns, stat.st_size)) != self._state:
                        self._given, self._state = _grades_in(self.path), state
            except OSError as error:
                raise InputError(f"grades cannot be read from {self.path}: {error.strerror}") from None
            return list(self._given.values())

    def add(self, grade: Grade) -> None:
        """Write a grade to the file, before the page confirms it. Raises InputError if it cannot be written, and leaves the
        file as it was."""
        if self.path is None:
            raise InputError("grades are not kept", "name a file: osn ui … --grades grades.jsonl")
        line = json.dumps(asdict(grade), ensure_ascii=False).encode() + b"\n"
        try:
            with self.lock, self.path.open("a+b", buffering=0) as file:
                hold(file, wait=True)  # another page may write to it, too
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                # An editor may have left the last line without a line end.
                line = line if file.read(1) in (b"", b"\n") else b"\n" + line
                try:
                    whole = file.write(line) == len(line)
                except OSError:
                    whole = False
                if not whole:
                    file.truncate(end)  # of half a line, which nobody could read
                    raise InputError(f"the grade is not kept: {self.path} cannot be written", "is the disk full?")
        except OSError as error:
            raise InputError(f"the grade is not kept in {self.path}: {error.strerror}") from None

    def of(self, query: str, who: str) -> dict[str, int]:
        """{document: grade} of one person."""
        return {each.document: each.grade for each in self.given() if (each.query, each.who) == (query, who)}

    def qrels(self) -> dict[str, dict[str, int]]:
        """{query: {document: grade}}; if several people graded a document, the latest grade counts."""
        qrels: dict[str, dict[str, int]] = {}
        for each in sorted(self.given(), key=lambda each: each.when):
            qrels.setdefault(each.query, {})[each.document] = each.grade
        return qrels

    def trec(self) -> str:
        """TREC qrels. Raises InputError for an id that the format cannot hold."""
        lines = []
        for query, grades in self.qrels().items():
            for document, grade in grades.items():
                if query.split() != [query] or document.split() != [document]:
                    raise InputError(
                        f"TREC qrels cannot contain an id with a blank: {query!r}, {document!r}",
                        "export BEIR's form instead: /grades/beir, which `osn eval --qrels` reads too",
                    )
                lines.append(f"{query} 0 {document} {grade}\n")
        return "".join(lines)

    def beir(self) -> str:
        """BEIR's qrels, with tabs between ids. Raises InputError for an id that the format cannot hold."""
        lines = ["query-id\tcorpus-id\tscore\n"]
        for query, grades in self.qrels().items():
            for document, grade in grades.items():
                for id in (query, document):
                    if not id or id != id.strip() or "\t" in id or len(id.splitlines()) > 1:
                        raise InputError(
                            f"BEIR's qrels cannot contain the id {id!r}: it is empty, or has a tab or a margin"
                        )
                lines.append(f"{query}\t{document}\t{grade}\n")
        return "".join(lines)

    def regraded(self, queries: Mapping[str, str]) -> list[str]:
        """The graded queries that have another text in `queries` now: their grades are of another question."""
        graded = {each.query for each in self.given() if each.text != queries.get(each.query, each.text)}
        return sorted(graded)

    def workbench(self, name: str) -> dict[str, Any]:
        """The request that imports the grades into OpenSearch's Search Relevance Workbench."""
        texts = {each.query: each.text for each in self.given()}
        ratings = [
            {
                "query": texts[query],
                "ratings": [{"docId": id, "rating": f"{grade:.1f}"} for id, grade in grades.items()],
            }
            for query, grades in self.qrels().items()
        ]
        return {"name": name, "description": "", "type": "IMPORT_JUDGMENT", "judgmentRatings": ratings}


def _grades_in(path: Path) -> dict[tuple[str, str, str], Grade]:
    """{(query, document, who): grade} of a file, the last one last. Raises InputError for a line that is not a grade."""
    content = path.read_bytes()
    grades: dict[tuple[str, str, str], Grade] = {}
    # Not splitlines(): a query may contain other line ends, such as U+2028.
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            grade = Grade.of_line(line)
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path}, line {number}: not a grade", "`osn ui --grades` writes this file") from None
        key = grade.query, grade.document, grade.who
        grades.pop(key, None)
        grades[key] = grade
    return grades


@dataclass(frozen=True)
class Score:
    """The quality of a column against the first, on the queries judged so far."""

    queries: int
    """Queries that were searched and have a relevant document."""
    wins: int
    """Queries on which the column is better than the first."""
    losses: int
    """Queries on which it is worse."""
    ndcg: Comparison
    """Its nDCG against the first column's."""


def scores(grades: Grades, runs: Sequence[Run], depth: int) -> list[Score]:
    """The nDCG of each column but the first, compared with the first, over the searched queries with a relevant document.

    Raises MissingExtra without the extra [eval].
    """
    from opensearch_neural.evaluation.measures import measure
    from opensearch_neural.evaluation.significance import compare

    if len(runs) < 2:
        return []
    judged = {
        query: of for query, of in grades.qrels().items() if any(of.values()) and all(query in run for run in runs)
    }
    if not judged:
        return []
    name = f"nDCG@{depth}"
    first, *others = [
        measure({query: run.get(query, {}) for query in judged}, judged, [name]).per_query[name] for run in runs
    ]
    scores = []
    for values in others:
        differences = [values[query] - first[query] for query in values]
        wins, losses = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
        scores.append(Score(len(values), wins, losses, compare(values, first)))
    return scores
