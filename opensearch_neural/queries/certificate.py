"""Whether the page of a window is exact: the page that a search of all documents would return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opensearch_neural.queries.answers import partial_answer
from opensearch_neural.queries.body_parts import (
    REPLACED,
    Body,
    every_row_clause,
    says_pruned,
    sparse_clause,
    sparse_tokens,
)
from opensearch_neural.queries.dense import RESCORED
from opensearch_neural.queries.sparse import constant_scores


def window_end(body: Body) -> Body:
    """The request for the last hit in the window of a `bm25_sparse` or `high_idf_first` body, by its first phase only.
    Pass its answer to `certified` as `end`.

    Raises ValueError for a body without such a window.
    """
    stage, _, _ = _second_phase(body)
    last = {"size": 1, "from": stage.get("window_size", RESCORED) - 1, "_source": False, "track_total_hits": False}
    return {"query": body["query"], **last}


def heaviest(body: Body) -> dict[str, Body]:
    """{token: request for the document in which the token weighs most}, for the tokens of a body's second phase.

    The hit's score is this weight, as the index stores it. In an index with pruned postings each request reads the rows of
    all documents. Raises ValueError for a body without a window.
    """
    stage, field, tokens = _second_phase(body)
    best = {"size": 1, "_source": False, "track_total_hits": False}
    if says_pruned(stage["query"]["rescore_query"]):
        return {token: {"query": every_row_clause({token: 1.0}, field), **best} for token in tokens}
    return {token: {"query": sparse_clause({token: 1.0}, field, plugin=False), **best} for token in tokens}


def largest_weights(tops: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """{token: its largest weight in the index} from {token: answer to its request by `heaviest`}: 0 if no document holds
    the token, infinite if the answer is partial. The weights are valid until documents are added."""
    largest = {}
    for token, top in tops.items():
        hits = top["hits"]["hits"]
        largest[token] = math.inf if partial_answer(top) else float(hits[0]["_score"]) if hits else 0.0
    return largest


def certified(body: Body, answer: Mapping[str, Any], end: Mapping[str, Any], largest: Mapping[str, float]) -> bool:
    """Whether a body's page is exactly the page that a search of all documents returns: for `bm25_sparse` the page with
    `window=None`, for `high_idf_first` the page of `neural_sparse`.

    In the first phase, a document outside the windows scores no more than the last hit of its window. The second phase adds
    at most each token at its largest weight (the bound of MaxScore): for `bm25_sparse` weight · Σ_t tokens[t] · largest[t],
    for `high_idf_first` each common token's largest score minus what the first phase added. If the page's last hit scores
    more than both together, no document outside belongs on the page. With several shards, the window's last hit is that of
    the whole index, which scores no less than that of any shard.

    With pruned postings only pages of `bm25_sparse` can be certified: the first phase of a sparse search scores too low.

    answer: the answer to the body. end: the answer to `window_end(body)`. largest: {token: its largest weight in the index,
    or an upper bound}; a token that it lacks is in no document. A partial answer (missing shard, timeout) is never
    certified. Raises ValueError for a body without a window.
    """
    stage, _, tokens = _second_phase(body)
    if partial_answer(answer) or partial_answer(end):
        return False
    if stage["query"].get("query_weight") == REPLACED and says_pruned(stage["query"]["rescore_query"]):
        return False
    hits, last = answer["hits"]["hits"], end["hits"]["hits"]
    constants = constant_scores(body)
    # `bm25_sparse` without a window scores every document, even one that its first phase does not match.
    if constants is not None and not last:
        return True  # all matching documents lie in the windows
    weight = stage["query"].get("rescore_query_weight", 1.0)
    most = {token: weight * value * largest.get(token, 0.0) for token, value in tokens.items()}
    if constants is None and not any(most.values()):
        return True  # the model adds nothing to BM25
    added = sum(max(0.0, most[token] - already) for token, already in (constants or dict.fromkeys(tokens, 0.0)).items())
    bound = (float(last[0]["_score"]) if last else 0.0) + added
    # The page must be full, and its last hit above the bound by more than float32's rounding.
    return bool(hits) and len(hits) == body.get("size", 10) and float(hits[-1]["_score"]) > bound * (1 + 1e-6)


def _second_phase(body: Body) -> tuple[dict[str, Any], str, dict[str, float]]:
    """(the rescoring stage, its field, its tokens) of a `bm25_sparse` or `high_idf_first` body."""
    stage = body.get("rescore")
    if isinstance(stage, dict) and stage["query"].get("query_weight", 1.0) in (1.0, REPLACED):
        try:
            return stage, *sparse_tokens(stage["query"]["rescore_query"])
        except ValueError:
            pass
    raise ValueError("the body must be of bm25_sparse or high_idf_first, with a window and no further stage")
