"""bool: tokens that need not match, and bools that match everything."""

from __future__ import annotations

from opensearch_neural.lint.clause_count import HOLDERS, MUST_NOT
from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.neighbours import neighbours_only
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_list, as_object
from opensearch_neural.queries.body_parts import Body


def bool_(request: LintedRequest, inner: Body, path: Path) -> None:
    clauses = {name: as_list(inner.get(name)) for name in HOLDERS["bool"]}
    if not any(clauses.values()):
        request.report("empty-query", "bends", path, "a bool without clauses matches every document", "match_none")
    sparse = [query for query in clauses["should"] if {"neural_sparse", "rank_feature"} & as_object(query).keys()]
    if sparse and clauses["filter"] and not clauses["must"] and "minimum_should_match" not in inner:
        request.report(
            "optional-tokens",
            "bends",
            (*path, "should"),
            "beside a filter no token has to match: every document that passes the filter is a hit",
            'add "minimum_should_match": 1, or put the tokens into a bool of their own in `must`',
        )
    if any(clauses[name] for name in ("filter", *MUST_NOT)):
        for place, query in enumerate(clauses["must"]):
            if neighbours_only(query):
                request.report(
                    "knn-filter",
                    "bends",
                    (*path, "must", place, *list(query)[:1]),
                    "the filter is applied to the k neighbours found without it, so hits are lost",
                    "put the filter into the knn query: queries.knn(…, filter=…)",
                )
