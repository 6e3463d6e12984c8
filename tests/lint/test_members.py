"""The names of a body's members, tried on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lint_cases import ALL, Case, rejected
from opensearchpy.exceptions import TransportError

from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.lint import lint
from opensearch_neural.lint.members import MEMBERS

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

REJECTED = [
    Case("member", {"querry": ALL}),
    Case("member", {"query": ALL, "form": 10}),
    Case("member", {"query": ALL, "runtime_mappings": {}}),
    Case("member", {"query": ALL, "_source_includes": ["url"]}),
    Case("member", {"knn": {"dense": {"vector": [1.0], "k": 1}}}),
    Case("member", {"query": ALL, "Size": 3}),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)


VALUES: dict[str, Any] = {
    "_source": True, "aggregations": {}, "aggs": {}, "collapse": {"field": "url"}, "derived": {}, "docvalue_fields": ["url"],
    "explain": True, "ext": {}, "fields": ["url"], "from": 0, "highlight": {}, "include_named_queries_score": True,
    "indices_boost": [], "min_score": 0.1, "pit": {"id": "unknown"}, "post_filter": ALL, "profile": False, "query": ALL,
    "rescore": [], "script_fields": {}, "search_after": [1], "search_pipeline": "_none", "seq_no_primary_term": True,
    "size": 1, "slice": {"id": 0, "max": 2}, "sort": ["_score"], "stats": ["group"], "stored_fields": ["url"], "suggest": {},
    "terminate_after": 1, "timeout": "1s", "track_scores": True, "track_total_hits": True, "verbose_pipeline": False,
    "version": True,
}  # fmt: skip


def test_the_members_that_pass_are_those_that_the_node_knows(client: OpenSearch) -> None:
    assert VALUES.keys() == MEMBERS
    for name, value in VALUES.items():
        try:
            client.search(index="_all", body={name: value}, params={"ignore_unavailable": "true"})
        except TransportError as error:  # of a scroll or point in time that is not there, for example
            assert "Unknown key" not in str(error), name


@pytest.mark.parametrize(("name", "remedy"), [("querry", "write query"), ("form", "write from"), ("knn", "`query`")])
def test_the_member_that_was_meant_is_named(name: str, remedy: str) -> None:
    (finding,) = lint({name: {}}, Capabilities(version="2.19.1"))
    assert (finding.rule, finding.outcome, finding.path) == ("member", "rejected", name) and remedy in finding.remedy


@pytest.mark.parametrize("cluster", [None, Capabilities(version="3.9.0")])
def test_another_release_may_know_more(cluster: Capabilities | None) -> None:
    assert [finding.outcome for finding in lint({"query": ALL, "later": {}}, cluster)] == ["doubtful"]
