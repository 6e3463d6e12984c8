"""Queries that name one field, tried on a node with all kinds of values."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import Case, LintNode, refusal, rejected

from opensearch_neural.lint import lint
from opensearch_neural.lint.members import kind_of
from opensearch_neural.lint.one_field import ONE_FIELD

_MATCH = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
TAKEN: dict[str, list[Any]] = {
    **{kind: [{"query": "x"}, "x", 1, True] for kind in _MATCH},
    **{kind: [{"value": "x"}, "x", 1, True] for kind in ("term", "prefix", "wildcard", "regexp", "fuzzy")},
    "range": [{"gte": "x"}],
    "terms_set": [{"terms": ["x"], "minimum_should_match_script": {"source": "1"}}],
    "terms": [["x"], {"index": "none", "id": "1", "path": "url"}],
}
"""{kind of query: a value of each kind that its field takes}"""
OF_EACH_KIND: list[Any] = [{}, ["x"], "x", 1, True, None]

test_what_is_called_rejected_is_rejected = rejected(
    [
        Case("malformed", {"query": {"match": {"title": "x", "contents": "x"}}}),
        Case("malformed", {"query": {"match": {"title": "x", "boost": 2}}}),
        Case("malformed", {"query": {"bool": {"filter": [{"term": {"url": ["x", "y"]}}]}}}),
        Case("malformed", {"query": {"terms": {"url": "x"}}}),
        Case("malformed", {"query": {"range": {}}}),
    ]
)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ONE_FIELD)
def test_just_what_the_node_takes_passes(kind: str, lint_node: LintNode) -> None:
    def agree(inner: dict[str, Any], takes: bool) -> None:
        body = {"query": {kind: inner}}
        why = refusal(lint_node.client, lint_node.index, body)
        assert bool(why) != takes, (body, why)
        found = [each for each in lint(body, lint_node.capabilities) if each.rule == "malformed"]
        assert bool(found) != takes, (body, found)

    assert {kind_of(value) for value in TAKEN[kind]} == set(ONE_FIELD[kind])
    for value in TAKEN[kind]:
        if kind == "terms" and isinstance(value, dict):
            value = {**value, "index": lint_node.index}
        agree({"contents": value}, True)
        agree({"contents": value, "url": value}, False)
        agree({"contents": value, "boost": 2}, kind == "terms")
        agree({"contents": value, "_name": "a"}, kind == "terms")
        agree({"contents": value, "value_type": "default"}, kind == "terms")
    agree({}, False)
    for value in OF_EACH_KIND:
        if kind_of(value) not in ONE_FIELD[kind]:
            agree({"contents": value}, False)
