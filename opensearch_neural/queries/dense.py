"""Bodies that search vectors: nearest neighbours, quantized codes, rescoring with either, and fusion with other searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural.queries.body_parts import (
    REPLACED,
    Body,
    Clause,
    PageOptions,
    filter_clauses,
    filtered,
    holds_hybrid,
    narrowed,
    numbers,
    page_body,
)
from opensearch_neural.queries.look_up_table import SCRIPT, WEIGHTED_SCRIPT, PackedTable
from opensearch_neural.queries.rare import Rare
from opensearch_neural.queries.sparse import high_idf_first

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack


# OpenSearch collapses nearest neighbours only after it has found them, and hybrid queries not at all. So this many times
# more hits are requested. If a document has more passages than this among the best, fewer than `size` documents may remain.
COLLAPSED_PASSAGES = 5

MOST_HITS = 10_000
"""The default of `index.max_result_window`: OpenSearch refuses a search beyond it."""
MOST_RESCORED = 10_000
"""The default of `index.max_rescore_window`, the widest window that an index accepts."""

RESCORE_WINDOW = 100

FUSED = 100
"""Hits of each body that `hybrid` fuses, if the page ends before."""

# OpenSearch's default window, for a stage that names none.
RESCORED = 10


def knn(
    vector: Sequence[float] | NDArray[Any], *, k: int = 100, field: str = "dense", **page: Unpack[PageOptions]
) -> Body:
    """Approximate nearest neighbours of `vector` (length: the field's dimension) by the HNSW graph.

    `k` is how many neighbours each segment returns. With the Lucene engine it is also the width of the graph search: a `k`
    no larger than the page misses some of the nearest. It is raised to at least `from_ + size`, with `collapse` to
    `COLLAPSED_PASSAGES` times that. A filter is applied during the graph search, so no hits are lost to it.
    """
    end, filter = page.get("from_", 0) + page.get("size", 10), page.pop("filter", None)
    least = min(MOST_HITS, end * COLLAPSED_PASSAGES) if page.get("collapse") else end
    clause: dict[str, Any] = {"vector": numbers(vector), "k": max(k, least)}
    if filter:
        clause["filter"] = {"bool": {"filter": filter_clauses(filter)}}
    return page_body({"knn": {field: clause}}, **page)


def quantized(table: ArrayLike, *, field: str = "pq", **page: Unpack[PageOptions]) -> Body:
    """Rank every document that passes the filter by the exact inner product of the query with its reconstructed vector.

    table: (M, 256), from `Quantizer.table`. Time grows with the number of documents that pass. A hit's score is the inner
    product plus `quantized_offset(body)`. Raises ValueError as `PackedTable.of` does.
    """
    scored = filtered({"exists": {"field": field}}, page.pop("filter", None))
    return page_body(_quantized(table, field, scored), **page)


def quantized_rescore(
    body: Body,
    table: ArrayLike,
    *,
    window: int | None = None,
    weight: float = 1.0,
    first_weight: float = 0.0,
    field: str = "pq",
) -> Body:
    """A body of this module with one more stage, for the `window` best hits of each shard: the exact inner product of the
    query with each hit's reconstructed vector, from the M bytes in `field` (JPQ, section 2.4).

    table: (M, 256), from `Quantizer.table`. A hit's score becomes

        first_weight · (score so far) + weight · (inner product + offset)

    where the offset is the smallest constant that keeps all scores from being negative, which OpenSearch would refuse. It
    is the same for all hits of a query, so it changes no ranking; `quantized_offset(body)` tells what to subtract. A hit
    without a code is ranked as if it had the lowest possible inner product. The window is the same for every page, so that
    all pages form one ranking without repeats. Hits beyond the window follow in their previous order; with first_weight they
    keep first_weight times their score and are ranked by it.

    window: None is 100, or the window of the stage before (`bm25_sparse`, `high_idf_first`) if that is smaller. Hits beyond
    the earlier window lack that stage's part of the score.

    A body with `collapse` gets no stage, because OpenSearch cannot collapse rescored hits. Instead everything that its query
    matches is scored this way, whatever the window.

    Raises ValueError for a hybrid body, a weight that is not above 0, a negative first_weight, a window below 1 or wider
    than that of the stage before, and as `PackedTable.of` does.
    """
    rescored = _with_stage(body, _quantized(table, field, {"match_all": {}}), window, weight, first_weight)
    if "collapse" in body:
        query = _quantized(table, field, body["query"], weight=float(weight), first_weight=float(first_weight))
        return {**body, "query": query}
    return rescored


def dense_rescore(
    body: Body,
    vector: Sequence[float] | NDArray[Any],
    *,
    window: int | None = None,
    weight: float = 1.0,
    first_weight: float = 0.0,
    field: str = "dense",
    nested: str | None = None,
    space_type: Literal["cosinesimil", "innerproduct"] = "cosinesimil",
) -> Body:
    """A body of this module with one more stage, for the `window` best hits of each shard: the exact nearness of `vector` to
    each hit's vector. It needs the k-NN plugin.

    vector: of the field's dimension; whole numbers if the field holds bytes. nested: for several vectors a document, the
    path of the nested documents that contain `field` ("dense" with the field "dense.vector"); the nearest vector counts.

    A hit's score becomes first_weight · (score so far) + weight · nearness. Nearness is the result of the plugin's script
    `knn_score`, never negative: for the cosine (1 + cosine) / 2, with byte vectors 1 + cosine; for an inner product p it is
    1 + p if p ≥ 0, else 1 / (1 − p). For a hit without a vector it is 0.

    window, and pages: as in `quantized_rescore`.

    A body with `collapse` gets no stage: everything that its query matches is scored this way, whatever the window. Raises
    ValueError for a hybrid body, a weight that is not above 0, a negative first_weight, and a window below 1 or wider than
    that of the stage before.
    """
    parameters = {"field": field, "query_value": numbers(vector), "space_type": space_type}
    script = {"lang": "knn", "source": "knn_score", "params": parameters}
    nearness: Clause = {"script_score": {"query": {"exists": {"field": field}}, "script": script}}
    if nested is not None:
        nearness = {"nested": {"path": nested, "query": nearness, "score_mode": "max"}}
    rescored = _with_stage(body, nearness, window, weight, first_weight)
    if "collapse" in body:
        first = {"bool": {"must": [body["query"]], "boost": float(first_weight) or REPLACED}}
        return {**body, "query": {"bool": {"must": [first], "should": [_boosted(nearness, weight)]}}}
    return rescored


def quantized_offset(body: Body) -> float:
    """The constant in the scores of a body's hits that does not come from the inner products: subtract it.

    After `quantized_rescore` and `cascade` it applies to hits within the window. Raises ValueError for a body without
    quantized scores.
    """
    for stage in reversed(body.get("rescore", [])) if isinstance(body.get("rescore"), list) else []:
        script = stage["query"]["rescore_query"].get("script_score", {}).get("script", {})
        if script.get("source") == SCRIPT:
            return script["params"]["offset"] * stage["query"]["rescore_query_weight"]
    script = body["query"].get("script_score", {}).get("script", {})
    if script.get("source") in (SCRIPT, WEIGHTED_SCRIPT):
        return script["params"]["offset"] * script["params"].get("weight", 1.0)
    raise ValueError("the body has no quantized scores")


def cascade(
    tokens: Mapping[str, float],
    table: ArrayLike,
    *,
    rare: Rare = Rare(),
    window: int = 100,
    dense_window: int = 50,
    weight: float = 1.0,
    plugin: bool = True,
    forward: bool = False,
    pruned: bool = False,
    field: str = "sparse",
    **page: Unpack[PageOptions],
) -> Body:
    """Three stages in one request: a search by rare tokens first, all tokens for its `window` best hits, and the inner
    product with reconstructed vectors for the `dense_window` best of these hits. Windows are counted in each shard.

    A hit's score is that of `high_idf_first` + weight · (inner product + offset), see `quantized_rescore`. table: (M, 256).
    The second stage's window is at least as wide as the third's. Windows are the same for every page. forward, pruned: as
    in `high_idf_first`.
    """
    first = high_idf_first(
        tokens,
        rare=rare,
        window=max(window, dense_window),
        plugin=plugin,
        forward=forward,
        pruned=pruned,
        field=field,
        **page,
    )
    return quantized_rescore(first, table, window=dense_window, weight=weight, first_weight=1.0)


def hybrid(
    *bodies: Body,
    method: Literal["min_max", "l2", "rrf"] = "min_max",
    weights: Sequence[float] | None = None,
    depth: int | None = FUSED,
    **page: Unpack[PageOptions],
) -> Body:
    """Several bodies of this module in one request, with scores normalized and averaged, or with ranks fused (RRF).

    Needs the neural-search plugin. The request contains the normalization as a temporary search pipeline, so nothing has to
    be set up on the cluster. `weights`: one for each body, not negative, with the sum 1; None: equal weights; RRF takes
    none. `filter` is added to the filters of each body. `depth`: how many hits of each body in each shard are fused before
    the page is cut out (OpenSearch 2.19 and later; use None before, which fuses `size` hits).

    With `collapse` the body requests the first `COLLAPSED_PASSAGES * (from_ + size)` hits with their values of that field,
    and `best_passages` cuts out the page: OpenSearch 2.19 accepts `collapse` in a hybrid query but does not collapse.
    `depth` then counts `COLLAPSED_PASSAGES` times as many hits.

    Pages that end at hit `depth` or before form one ranking without repeats, if the bodies are the same for each. A deeper
    page is fused from more hits, and so by other scores.

    Raises ValueError for fewer than two bodies, a body with a second phase (`rescore`), or weights that OpenSearch would
    refuse.
    """
    if len(bodies) < 2:
        raise ValueError("hybrid needs at least two bodies")
    if any("rescore" in body or "search_pipeline" in body for body in bodies):
        raise ValueError("a body with a rescore phase or a pipeline of its own cannot be part of a hybrid query")
    if weights is not None:
        if method == "rrf":
            raise ValueError("rank fusion takes no weights; give them to min_max or l2")
        if len(weights) != len(bodies):
            raise ValueError(f"hybrid got {len(weights)} weights for {len(bodies)} bodies")
        if not (all(weight >= 0 for weight in weights) and abs(sum(weights) - 1) <= 1e-3):
            raise ValueError(f"the weights of hybrid must not be negative and must sum to 1, not {list(weights)}")
    combination: dict[str, Any] = {"technique": "arithmetic_mean"}
    if weights is not None:
        combination["parameters"] = {"weights": [float(weight) for weight in weights]}  # an int gets a 500
    if method == "rrf":
        processor = {"score-ranker-processor": {"combination": {"technique": "rrf"}}}
    else:
        processor = {"normalization-processor": {"normalization": {"technique": method}, "combination": combination}}
    filter, collapse = filter_clauses(page.pop("filter", None)), page.pop("collapse", None)
    end = page.get("from_", 0) + page.get("size", 10)
    query: Clause = {"hybrid": {"queries": [narrowed(body["query"], filter) for body in bodies]}}
    if collapse:
        end = min(MOST_HITS, COLLAPSED_PASSAGES * end)
        page["size"], page["from_"] = end, 0
        depth = None if depth is None else min(MOST_HITS, COLLAPSED_PASSAGES * depth)
    if depth is not None:
        query["hybrid"]["pagination_depth"] = max(depth, end)
    body = page_body(query, **page)
    if collapse:
        body["docvalue_fields"] = [collapse]
    body["search_pipeline"] = {"phase_results_processors": [processor]}
    return body


def _with_stage(body: Body, clause: Clause, window: int | None, weight: float, first_weight: float) -> Body:
    if "search_pipeline" in body or holds_hybrid(body.get("query")):
        raise ValueError("a hybrid query is rescored before its parts are fused: rescore a body without one")
    if not weight > 0 or not first_weight >= 0:
        raise ValueError(f"weight must be above 0 and first_weight at least 0, not {weight} and {first_weight}")
    before = body.get("rescore", [])
    stages = before if isinstance(before, list) else [before]
    widest = stages[-1].get("window_size", RESCORED) if stages else None
    if window is None:
        window = min(RESCORE_WINDOW, widest or RESCORE_WINDOW)
    if window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window}")
    if widest is not None and window > widest:
        raise ValueError(
            f"window must be no wider than the {widest} hits of the stage before, not {window}: the hits beyond lack that"
            " stage's part of the score"
        )
    weights = {"query_weight": float(first_weight) or REPLACED, "rescore_query_weight": float(weight)}
    stage = {"window_size": window, "query": {"rescore_query": clause, **weights}}
    return {**body, "rescore": [*stages, stage]}


def _boosted(clause: Clause, boost: float) -> Clause:
    ((kind, inner),) = clause.items()
    return {kind: {**inner, "boost": float(boost)}}


def _quantized(table: ArrayLike, field: str, over: Clause, **weights: float) -> Clause:
    """weights: none, or both weights of WEIGHTED_SCRIPT."""
    params = {**PackedTable.of(table).params(field), **weights}
    script = {"source": WEIGHTED_SCRIPT if weights else SCRIPT, "params": params}
    return {"script_score": {"query": over, "script": script}}
