"""Windows and weights, and what excludes rescoring, tried on a node."""

from __future__ import annotations

from lint_cases import NORMALIZED, Case, bending, hybrid, rejected, rescore, sparse, two_phase

REJECTED = [
    *(
        Case("rescore-with-sort", {"query": sparse(), "rescore": rescore(), "sort": sort})
        for sort in (["n"], "n", {"n": "asc"}, [{"_score": "asc"}], ["_score", "n"], ["_doc"])
    ),
    Case("rescore-with-sort", {"query": sparse(), "sort": ["n"], **two_phase(prune_ratio=0.9)}),
    Case(
        "rescore-with-sort",
        {"query": sparse(), "rescore": rescore(), "sort": [{"_score": "desc"}, {"n": "asc"}], "search_after": [5, 1]},
    ),
    Case("rescore-with-collapse", {"query": sparse(), "rescore": rescore(), "collapse": {"field": "url"}}),
    Case("rescore-with-collapse", {"query": sparse(), "collapse": {"field": "url"}, **two_phase()}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(10_001)}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(-1)}),
    Case("rescore-window", {"query": sparse(), "rescore": [rescore(20), rescore(10_001)]}),
]

BENDS = [
    Case(
        "rescore-of-hybrid",
        {"query": hybrid(), "rescore": rescore(), **NORMALIZED},
        {"query": hybrid(), **NORMALIZED},
    ),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(3)}, {"query": sparse(), "rescore": rescore(200)}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(0)}, {"query": sparse(), "rescore": rescore(200)}),
    Case(
        "rescore-window",
        {"query": sparse(), "size": 20, "rescore": {"query": rescore()["query"]}},
        {"query": sparse(), "size": 20, "rescore": rescore(20)},
    ),
    Case(
        "rescore-order",
        {"query": sparse(), "rescore": [rescore(20), rescore(60, query_weight=1.0)], "size": 20},
        {"query": sparse(), "rescore": [rescore(60), rescore(60, query_weight=1.0)], "size": 20},
    ),
    Case(
        "rescore-min-score",
        {"query": sparse(), "rescore": rescore(200), "min_score": 4, "size": 200},
        {"query": sparse(), "rescore": rescore(200), "size": 200},
    ),
    Case(
        "rescore-weight",
        {"query": sparse(), "rescore": rescore(rescore_query_weight=-1.0)},
        {"query": sparse(), "rescore": rescore()},
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
