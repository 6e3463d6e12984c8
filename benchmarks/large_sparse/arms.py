"""The ideas as request bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.queries import REPLACED, Body, neural_sparse
from opensearch_neural.queries.clauses import rescoring_clause

if TYPE_CHECKING:
    from opensearch_neural.engines import Engines


@cache
def _frequencies(file: Path) -> dict[str, int]:
    counts: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return counts


def cut_tokens(tokens: Mapping[str, float], frequencies: Mapping[str, int], share: float) -> dict[str, float]:
    """Those of a query's tokens that are worth most for what they cost, until they hold `share` of its postings.

    A token costs the documents that hold it, and is worth its weight squared: a token that weighs twice as much parts
    documents twice as far, and is twice as rarely in the way. One token at least is kept; those that no document holds are
    not.
    """

    def cost(token: str) -> int:
        return frequencies.get(token, 0)

    budget, spent = share * sum(map(cost, tokens)), 0
    chosen: set[str] = set()
    held = filter(cost, tokens)
    for token in sorted(held, key=lambda token: tokens[token] ** 2 / cost(token), reverse=True):
        if not chosen or spent + cost(token) <= budget:
            chosen.add(token)
            spent += cost(token)
    return {token: weight for token, weight in tokens.items() if token in chosen}


@dataclass(frozen=True)
class FieldSearch:
    """Searches a field, of the whole query or of a part of it, and rescores the best hits with all tokens by their rows."""

    field: str = "sparse"
    window: int | None = None
    """Hits of each shard that are rescored; None: no second phase."""
    cut: float = 1.0
    """Share of the query's postings that phase one searches (`cut_tokens`)."""
    frequencies: Path | None = None
    """Where the documents of each token are counted; needed for a cut."""

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        encoder = engines.models.query_encoder
        counts = {} if self.frequencies is None else _frequencies(self.frequencies)

        def body(text: str) -> Body:
            tokens = encoder.encode(text)
            first = tokens if self.cut >= 1 else cut_tokens(tokens, counts, self.cut)
            made = neural_sparse(first, field=self.field, plugin=engines.plugin, **page)
            if self.window is not None and tokens:
                second = rescoring_clause(tokens, "sparse", plugin=engines.plugin, forward=engines.forward)
                weights = {"query_weight": REPLACED, "rescore_query_weight": 1.0}
                made["rescore"] = {"window_size": self.window, "query": {"rescore_query": second, **weights}}
            return made

        return body


def _of_blocks(engines: Engines, text: str, blocks: list[int], page: Mapping[str, Any]) -> Body:
    """All tokens, over the documents of these blocks alone."""
    tokens = engines.models.query_encoder.encode(text)
    return neural_sparse(tokens, plugin=engines.plugin, filter={"terms": {"block": blocks}}, **page)


@dataclass(frozen=True)
class BestBlocks:
    """The first of two requests: the blocks with the highest sums of their largest weights."""

    count: int

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        encoder = engines.models.query_encoder
        of_blocks = {**page, "size": self.count, "source": False}
        return lambda text: neural_sparse(encoder.encode(text), plugin=engines.plugin, **of_blocks)


@dataclass(frozen=True)
class DocumentsOfBlocks:
    """The second of two requests: all tokens, over the documents of the blocks that the first one found."""

    index: str

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Body]:
        def body(text: str, answer: Mapping[str, Any]) -> Body:
            return _of_blocks(engines, text, [int(hit["_id"]) for hit in answer["hits"]["hits"]], page)

        return body
