"""Fields that the index does not have, tried on a node: in queries, and beside the query."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import META, RAINBOW, Case, LintNode, bending, outcomes, refusal, rejected

from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription


def query(kind: str, **how: Any) -> dict[str, Any]:
    return {"query": {kind: how}}


def words(kind: str, *fields: str) -> dict[str, Any]:
    return query(kind, query="rainbow", fields=[*fields])


def beside(**members: Any) -> dict[str, Any]:
    return {"query": RAINBOW, **members}


def counted(**aggregation: Any) -> dict[str, Any]:
    return beside(size=0, aggs={"counted": aggregation})


def alike(**how: Any) -> dict[str, Any]:
    return query("more_like_this", like="rainbow", min_term_freq=1, min_doc_freq=1, **how)


def scored_if(field: str) -> dict[str, Any]:
    return query("function_score", query=RAINBOW, functions=[{"filter": {"term": {field: "u1"}}, "weight": 9}])


REJECTED = [
    Case("field", beside(sort="urll")),
    Case("field", beside(sort=["_score", {"urll": "desc"}])),
    Case("field", beside(sort={"n": "asc", "urll": {"missing": "_last"}})),
    Case("field", beside(sort="n:desc")),
    Case("field", beside(collapse={"field": "urll"})),
    Case("field", counted(significant_text={"field": "txt"})),
]

BENDS = [
    Case("field", query("match", txt="rainbow"), {"query": RAINBOW}),
    Case("field", query("match", **{"te*": "rainbow"}), {"query": RAINBOW}),
    Case("field", query("match_phrase_prefix", txt="rainbow"), query("match_phrase_prefix", text="rainbow")),
    Case("field", query("terms", urll=["u1"]), query("terms", url=["u1"])),
    Case("field", query("range", m={"gte": 0}), query("range", n={"gte": 0})),
    Case("field", query("exists", field="urll"), query("exists", field="url")),
    Case("field", query("exists", field="urll*"), query("exists", field="ur*")),
    Case("field", query("intervals", txt={"match": {"query": "rainbow"}}), {"query": RAINBOW}),
    Case("field", query("bool", must=[RAINBOW], filter=[{"term": {"urll": "u1"}}]), {"query": RAINBOW}),
    Case(
        "field",
        query("bool", must=[RAINBOW], mustNot=[{"range": {"m": {"lt": 9}}}]),
        query("bool", must=[RAINBOW], must_not=[{"range": {"n": {"lt": 9}}}]),
    ),
    *[
        Case("field", words(kind, wrong), words(kind, right))
        for kind in ("multi_match", "query_string", "simple_query_string")
        for wrong, right in (("txt^2", "text^2"), ("tex?", "text"), ("txt*", "te*"))
    ],
    Case("field", query("multi_match", query="rainbow", fields="txt"), words("multi_match", "text")),
    Case("field", words("multi_match", "text", "contens^9"), words("multi_match", "text", "contents^9")),
    *[
        Case("field", query("query_string", query="rainbow", default_field=wrong), {"query": RAINBOW})
        for wrong in ("txt", "text^2", "txt*")
    ],
    Case("field", alike(fields=["txt"]), alike(fields=["text"])),
    Case("field", scored_if("urll"), scored_if("url")),
    Case("field", beside(highlight={"fields": {"txt": {}}}), beside(highlight={"fields": {"te*": {}}})),
    Case("field", beside(highlight={"fields": [{"txt*": {}}]}), beside(highlight={"fields": [{"text": {}}]})),
    Case("field", beside(docvalue_fields=["urll"]), beside(docvalue_fields=["ur*"])),
    Case("field", beside(fields=[{"field": "urll"}]), beside(fields=[{"field": "url"}])),
    Case("field", counted(terms={"field": "urll"}), counted(terms={"field": "url"})),
    Case("field", counted(matrix_stats={"fields": ["m"]}), counted(matrix_stats={"fields": ["n"]})),
    Case("field", counted(filter={"term": {"urll": "u1"}}), counted(filter={"term": {"url": "u1"}})),
    Case(
        "field",
        counted(filters={"filters": {"all": {"bool": {"must": [RAINBOW, {"term": {"urll": "u1"}}]}}}}),
        counted(filters={"filters": {"all": {"bool": {"must": [RAINBOW, {"term": {"url": "u1"}}]}}}}),
    ),
    Case("field", counted(top_hits={"fields": ["urll"]}), counted(top_hits={"fields": ["ur*"]})),
    Case(
        "field",
        counted(composite={"sources": [{"of": {"terms": {"field": "urll"}}}]}),
        counted(composite={"sources": [{"of": {"terms": {"field": "url"}}}]}),
    ),
    Case(
        "field",
        counted(terms={"field": "url"}, aggs={"most": {"max": {"field": "m"}}}),
        counted(terms={"field": "url"}, aggs={"most": {"max": {"field": "n"}}}),
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_another_answer_than_its_remedy = bending(BENDS)

FINE: list[dict[str, Any]] = [
    query("ids", values=["d001"]),
    query("term", _id="d001"),
    query("terms", url=["u1"], boost=2),
    query("query_string", query="rainbow"),
    words("multi_match", "*"),
    beside(sort=["_doc", {"_geo_distance": {"place": "1,1", "ignore_unmapped": True}}]),
    beside(sort=[{"urll": {"order": "asc", "unmapped_type": "long"}}, "_score"]),
    counted(terms={"field": "url", "order": {"_key": "asc"}}, meta={"field": "nothing"}),
    counted(top_hits={"sort": [{"n": "asc"}], "highlight": {"fields": {"text": {}}}, "docvalue_fields": ["url"]}),
    counted(top_hits={"docvalue_fields": [{"field": "ur*"}], "fields": ["te*", {"field": "n"}]}),
    counted(
        terms={"field": "url"},
        aggs={
            "sales": {"sum": {"field": "n"}},
            "twice": {"bucket_script": {"buckets_path": {"field": "sales"}, "script": "params.field * 2"}},
        },
    ),
    counted(composite={"sources": [{"field": {"terms": {"field": "url"}}}], "after": {"field": "u1"}}),
    {
        "query": {"term": {"day": "x"}},
        "derived": {"day": {"type": "keyword", "script": {"source": "emit('x')"}}},
        "aggs": {"days": {"terms": {"field": "day"}}},
    },
]


@pytest.mark.cluster
@pytest.mark.parametrize("body", FINE, ids=str)
def test_what_is_there_and_what_is_no_field_passes(lint_node: LintNode, body: dict[str, Any]) -> None:
    assert not lint(body, lint_node.capabilities, META, index=lint_node.facts)
    assert not refusal(lint_node.client, lint_node.index, body)


def test_a_finding_names_the_place_and_the_field_that_was_meant() -> None:
    index = IndexDescription(fields={"title": {"type": "text"}, "contents": {"type": "text"}})
    (finding,) = lint(words("multi_match", "titel^2", "contents"), index=index)
    assert (finding.path, finding.remedy) == ("query.multi_match.fields[0]", "write title")
    assert finding.message == "the field 'titel' does not exist in this index: nothing is found there"
    (finding,) = lint(words("query_string", "zz*"), index=index)
    assert finding.message == "no field matches 'zz*': nothing is found there"
    assert finding.remedy == "GET INDEX/_mapping lists the index's fields"
    for kind, filters, path in (
        ("filters", {"some": {"term": {"titel": "x"}}}, "filters.some.term.titel"),
        ("filters", [{"term": {"titel": "x"}}], "filters[0].term.titel"),
        ("adjacency_matrix", {"some": {"term": {"titel": "x"}}}, "filters.some.term.titel"),
    ):
        (finding,) = lint({"aggs": {"counted": {kind: {"filters": filters}}}}, index=index)
        assert finding.path == f"aggs.counted.{kind}.{path}"


def test_fields_that_need_no_mapping_are_not_missed() -> None:
    fields = {"flat": {"type": "flat_object"}, "other": {"type": "alias", "path": "flat"}, "say": {"type": "text"}}
    index = IndexDescription(fields=fields)
    for name in ("flat.any", "flat.*", "other.any", "say._2gram", "_index"):
        assert outcomes(words("multi_match", name), index=index) == {}
    assert outcomes(words("multi_match", "say.any"), index=index) == {"field": "bends"}
    index = IndexDescription(fields={"my_join": {"type": "join"}, "text": {"type": "text"}})
    assert outcomes(counted(terms={"field": "my_join#question"}), index=index) == {}
    for wrong in ("text#question", "join#question"):
        assert outcomes(counted(terms={"field": wrong}), index=index) == {"field": "bends"}
    assert outcomes(words("multi_match", "any")) == {}  # fields are not known


@pytest.mark.cluster
def test_fields_are_those_of_all_indexes_that_a_name_stands_for(client, index_name: str) -> None:
    script = {"source": "emit('{}')"}
    mappings: list[dict[str, Any]] = [
        {"properties": {"a": {"type": "keyword"}, "both": {"type": "keyword"}}},
        {
            "properties": {"b": {"type": "text"}, "both": {"type": "text"}},
            "derived": {"made": {"type": "object", "script": script}},
        },
    ]
    for number, mapping in enumerate(mappings):
        client.indices.create(index=f"{index_name}-{number}", body={"mappings": mapping})
    index = IndexDescription.of(client, f"{index_name}-*")
    assert outcomes(words("multi_match", "a", "b", "made.any"), index=index) == {}
    assert index.fields is not None and index.fields["both"] == {"type": "keyword"}


@pytest.mark.cluster
def test_the_ids_of_the_parents_of_a_join_are_a_field(client, index_name: str) -> None:
    join = {"type": "join", "relations": {"question": "answer"}}
    client.indices.create(index=index_name, body={"mappings": {"properties": {"my_join": join}}})
    for id, relation in (("q", {"name": "question"}), ("a", {"name": "answer", "parent": "q"})):
        client.index(index=index_name, id=id, routing="q", body={"my_join": relation}, refresh=True)
    body = {"size": 0, "aggs": {"asked": {"terms": {"field": "my_join#question"}}}}
    assert lint(body, index=IndexDescription.of(client, index_name)) == []
    (bucket,) = client.search(index=index_name, body=body)["aggregations"]["asked"]["buckets"]
    assert (bucket["key"], bucket["doc_count"]) == ("q", 2)
