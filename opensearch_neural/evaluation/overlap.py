"""How much of the exact result an approximate search finds, if there are no judgements.

Among near-duplicates the score kept means something where the overlap of ids does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opensearch_neural.evaluation.measures import rank
from opensearch_neural.queries import Body

PAGE = 10
TIES = 3 * PAGE
"""Hits of the exact result to fetch, so that ties with its tenth are seen."""


def overlap(hits: Mapping[str, float], exact: Mapping[str, float], depth: int = PAGE) -> float:
    """The share of the first `depth` of `exact` that the first `depth` of `hits` hold.

    Documents that tie with the last of `exact` count as well as it does: which of them is shown is chance.
    """
    best = rank(exact)
    last = best[min(depth, len(best)) - 1][1]
    tied = {document for document, score in best if score >= last - 1e-6 * abs(last)}
    returned = {document for document, _ in rank(hits)[:depth]}
    return min(1.0, len(returned & tied) / min(depth, len(best)))


def score_kept(scores: Mapping[str, float], exact: Mapping[str, float], depth: int = PAGE) -> float:
    """scores: what the hits returned score by the exact search; exact: its best hits. 1 where nothing is lost."""
    best = sorted(exact.values(), reverse=True)[:depth]
    return sum(scores.values()) / sum(best) if sum(best) > 0 else 1.0


def scored_among(body: Body, documents: Sequence[str]) -> Body:
    """The body that finds those of the documents that a body of one phase finds, with the same scores."""
    among, more = {"ids": {"values": list(documents)}}, {}
    if "collapse" in body:  # of passages the best of each document
        among, more = {"terms": {body["collapse"]["field"]: list(documents)}}, {"collapse": body["collapse"]}
    return {"size": len(documents), "query": {"bool": {"must": [body["query"]], "filter": [among]}}, **more}
