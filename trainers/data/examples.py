"""Training examples: queries with their positives, hard negatives and, where known, teacher scores.

Texts are held once (`TextStore`), examples as row numbers, so MS MARCO's 40 million triples are a few hundred MB beside
their texts. An example is one query: triples of the same query are put together. `loading.load_training` reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainers.common.set_range import SetRange
from trainers.data.texts import Ragged, TextStore


@dataclass(frozen=True, slots=True)
class Example:
    """One query as a trainer sees it."""

    query_id: str
    query: str
    positives: tuple[str, ...]
    """document ids"""
    negatives: tuple[str, ...] = ()
    """document ids"""
    scores: Mapping[str, float] = field(default_factory=dict)
    """{document id: teacher score}, as they stood in the file"""


@dataclass(eq=False)
class TrainingData:
    """Queries, documents, and the examples over them, as row numbers of the two stores."""

    name: str
    queries: TextStore
    documents: TextStore
    query_rows: npt.NDArray[np.int32]
    """(examples,), the query of each"""
    positives: Ragged
    """for each example document rows"""
    negatives: Ragged
    """for each example document rows, the hardest first"""
    judged: Ragged
    """for each row of `queries` all documents known to be relevant"""
    scored: Ragged
    """for each example the rows of documents with a teacher score"""
    score_values: npt.NDArray[np.float32]
    """(scored.values,), the scores in their order"""
    sets: tuple[SetRange, ...] = ()
    """where each set of merged data lies"""
    notes: list[str] = field(default_factory=list)
    """what was left out when reading, and how much of it"""

    def __post_init__(self) -> None:
        if not self.sets:
            self.sets = (SetRange(self.name, 0, len(self.query_rows), 0, len(self.documents)),)

    def __len__(self) -> int:
        return len(self.query_rows)

    def __repr__(self) -> str:
        return f"TrainingData({self.name!r}, {len(self)} examples, {len(self.documents)} documents)"

    @property
    def examples(self) -> list[Example]:
        """All examples, built anew; of many, ask for `example(index)`."""
        return [self.example(index) for index in range(len(self))]

    @cached_property
    def hash(self) -> str:
        """16 hex digits over everything that trains: texts, ids, examples and scores."""
        digest = hashlib.sha256(f"{self.queries.hash} {self.documents.hash}".encode())
        for ragged in (self.positives, self.negatives, self.judged, self.scored):
            digest.update(ragged.offsets.tobytes() + ragged.values.tobytes())
        digest.update(self.query_rows.tobytes() + self.score_values.tobytes())
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

    def known_positives(self, query_id: str) -> frozenset[str]:
        """Every document known to be relevant to the query, documents of the same normalised text included."""
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
        """The examples at `indices`, over the same texts (whose hashes, and teacher caches, stay valid).

        positives, negatives: document rows, of each example; their own by default.
        Raises ValueError if examples of several sets are interleaved: a merged one keeps its ranges.
        """
        chosen = list(indices)
        spans = [(self.scored.offsets[i], self.scored.offsets[i + 1]) for i in chosen]
        values = [self.score_values[start:stop] for start, stop in spans]
        sets: list[SetRange] = []
        for part in self.sets:
            # They may be in any order only within one set.
            inside = [at for at, i in enumerate(chosen) if part.start <= i < part.stop]
            if inside and inside != list(range(inside[0], inside[-1] + 1)):
                raise ValueError("examples of several sets cannot be interleaved")
            start = inside[0] if inside else (sets[-1].stop if sets else 0)
            sets.append(part._replace(start=start, stop=start + len(inside)))
        return TrainingData(
            name or self.name,
            self.queries,
            self.documents,
            self.query_rows[np.asarray(chosen, dtype=np.int64)],
            Ragged((self.positives[i].tolist() for i in chosen) if positives is None else positives),
            Ragged((self.negatives[i].tolist() for i in chosen) if negatives is None else negatives),
            self.judged,
            Ragged(self.scored[i].tolist() for i in chosen),
            np.concatenate(values) if values else np.empty(0, np.float32),
            tuple(sets),
            list(self.notes),
        )


def training_pairs(
    name: str, queries: TextStore, documents: TextStore, pairs: Iterable[tuple[int, int]]
) -> TrainingData:
    """(query row, document row) pairs as training data over these stores, one example a query."""
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
