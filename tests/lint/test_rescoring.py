"""Windows and weights, and what excludes rescoring, tried on a node."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import META, NORMALIZED, Case, LintNode, bending, hybrid, refusal, rejected, rescore, sparse, two_phase

from opensearch_neural.lint import lint

REJECTED = [
    *(
        Case("rescore-with-sort", {"query": sparse(), "rescore": rescore(), "sort": sort})
        for sort in (
            ["n"],
            "n",
            {"n": "asc"},
            [{"_score": "asc"}],
            ["_score", "n"],
            ["_doc"],
            {"_score": "desc", "n": "asc"},
        )
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


@pytest.mark.cluster
@pytest.mark.parametrize("sort", ["_score", {"_score": "DESC"}, [{"_score": {"order": "desc"}}], [{"_score": {}}], []])
def test_a_sort_by_the_descending_score_alone_passes(lint_node: LintNode, sort: Any) -> None:
    body = {"query": sparse(), "rescore": rescore(), "sort": sort}
    assert not lint(body, lint_node.capabilities, META, index=lint_node.facts)
    assert not refusal(lint_node.client, lint_node.index, body)


test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
