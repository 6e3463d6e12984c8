"""Training examples: queries with their positives, hard negatives and, if known, teacher scores.

Texts are stored once (`TextStore`) and examples as row numbers, so MS MARCO's 40 million triples take a few hundred MB
beside their texts. An example is one query: triples with the same query are joined. `loading.load_training` reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainers.common.set_range import SetRange
from trainers.data.texts import Ragged, TextStore, normalised


@dataclass(frozen=True, slots=True)
class Example:
    """One query as a trainer sees it."""

    query_id: str
    """the query's id in its file"""
    query: str
    """the query's text"""
    positives: tuple[str, ...]
    """document ids"""
    negatives: tuple[str, ...] = ()
    """document ids"""
    scores: Mapping[str, float] = field(default_factory=dict)
    """{document id: teacher score}, as in the file"""


@dataclass(eq=False)
class TrainingData:
    """Queries, documents, and examples, which are row numbers of the two stores."""

    name: str
    """of the set, in messages and measures"""
    queries: TextStore
    """texts of the queries, by row"""
    documents: TextStore
    """texts of the documents, by row"""
    query_rows: npt.NDArray[np.int32]
    """(examples,), the query of each example"""
    positives: Ragged
    """document rows, for each example"""
    negatives: Ragged
    """document rows, for each example, the hardest first"""
    judged: Ragged
    """rows of all documents known to be relevant, for each row of `queries`"""
    scored: Ragged
    """rows of the documents with a teacher score, for each example"""
    score_values: npt.NDArray[np.float32]
    """(scored.values,), the teacher scores, in the order of `scored`"""
    sets: tuple[SetRange, ...] = ()
    """the range of each set in merged data"""
    notes: list[str] = field(default_factory=list)
    """messages about what was left out when reading, with counts"""
    withheld: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """rows of documents that are no example's negatives, ascending: those that held-back questions are about
    (`splits.withholding`)"""

    def __post_init__(self) -> None:
        if not self.sets:
            self.sets = (SetRange(self.name, 0, len(self.query_rows), 0, len(self.documents)),)

    def __len__(self) -> int:
        return len(self.query_rows)

    def __repr__(self) -> str:
        return f"TrainingData({self.name!r}, {len(self)} examples, {len(self.documents)} documents)"

    @property
    def examples(self) -> list[Example]:
        """All examples, built anew at each call; for large data use `example(index)`."""
        return [self.example(index) for index in range(len(self))]

    @cached_property
    def hash(self) -> str:
        """16 hex digits over everything that affects training: texts, ids, examples and scores."""
        digest = hashlib.sha256(f"{self.queries.hash} {self.documents.hash}".encode())
        for ragged in (self.positives, self.negatives, self.judged, self.scored):
            digest.update(ragged.offsets.tobytes() + ragged.values.tobytes())
        digest.update(self.query_rows.tobytes() + self.score_values.tobytes())
        digest.update(self.withheld.tobytes())  # Nothing, most often: hashes of data without such documents stay.
        return digest.hexdigest()[:16]

    def example(self, index: int) -> Example:
        query = int(self.query_rows[index])
        ids = self.documents.ids
        rows = self.scored[index]
        values = self.score_values[self.scored.offsets[index] : self.scored.offsets[index + 1]]
        return Example(
            self.queries.ids[query],
            self.queries.text_at(query),
            tuple(ids[row] for row in self.positives[index]),
            tuple(ids[row] for row in self.negatives[index]),
            {ids[row]: float(value) for row, value in zip(rows, values, strict=True)},
        )

    def query_texts(self) -> dict[str, str]:
        """{query id: text} of the examples, for a retriever."""
        return {self.queries.ids[row]: self.queries.text_at(row) for row in self.query_rows.tolist()}

    def qrels(self) -> dict[str, dict[str, int]]:
        """{query id: {document id: 1}} of the examples' positives, for `evaluation.measures.measure`."""
        ids = self.documents.ids
        return {
            self.queries.ids[query]: {ids[row]: 1 for row in positives}
            for query, positives in zip(self.query_rows.tolist(), self.positives, strict=True)
        }

    @cached_property
    def withheld_rows(self) -> frozenset[int]:
        """`withheld` to look rows up in."""
        return frozenset(self.withheld.tolist())

    @cached_property
    def own_documents(self) -> dict[int, int]:
        """{query row: document row} of the examples' queries that are documents themselves, with the same id and text, as
        in ArguAna and Quora. A query that is judged relevant to itself is not among them."""
        own: dict[int, int] = {}
        for part in self.sets:
            # `merge` puts the names of sets before ids; a corpus of several sets has the name of the first.
            prefix = f"{part.name}/" if len(self.sets) > 1 else ""
            corpus = next(other.name for other in self.sets if other.document_start == part.document_start)
            for query in set(self.query_rows[part.start : part.stop].tolist()):
                document = self.queries.ids[query].removeprefix(prefix)
                document = f"{corpus}/{document}" if prefix else document
                if document not in self.documents:
                    continue
                row = self.documents.row(document)
                # A title may come before the text.
                same = normalised(self.documents.text_at(row)).endswith(normalised(self.queries.text_at(query)))
                if same and row not in self.judged[query]:
                    own[query] = row
        return own

    def known_positives(self, query_id: str) -> frozenset[str]:
        """Every document known to be relevant to the query, and all documents with the same normalised text."""
        judged = self.judged[self.queries.row(query_id)]
        return frozenset(self.documents.ids[row] for row in self.documents.copies(judged).tolist())

    def take(
        self,
        indices: Iterable[int],
        *,
        positives: Iterable[Iterable[int]] | None = None,
        negatives: Iterable[Iterable[int]] | None = None,
        name: str | None = None,
    ) -> TrainingData:
        """The examples at `indices`, with the same text stores (so their hashes and teacher caches stay valid).

        positives, negatives: document rows for each example; by default its own.
        Raises ValueError if examples of several sets are interleaved: merged data keeps one range per set.
        """
        chosen = list(indices)
        spans = [(self.scored.offsets[i], self.scored.offsets[i + 1]) for i in chosen]
        sets: list[SetRange] = []
        for part in self.sets:
            # Within one set any order is allowed.
            inside = [at for at, i in enumerate(chosen) if part.start <= i < part.stop]
            if inside and inside != list(range(inside[0], inside[-1] + 1)):
                raise ValueError("examples of several sets cannot be interleaved")
            start = inside[0] if inside else (sets[-1].stop if sets else 0)
            sets.append(part._replace(start=start, stop=start + len(inside)))
        return replace(
            self,
            name=name or self.name,
            query_rows=self.query_rows[np.asarray(chosen, dtype=np.int64)],
            positives=Ragged((self.positives[i].tolist() for i in chosen) if positives is None else positives),
            negatives=Ragged((self.negatives[i].tolist() for i in chosen) if negatives is None else negatives),
            scored=Ragged(self.scored[i].tolist() for i in chosen),
            score_values=np.concatenate([self.score_values[:0], *(self.score_values[a:b] for a, b in spans)]),
            sets=tuple(sets),
            notes=list(self.notes),
        )


def training_pairs(
    name: str, queries: TextStore, documents: TextStore, pairs: Iterable[tuple[int, int]]
) -> TrainingData:
    """(query row, document row) pairs as training data with these stores, one example per query."""
    positives: dict[int, list[int]] = {}
    for query, document in pairs:
        positives.setdefault(query, []).append(document)
    judged: list[list[int]] = [positives.get(row, []) for row in range(len(queries))]
    nothing: list[list[int]] = [[] for _ in positives]
    return TrainingData(
        name,
        queries,
        documents,
        np.array(list(positives), dtype=np.int32),
        Ragged(positives.values()),
        Ragged(nothing),
        Ragged(judged),
        Ragged(nothing),
        np.empty(0, np.float32),
    )
