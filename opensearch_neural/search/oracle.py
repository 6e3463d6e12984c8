"""Predicts the `_score` of a sparse query from the documents' weights, with Lucene's arithmetic.

    stored = StoredWeights.of(vectors.rows())            # of SparseVectors, or any {token: weight} of documents
    stored.scores({"rainbow": 7.2, "cause": 3.1})        # (documents,), 0 where no token matches
    predict(body, stored)                                # the same for a whole body, its second phase included

Lucene's arithmetic, step by step (FeatureField, FeatureQuery and the disjunction scorers):

1. A `rank_features` weight is stored as the upper 17 bits of its float32; the lower 15 are cut off. With 9 significant
   bits, the stored weight is less than the given one by a share of at most 2⁻⁸, and never greater.
2. A clause's weight is a float32. Boosts around it (of the query, of a bool) are multiplied onto it in float32, one
   after the other.
3. A clause scores weight × stored, rounded to float32.
4. A disjunction adds its clauses' scores in double and rounds the sum to float32. A double has 29 bits more, so the order
   of the clauses does not matter.
5. A rescore with score_mode `total` rounds each of its two products, and their sum, to float32.

The plugin's `neural_sparse` and the plugin-free `bool` of `rank_feature` clauses both become that disjunction, so one
prediction serves both. tests/search/test_oracle.py checks it against a cluster: equal within 1e-5 for all documents of a
real set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opensearch_neural.errors import InputError
from opensearch_neural.lint.values import as_list
from opensearch_neural.queries import forward_index
from opensearch_neural.queries.body_parts import Clause, token_of
from opensearch_neural.queries.look_up_table import SCRIPT, PackedTable

Float32s = NDArray[np.float32]
Known = Callable[[Clause], Float32s] | None

SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)
_KEPT = np.uint32(0xFFFF_8000)


def stored(weights: ArrayLike) -> Float32s:
    """The weights that `rank_features` stores, any shape: float32 with the lower 15 bits cut off.

    Raises InputError for a weight that OpenSearch refuses: not finite, or below the least normal float32.
    """
    with np.errstate(over="ignore"):  # weights that are too large become infinite and are refused
        rounded = np.asarray(weights, dtype=np.float64).astype(np.float32)
    if rounded.size and not (np.isfinite(rounded).all() and rounded.min() >= SMALLEST_WEIGHT):
        wrong = rounded[~(np.isfinite(rounded) & (rounded >= SMALLEST_WEIGHT))].flat[0]
        raise InputError(
            f"OpenSearch refuses a document whose weight is {wrong!s}",
            f"weights are finite and at least {SMALLEST_WEIGHT:.4g}; leave the token out",
        )
    return (np.ascontiguousarray(rounded).view(np.uint32) & _KEPT).view(np.float32).reshape(np.shape(rounded))


@dataclass(frozen=True)
class StoredWeights:
    """The weights of documents as the index holds them, by token."""

    documents: int
    """Their number."""
    postings: Mapping[str, tuple[NDArray[np.int64], Float32s]]
    """{token: (document numbers (n,), stored weights (n,))}"""
    codes: NDArray[np.uint8] | None = None
    """(documents, M); needed to predict quantized scores."""
    rows: StoredWeights | None = None
    """The weights in the rows of the forward index; None if the postings are not pruned."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, float]], codes: NDArray[np.uint8] | None = None) -> StoredWeights:
        """Build from documents as {token: weight}; a document's number is its position in `rows` and in `codes`.

        Raises InputError as `stored` does.
        """
        numbers: dict[str, list[int]] = {}
        weights: dict[str, list[float]] = {}
        documents = 0
        for number, row in enumerate(rows):
            documents = number + 1
            for token, weight in row.items():
                numbers.setdefault(token, []).append(number)
                weights.setdefault(token, []).append(weight)
        postings = {token: (np.array(numbers[token], np.int64), stored(weights[token])) for token in numbers}
        return cls(documents, postings, codes)

    @classmethod
    def of_pruned(
        cls,
        rows: Iterable[Mapping[str, float]],
        postings: Iterable[Mapping[str, float]],
        codes: NDArray[np.uint8] | None = None,
    ) -> StoredWeights:
        """The same for an index with pruned postings. rows: the whole vectors; postings: the searched part of each."""
        return replace(cls.of(postings, codes), rows=cls.of(rows))

    def scores(self, tokens: Mapping[str, float], *, boosts: Iterable[float] = ()) -> Float32s:
        """(documents,) scores of a query {token: weight}; 0 where a document holds none of its tokens.

        boosts: of the enclosing queries, outermost first, as in {"bool": {"boost": 2.0, "should": …}}.
        """
        around = _product(boosts)
        total = np.zeros(self.documents)
        for token, weight in tokens.items():
            if (posting := self.postings.get(token)) is not None:
                documents, values = posting
                total[documents] += around * np.float32(weight) * values
        return total.astype(np.float32)

    def matches(self, tokens: Iterable[str]) -> NDArray[np.bool_]:
        """(documents,) whether a document holds at least one of the tokens."""
        matched = np.zeros(self.documents, dtype=bool)
        for token in tokens:
            if (posting := self.postings.get(token)) is not None:
                matched[posting[0]] = True
        return matched


