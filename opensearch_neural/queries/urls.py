"""Bodies that look up documents by ids or URLs, such as the URLs that a generative model wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opensearch_neural.queries.body_parts import Body, Clause, PageOptions, page_body, unfiltered

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_LISTED = 1_000


def listed(scores: Mapping[str, float], *, field: str = "_id", **page: Unpack[PageOptions]) -> Body:
    """Documents that another search found, {id: score}, ranked by these scores. A document that the index does not hold, or
    that does not pass the filter, is left out. With another `field`, the keys are values of this field instead of ids.

    If a score is not above 0, all scores are raised by the same constant. Raises ValueError for more than `MOST_LISTED`
    documents.
    """
    if len(scores) > MOST_LISTED:
        raise ValueError(f"{len(scores):,} documents are more than a request can list ({MOST_LISTED:,})")
    least = min(scores.values(), default=1.0)
    raised = 0.0 if least > 0 else 1.0 - least
    each = [
        {
            "constant_score": {
                "filter": {"ids": {"values": [id]}} if field == "_id" else {"term": {field: id}},
                "boost": float(score) + raised,
            }
        }
        for id, score in scores.items()
    ]
    query: Clause = {"bool": {"should": each}} if each else {"match_none": {}}
    return page_body(query, **page)


def listed_count(body: Body) -> int:
    """How many documents a body of `listed` requests. If the cluster counts fewer hits, the index does not hold the rest."""
    query, _ = unfiltered(body["query"])
    return len(query.get("bool", {}).get("should", []))


def listed_urls(body: Body) -> list[str]:
    """The URLs, best first, that a body of `listed(field="url")` requests, or a `hybrid` body that contains such a body."""
    parts = body["query"].get("hybrid", {}).get("queries", [body["query"]])
    clauses = [clause for part in parts for clause in part.get("bool", {}).get("should", [])]
    terms = [clause.get("constant_score", {}).get("filter", {}).get("term", {}) for clause in clauses]
    return [term["url"] for term in terms if "url" in term]


def unfound_urls(body: Body, urls: Sequence[str | None]) -> list[str]:
    """The URLs in a body of `listed(field="url")` that the index does not hold, judged by the first page of the answer.

    urls: the URLs of the page's hits. A full page shows only which URLs above its last hit are missing.
    """
    searched = listed_urls(body)
    if len(urls) >= body.get("size", 10):
        searched = searched[: max((searched.index(url) for url in urls if url in searched), default=0)]
    return [url for url in searched if url not in urls]
