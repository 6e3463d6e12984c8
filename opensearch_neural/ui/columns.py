"""One column of the page: what an engine, or the user's own body, finds, and how long it takes."""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.documents import FieldNames
from opensearch_neural.encodable import encodable
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import existing_record
from opensearch_neural.queries import Body, Clause
from opensearch_neural.queries.body_parts import HIGHLIGHTED_CHARACTERS
from opensearch_neural.search.filters import clauses_of
from opensearch_neural.search.request import Request, SearchResult, find, find_by_body
from opensearch_neural.ui.state import OWN_BODY, Column, State

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

SECONDS = 10
"""The longest time of one search, in seconds."""
WARMING, REPEATS = 2, 9
FRESH = 5.0
"""Seconds after which an index's record is read again, because an alias may point to another index."""


@dataclass
class Searcher:
    """Searches the indexes that the page may search, and nothing else on the cluster."""

    client: OpenSearch
    """A client of the cluster, with the page owner's permissions."""
    indexes: tuple[str, ...]
    """The only indexes and aliases that are searched."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `open_engines`."""
    opened: dict[str, tuple[float, Engines]] = field(default_factory=dict)
    """{index: (when its record was read, its engines)}"""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Needed because encoders may not be thread-safe."""

    def engines(self, index: str) -> Engines:
        """The engines of the index that the name stands for now, or stood for a few seconds ago.

        Raises ModelError for an index that `osn` did not write, ClusterError if there is none.
        """
        with self.lock, translate_errors():
            now = time.monotonic()
            read, engines = self.opened.get(index, (-math.inf, None))
            if engines is None or now - read > FRESH:
                if engines is None or existing_record(self.client, index) != engines.meta:
                    engines = open_engines(self.client, index, **self.how)
                self.opened[index] = now, engines
            return engines

    def request(
        self, column: Column, state: State, clauses: Sequence[Clause] = (), *, highlight: bool = True
    ) -> Request | Body:
        """The request of a column. clauses: further filters, for an engine.

        Raises InputError for invalid settings, filters and bodies.
        """
        if column.engine == OWN_BODY:
            if state.filters:
                raise InputError("a body of your own holds its own filters")
            body = BodyTemplate.parse(column.body, where="the body").body(state.query, state.size)
            return {**body, "timeout": f"{SECONDS}s"}
        with self.lock:
            engines = self.engines(column.index).with_settings(**column.settings())
            clauses = [*clauses_of(self.client, column.index, state.filters), *clauses]
            request = Request.make(
                engines, column.engine, state.query, clauses=clauses, size=state.size, highlight=highlight
            )
        request.body["timeout"] = f"{SECONDS}s"
        return request

    def find(self, column: Column, state: State, *, explain: bool = True) -> SearchResult:
        """The hits of a column. explain=False: a document has the same marks and excerpt in all columns, and no sentence."""
        request = self.request(column, state)
        if isinstance(request, Request):
            request = request if explain else replace(request, body=marked_alike(request.body, state.query))
            return find(self.client, request, explain=explain)
        body = request if explain else marked_alike(request, state.query)
        return find_by_body(self.client, column.index, body, explain=explain)

    def send(self, column: Column, request: Request | Body) -> Mapping[str, Any]:
        """The answer to a request as an application sends it: no hit is explained."""
        if isinstance(request, Request):
            return request.engine.search(self.client, request.body, request.text)
        return self.client.search(index=column.index, body=request)

    def certain(self, column: Column, state: State) -> bool | None:
        """Whether the page is proved exact; None for an engine without such a proof."""
        request = self.request(column, state)
        if not isinstance(request, Request) or not isinstance(request.engine, Windowed) or not state.query.strip():
            return None
        return request.engine.certified(self.client, state.query, request.page)

    def body_text(self, column: Column, state: State) -> str:
        return json.dumps(body_of(self.request(column, state)), indent=1, ensure_ascii=False)


def body_of(request: Request | Body) -> Body:
    """The body of an engine's request, or the user's own body."""
    return request.body if isinstance(request, Request) else request


def marked_alike(body: Body, query: str) -> Body:
    """The body, asking for the same fields and the same marked words as every other body with this query."""
    names = FieldNames()
    fields = [*names.title, *names.text]
    marks = {
        "fields": {name: {"number_of_fragments": 0 if name in names.title else 2} for name in fields},
        # A query of its own: that of a hybrid or sparse search marks other words. Lenient, as a field may hold numbers.
        "highlight_query": {"multi_match": {"query": encodable(query), "fields": fields, "lenient": True}},
        "max_analyzer_offset": HIGHLIGHTED_CHARACTERS,
    }
    kept = {key: value for key, value in body.items() if key != "stored_fields"}  # without the source, or even the id
    return {**kept, "_source": [*fields, *names.url], "highlight": marks}


@dataclass(frozen=True)
class Times:
    """Milliseconds of each repeat."""

    encoding: list[float]
    """Encoding the query and making the body."""
    answered: list[float]
    """From sending the request until the answer is read."""
    server: list[float]
    """The time on the cluster, as its answer says (`took`). For several requests, the last one's."""


def measure_times(searcher: Searcher, columns: Sequence[Column], state: State) -> list[Times]:
    """Times of each column: after some warm-up rounds, all columns in random order in each round, one request at a time."""
    times = [Times([], [], []) for _ in columns]
    drawn = random.Random(0)
    for turn in range(WARMING + REPEATS):
        for at in drawn.sample(range(len(columns)), len(columns)):
            start = time.perf_counter()
            request = searcher.request(columns[at], state)
            made = time.perf_counter()
            took = searcher.send(columns[at], request)["took"]
            done = time.perf_counter()
            if turn >= WARMING:
                times[at].encoding.append((made - start) * 1000)
                times[at].answered.append((done - made) * 1000)
                times[at].server.append(float(took))
    return times


def spread(values: Sequence[float]) -> str:
    """ "12.1 (11.8 to 14.0)": median, minimum and maximum."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
