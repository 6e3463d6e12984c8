"""Pages, clauses and terms within what an index and a cluster take, tried on a node."""

from __future__ import annotations

from lint_cases import ALL, NORMALIZED, Case, feature, hybrid, many, outcomes, rejected, rescore, should, sparse

from opensearch_neural import queries

REJECTED = [
    Case("page", {"query": ALL, "size": -1}),
    Case("page", {"query": ALL, "from": -1}),
    Case("page", {"query": ALL, "from": 9_991}),
    Case("page", {"query": ALL, "size": 10_001}),
    Case("page", {"query": ALL, "search_after": [5]}),
    Case("page", {"query": ALL, "sort": ["_score"], "search_after": [5]}),
    Case("page", {"query": ALL, "sort": [{"n": "asc"}], "search_after": [5], "from": 5}),
    Case("page", {"query": ALL, "sort": ["_score", "n"], "search_after": [5, 5], "collapse": {"field": "url"}}),
    Case("page", {"query": hybrid(), **NORMALIZED, "sort": ["n"], "search_after": [5], "collapse": {"field": "url"}}),
    Case("too-many-clauses", {"query": sparse(many("a", 1025))}),
    Case("too-many-clauses", {"query": should(*(feature(f"sparse.a{number}") for number in range(1025)))}),
    Case("too-many-clauses", {"query": {"bool": {"should": [feature("sparse.a")] * 1025}}}),
    Case("too-many-clauses", {"query": should(sparse(many("a", 600)), sparse(many("b", 600)))}),
    Case("too-many-clauses", {"query": hybrid(sparse(many("a", 600)), sparse(many("b", 600))), **NORMALIZED}),
    Case("too-many-clauses", queries.bm25(" ".join(f"w{number}" for number in range(1025)))),
    Case("too-many-clauses", {"query": ALL, "rescore": rescore(tokens=many("a", 1025))}),
    Case("too-many-clauses", {"query": ALL, "post_filter": should(*[{"term": {"url": "x"}}] * 1025)}),
    Case("too-many-clauses", queries.bm25("x", highlight=" ".join(f"w{number}" for number in range(1025)))),
    Case("too-many-terms", {"query": {"terms": {"url": [str(number) for number in range(65_537)]}}}),
]

BY_GROUP = Case("page", {"query": ALL, "sort": ["url"], "search_after": ["u1"], "collapse": {"field": "url"}})
"""Rejected before 3.3."""

test_what_is_called_rejected_is_rejected = rejected([*REJECTED, BY_GROUP])


def test_hits_that_are_sorted_by_the_field_that_collapses_them_are_paged_from_a_release_on() -> None:
    for sort, wanted in (
        (["url"], {"3.2.0": "rejected", "": "doubtful", "3.3.0": None}),
        (["_score", "url"], {"3.2.0": "rejected", "": "rejected", "3.3.0": "rejected"}),
    ):
        body = {"query": ALL, "sort": sort, "search_after": ["u1"], "collapse": {"field": "url"}}
        assert {release: outcomes(body, release).get("page") for release in wanted} == wanted
