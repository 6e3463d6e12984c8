"""Knn: k, vectors, filters, tried on a node."""

from __future__ import annotations

import pytest
from lint_cases import NEAR, VECTOR, WIDE, Case, LintNode, bending, knn, nearest, refusal, rejected

from opensearch_neural import queries
from opensearch_neural.lint import lint
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
