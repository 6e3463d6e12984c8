"""How much of the exact result an approximate search finds, if there are no judgements.

With near-duplicates the overlap of ids means little, but the score kept is still meaningful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opensearch_neural.evaluation.measures import rank
from opensearch_neural.queries import Body

PAGE = 10
"""Hits on a page of results, used for latency and for measures up to @10."""
TIES = 3 * PAGE
"""Hits of the exact result to fetch, so that ties with its tenth hit are included."""


def overlap(hits: Mapping[str, float], exact: Mapping[str, float]) -> float:
    """The share of the first PAGE of `exact` that the first PAGE of `hits` hold.

    Documents that tie with the last of `exact` count too, since chance decides which of them is shown.
    """
    best = rank(exact)
    size = min(PAGE, len(best))
    last = best[size - 1][1]
    tied = {document for document, score in best if score >= last - 1e-6 * abs(last)}
    returned = {document for document, _ in rank(hits)[:PAGE]}
    return min(1.0, len(returned & tied) / size)


def score_kept(scores: Mapping[str, float], exact: Mapping[str, float]) -> float:
    """The share of the exact score that an approximate search keeps; 1 if nothing is lost.

    scores: {returned hit: its score by the exact search}; exact: the best hits of the exact search, of which PAGE count."""
    best = sorted(exact.values(), reverse=True)[:PAGE]
    return sum(scores.values()) / sum(best) if sum(best) > 0 else 1.0


def scored_among(body: Body, documents: Sequence[str]) -> Body:
    """A body of one phase, limited to these documents, with the same scores."""
    among, more = {"ids": {"values": list(documents)}}, {}
    if "collapse" in body:  # passages: the best passage of each document
        among, more = {"terms": {body["collapse"]["field"]: list(documents)}}, {"collapse": body["collapse"]}
    return {"size": len(documents), "query": {"bool": {"must": [body["query"]], "filter": [among]}}, **more}
