"""An application's own request, with what a model adds."""

from __future__ import annotations

from opensearch_neural.queries.body_parts import Body, descending_score, sort_entries


def own_request(own: Body, made: Body, *, drop_tie_breaks: bool = False) -> Body:
    """Your own request with the query and the second phase of `made`, the body by `bm25_sparse` with `base=own["query"]`.

    Its page, facets, highlights, `_source`, totals, `post_filter` and `collapse` stay. Its `rescore` is replaced.

    OpenSearch sorts no hits that it rescores. So a sort by the score and then by fields, for hits of equal score, stays only
    if `made` does not rescore: with window=None, and with `collapse`. drop_tie_breaks: leave the whole sort out beside a
    second phase; equal scores are then ordered by shard and document.

    Hits beyond the window of a second phase keep the score of phase one, so `made` needs a window of from + size or more.
    With window=None, and with `collapse`, the score that `min_score` is compared with counts what the model adds.

    Raises ValueError for a sort that does not begin with the descending score, because what the model adds would not change
    the order of hits; for a sort by further fields beside a second phase, unless `drop_tie_breaks`; if `own` collapses or
    pages with `search_after`, and `made` rescores; and for `search_after` beside `collapse`.
    """
    if isinstance(own.get("sort"), tuple):
        own = {**own, "sort": [*own["sort"]]}
    request = {**own, "query": made["query"]}
    request.pop("rescore", None)
    entries = sort_entries(own.get("sort"))
    if entries and not descending_score(*entries[0][1:]):
        raise ValueError(
            f"the request sorts by {entries[0][1]!r}, so what the model adds would not change the order of its hits: leave"
            " the sort out, or search without the model"
        )
    if "rescore" not in made:
        request = {**({"collapse": made["collapse"]} if "collapse" in made else {}), **request}
        if "search_after" in request and "collapse" in request:
            raise ValueError(
                "the request pages with search_after, and OpenSearch takes none beside collapse with a sort by the score:"
                " page by from, or collapse in the application"
            )
        return request
    if "collapse" in own:
        raise ValueError(
            "the request collapses its hits, and OpenSearch collapses no rescored hits: make the body with collapse="
            f"{own['collapse']['field']!r}, too"
        )
    if "search_after" in own:
        raise ValueError(
            "the request pages with search_after, and OpenSearch takes none beside a second phase: page by from, or make the"
            " body with window=None"
        )
    if len(entries) > 1 and not drop_tie_breaks:
        raise ValueError(
            f"the request sorts hits of equal score by {entries[1][1]!r}, and OpenSearch sorts no rescored hits: give"
            " drop_tie_breaks=True, or make the body with window=None"
        )
    if len(entries) > 1:
        del request["sort"]
    return {**request, "rescore": made["rescore"]}
