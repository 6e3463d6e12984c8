"""Whether the page of a window is that of all documents, told from the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opensearch_neural.queries.answers import partial_answer
from opensearch_neural.queries.clauses import Body, every_row_clause, says_pruned, sparse_clause, sparse_tokens
from opensearch_neural.queries.sparse import REPLACED, held_scores


def window_end(body: Body) -> Body:
    """The request for the last hit of the window of a `bm25_sparse` or `high_idf_first` body, by its first phase alone.
    `certified` takes its answer as `end`.

    Raises ValueError for a body without such a window.
    """
    stage, _, _ = _second_phase(body)
    last = {"size": 1, "from": stage["window_size"] - 1, "_source": False, "track_total_hits": False}
    return {"query": body["query"], **last}


def heaviest(body: Body) -> dict[str, Body]:
    """{token: the request for the document in which the token weighs most} of the tokens of a body's second phase.

    The hit's score is that weight, as the index stores it. In an index with pruned postings each request reads the rows of
    all documents. Raises ValueError for a body without a window.
    """
    stage, field, tokens = _second_phase(body)
    best = {"size": 1, "_source": False, "track_total_hits": False}
    if says_pruned(stage["query"]["rescore_query"]):
        return {token: {"query": every_row_clause({token: 1.0}, field), **best} for token in tokens}
    return {token: {"query": sparse_clause({token: 1.0}, field, plugin=False), **best} for token in tokens}


def largest_weights(tops: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """{token: its largest weight in the index} from {token: answer to its request of `heaviest`}: 0 where no document holds
    the token, infinite where not all of the index has answered. They hold until documents are added."""
    largest = {}
    for token, top in tops.items():
        hits = top["hits"]["hits"]
        largest[token] = math.inf if partial_answer(top) else hits[0]["_score"] if hits else 0.0
    return largest


def certified(body: Body, answer: Mapping[str, Any], end: Mapping[str, Any], largest: Mapping[str, float]) -> bool:
    """Whether a body's page is exactly the page that a search of all documents returns: for `bm25_sparse` with
    `window=None`, for `high_idf_first` the page of `neural_sparse`.

    Outside the windows, a document's first phase scores no more than a window's last hit. The second phase adds at most its
    tokens at their largest weights (the bound of MaxScore): for `bm25_sparse` weight · Σ_t tokens[t] · largest[t], for
    `high_idf_first` each common token's largest less the part that the first phase has added. If the page's last hit scores
    more than both together, no document outside belongs on the page. On several shards the last hit's score is that of the
    whole index, which is no less than any shard's.

    With pruned postings only pages of `bm25_sparse` can be certain: the first phases of sparse searches score too little.

    answer: to the body. end: the answer to `window_end(body)`. largest: {token: its largest weight in the index}, or more;
    a token that is not in it is in no document. Where a shard is missing from an answer, or the time was over, nothing is
    certain. Raises ValueError for a body without a window.
    """
    stage, _, tokens = _second_phase(body)
    if partial_answer(answer) or partial_answer(end):
        return False
    if stage["query"].get("query_weight") == REPLACED and says_pruned(stage["query"]["rescore_query"]):
        return False
    hits, last = answer["hits"]["hits"], end["hits"]["hits"]
    held = held_scores(body)
    # A sum scores every document, also one that its first phase does not match.
    if held is not None and not last:
        return True  # all that match lie within the windows
    weight = stage["query"].get("rescore_query_weight", 1.0)
    most = {token: weight * value * largest.get(token, 0.0) for token, value in tokens.items()}
    if held is None and not any(most.values()):
        return True  # the sum is BM25's
    added = sum(max(0.0, most[token] - already) for token, already in (held or dict.fromkeys(tokens, 0.0)).items())
    bound = (last[0]["_score"] if last else 0.0) + added
    # The page must be full, and its last hit above the bound by more than float32's rounding.
    return bool(hits) and len(hits) == body["size"] and hits[-1]["_score"] > bound * (1 + 1e-6)


def _second_phase(body: Body) -> tuple[dict[str, Any], str, dict[str, float]]:
    """(the rescoring stage, its field, its tokens) of a `bm25_sparse` or `high_idf_first` body."""
    stage = body.get("rescore")
    if isinstance(stage, dict) and stage["query"].get("query_weight", 1.0) in (1.0, REPLACED):
        try:
            return stage, *sparse_tokens(stage["query"]["rescore_query"])
        except ValueError:
            pass
    raise ValueError("the body is none of bm25_sparse or high_idf_first with a window and no stage after it")
