"""A file of queries, walked through in the order of how much the columns disagree."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from opensearch_neural.errors import OsnError
from opensearch_neural.queries import Body
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.ui.columns import Searcher, body_of
from opensearch_neural.ui.state import Column, State


@dataclass
class Sorting:
    """All queries searched by all columns, in a thread of its own; what is there can be asked for meanwhile."""

    searcher: Searcher
    queries: Mapping[str, str]
    state: State
    done: int = 0
    error: str = ""
    runs: list[Run] = field(default_factory=list)
    """Of each column, when all are there."""
    order: list[tuple[str, float]] = field(default_factory=list)
    """(query, disagreement), the largest first."""

    @property
    def total(self) -> int:
        return len(self.queries) * len(self.state.columns)

    def start(self) -> Sorting:
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def run(self) -> None:
        try:
            runs = [self._run(column) for column in self.state.columns]
        except OsnError as error:
            self.error = str(error)
            return
        except Exception as error:  # else the page would say for ever that it works on it
            self.error = f"{type(error).__name__}: {error}"
            raise
        disagreeing = {query: disagreement([run.get(query, {}) for run in runs]) for query in self.queries}
        self.order = sorted(disagreeing.items(), key=lambda pair: -pair[1])
        self.runs = runs

    def _run(self, column: Column) -> Run:
        def body(text: str, size: int) -> Body:
            return body_of(self.searcher.request(column, replace(self.state, query=text, size=size), highlight=False))

        def count(done: int) -> None:
            self.done += done

        retriever = OpenSearchRetriever(self.searcher.client, column.index, column.engine, body, progress=count)
        return retriever.retrieve(self.queries, self.state.size)


def disagreement(pages: list[Mapping[str, float]] | list[dict[str, float]]) -> float:
    """Mean over the pairs of pages of the share of documents that only one of the two has; 0 for one page."""
    apart = [len(a.keys() ^ b.keys()) / max(1, len(a.keys() | b.keys())) for a, b in combinations(pages, 2)]
    return sum(apart) / max(1, len(apart))


@dataclass
class Walk:
    """The queries that the page was started with."""

    queries: Mapping[str, str] = field(default_factory=dict)
    _sorted: dict[State, Sorting] = field(default_factory=dict)

    def sorting(self, searcher: Searcher, state: State) -> Sorting:
        """Of the state's columns and filters; started by who asks first."""
        key = State(filters=state.filters, size=state.size, columns=state.columns)
        if key not in self._sorted:
            # The last few only: a thread and a run for each link would add up.
            while len(self._sorted) >= 4:
                self._sorted.pop(next(iter(self._sorted)))
            self._sorted[key] = Sorting(searcher, self.queries, key).start()
        return self._sorted[key]


@dataclass(frozen=True)
class Place:
    """Where a query stands in the order that is walked through; addresses of its neighbours."""

    number: int
    """From 1; 0 before the first."""
    total: int
    before: str
    after: str

    @classmethod
    def among(cls, order: list[str], state: State) -> Place:
        at = order.index(state.id) if state.id in order else -1
        shown = replace(state, query="", document="")
        before = shown.address(id=order[at - 1]) if at > 0 else ""
        after = shown.address(id=order[at + 1]) if at + 1 < len(order) else ""
        return cls(at + 1, len(order), before, after)
