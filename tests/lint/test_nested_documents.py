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


def test_one_of_several_fields_that_finds_nothing_is_told_of_as_one_of_several() -> None:
    fields = {"t": {"type": "text"}, "a": {"type": "nested"}, "a.t": {"type": "text"}}
    for query, end in (
        ({"multi_match": {"query": "x", "fields": ["t", "a.t"]}}, ": nothing is found there"),
        ({"match": {"a.t": "x"}}, ": nothing is found"),
    ):
        (finding,) = lint({"query": query}, index=IndexDescription(fields=fields))
        assert finding.message.endswith(end)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("outer", "inner", "found"),
    [
        ({}, {}, "in"),
        ({}, {"include_in_root": True}, "in root"),
        ({}, {"include_in_parent": True}, "in out"),
        ({"include_in_root": True}, {"include_in_parent": True}, "in out root"),
        ({"include_in_parent": True}, {"include_in_parent": True}, "in out root"),
        ({"include_in_parent": True}, {}, "in"),
    ],
    ids=str,
)
def test_fields_that_other_documents_hold_too_are_found_there(
    client: Any, index_name: str, outer: dict[str, Any], inner: dict[str, Any], found: str
) -> None:
    innermost = {"type": "nested", **inner, "properties": {"t": {"type": "keyword"}}}
    properties = {"a": {"type": "nested", **outer, "properties": {"b": innermost}}}
    client.indices.create(index=index_name, body={"mappings": {"properties": properties}})
    client.index(index=index_name, body={"a": [{"b": [{"t": "x"}]}]}, refresh=True)
    asked: dict[str, Any] = {"root": {"term": {"a.b.t": "x"}}}
    asked |= {
        level: {"nested": {"path": path, "query": asked["root"]}} for level, path in (("out", "a"), ("in", "a.b"))
    }
    index = IndexDescription.of(client, index_name)
    for level, query in asked.items():
        assert len(hits(client, index_name, {"query": query})) == (level in found.split())
        assert outcomes({"query": query}, index=index) == ({} if level in found.split() else {"nested-field": "bends"})
