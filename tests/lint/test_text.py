"""Match queries of which no term is left, tried on a node."""

from __future__ import annotations

from lint_cases import Case, bending

from opensearch_neural import queries

BENDS = [
    Case("empty-query", queries.bm25("is it the"), queries.bm25("is it the rainbow")),
    Case("empty-query", queries.bm25("?!"), queries.bm25("rainbow")),
]

test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
