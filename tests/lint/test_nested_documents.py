"""Fields within nested documents, and outside, tried on a node."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import META, RAINBOW, Case, LintNode, bending, hits, knn, nearest, outcomes, rejected

from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription

REJECTED = [
    Case("malformed", {"query": {"nested": {"query": nearest()}}}),
]

BENDS = [
    Case("nested-field", {"query": knn(field="several.vector")}, {"query": nearest()}),
    Case("nested-field", {"query": {"nested": {"path": "several", "query": knn()}}}, {"query": knn()}),
    Case("nested-field", {"query": {"nested": {"path": "several", "query": RAINBOW}}}, {"query": RAINBOW}),
    Case(
        "nested-field",
        {
            "query": {
                "nested": {"path": "several", "query": {"multi_match": {"query": "rainbow", "fields": ["te*", "text"]}}}
            }
        },
        {"query": RAINBOW},
    ),
    Case(
        "nested-field",
        {"query": {"exists": {"field": "several.vector"}}},
        {"query": {"nested": {"path": "several", "query": {"exists": {"field": "several.vector"}}}}},
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)


@pytest.mark.cluster
@pytest.mark.parametrize("path", ["nowhere", "dense"])
def test_a_nested_query_that_may_have_no_nested_documents_finds_nothing_and_is_fine(
    lint_node: LintNode, path: str
) -> None:
    body = {"query": {"nested": {"path": path, "query": knn(field="nowhere.vector"), "ignore_unmapped": True}}}
    assert not lint(body, lint_node.capabilities, META, index=lint_node.facts)
    assert not hits(lint_node.client, lint_node.index, body)


def test_a_field_is_asked_for_among_the_documents_that_have_it() -> None:
    fields = {
        "t": {"type": "keyword"},
        "a": {"type": "nested"},
        "a.t": {"type": "keyword"},
        "a.b": {"type": "nested"},
        "a.b.t": {"type": "keyword"},
    }

    def nested(path: str, *held: dict[str, Any]) -> dict[str, Any]:
        return {"nested": {"path": path, "query": {"bool": {"must": list(held)}}}}

    root, outer, inner = ({"term": {name: "x"}} for name in ("t", "a.t", "a.b.t"))
    index = IndexDescription(fields=fields)
    # What stands behind a nested query is again of the documents around it.
    right = {"bool": {"must": [nested("a", nested("a.b", inner), outer), root]}}
    assert lint({"query": right}, index=index) == []
    for wrong in (nested("a", nested("a.b", outer)), nested("a", inner), nested("a.b", root), outer):
        assert outcomes({"query": wrong}, index=index) == {"nested-field": "bends"}