def rescored(
    first: Float32s, second: Float32s, *, query_weight: float = 1.0, rescore_query_weight: float = 1.0
) -> Float32s:
    """(documents,) scores after a rescore with score_mode `total`; `second` is 0 for documents without a match."""
    return first * np.float32(query_weight) + second * np.float32(rescore_query_weight)


def predict(body: Mapping[str, Any], documents: StoredWeights, *, known: Known = None) -> dict[int, float]:
    """{document number: score} of every hit of a body, in document order.

    The body is one of `neural_sparse` or `high_idf_first` or, if the documents have codes, of `cascade` or the
    `quantized_rescore` of such a body. Filters and rescore windows are ignored: every document is taken to pass the filter
    and to be in the window. known: gives the scores (documents,) of any other query, with the boosts around it, 0 for
    documents that it does not match. Raises InputError for other queries if `known` is None.
    """
    matched, scores = _score(body.get("query", {}), documents, (), known)
    rescore = body.get("rescore")
    for each in rescore if isinstance(rescore, list) else [rescore] if rescore else []:
        how = each["query"]
        if how.get("score_mode", "total") != "total":
            raise InputError(f"score_mode {how['score_mode']!r} is not predicted", "only total is")
        _, second = _score(how["rescore_query"], documents, (), known)
        weights = {name: how[name] for name in ("query_weight", "rescore_query_weight") if name in how}
        scores = rescored(scores, second, **weights)
    return {int(number): float(scores[number]) for number in np.flatnonzero(matched)}


def _score(
    query: Mapping[str, Any], documents: StoredWeights, boosts: tuple[float, ...], known: Known
) -> tuple[NDArray[np.bool_], Float32s]:
    """(which documents match a query, their scores), each (documents,)"""
    ((kind, inner),) = query.items() if len(query) == 1 else [("", {})]
    if kind == "match_none":
        return np.zeros(documents.documents, dtype=bool), np.zeros(documents.documents, np.float32)
    if kind == "neural_sparse":
        ((_, options),) = inner.items()
        if (tokens := options.get("query_tokens")) is None:
            raise InputError("the score of a neural_sparse query by query_text is not predicted", "give query_tokens")
        return documents.matches(tokens), documents.scores(tokens, boosts=(*boosts, options.get("boost", 1.0)))
    if kind == "rank_feature" and "linear" in inner:
        tokens = {token_of(inner): inner.get("boost", 1.0)}
        return documents.matches(tokens), documents.scores(tokens, boosts=boosts)
    if kind == "script_score" and inner["script"].get("source") == forward_index.SCRIPT:
        matched, _ = _score(inner["query"], documents, boosts, known)
        weights = forward_index.tokens_of(inner["script"]["params"])
        scores = (documents.rows or documents).scores(weights, boosts=(*boosts, inner.get("boost", 1.0)))
        if "min_score" in inner:
            matched &= scores >= np.float32(inner["min_score"])
        return matched, np.where(matched, scores, 0).astype(np.float32)
    if kind == "script_score" and inner["script"].get("source") == SCRIPT and documents.codes is not None:
        table = PackedTable.from_params(inner["script"]["params"])
        matched, _ = _score(inner["query"], documents, boosts, known)
        by_codes = table.scores(documents.codes) * _product((*boosts, inner.get("boost", 1.0)))
        return matched, np.where(matched, by_codes, 0).astype(np.float32)
    if kind == "constant_score" and inner.keys() <= {"filter", "boost"}:
        matched, _ = _score(inner["filter"], documents, (), known)
        return matched, np.where(matched, _product((*boosts, inner.get("boost", 1.0))), 0).astype(np.float32)
    if kind == "match_all":
        score = _product((*boosts, inner.get("boost", 1.0)))
        return np.ones(documents.documents, dtype=bool), np.full(documents.documents, score, np.float32)
    if kind == "bool" and not inner.keys() - {"must", "should", "filter", "boost", "minimum_should_match", "must_not"}:
        return _score_bool(inner, documents, (*boosts, inner.get("boost", 1.0)), known)
    if known is not None:
        scores = known(dict(query))
        return scores > 0, scores
    raise InputError(f"the score of a {kind or 'malformed'} query is not predicted", "only sparse queries are")


def _score_bool(
    inner: Mapping[str, Any], documents: StoredWeights, boosts: tuple[float, ...], known: Known
) -> tuple[NDArray[np.bool_], Float32s]:
    must = [_score(query, documents, boosts, known) for query in as_list(inner.get("must"))]
    should = [_score(query, documents, boosts, known) for query in as_list(inner.get("should"))]
    least = str(inner.get("minimum_should_match", 0 if must or as_list(inner.get("filter")) else 1))
    if not least.isdecimal():
        raise InputError(f"minimum_should_match {least!r} is not predicted", "use a whole number from 0")
    total = np.zeros(documents.documents)
    for _, scores in must + should:
        total += scores
    matched = np.ones(documents.documents, dtype=bool)
    for query in as_list(inner.get("must_not")):
        matched &= ~_score(query, documents, boosts, known)[0]
    for matches, _ in must:
        matched &= matches
    if should:
        matched &= np.sum([matches for matches, _ in should], axis=0) >= int(least)
    return matched, np.where(matched, total, 0).astype(np.float32)


def _product(boosts: Iterable[float]) -> np.float32:
    product = np.float32(1)
    for boost in boosts:
        product = product * np.float32(boost)
    return product
