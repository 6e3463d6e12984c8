"""Grades that people give on the page: one per line in a file, with person and time, so that judging can be resumed."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers import Run

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


@dataclass
class Grades:
    """The grades of a file. The last grade of a person for a document counts."""

    path: Path | None = None
    """None: no file, and grades cannot be added."""
    given: dict[tuple[str, str, str], Grade] = field(default_factory=dict)
    """{(query, document, who): grade}"""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> Grades:
        """The grades of a file, which is created if missing. Raises InputError for a file that cannot be read or written,
        and for a line that is not a grade, with its number."""
        grades = cls(path)
        try:
            with path.open("a+b") as file:  # creates the file, to learn now whether it can be written
                file.seek(0)
                content = file.read()
        except OSError as error:
            raise InputError(f"grades cannot be kept in {path}: {error.strerror}") from None
        # Not splitlines(): a query may contain other line ends, such as U+2028.
        lines = content.removesuffix(b"\n").split(b"\n") if content else []
        for number, line in enumerate(lines, 1):
            try:
                grade = Grade(**json.loads(line.decode()))
                grades.given[grade.query, grade.document, grade.who] = grade
            except (ValueError, TypeError, RecursionError):
                raise InputError(f"{path}, line {number}: not a grade", "`osn ui --grades` writes this file") from None
        return grades

    def add(self, grade: Grade) -> None:
        """Write a grade to the file, before the page confirms it."""
        if self.path is None:
            raise InputError("grades are not kept", "name a file: osn ui … --grades grades.jsonl")
        line = json.dumps(asdict(grade), ensure_ascii=False).encode() + b"\n"
        with self.lock, self.path.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            # An editor, or a full disk, may have left the last line without a line end.
            file.write(line if file.read(1) in (b"", b"\n") else b"\n" + line)
            self.given[grade.query, grade.document, grade.who] = grade

    def of(self, query: str, who: str) -> dict[str, int]:
        """{document: grade} of one person."""
        return {
            each.document: each.grade for each in list(self.given.values()) if (each.query, each.who) == (query, who)
        }

    def qrels(self) -> dict[str, dict[str, int]]:
        """{query: {document: grade}}; if several people graded a document, the latest grade counts."""
        qrels: dict[str, dict[str, int]] = {}
        for each in sorted(self.given.values(), key=lambda each: each.when):
            qrels.setdefault(each.query, {})[each.document] = each.grade
        return qrels

    def trec(self) -> str:
        """TREC qrels. Raises InputError for an id that the format cannot hold."""
        lines = []
        for query, grades in self.qrels().items():
            for document, grade in grades.items():
                if len(query.split()) != 1 or len(document.split()) != 1:
                    raise InputError(f"TREC qrels cannot contain an id with a blank: {query!r}, {document!r}")
                lines.append(f"{query} 0 {document} {grade}\n")
        return "".join(lines)

    def workbench(self, name: str) -> dict[str, Any]:
        """The request that imports the grades into OpenSearch's Search Relevance Workbench."""
        texts = {each.query: each.text for each in list(self.given.values())}
        ratings = [
            {
                "query": texts[query],
                "ratings": [{"docId": id, "rating": f"{grade:.1f}"} for id, grade in grades.items()],
            }
            for query, grades in self.qrels().items()
        ]
        return {"name": name, "description": "", "type": "IMPORT_JUDGMENT", "judgmentRatings": ratings}


@dataclass(frozen=True)
class Score:
    """The quality of a column against the first, on the queries judged so far."""

    queries: int
    wins: int
    """Queries on which the column is better than the first."""
    losses: int
    difference: float
    """Mean difference of nDCG to the first column."""
    low: float | None
    """Lower end of the 95% interval; None for a single query."""
    high: float | None


def scores(grades: Grades, runs: Sequence[Run], depth: int) -> list[Score]:
    """The nDCG of each column but the first, compared with the first, over the searched queries with a relevant document.

    Raises MissingExtra without the extra [eval].
    """
    from opensearch_neural.evaluation.comparison import compare
    from opensearch_neural.evaluation.measures import measure

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
    found = []
    for values in others:
        differences = [values[query] - first[query] for query in values]
        compared = compare(values, first)
        wins, losses = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
        found.append(Score(len(values), wins, losses, compared.difference, compared.low, compared.high))
    return found
