"""Hybrid queries, tried on a node."""

from __future__ import annotations

import pytest
from lint_cases import (
    ALL,
    META,
    NORMALIZED,
    RAINBOW,
    WIDE,
    Case,
    LintNode,
    bending,
    hybrid,
    named,
    refusal,
    rejected,
    should,
    sparse,
    weighted,
)

from opensearch_neural.lint import lint
from opensearch_neural.queries import Body

REJECTED = [
    Case("hybrid-nested", {"query": {"bool": {"must": [hybrid()], "filter": [WIDE]}}, **NORMALIZED}),
    Case("hybrid-nested", {"query": should(hybrid(), ALL), **NORMALIZED}),
    *(Case("hybrid-nested", {"query": {"bool": {name: [hybrid()]}}, **NORMALIZED}) for name in ("must_not", "mustNot")),
    Case("hybrid-nested", {"query": {"dis_max": {"queries": [hybrid(), ALL]}}, **NORMALIZED}),
    Case("hybrid-queries", {"query": hybrid(*[sparse()] * 6), **NORMALIZED}),
    *(Case("hybrid-queries", {"query": {"hybrid": how}, **NORMALIZED}) for how in ({"queries": []}, {})),
    Case("malformed", {"query": {"hybrid": {"queries": {}}}, **NORMALIZED}),
    Case("malformed", {"query": {"hybrid": {"queries": "rainbow"}}, **NORMALIZED}),
    Case("fusion-weights", {"query": {"hybrid": {"queries": sparse()}}, **weighted(0.5, 0.5)}),
    Case("hybrid-option", {"query": hybrid(boost=2.0), **NORMALIZED}),
    Case("hybrid-option", {"query": hybrid(filter=WIDE), **NORMALIZED}),
    Case("hybrid-pagination", {"query": hybrid(), "from": 5, **NORMALIZED}),
    *(Case("hybrid-pagination", {"query": hybrid(pagination_depth=depth), **NORMALIZED}) for depth in (0, -1, 10_001)),
    Case("hybrid-with", {"query": hybrid(), "sort": ["_score", "n"], **NORMALIZED}),
    Case("hybrid-with", {"query": hybrid(), "profile": True, **NORMALIZED}),
]

BENDS = [
    *(
        Case("hybrid-nested", {"query": query, **NORMALIZED}, {"query": hybrid(), **NORMALIZED})
        for query in (
            {"constant_score": {"filter": hybrid()}},
            {"function_score": {"query": hybrid()}},
            {"boosting": {"positive": hybrid(), "negative": {"match_none": {}}, "negative_boost": 0.5}},
            {"bool": {"filter": [hybrid()]}},
        )
    ),
    Case(
        "hybrid-nested",
        {"query": hybrid(hybrid(sparse({"t1": 2.0}), sparse({"t2": 1.0})), RAINBOW), **NORMALIZED},
        {"query": hybrid(sparse({"t1": 2.0}), sparse({"t2": 1.0}), RAINBOW), **NORMALIZED},
    ),
    Case(
        "hybrid-nested",
        {"query": ALL, "rescore": {"window_size": 200, "query": {"rescore_query": hybrid()}}},
        {"query": hybrid(), **NORMALIZED},
    ),
    Case("hybrid-without-pipeline", {"query": hybrid()}, {"query": hybrid(), **NORMALIZED}),
    Case(
        "hybrid-pagination",
        {"query": hybrid(pagination_depth=10), "size": 50, **NORMALIZED},
        {"query": hybrid(pagination_depth=50), "size": 50, **NORMALIZED},
    ),
    Case(
        "hybrid-with",
        {"query": hybrid(pagination_depth=100), "size": 100, "collapse": {"field": "url"}, **NORMALIZED},
        {"query": sparse(), "size": 100, "collapse": {"field": "url"}},
    ),
    Case(
        "hybrid-with",
        {"query": hybrid(), "min_score": 0.9, **NORMALIZED},
        {"query": hybrid(), "size": 1, **NORMALIZED},
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)


@pytest.mark.cluster
@pytest.mark.parametrize("case", [case for case in REJECTED if case.rule == "hybrid-nested"], ids=named)
def test_a_hybrid_below_another_query_of_an_index_with_nested_documents(lint_node: LintNode, case: Case) -> None:
    index, facts = lint_node.several
    findings = lint(case.body, lint_node.capabilities, META, index=facts)
    (outcome,) = (finding.outcome for finding in findings if finding.rule == "hybrid-nested")
    taken = not refusal(lint_node.client, index, case.body)
    assert outcome == ("doubtful" if "dis_max" in str(case.body) else "rejected")
    assert taken == (outcome == "doubtful")


@pytest.mark.cluster
@pytest.mark.parametrize("pipeline", [NORMALIZED, weighted(1.0)])
def test_a_single_query_may_be_an_object(lint_node: LintNode, pipeline: Body) -> None:
    body = {"query": {"hybrid": {"queries": RAINBOW}}, **pipeline}
    assert lint(body, lint_node.capabilities, META, index=lint_node.facts) == []
    assert not refusal(lint_node.client, lint_node.index, body)
    inside = {"query": {"hybrid": {"queries": {"match": {"tekst": "rainbow"}}}}, **pipeline}
    (finding,) = lint(inside, lint_node.capabilities, META, index=lint_node.facts)
    assert (finding.rule, finding.path) == ("field", "query.hybrid.queries.match.tekst")


@pytest.mark.cluster
def test_a_hybrid_query_for_no_hits_fails_when_the_shard_answers_from_its_cache(lint_node: LintNode) -> None:
    body = {"query": hybrid(pagination_depth=100), "size": 0, **NORMALIZED}
    (finding,) = lint(body, lint_node.capabilities, META, index=lint_node.facts)
    assert (finding.rule, finding.outcome) == ("hybrid-with", "doubtful")
    assert not refusal(lint_node.client, lint_node.index, body)
    assert "cannot produce final query result" in refusal(lint_node.client, lint_node.index, body)
