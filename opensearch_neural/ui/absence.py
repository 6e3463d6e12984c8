"""Why a document is not on a column's page: its rank and score, and the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opensearch_neural.queries import Body, Clause, best_passages, preference
from opensearch_neural.queries.answers import score_of
from opensearch_neural.queries.body_parts import holds_hybrid, sorts_by_score
from opensearch_neural.search.filters import clauses_of
from opensearch_neural.search.request import Request
from opensearch_neural.ui.columns import Searcher, body_of
from opensearch_neural.ui.state import Column, State

DEEP = 1_000
"""How many hits are searched for the document."""


def why_absent(searcher: Searcher, column: Column, state: State) -> str:
    """The reason, as a sentence. Raises as `Searcher.request` does, and opensearch-py's errors."""
    client, index, document = searcher.client, column.index, state.document
    request = searcher.request(column, state)
    own = itself(request, document)
    if not client.count(index=index, body={"query": own})["count"]:
        return f"The index {index} has no document {document}."
    for text, clause in zip(state.filters, clauses_of(client, index, state.filters), strict=True):
        if not client.count(index=index, body={"query": {"bool": {"filter": [own, clause]}}})["count"]:
            return f"Filtered out by {text}."
    body = body_of(request)
    by_score = sorts_by_score(body.get("sort"))
    if not by_score or holds_hybrid(body.get("query")):
        return place_alone(searcher, column, state, scored=by_score)
    ranked = scores(searcher, column, replace(state, size=DEEP))
    alone = scores(searcher, column, replace(state, size=1), own)
    if document not in alone or not ranked:  # a body that only suggests has no hits
        return "Not found: it contains nothing that the first stage of this engine searches for."
    whole, page = alone[document], list(ranked.values())[: state.size]
    rank = list(ranked).index(document) + 1 if document in ranked else None
    if rank is not None and rank <= state.size:
        return f"It is here, at rank {rank} with {whole:.3f}."
    place = f"rank {rank}" if rank else f"no rank among the first {len(ranked):,}"
    if rank and whole > ranked[document] * (1 + 1e-5):
        better = sum(score > whole for score in page)
        would = f"that would be rank {better + 1}" if better < len(page) else "no place on this page either"
        window = rescored(body)
        return (
            f"Outside the window: the first stage puts it at {place}, and only {window} hits of each shard get their whole "
            f"score. It has {ranked[document]:.3f}; its whole score is {whole:.3f}, {would}."
        )
    return f"Its score of {whole:.3f} gives it {place}; this page ends at {page[-1]:.3f}."


def place_alone(searcher: Searcher, column: Column, state: State, *, scored: bool) -> str:
    """Only the rank and the score, as a sentence, for a column whose scores depend on the other hits (they are fused), or do
    not rank (the body sorts). scored: whether hits are ranked by score."""
    page = scores(searcher, column, state)
    ranked = page if state.document in page else scores(searcher, column, replace(state, size=DEEP))
    if state.document not in ranked:
        return f"It is not among the {len(ranked):,} hits of a search for {DEEP:,}."
    place = f"at rank {list(ranked).index(state.document) + 1:,}"
    place += f" with {ranked[state.document]:.3f}" if scored else ""
    # A deeper search may fuse more hits, and so give other scores than the page's.
    return f"It is here, {place}." if ranked is page else f"A search for {DEEP:,} hits has it {place}."


def itself(request: Request | Body, document: str) -> Clause:
    """A clause that finds only this document, or its passages."""
    if isinstance(request, Request) and request.engines.meta.passages:
        return {"term": {"parent": document}}
    return {"ids": {"values": [document]}}


def scores(searcher: Searcher, column: Column, state: State, only: Clause | None = None) -> dict[str, float]:
    """{id: score} of the column's hits, in order. only: a clause that limits the documents."""
    request = searcher.request(column, state, clauses=[only] if only else [], highlight=False)
    body = body_of(request)
    if isinstance(request, dict) and only:
        body = {**body, "query": {"bool": {"must": [body.get("query", {"match_all": {}})], "filter": [only]}}}
    params = {"preference": preference(state.query)}
    hits = searcher.client.search(index=column.index, body={**body, "_source": False}, params=params)["hits"]["hits"]
    if isinstance(request, Request) and request.engines.meta.passages:
        return {id: score_of(hit) or 0.0 for id, hit in best_passages(body, hits, size=state.size)}
    return {hit["_id"]: score_of(hit) or 0.0 for hit in hits}


def rescored(body: Body) -> Any:
    """The window of the body's first rescoring stage."""
    stages = body.get("rescore", {})
    first = stages[0] if isinstance(stages, list) else stages
    return first.get("window_size", "some")
