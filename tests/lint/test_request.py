"""The request under check, with its findings so far, tried on a node."""

from __future__ import annotations

from lint_cases import ALL, VECTOR, Case, Q, bending, feature, knn, nearest, quantized, rejected

from opensearch_neural import queries

REJECTED = [
    Case("field", {"query": {"neural_sparse": {"text": {"query_tokens": Q}}}}),
    Case("field", {"query": {"neural_sparse": {"nowhere": {"query_tokens": Q}}}}),
    Case("field", {"query": knn(field="text")}),
    Case("field", {"query": knn(field="nowhere")}),
    Case("field", {"query": knn(field="several")}),
    Case("field", {"query": nearest("dense")}),
    Case("field", {"query": nearest("nowhere")}),
    Case("field", {"query": {"nested": {"path": "plain", "query": ALL, "ignore_unmapped": True}}}),
    Case("field", {"query": {"nested": {"path": "several", "query": knn(field="several.other")}}}),
    Case("field", quantized(field="text")),
    Case("field", quantized(field="codes")),
    Case("field", queries.dense_rescore(queries.bm25("rainbow"), VECTOR, field="n")),
]

BENDS = [
    Case(
        "field",
        queries.dense_rescore(queries.bm25("rainbow"), VECTOR, field="nowhere"),
        queries.dense_rescore(queries.bm25("rainbow"), VECTOR),
    ),
    Case("field", {"query": feature("text.t1")}, {"query": feature("sparse.t1")}),
    Case("field", {"query": feature("nowhere.t1")}, {"query": feature("sparse.t1")}),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
