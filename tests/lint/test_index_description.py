"""What is known of the index, and what is not."""

from __future__ import annotations

from dataclasses import replace

from lint_cases import outcomes

from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.index.record import DenseMeta, IndexMeta, SparseMeta
from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import multi_vector

META = IndexMeta(sparse=SparseMeta("m", "h", "q"), dense=DenseMeta("m", "h", 3, "byte", True))
PARTS = {"hybrid": {"queries": [{"match_all": {}}, {"match_none": {}}]}}


def test_nothing_is_said_of_fields_that_are_not_known() -> None:
    assert lint(queries.knn([1.0, 2.0, 3.0, 4.0])) == []
    assert lint({"query": {"neural_sparse": {"any": {"query_tokens": {"a": 1.0}}}}}) == []
    assert lint({"query": {"rank_feature": {"field": "features.u.s", "linear": {}}}}) == []


def test_a_text_is_analyzed_as_the_mapping_of_its_field_says() -> None:
    texts = {
        "tag": {"type": "keyword"},
        "number": {"type": "long"},
        "plain": {"type": "text"},
        "text": {"type": "text", "analyzer": "english", "search_analyzer": "whitespace"},
        "title": {"type": "text", "analyzer": "english"},
    }
    index = IndexDescription(fields=texts, meta=META)

    def of(*fields: str, text: str) -> dict[str, str]:
        query = (
            {"match": {fields[0]: text}} if len(fields) == 1 else {"multi_match": {"query": text, "fields": [*fields]}}
        )
        return outcomes({"query": query}, index=index)

    assert of("title", text="to be") == of("title^2", "title", text="to be") == {"empty-query": "bends"}
    for name in ("tag", "number", "plain", "text"):
        assert of(name, text="to be") == of("title", name, text="to be") == {}
    assert of("tag", text="?!") == {}
    assert (
        of("plain", text="?!") == of("text", text="?!") == of("title", "text", text="?!") == {"empty-query": "doubtful"}
    )
    long = "word " * 2000
    assert of("title", text=long) == {"too-many-clauses": "rejected"}
    assert of("plain", text=long) == {"too-many-clauses": "doubtful"}
    assert of("tag", text=long) == {}


def test_the_record_of_an_index_is_enough_for_its_vectors() -> None:
    assert outcomes(queries.knn([1, 2, 3, 4]), meta=META) == {"knn-vector": "rejected"}
    assert outcomes(queries.knn([1, 2, 1.5]), meta=META) == {"knn-vector": "rejected"}
    assert outcomes(queries.knn([1, 2, 3]), meta=META) == {}
    assert outcomes(queries.knn([1, 2, 3]), meta=IndexMeta(sparse=META.sparse)) == {"field": "rejected"}
    assert outcomes(queries.neural_sparse({"a": 1.0}), meta=IndexMeta(dense=META.dense)) == {"field": "rejected"}


def test_the_record_of_an_index_is_enough_for_several_vectors() -> None:
    assert META.dense is not None
    several = replace(META, dense=replace(META.dense, vectors=2))

    nearest = multi_vector.nearest
    assert outcomes(nearest([1, 2, 3]), meta=several) == {}
    for wrong in ([1, 2, 3, 4], [1, 2, 1.5], [0, 0, 0]):
        (finding,) = lint(nearest(wrong), meta=several)
        assert (finding.rule, finding.path) == ("knn-vector", "query.nested.query.knn['dense.vector'].vector")
    # Fields that the index has not: another of the nested documents, and those of several vectors where there is one.
    other = nearest([1, 2, 3])
    other["query"]["nested"]["query"] = queries.knn([1, 2, 3], field="dense.other")["query"]
    (finding,) = lint(other, meta=several)
    assert (finding.rule, finding.outcome) == (
        "field",
        "rejected",
    ) and "'dense.other' does not exist" in finding.message
    (whole,) = lint(queries.knn([1, 2, 3]), meta=several)
    assert (whole.rule, whole.outcome) == ("field", "rejected") and "is of type nested" in whole.message
    # Taken, and nothing is found.
    (bare,) = lint(queries.knn([1, 2, 3], field=multi_vector.FIELD), meta=several)
    assert (bare.rule, bare.outcome) == ("nested-field", "bends")
    assert outcomes(nearest([1, 2, 3]), meta=META) == {"field": "rejected"}
    assert outcomes(nearest([1, 2, 3, 4])) == {}


def test_limits_are_those_of_the_cluster_and_the_index() -> None:
    tokens = {f"t{number}": 1.0 for number in range(50)}
    assert outcomes(queries.neural_sparse(tokens)) == {}
    findings = lint(queries.neural_sparse(tokens), Capabilities(max_clause_count=40))
    assert [(finding.rule, finding.outcome) for finding in findings] == [("too-many-clauses", "rejected")]
    assert "at least 50 clauses, and this cluster allows 40" in findings[0].message
    small = IndexDescription(max_result_window=100, max_rescore_window=100)
    assert outcomes(queries.bm25("rain", size=101), index=small) == {"page": "rejected"}
    assert outcomes(queries.high_idf_first({"a": 9.0, "b": 1.0}, window=101), index=small) == {
        "rescore-window": "rejected"
    }


def test_a_pipeline_by_name_is_looked_into_where_it_is_known() -> None:
    weights = {"combination": {"technique": "arithmetic_mean", "parameters": {"weights": [0.9, 0.9]}}}
    pipeline = {"phase_results_processors": [{"normalization-processor": weights}]}
    body = {"query": PARTS, "search_pipeline": "fused"}
    assert outcomes(body) == {}
    assert outcomes(body, index=IndexDescription(pipelines={"fused": pipeline})) == {"fusion-weights": "rejected"}
    default = IndexDescription(pipelines={"fused": pipeline}, default_pipeline="fused")
    assert outcomes({"query": PARTS}, index=default) == {"fusion-weights": "rejected"}
    assert outcomes({"query": PARTS, "search_pipeline": "_none"}, index=default) == {"hybrid-without-pipeline": "bends"}
