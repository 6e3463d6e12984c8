"""Knn: k, vectors, filters, tried on a node."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import NEAR, VECTOR, WIDE, Case, LintNode, bending, knn, nearest, refusal, rejected

from opensearch_neural import queries
from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import multi_vector

REJECTED = [
    *(Case("knn-k", {"query": knn(k=k)}) for k in (0, -1, 10_001, None, "x")),
    Case("knn-k", {"query": knn(k=5, min_score=0.5)}),
    Case("knn-k", {"query": {"knn": {"dense": {"vector": VECTOR}}}}),
    *(
        Case("knn-vector", {"query": knn(vector)})
        for vector in ([1.0, 2.0], [1.0, 2, 3, 4], [0, 0, 0], [], [1, 2, None], "abc", [1e39, 1, 1], [True, 1, 1])
    ),
    Case("knn-vector", {"query": nearest(vector=[1, 2, 3, 4])}),
    Case("knn-vector", {"query": knn([1, 2, 128], field="bytes")}),
    Case("knn-vector", {"query": knn([1, 2, 1.5], field="bytes")}),
    *(Case("knn-vector", {"query": knn(vector, field="bits")}) for vector in ([1] * 16, [1, 0.5], [1, 255])),
    *(
        Case("knn-vector", queries.dense_rescore(queries.bm25("rainbow"), vector, field=field))
        for field, vector in (("dense", [1.0, 2.0]), ("dense", [0.0, 0.0, 0.0]), ("bytes", [1, 2, 1.5]), ("dense", []))
    ),
    Case("knn-filter", {"query": knn(k=10, filter=[WIDE])}),
]

BENDS = [
    Case("knn-k", {"query": knn(k=3)}, {"query": knn(k=10)}),
    Case("knn-k", {"query": knn(k=10), "from": 10}, {"query": knn(k=20), "from": 10}),
    Case("knn-k", {"query": knn(k=3.9), "size": 3}, {"query": knn(k=4), "size": 4}),
    Case(
        "knn-filter",
        {"query": {"bool": {"must": [knn(k=10)], "filter": [NEAR]}}},
        {"query": knn(k=10, filter=NEAR)},
    ),
    Case("knn-filter", {"query": knn(k=10), "post_filter": NEAR}, {"query": knn(k=10, filter=NEAR)}),
    Case("knn-filter", {"query": nearest(), "post_filter": NEAR}, {"query": nearest(filter=NEAR)}),
    Case(
        "knn-filter",
        {"query": {"bool": {"must": [nearest()], "filter": [NEAR]}}},
        {"query": nearest(filter=NEAR)},
    ),
]


@pytest.mark.cluster
def test_a_number_of_a_binary_vector_holds_eight_dimensions(lint_node: LintNode) -> None:
    body = {"query": knn([1, -128], field="bits")}
    assert lint_node.lint(Case("", body)) == [] and not refusal(lint_node.client, lint_node.index, body)


LUCENE = {"type": "knn_vector", "dimension": 2, "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"}}
OF_INDEXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two": (
        {"v": LUCENE, "sparse": {"type": "rank_features"}, "inner": {"type": "nested", "properties": {"v": LUCENE}}},
        {"v": [1, 2], "sparse": {"a": 1.0}, "inner": [{"v": [1, 2]}]},
    ),
    "three": ({"v": {**LUCENE, "dimension": 3}}, {"v": [1, 2, 3]}),
    "words": ({"v": {"type": "keyword"}}, {"v": "x"}),
    "without": ({}, {"text": "rain"}),
}
"""{end of a name: (fields, document) of an index}"""
OF_TWO = knn([1, 2], "v", k=10)
SPARSE = {"neural_sparse": {"sparse": {"query_tokens": {"a": 1.0}}}}


def inner(**how: Any) -> dict[str, Any]:
    return {"nested": {"path": "inner", "query": knn([1, 2], "inner.v", k=10), **how}}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("ends", "query", "rule", "failing"),
    [
        (["two", "without"], OF_TWO, "field", ["without"]),
        (["two", "words"], OF_TWO, "field", ["words"]),
        (["two", "three"], OF_TWO, "knn-vector", ["three"]),
        (["three", "two", "without"], knn([1, 2, 3], "v", k=10), "knn-vector", ["two"]),
        (["two", "without"], SPARSE, "field", ["without"]),
        (["two", "without"], inner(), "field", ["without"]),
        (["two", "without"], knn([1, 2], "v", k=10, ignore_unmapped=True), None, []),
        (["two", "words"], knn([1, 2], "v", k=10, ignore_unmapped=True), "field", ["words"]),
        (["two", "without"], inner(ignore_unmapped=True), None, []),
    ],
)
def test_over_several_indexes_only_the_shards_of_those_that_cannot_answer_fail(
    client: Any, index_name: str, ends: list[str], query: dict[str, Any], rule: str | None, failing: list[str]
) -> None:
    """It was called rejected if the first index could not answer, and fine if the first one could."""
    for end in ends:
        fields, document = OF_INDEXES[end]
        body = {"settings": {"index.knn": True, "number_of_shards": 1}, "mappings": {"properties": fields}}
        client.indices.create(index=f"{index_name}-{end}", body=body)
        client.index(index=f"{index_name}-{end}", id=end, body=document, refresh=True)
    found = lint({"query": query}, index=IndexDescription.of(client, f"{index_name}-*"))
    told = [each for each in found if each.rule == rule]
    assert {each.outcome for each in found} <= {"bends"}
    answer = client.search(index=f"{index_name}-*", body={"query": query})
    refused = {each["index"].removeprefix(f"{index_name}-") for each in answer["_shards"].get("failures", [])}
    assert len(answer["hits"]["hits"]) == 1 and refused >= {*failing}
    if rule is None:
        assert not found and not refused
    else:
        (finding,) = told
        assert all(f"'{index_name}-{end}'" in finding.message for end in failing)
        assert finding.message.endswith("fail, and hits come from the others alone")
        named = {end for each in found for end in ends if f"'{index_name}-{end}'" in each.message}
        assert named == refused


@pytest.mark.cluster
def test_an_index_without_the_field_finds_nothing_if_that_is_allowed(client: Any, index_name: str) -> None:
    """It was called rejected."""
    client.index(index=index_name, id="1", body={"text": "rain"}, refresh=True)
    body = {"query": knn([1, 2], "v", k=10, ignore_unmapped=True)}
    (finding,) = lint(body, index=IndexDescription.of(client, index_name))
    assert (finding.rule, finding.outcome) == ("field", "bends")
    assert client.search(index=index_name, body=body)["hits"]["hits"] == []
    (finding,) = lint({"query": knn([1, 2], "v", k=10)}, index=IndexDescription.of(client, index_name))
    assert (finding.rule, finding.outcome) == ("field", "rejected")
    assert refusal(client, index_name, {"query": knn([1, 2], "v", k=10)})


test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)


def test_a_filter_beside_several_vectors_is_said_once() -> None:
    near = {"range": {"n": {"gt": 100}}}
    body = multi_vector.nearest([1, 2, 3])
    for wrong, path in (
        ({**body, "post_filter": near}, "post_filter"),
        ({"query": {"bool": {"must": [body["query"]], "filter": near}}}, "query.bool.must[0].nested"),
    ):
        (finding,) = lint(wrong)
        assert (finding.rule, finding.outcome, finding.path) == ("knn-filter", "bends", path)
    assert lint(multi_vector.nearest([1, 2, 3], filter=near)) == []
    # Hits of a text are filtered like any others.
    either = {"dis_max": {"queries": [body["query"], {"match": {"text": "rainbow"}}]}}
    assert lint({"query": either, "post_filter": near}) == []
