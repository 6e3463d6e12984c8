"""The ideas as request bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.queries import REPLACED, Body, neural_sparse
from opensearch_neural.queries.body_parts import rescoring_clause

if TYPE_CHECKING:
    from opensearch_neural.engines import Engines


@cache
def _frequencies(file: Path) -> dict[str, int]:
    counts: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return counts


def cut_tokens(tokens: Mapping[str, float], frequencies: Mapping[str, int], share: float) -> dict[str, float]:
    """The query's tokens with the most value for their cost, until they hold `share` of the query's postings.

    A token's cost is the number of documents that hold it, its value is its weight squared: a token of twice the weight
    separates documents twice as far, and gets in the way half as often. At least one token is kept; tokens that no
    document holds are dropped.
    """

    def cost(token: str) -> int:
        return frequencies.get(token, 0)

    budget, spent = share * sum(map(cost, tokens)), 0
    chosen: set[str] = set()
    in_documents = filter(cost, tokens)
    for token in sorted(in_documents, key=lambda token: tokens[token] ** 2 / cost(token), reverse=True):
        if not chosen or spent + cost(token) <= budget:
            chosen.add(token)
            spent += cost(token)
    return {token: weight for token, weight in tokens.items() if token in chosen}


@dataclass(frozen=True)
class FieldSearch:
    """Searches a field by all tokens of the query or some, and rescores the best hits with all tokens, from their rows."""

    field: str = "sparse"
    """The field that phase one searches."""
    window: int | None = None
    """Hits of each shard that are rescored; None: no second phase."""
    cut: float = 1.0
    """Share of the query's postings that phase one searches (`cut_tokens`)."""
    frequencies: Path | None = None
    """File of {token: documents that hold it}; needed for a cut."""

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        encoder = engines.models.query_encoder
        counts = {} if self.frequencies is None else _frequencies(self.frequencies)

        def body(text: str) -> Body:
            tokens = encoder.encode(text)
            first = tokens if self.cut >= 1 else cut_tokens(tokens, counts, self.cut)
            request = neural_sparse(first, field=self.field, plugin=engines.plugin, **page)
            if self.window is not None and tokens:
                second = rescoring_clause(tokens, "sparse", plugin=engines.plugin, forward=engines.forward)
                weights = {"query_weight": REPLACED, "rescore_query_weight": 1.0}
                request["rescore"] = {"window_size": self.window, "query": {"rescore_query": second, **weights}}
            return request

        return body
