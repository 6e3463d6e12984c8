from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from opensearch_neural.errors import InputError
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers.exact_sparse import QUERY_BATCH, ExactSparseRetriever

VOCABULARY = ["rain", "bow", "sun", "the"]
TOKENS = st.dictionaries(st.sampled_from(VOCABULARY), st.sampled_from([0.25, 0.5, 1.0, 2.0]))


def vectors(documents: list[dict[str, float]]) -> SparseVectors:
    at = {token: number for number, token in enumerate(VOCABULARY)}
    indptr = np.cumsum([0, *(len(document) for document in documents)]).astype(np.int64)
    tokens = [at[token] for document in documents for token in document]
    weights = [weight for document in documents for weight in document.values()]
    return SparseVectors(indptr, np.array(tokens, np.int32), np.array(weights, np.float32), VOCABULARY)


def words(text: str) -> Mapping[str, float]:
    """A query of "token:weight" words."""
    return {word.partition(":")[0]: float(word.partition(":")[2]) for word in text.split()}


def test_scores_are_the_inner_products_worked_out_by_hand() -> None:
    documents = vectors([{"rain": 2, "bow": 1}, {"rain": 1, "the": 4}, {"sun": 3}])
    run = ExactSparseRetriever(["d1", "d2", "d3"], documents, words).retrieve({"q": "rain:3 bow:2 the:0.5"}, k=10)
    # d1: 3·2 + 2·1 = 8; d2: 3·1 + 0.5·4 = 5; d3 shares no token, so it is not returned.
    assert run == {"q": {"d1": 8.0, "d2": 5.0}}
    assert list(run["q"]) == ["d1", "d2"]


def test_ties_go_by_id_also_at_the_cut() -> None:
    documents = vectors([{"sun": 1}] * 4)
    retriever = ExactSparseRetriever(["b", "d", "a", "c"], documents, words)
    assert list(retriever.retrieve({"q": "sun:1"}, k=2)["q"]) == ["a", "b"]


def test_tokens_outside_the_vocabulary_and_empty_queries_match_nothing() -> None:
    retriever = ExactSparseRetriever(["a"], vectors([{"sun": 1}]), words)
    assert retriever.retrieve({"none": "moon:1", "empty": ""}, k=5) == {"none": {}, "empty": {}}
    assert retriever.retrieve({"both": "moon:1 sun:2"}, k=5) == {"both": {"a": 2.0}}


@given(st.lists(TOKENS, min_size=1, max_size=12), st.lists(TOKENS, max_size=5), st.integers(1, 15))
def test_every_document_is_scored(documents: list[dict[str, float]], queries: list[dict[str, float]], k: int) -> None:
    ids = [f"d{at:02}" for at in range(len(documents))]
    run = ExactSparseRetriever(ids, vectors(documents), words).retrieve(
        {str(at): " ".join(f"{token}:{weight}" for token, weight in query.items()) for at, query in enumerate(queries)},
        k,
    )
    assert len(run) == len(queries)
    for at, query in enumerate(queries):
        scores = {
            id: sum(weight * document.get(token, 0) for token, weight in query.items())
            for id, document in zip(ids, documents, strict=True)
        }
        expected = sorted((-score, id) for id, score in scores.items() if score > 0)[:k]
        assert list(run[str(at)].items()) == [(id, -score) for score, id in expected]


def test_more_queries_than_a_batch_keep_their_own_answers() -> None:
    retriever = ExactSparseRetriever(["a", "b"], vectors([{"sun": 1}, {"rain": 1}]), words)
    queries = {str(at): "sun:1" if at % 2 else "rain:1" for at in range(2 * QUERY_BATCH + 3)}
    run = retriever.retrieve(queries, k=1)
    assert all(list(run[query]) == ["a" if int(query) % 2 else "b"] for query in queries)


def test_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected vectors of 2 documents, got 1"):
        ExactSparseRetriever(["a", "b"], vectors([{"sun": 1}]), words)
    with pytest.raises(InputError, match="not a finite number"):
        ExactSparseRetriever(["a"], vectors([{"sun": float("nan")}]), words)
    assert csr_matrix(vectors([{"sun": 1}]).to_scipy()).shape == (1, 4)
