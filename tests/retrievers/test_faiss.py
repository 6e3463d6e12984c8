from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.faiss import FaissRetriever, import_faiss

IDS = ["east", "far-east", "north", "west"]
VECTORS = np.array([[1, 0], [3, 0], [0, 1], [-1, 0]], dtype=np.float32)


def encoder(vectors: dict[str, list[float]]):  # type: ignore[no-untyped-def]
    def encode(texts: Sequence[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    return encode


def test_inner_product_ranks_by_length_too() -> None:
    encode = encoder({"go east": [2, 1]})
    inner = FaissRetriever(IDS, VECTORS, encode).retrieve({"q": "go east"}, k=4)
    assert inner["q"] == {"far-east": 6.0, "east": 2.0, "north": 1.0, "west": -2.0}
    assert list(inner["q"]) == ["far-east", "east", "north", "west"]


def test_agrees_with_a_matrix_product_on_random_vectors() -> None:
    rng = np.random.default_rng(0)
    documents, queries = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    encode = encoder({str(at): row.tolist() for at, row in enumerate(queries)})
    run = FaissRetriever([f"d{at}" for at in range(50)], documents, encode).retrieve(
        {str(at): str(at) for at in range(5)}, 7
    )
    for at in range(5):
        scores = documents @ queries[at]
        assert list(run[str(at)]) == [f"d{best}" for best in np.argsort(-scores)[:7]]


def test_equal_scores_at_the_cut_are_decided_by_id() -> None:
    """In run files and measures, too, so that what is found does not depend on the order of the corpus."""
    ids = [f"d{at}" for at in reversed(range(9))]
    vectors = np.array([[1, 0]] * 8 + [[2, 0]], np.float32)
    retriever = FaissRetriever(ids, vectors, encoder({"t": [1, 1], "back": [-1, 0]}))
    for k, expected in ((1, ["d0"]), (3, ["d0", "d1", "d2"]), (8, [f"d{at}" for at in range(8)])):
        assert list(retriever.retrieve({"q": "t"}, k)["q"]) == expected
    assert list(retriever.retrieve({"q": "back"}, 2)["q"]) == ["d1", "d2"]


def test_more_hits_than_documents_may_be_asked_for() -> None:
    run = FaissRetriever(IDS, VECTORS, encoder({"t": [1, 1]})).retrieve({"q": "t"}, k=100)
    assert sorted(run["q"]) == IDS


def test_an_empty_index_answers_with_nothing_rather_than_with_position_minus_one() -> None:
    run = FaissRetriever([], np.zeros((0, 2), np.float32), encoder({"t": [1, 1]})).retrieve({"q": "t"}, k=3)
    assert run == {"q": {}}


def test_vectors_that_cannot_be_searched_are_refused() -> None:
    encode = encoder({"nan": [1, float("nan")], "long": [1, 2, 3]})
    with pytest.raises(InputError, match="document vector at position 1 "):
        FaissRetriever(["a", "b"], np.array([[1, 2], [np.inf, 0]], np.float32), encode)
    with pytest.raises(InputError, match="expected 3 document vectors"):
        FaissRetriever(["a", "b", "c"], VECTORS[:2], encode)
    retriever = FaissRetriever(IDS, VECTORS, encode)
    with pytest.raises(InputError, match="query vector at position 0 "):
        retriever.retrieve({"q": "nan"}, k=1)
    with pytest.raises(InputError, match="3 dimensions"):
        retriever.retrieve({"q": "long"}, k=1)


def test_many_queries_are_compared_by_a_matrix_product() -> None:
    """By faiss's own default from 20 on for long, from 128,000 on in 1.15, with which they take twelve times as long."""
    assert import_faiss("this test").cvar.distance_compute_blas_threshold <= 64
