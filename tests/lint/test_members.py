"""The names of a body's members, tried on a node."""

from __future__ import annotations

import pytest
from lint_cases import ALL, Case, rejected

from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.lint import lint

REJECTED = [
    Case("member", {"querry": ALL}),
    Case("member", {"query": ALL, "form": 10}),
    Case("member", {"query": ALL, "runtime_mappings": {}}),
    Case("member", {"query": ALL, "_source_includes": ["url"]}),
    Case("member", {"knn": {"dense": {"vector": [1.0], "k": 1}}}),
    Case("member", {"query": ALL, "Size": 3}),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)


@pytest.mark.parametrize(("name", "remedy"), [("querry", "write query"), ("form", "write from"), ("knn", "`query`")])
def test_the_member_that_was_meant_is_named(name: str, remedy: str) -> None:
    (finding,) = lint({name: {}}, Capabilities(version="2.19.1"))
    assert (finding.rule, finding.outcome, finding.path) == ("member", "rejected", name) and remedy in finding.remedy


@pytest.mark.parametrize("cluster", [None, Capabilities(version="3.9.0")])
def test_another_release_may_know_more(cluster: Capabilities | None) -> None:
    assert [finding.outcome for finding in lint({"query": ALL, "later": {}}, cluster)] == ["doubtful"]
