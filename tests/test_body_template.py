"""Production's own query: whatever a user typed, the body stays one of JSON and holds it as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.errors import InputError

PRODUCTION = """{
  "from": 20, "size": {{size}},
  "query": {"bool": {"must": {"multi_match": {"query": "{{query}}", "fields": ["title^3", "text"]}},
                     "should": [{"match_phrase": {"title": {{ query }}}}, {"term": {"kind": "about {{query}}"}}]}}
}"""


@given(st.text())
def test_any_query_stands_in_the_body_as_it_was_typed(query: str) -> None:
    body = BodyTemplate.parse(PRODUCTION).body(query, 7)
    clause = body["query"]["bool"]
    assert clause["must"]["multi_match"] == {"query": query, "fields": ["title^3", "text"]}
    assert clause["should"] == [{"match_phrase": {"title": query}}, {"term": {"kind": f"about {query}"}}]
    assert (body["size"], body["from"]) == (7, 0)
    assert json.loads(json.dumps(body)) == body


def test_a_query_that_looks_like_a_placeholder_is_not_filled_again() -> None:
    assert BodyTemplate.parse('{"query": {"match": {"text": "{{query}}"}}}').body("{{size}}")["query"] == {
        "match": {"text": "{{size}}"}
    }


@pytest.mark.parametrize("value", ['"{{{query}}}"', "{{{query}}}", '"{{{ query }}}"'])
def test_three_braces_of_mustache_are_a_placeholder_and_leave_no_brace(value: str) -> None:
    clause = BodyTemplate.parse('{"query": {"match": {"text": %s}}}' % value).body("red shoes")["query"]  # noqa: UP031
    assert clause == {"match": {"text": "red shoes"}}


def test_a_template_without_a_page_gets_the_one_asked_for() -> None:
    assert BodyTemplate.parse('{"query": {"match": {"text": "{{query}}"}}}').body("x", 5, 10) == {
        "query": {"match": {"text": "x"}},
        "size": 5,
        "from": 10,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": {"match": {"text": "rainbow"}}}', "{{query}} is missing"),
        ('{"query": {"match": {"{{lang}}": "{{query}}"}}}', "{{lang}} is not a known placeholder"),
        ('{\n"query": {{query}},\n}', "line 3: not valid JSON"),
        ('["{{query}}"]', "expected a request body"),
        ("", "line 1: not valid JSON"),
        ('{"size": ' + "1" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_template_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "production.json"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        BodyTemplate.read(path)
    assert str(path) in raised.value.message and message in raised.value.message


def test_a_template_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"no-such\.json cannot be read"):
        BodyTemplate.read("no-such.json")


def test_a_search_with_it_finds_what_the_query_asks_for_in_an_index_of_someone_elses(
    client: Any, index_name: str
) -> None:
    client.index(index=index_name, id="1", body={"body": 'a "double" rainbow'}, refresh=True)
    client.index(index=index_name, id="2", body={"body": "a cloud"}, refresh=True)
    template = BodyTemplate.parse('{"query": {"match": {"body": "{{query}}"}}}')
    answer = client.search(index=index_name, body=template.body('"double" \\ rain"bow\n'))
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["1"]
