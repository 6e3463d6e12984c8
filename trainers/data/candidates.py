"""The candidates of a query in a batch: its positive, hard negatives, and the other documents of the batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError
from trainers.common.config import fingerprint
from trainers.common.sampling import Visit
from trainers.common.set_range import SetRange
from trainers.data.examples import TrainingData


class Drawn(NamedTuple):
    """One example as drawn at one visit."""

    at: int
    """the number of its set"""
    example: int
    """its number in the set"""
    query: int
    """row in the set's queries"""
    positive: int
    """row in the set's documents"""
    negatives: list[int]
    """rows in the set's documents, as many for each example"""


class RetrievalData:
    """Examples of several sets by number; each visit draws a positive and negatives.

    Sets stay separate: each batch is from one set, so documents of other sets are never negatives, and each set keeps the
    ids and hashes that its teachers know.
    """

    def __init__(self, sets: Sequence[TrainingData], *, negatives: int, depth: int | None) -> None:
        # Withheld rows matter only if negatives are drawn; without, the hash leaves them out.
        self.parts = [data if negatives else replace(data, withheld=data.withheld[:0]) for data in sets]
        self.negatives, self.depth = negatives, depth
        starts = np.cumsum([0, *(len(data) for data in sets)]).tolist()
        self.sets = tuple(
            SetRange(data.name, start, stop, 0, len(data.documents))
            for data, start, stop in zip(sets, starts, starts[1:], strict=False)
        )

    def __len__(self) -> int:
        return sum(len(data) for data in self.parts)

    def __getitem__(self, visit: Visit) -> Drawn:
        at = next(at for at, part in enumerate(self.sets) if visit.index < part.stop)
        data, index = self.parts[at], visit.index - self.sets[at].start
        positive, negatives = sample_candidates(data, index, self.negatives, rng=visit.random(), depth=self.depth)
        return Drawn(at, index, int(data.query_rows[index]), positive, negatives)

    @property
    def hash(self) -> str:
        return fingerprint([[data.name, data.hash] for data in self.parts])


def sample_candidates(
    data: TrainingData, index: int, count: int, *, rng: random.Random, depth: int | None = None
) -> tuple[int, list[int]]:
    """(positive, `count` negatives) of the example at `index`, as document rows.

    The negatives are drawn from the first `depth` hard negatives (None: all); if there are too few, the rest are random
    documents of the set that are not known to be relevant and not withheld. Raises InputError if the set has too few
    documents.
    """
    positives = data.positives[index]
    chosen = int(positives[rng.randrange(len(positives))])
    hard = data.negatives[index][:depth].tolist()
    rows = rng.sample(hard, min(count, len(hard)))
    if len(rows) < count:
        part = next(part for part in data.sets if part.start <= index < part.stop)
        canonical = data.documents.canonical
        query = int(data.query_rows[index])
        known = set(canonical[[*data.judged[query], *hard]].tolist())
        if query in data.own_documents:
            known.add(int(canonical[data.own_documents[query]]))
        tries = 0
        while len(rows) < count:
            row = rng.randrange(part.document_start, part.document_stop)
            tries += 1
            if row not in data.withheld_rows and (text := int(canonical[row])) not in known:
                rows.append(row)
                known.add(text)
            elif tries > 100 * (count + len(known) + len(data.withheld)):
                raise InputError(
                    f"{part.name} has too few documents for {count} negatives per query "
                    f"(query {data.queries.ids[query]!r})"
                )
    return chosen, rows


def candidate_rows(data: TrainingData, negatives: int = 1, *, depth: int | None = None) -> npt.NDArray[np.int64] | None:
    """Rows, ascending, of all queries' candidates, which are all that a teacher encodes: their positives and the first
    `depth` hard negatives of each (None: all).

    None if these are all documents, or if a query has fewer than `negatives` hard negatives: training draws random documents
    for it, or mines.
    """
    if np.diff(data.negatives.offsets).min(initial=negatives) < negatives:
        return None
    drawn = data.negatives.values if depth is None else np.concatenate([rows[:depth] for rows in data.negatives])
    rows = np.unique(np.concatenate([data.positives.values, drawn])).astype(np.int64)
    return rows if len(rows) < len(data.documents) else None


def unique_documents(items: Sequence[Drawn]) -> list[int]:
    """Positives, then negatives, each document once: a second encoding would give the same vector."""
    drawn = [item.positive for item in items] + [row for item in items for row in item.negatives]
    return list(dict.fromkeys(drawn))


@dataclass
class BatchDocuments:
    """The documents of a batch, and the candidates of each query of this process.

    "documents" are the documents of all processes, process by process, in the order in which `gather` joins their vectors.
    """

    own: list[Drawn]
    """this process's examples"""
    own_documents: list[int]
    """rows of the documents that this process encodes"""
    documents: list[int]
    """rows of the documents of all processes"""
    candidates: npt.NDArray[np.int64]
    """(queries, 1 + negatives), indices in `documents` of a query's own, the positive first"""
    excluded: npt.NDArray[np.bool_]
    """(queries, documents), True if the document must not count as a negative of the query"""


class KnownPositives:
    """The documents known to be relevant to each query of a set; texts are compared normalised."""

    def __init__(self, data: TrainingData) -> None:
        self.document_keys = data.documents.canonical
        self.query_keys = data.queries.canonical
        self._data = data
        self._known: dict[int, npt.NDArray[np.int64]] = {}
        self._same_query: dict[int, list[int]] = {}
        for row, key in enumerate(self.query_keys.tolist()):
            self._same_query.setdefault(key, []).append(row)

    def batch_documents(self, items: Sequence[Drawn], rank: int = 0, world: int = 1) -> BatchDocuments:
        """The documents of the batch `items` for process `rank` of `world`; all processes have equal shares."""
        share = len(items) // world
        # Each process encodes its documents once; queries are scored against the documents of all.
        by_process = [unique_documents(items[process * share : (process + 1) * share]) for process in range(world)]
        documents = [row for rows in by_process for row in rows]
        offset = sum(len(rows) for rows in by_process[:rank])
        own = list(items[rank * share : (rank + 1) * share])
        position = {row: offset + place for place, row in enumerate(by_process[rank])}
        candidates = np.array([[position[row] for row in (item.positive, *item.negatives)] for item in own])
        excluded = self._excluded(own, np.array(documents, dtype=np.int64), candidates[:, 0])
        return BatchDocuments(own, by_process[rank], documents, candidates, excluded)

    def known(self, query: int) -> npt.NDArray[np.int64]:
        """Keys of the documents that are relevant to the query, or to another query with the same text."""
        key = int(self.query_keys[query])
        if key not in self._known:
            judged = [self._data.judged[row] for row in self._same_query[key]]
            self._known[key] = np.unique(self.document_keys[np.concatenate(judged)])
        return self._known[key]

    def _excluded(
        self, own: Sequence[Drawn], documents: npt.NDArray[np.int64], positives: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """(queries, documents), True for other relevant documents and for copies; False for the query's positive."""
        keys = self.document_keys[documents]
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys, return_index=True)[1]] = True
        excluded = np.stack([np.isin(keys, self.known(item.query)) for item in own]) | ~first
        for row, item in enumerate(own):
            if item.query in self._data.own_documents:
                excluded[row] |= keys == self.document_keys[self._data.own_documents[item.query]]
        # A document with the positive's text counts as the positive, judged or not.
        excluded |= keys[None, :] == keys[positives][:, None]
        excluded[np.arange(len(own)), positives] = False
        return excluded
