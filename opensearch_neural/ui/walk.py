"""Steps through a file of queries, beginning with those on which the columns disagree most."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from opensearch_neural.errors import OsnError
from opensearch_neural.queries import Body
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.retrievers.template import ids_of
from opensearch_neural.ui.columns import Searcher, body_of
from opensearch_neural.ui.state import OWN_BODY, Column, State

CHUNK = 64
"""Queries that are searched at a time; the list shows them when all columns have searched them."""
KEPT = 4
"""How many sortings are kept in memory."""


@dataclass
class Sorting:
    """Searches all queries with all columns in a thread. Partial results can be read meanwhile."""

    searcher: Searcher
    """Searches the page's indexes; bodies are made one at a time."""
    queries: Mapping[str, str]
    """{query id: text}"""
    state: State
    """Filters, size and columns of the searches."""
    error: str = ""
    """Why the search stopped; empty if it did not fail."""
    runs: list[Run] = field(default_factory=list)
    """The run of each column so far."""
    order: list[tuple[str, float]] = field(default_factory=list)
    """(query, disagreement) of the searched queries, the largest disagreement first."""
    running: bool = False
    """Whether the thread searches."""
    paused: bool = False
    """Whether it was stopped; `go_on` continues."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while `running`, `paused` or `error` changes."""

    @property
    def whole(self) -> bool:
        return len(self.order) == len(self.queries)

    def go_on(self) -> Sorting:
        """Search the remaining queries, unless a thread already does."""
        with self._lock:
            self.paused = False
            if not self.running and not self.whole:
                self.running, self.error = True, ""
                threading.Thread(target=self.run, daemon=True).start()
        return self

    def pause(self) -> None:
        """Stop after the current chunk of queries. Results are kept."""
        with self._lock:
            self.paused = True

    def run(self) -> None:
        try:
            retrievers = [self._retriever(column) for column in self.state.columns]
            self.runs = self.runs or [{} for _ in retrievers]
            while chunk := self._next():
                texts = {query: self.queries[query] for query in chunk}
                pages = [retriever.retrieve(texts, self.state.size) for retriever in retrievers]
                for run, page in zip(self.runs, pages, strict=True):
                    run |= page
                apart = [(query, disagreement([page[query] for page in pages])) for query in chunk]
                self.order = sorted([*self.order, *apart], key=lambda pair: -pair[1])
        except OsnError as error:
            self._failed(str(error))
        except Exception as error:  # else the page would report work in progress forever
            self._failed(f"{type(error).__name__}: {error}")
            raise

    def _next(self) -> list[str]:
        """The next queries; empty if all were searched, or if paused."""
        with self._lock:
            chunk = [] if self.paused else list(self.queries)[len(self.order) :][:CHUNK]
            self.running = bool(chunk)
            return chunk

    def _failed(self, error: str) -> None:
        with self._lock:
            self.error, self.running = error, False

    def _retriever(self, column: Column) -> OpenSearchRetriever:
        def body(text: str, size: int) -> Body:
            return body_of(self.searcher.request(column, replace(self.state, query=text, size=size), highlight=False))

        own, client = column.engine == OWN_BODY, self.searcher.client
        hits_of = ids_of if own else None
        return OpenSearchRetriever(
            client,
            column.index,
            column.engine,
            body,
            hits_of=hits_of,
            ids_only=not own,
            unanswered=lambda query, reason: None,  # the query's own page says why the column is empty
        )

    def ranked(self, searched: int) -> list[str]:
        """All queries as they were ordered when the first `searched` of the file had been searched: these by disagreement,
        then the others in the file's order."""
        listed = list(self.queries)
        early = set(listed[:searched])
        return [*(query for query, _ in self.order if query in early), *listed[searched:]]


def disagreement(pages: list[Mapping[str, float]] | list[dict[str, float]]) -> float:
    """The share of documents that only one of two pages has, averaged over all pairs of pages; 0 for one page."""
    apart = [len(a.keys() ^ b.keys()) / max(1, len(a.keys() | b.keys())) for a, b in combinations(pages, 2)]
    return sum(apart) / max(1, len(apart))


@dataclass
class Walk:
    """The queries that the page was started with."""

    queries: Mapping[str, str] = field(default_factory=dict)
    """{query id: text}"""
    _sorted: dict[State, Sorting] = field(default_factory=dict)
    """{state with only filters, size and columns: its sorting}"""

    def begun(self, state: State) -> Sorting | None:
        """The sorting for the state's columns and filters; None if `sorting` has started none."""
        return self._sorted.get(_key(state))

    def sorting(self, searcher: Searcher, state: State) -> Sorting:
        """The sorting for the state's columns and filters; the first call starts it."""
        key = _key(state)
        if key not in self._sorted:
            while len(self._sorted) >= KEPT:
                self._sorted.pop(next(iter(self._sorted))).pause()
            self._sorted[key] = Sorting(searcher, self.queries, key).go_on()
        return self._sorted[key]


def _key(state: State) -> State:
    return State(filters=state.filters, size=state.size, columns=state.columns)


@dataclass(frozen=True)
class Place:
    """The position of a query in the order, and the addresses of its neighbours."""

    number: int
    """The position, from 1; 0 before the first."""
    total: int
    """How many queries are in the order."""
    before: str
    """The address of the query before; empty if there is none."""
    after: str
    """The address of the query after; empty if there is none."""

    @classmethod
    def among(cls, order: list[str], state: State) -> Place:
        at = order.index(state.id) if state.id in order else -1
        shown = replace(state, query="", document="")
        before = shown.address(id=order[at - 1]) if at > 0 else ""
        after = shown.address(id=order[at + 1]) if at + 1 < len(order) else ""
        return cls(at + 1, len(order), before, after)
