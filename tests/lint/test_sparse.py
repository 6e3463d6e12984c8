"""Neural_sparse and rank_feature, tried on a node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lint_cases import Case, bending, feature, rejected, sparse

from opensearch_neural import queries
from opensearch_neural.index.record import DenseMeta, IndexMeta, SparseMeta
from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import Body

REJECTED = [
    Case("malformed", {"query": {"rank_feature": {"linear": {}}}}),
]

BENDS = [
    Case("empty-query", {"query": sparse({})}, {"query": sparse()}),
    Case("dot-token", {"query": feature("sparse.u.s")}, {"query": sparse({"u.s": 1.0})}),
    Case("dot-token", {"query": feature("sparse..")}, queries.neural_sparse({".": 1.0}, plugin=False)),
    Case("not-linear", {"query": {"rank_feature": {"field": "sparse.t1"}}}, {"query": feature("sparse.t1")}),
]


def own_feature(name: str, **options: Any) -> Body:
    return {"query": {"bool": {"should": [{"rank_feature": {"field": name, "boost": 0.5, **options}}]}}}


OWN = {
    "popularity": {"type": "rank_feature"},
    "stats.views": {"type": "rank_feature"},
    "topics": {"type": "rank_features"},
}


@pytest.mark.parametrize("index", [IndexDescription(), IndexDescription(fields=OWN)])
def test_the_popularity_of_a_document_may_saturate(index: IndexDescription) -> None:
    """A field of one number a document has no tokens: the function that OpenSearch takes by itself is what is meant."""
    assert lint(own_feature("popularity"), index=index) == []
    doubts = lint(own_feature("stats.views"), index=index)
    assert [(each.rule, each.outcome) for each in doubts] == (
        [("not-linear", "doubtful")] if index.fields is None else []
    )
    assert lint(own_feature("stats.views", log={"scaling_factor": 1}), index=index) == []


def test_a_token_may_not_saturate() -> None:
    for name, index in (("sparse.rain", IndexDescription()), ("topics.rain", IndexDescription(fields=OWN))):
        assert [(each.rule, each.outcome) for each in lint(own_feature(name), index=index)] == [("not-linear", "bends")]


test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)


SEISMIC = IndexDescription(fields={"v": {"type": "sparse_vector"}})


def seismic(*tokens: str) -> list[tuple[str, str]]:
    body = {"query": {"neural_sparse": {"v": {"query_tokens": dict.fromkeys(tokens, 1.0)}}}}
    return [(finding.rule, finding.outcome) for finding in lint(body, index=SEISMIC)]


@pytest.mark.parametrize("first", ["sparse_vector", "rank_features", "keyword"])
def test_indexes_of_an_alias_that_hold_no_sparse_field_are_named(first: str) -> None:
    """Before, a sparse_vector in the first index hid what the others have."""
    several = {
        name: {"v": {"type": type_}}
        for name, type_ in {"first": first, "two": "sparse_vector", "other": "keyword"}.items()
    }
    index = IndexDescription(fields=several["first"], several=several)
    body = {"query": {"neural_sparse": {"v": {"query_tokens": {"5": 1.0}}}}}
    (finding,) = [found for found in lint(body, index=index) if found.rule == "field"]
    assert finding.outcome == "bends" and "other" in finding.message
    assert ("first" in finding.message.partition(":")[2]) == (first == "keyword")
    # A rank_feature clause reads no sparse_vector.
    clause = {"query": {"rank_feature": {"field": "v.5", "linear": {}}}}
    of_clause = [found.message for found in lint(clause, index=index) if found.rule == "field"]
    wrong = f"the field 'v' is of type {first}, and the query needs rank_features"
    assert of_clause == ([] if first == "rank_features" else [wrong])


def test_tokens_of_a_sparse_vector_field_are_ids() -> None:
    assert seismic("0", "1000", "32767") == []
    for token in ("rain", "-1", "1.5", "", "2147483648", "²", "++5", "1" * 5000):
        assert seismic(token) == [("seismic-token", "rejected")], token


@given(st.integers(0, 32_767), st.integers(1, 65_535))
def test_ids_that_are_equal_modulo_32768_collide(ident: int, times: int) -> None:
    far = ident + times * 32_768
    assert seismic(str(ident), str(far)) == [("seismic-collision", "bends")]
    assert seismic(str(far)) == [("seismic-collision", "doubtful")]
    assert seismic(str(ident), str(ident ^ 1)) == []


def test_a_rank_features_field_has_no_ids() -> None:
    meta = IndexMeta(sparse=SparseMeta("m", "h", "q"), dense=DenseMeta("m", "h", 3, "byte", True))
    body = queries.neural_sparse({"70000": 1.0, "4464": 1.0})
    assert lint(body, meta=meta) == []
