"""How long the compare page takes beside the searches that it shows.

    python -m benchmarks.speed.compare_page --index docs --queries queries.jsonl

Each query is asked once by each engine alone, as an application asks it, and once as a page of all engines, in an order
of chance. The goal is set for each query's own pair: the page takes no more than 1.5 times its slowest engine, and 50 ms.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.corpus.judgements import read_queries
from opensearch_neural.ui.columns import Searcher
from opensearch_neural.ui.comparison import compared
from opensearch_neural.ui.pages import compare_page
from opensearch_neural.ui.state import Column, State

TIMES, MORE = 1.5, 50.0
"""The goal: no more than so many times the slowest engine, and so many milliseconds."""
WARMING = 5


@dataclass(frozen=True)
class Pair:
    """Milliseconds of one query."""

    page: float
    slowest: float
    """The slowest of its engines, alone."""

    @property
    def ratio(self) -> float:
        """What the goal holds against `TIMES`."""
        return (self.page - MORE) / self.slowest


def told(pairs: Sequence[Pair]) -> str:
    """In words; the goal is met if the median pair meets it."""
    ratio = statistics.median(pair.ratio for pair in pairs)
    kept = sum(pair.ratio <= TIMES for pair in pairs) / len(pairs)
    page, slowest = (statistics.median(getattr(pair, name) for pair in pairs) for name in ("page", "slowest"))
    return (
        f"{len(pairs)} queries: the page {page:.1f} ms, its slowest engine alone {slowest:.1f} ms (medians)\n"
        f"(page − {MORE:g} ms) / slowest engine: {ratio:.2f} in the median, up to {TIMES:g} for {kept:.0%} of them\n"
        f"goal of {TIMES:g}: {'met' if ratio <= TIMES else 'missed'}"
    )


def timed(call: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def show(searcher: Searcher, state: State) -> None:
    compare_page(searcher, state, compared(searcher, state))


def search(searcher: Searcher, column: Column, state: State) -> None:
    searcher.send(column, searcher.request(column, state))


@click.command()
@click.option("--index", required=True, help="The index to search.")
@click.option("--engines", default="bm25,bm25-sparse,high-idf-first", show_default=True, help="The page's columns.")
@click.option("--queries", type=click.Path(path_type=Path), required=True, help="Queries: jsonl or tsv.")
@click.option(
    "--limit-queries", type=click.IntRange(min=1), default=100, show_default=True, help="Only the first N queries."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of requests.")
@connection_options
def main(
    connection: ConnectionSettings, index: str, engines: str, queries: Path, limit_queries: int, seed: int
) -> None:
    """Time the compare page against its slowest engine; the exit status is 1 if the goal is missed."""
    searcher = Searcher(connect(settings=connection), (index,))
    columns = tuple(Column(name.strip(), index) for name in engines.split(","))
    drawn, pairs = random.Random(seed), []
    texts = list(islice(read_queries(queries).values(), limit_queries))
    warming = texts[:WARMING]
    with translate_errors():
        for turn, text in enumerate([*warming, *texts]):
            state = State(query=text, columns=columns)
            calls: list[Callable[[], object]] = [partial(show, searcher, state)]
            calls += [partial(search, searcher, column, state) for column in columns]
            taken = [0.0] * len(calls)
            for at in drawn.sample(range(len(calls)), len(calls)):
                taken[at] = timed(calls[at])
            if turn >= len(warming):
                pairs.append(Pair(taken[0], max(taken[1:])))
    print(told(pairs))
    sys.exit(statistics.median(pair.ratio for pair in pairs) > TIMES)


if __name__ == "__main__":
    main()
