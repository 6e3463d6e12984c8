"""Search over several vectors a document: the largest inner product decides, whatever else the document has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from opensearch_neural.models.dense.multi_layer import MultiVectors
from opensearch_neural.retrievers.exact_multi_vector import MultiVectorRetriever


def multi(*documents: list[list[float]]) -> MultiVectors:
    values = np.array([vector for document in documents for vector in document], np.float32)
    return MultiVectors(values, np.cumsum([0, *(len(document) for document in documents)]))


def encoder(vector: Sequence[float]):  # type: ignore[no-untyped-def]
    return lambda texts: np.array([vector] * len(texts), np.float32)


def test_a_document_scores_by_its_best_vector() -> None:
    vectors = multi([[1, 0], [0, 5]], [[3, 0], [2, 0]], [[-1, -1], [0, 0]])
    run = MultiVectorRetriever(["both", "east", "west"], vectors, encoder([1, 0])).retrieve({"q": "east"}, 3)
    assert run == {"q": {"east": 3.0, "both": 1.0, "west": 0.0}}
    assert list(run["q"]) == ["east", "both", "west"]


def test_a_document_that_holds_all_the_best_vectors_takes_one_place() -> None:
    vectors = multi([[9.0], [8.0], [7.0]], [[1.0]], [[2.0]])
    run = MultiVectorRetriever(["many", "d1", "d2"], vectors, encoder([1])).retrieve({"q": ""}, 2)
    assert run == {"q": {"many": 9.0, "d2": 2.0}}


def test_equal_scores_at_the_cut_are_decided_by_id() -> None:
    ids = [f"d{at}" for at in reversed(range(8))]
    run = MultiVectorRetriever(ids, multi(*[[[1.0]]] * 8), encoder([1])).retrieve({"q": ""}, 2)
    assert list(run["q"]) == ["d0", "d1"]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_it_finds_what_comparing_with_every_vector_finds(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    k, seed = data.draw(st.integers(1, 15)), data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    # Whole numbers: sums are exact in any order, and equal scores are common.
    values = rng.integers(-4, 5, (sum(counts), 3)).astype(np.float32)
    vectors = MultiVectors(values, np.cumsum([0, *counts]))
    query = rng.integers(-4, 5, 3).astype(np.float32)
    ids = [f"d{at:02}" for at in range(len(counts))]
    run = MultiVectorRetriever(ids, vectors, encoder(query.tolist())).retrieve({"q": ""}, k)["q"]
    exact = {name: float((vectors[at] @ query).max()) for at, name in enumerate(ids)}
    best = sorted(exact, key=lambda name: (-exact[name], name))[:k]
    assert list(run.items()) == [(name, exact[name]) for name in best]


def test_vectors_that_do_not_fit_the_ids_are_named() -> None:
    with pytest.raises(InputError, match="2 documents but the vectors of 1"):
        MultiVectorRetriever(["a", "b"], multi([[1.0]]), encoder([1]))
    with pytest.raises(InputError, match="'a' has no vector"):
        MultiVectorRetriever(["a", "b"], MultiVectors(np.ones((1, 1), np.float32), np.array([0, 0, 1])), encoder([1]))
    with pytest.raises(InputError, match="'a' occurs more than once"):
        MultiVectorRetriever(["a", "a"], multi([[1.0]], [[2.0]]), encoder([1]))


def test_vectors_stack_where_every_document_has_as_many() -> None:
    stacked = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    vectors = MultiVectors.of(stacked)
    assert (vectors.stacked() == stacked).all() and vectors.counts.tolist() == [3, 3]
    with pytest.raises(InputError, match="from 1 to 2 vectors"):
        multi([[1.0]], [[1.0], [2.0]]).stacked()


def test_a_document_of_fewer_vectors_is_filled_with_its_first() -> None:
    vectors = multi([[1.0]], [[2.0], [3.0]])
    assert vectors.filled(2).tolist() == [[[1.0], [1.0]], [[2.0], [3.0]]]
    with pytest.raises(InputError, match="from 1 to 2 vectors, not from 1 to 1"):
        vectors.filled(1)
    with pytest.raises(InputError, match="from 0 to 1 vectors"):
        MultiVectors(np.ones((1, 1), np.float32), np.array([0, 0, 1])).filled(1)
