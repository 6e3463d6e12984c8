"""Highlights that mark nothing, tried on a node."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import (
    ALL,
    META,
    RAINBOW,
    Case,
    LintNode,
    bending,
    feature,
    hybrid,
    knn,
    outcomes,
    rescore,
    shown,
    sparse,
)

from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription


def marking(query: Any, *fields: str, **how: Any) -> dict[str, Any]:
    return {"query": query, "highlight": {"fields": {name: {} for name in fields or ("text",)}, **how}}


OF_WORDS = {"highlight_query": RAINBOW}
CONTENTS = {"match": {"contents": "rainbow"}}
FIRST = {"window_size": 20, "query": {"rescore_query": RAINBOW}}

BENDS = [
    *[
        Case("highlight", marking(query), marking(query, **OF_WORDS))
        for query in (
            sparse(),
            feature("sparse.t1"),
            knn(),
            ALL,
            CONTENTS,
            {"bool": {"must": [sparse()], "must_not": [{"match": {"text": "zebra"}}]}},
            {"bool": {"must": [sparse()], "filter": [{"exists": {"field": "text"}}]}},
        )
    ],
    Case("highlight", marking(sparse(), "*"), marking(sparse(), **OF_WORDS)),
    Case("highlight", marking(CONTENTS, "title", "te*"), marking(CONTENTS, "title", "te*", require_field_match=False)),
    Case("highlight", {**marking(sparse()), "rescore": FIRST}, {**marking(sparse(), **OF_WORDS), "rescore": FIRST}),
    Case("highlight", {**marking(ALL), "post_filter": RAINBOW}, {**marking(RAINBOW), "post_filter": RAINBOW}),
    Case("highlight", marking(RAINBOW, highlight_query=sparse()), marking(RAINBOW)),
]

test_what_is_said_to_bend_gives_another_answer_than_its_remedy = bending(BENDS)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "body",
    [
        marking(RAINBOW, "title", "text"),
        marking(RAINBOW, "te*"),
        marking({"multi_match": {"query": "rainbow", "fields": ["te*"]}}),
        marking({"multi_match": {"query": "rainbow", "fields": ["te*"]}}, "t*"),
        marking({"query_string": {"query": "rainbow"}}),
        marking({"bool": {"must": [sparse()], "filter": [RAINBOW]}}),
        marking({"constant_score": {"filter": RAINBOW}}),
        {**marking(RAINBOW), "rescore": rescore()},
        {"query": sparse(), "highlight": {"fields": [{"text": {"highlight_query": RAINBOW}}]}},
        {
            **marking(hybrid(RAINBOW)),
            "search_pipeline": {"phase_results_processors": [{"normalization-processor": {}}]},
        },
    ],
    ids=str,
)
def test_a_highlight_that_marks_words_passes(lint_node: LintNode, body: dict[str, Any]) -> None:
    assert not lint(body, lint_node.capabilities, META, index=lint_node.facts)
    hits, _ = shown(lint_node.client, lint_node.index, body)
    assert hits[0][2]["text"]


def test_an_alias_may_stand_for_the_field_that_is_searched() -> None:
    body = marking({"match": {"body": "rainbow"}})
    assert outcomes(body) == {"highlight": "doubtful"}
    assert outcomes(marking(sparse())) == {"highlight": "bends"}
    fields = {"text": {"type": "text"}, "body": {"type": "alias", "path": "text"}}
    assert outcomes(body, index=IndexDescription(fields=fields)) == {}
    assert outcomes(body, index=IndexDescription(fields={**fields, "body": {"type": "text"}})) == {"highlight": "bends"}
    body = marking({"multi_match": {"query": "rainbow", "fields": ["b*"]}})
    assert outcomes(body, index=IndexDescription(fields=fields)) == {}
    assert outcomes(body, index=IndexDescription(fields={"text": fields["text"], "bod": {"type": "text"}})) == {
        "highlight": "bends"
    }


@pytest.mark.cluster
def test_words_that_are_searched_in_an_alias_are_marked_in_its_field(client: Any, index_name: str) -> None:
    properties = {"text": {"type": "text"}, "body": {"type": "alias", "path": "text"}}
    client.indices.create(index=index_name, body={"mappings": {"properties": properties}})
    client.index(index=index_name, body={"text": "rainbow"}, refresh=True)
    body = marking({"multi_match": {"query": "rainbow", "fields": ["b*"]}})
    assert not lint(body, index=IndexDescription.of(client, index_name))
    assert shown(client, index_name, body)[0][0][2]["text"]


def test_what_is_shown_without_marks_or_marked_by_a_plugin_passes() -> None:
    assert outcomes(marking(sparse(), no_match_size=0, type="plain")) == {"highlight": "bends"}
    for options in ({"no_match_size": 150}, {"type": "semantic"}):
        assert outcomes(marking(sparse(), **options)) == {}
        assert outcomes({"query": sparse(), "highlight": {"fields": {"text": options}}}) == {}
