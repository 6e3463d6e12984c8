"""Several columns beside each other: their hits, shifts of rank against the first column, and shared documents."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from math import isfinite
from typing import Any

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import OsnError
from opensearch_neural.search.hits import ScorePart, parts_of
from opensearch_neural.search.request import SearchResult
from opensearch_neural.ui.absence import why_absent
from opensearch_neural.ui.columns import Searcher, Times, measure_times
from opensearch_neural.ui.state import Column, State


@dataclass(frozen=True)
class ShownHit:
    """A hit as a column shows it."""

    rank: int
    """Its place on the page, from 1."""
    hit: dict[str, Any]
    """As `hit_of` makes it."""
    shift: str
    """Shift of rank against the first column: "↑3", "↓1", "=", "new"; empty in the first column."""
    parts: list[ScorePart]
    """What the score is made of."""


@dataclass
class Shown:
    """A column with the result of its search, or the error instead."""

    column: Column
    """Its index, engine and settings."""
    result: SearchResult | None = None
    """None if the search failed."""
    error: str = ""
    """The error of the search; empty if it succeeded."""
    hits: list[ShownHit] = field(default_factory=list)
    """The page, best first."""
    gone: list[tuple[int, str, str]] = field(default_factory=list)
    """(rank, id, title) of hits of the first column that this one lacks."""
    shared: int | None = None
    """Hits in common with the first column."""
    certain: bool | None = None
    """Whether the page is certainly the page of a search of all documents; None if the engine cannot prove it."""
    times: Times | None = None
    """None if the page does not measure times."""
    absence: str = ""
    """Why the document of the page's address is not among the hits."""

    @property
    def top(self) -> float:
        """The largest finite score, which scales the bars."""
        scores = [abs(each.hit["score"] or 0.0) for each in self.hits]
        return max(filter(isfinite, scores), default=0.0)


def compared(searcher: Searcher, state: State, *, explain: bool = True) -> list[Shown]:
    """All columns, searched in parallel. A column that fails does not affect the others."""
    find = translate_errors()(partial(searcher.find, explain=explain))
    prove, why = translate_errors()(searcher.certain), translate_errors()(why_absent)
    shown = [Shown(column) for column in state.columns]
    with ThreadPoolExecutor(3 * len(shown) or 1) as pool:
        results = [pool.submit(find, each.column, state) for each in shown]
        certain = [pool.submit(prove, each.column, state) for each in shown]
        absent = [pool.submit(why, searcher, each.column, state) for each in shown if state.document]
    for each, searched, proof, reason in zip_longest(shown, results, certain, absent):
        try:
            each.result, each.certain = searched.result(), proof.result()
            if not each.result.facts.get("exact", True):
                each.certain = False
        except OsnError as error:
            each.error = str(error)
        try:
            each.absence = reason.result() if reason else ""
        except OsnError as error:
            each.absence = str(error)
    beside(shown)
    if state.timed:
        working = [each for each in shown if not each.error]
        with translate_errors():
            measured = measure_times(searcher, [each.column for each in working], state)
        for each, times in zip(working, measured, strict=True):
            each.times = times
    return shown


def beside(shown: Sequence[Shown]) -> None:
    """Fill in each column's hits and how they differ from the first column's."""
    first: dict[str, int] = {}
    titles: dict[str, str] = {}
    for number, each in enumerate(shown):
        hits = each.result.hits if each.result else []
        ranks = {hit["id"]: rank for rank, hit in enumerate(hits, 1)}
        if number == 0:
            first, titles = ranks, {hit["id"]: hit["title"] or hit["id"] for hit in hits}
        each.hits = [
            ShownHit(rank, hit, shift(rank, first.get(hit["id"])) if number else "", parts_of(hit))
            for rank, hit in enumerate(hits, 1)
        ]
        if number and each.result and first:
            each.shared = len(first.keys() & ranks.keys())
            each.gone = [(rank, id, titles[id]) for id, rank in first.items() if id not in ranks]


def shift(rank: int, before: int | None) -> str:
    if before is None:
        return "new"
    return "=" if rank == before else f"↑{before - rank}" if rank < before else f"↓{rank - before}"
