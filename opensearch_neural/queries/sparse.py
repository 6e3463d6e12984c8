"""Bodies by words and by tokens: BM25, a sparse model, both together, and rare tokens first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from opensearch_neural.queries.clauses import (
    DEFAULT_SOURCE,
    Body,
    Clause,
    Filter,
    filtered,
    held_clause,
    match_clause,
    page_body,
    rescoring_clause,
    sparse_clause,
    sparse_tokens,
    token_of,
)
from opensearch_neural.queries.rare import Rare, rare_tokens

# What the score of one phase counts where that of the next replaces it. Beside the new score it is lost in the rounding to
# float32; hits that were not rescored keep it, and so their order, below all others. A power of two rounds no two to one.
REPLACED = 2.0**-40

# What a common token adds in phase one of high-IDF-first to a document that holds it, as a share of its weight in the query.
HELD = 0.2


def bm25(
    text: str,
    *,
    size: int = 10,
    from_: int = 0,
    fields: Sequence[str] = ("contents",),
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """BM25 over `contents` (title and text together), or over several fields, whose scores are then added.

    `track_total_hits` is off, here as everywhere: OpenSearch may then skip blocks of documents that cannot reach the top
    (block-max WAND), which is what makes BM25 fast. Raises ValueError without a field.
    """
    query = filtered(match_clause(text, fields), filter)
    return page_body(query, size, from_, source, track_total_hits, highlight, collapse)


def bm25_sparse(
    text: str,
    tokens: Mapping[str, float],
    *,
    weight: float = 1.0,
    window: int | None = 30,
    base: Clause | None = None,
    fields: Sequence[str] = ("contents",),
    plugin: bool = True,
    forward: bool = False,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """BM25, and what a sparse model adds: score(d) = BM25(d) + weight · Σ_t tokens[t] · d_t.

    BM25 searches, and its `window` best hits of each shard get what the model adds. What lies beyond the window keeps its
    BM25 score, and is ranked by it: the window is the same for every page, so that pages put together are one ranking
    without repeats. A window of the deepest page that is asked for, or more, gives every hit its whole score.

    forward: rescore by the documents' rows (`forward_index`), which costs less than clauses do. The scores are the same; an
    explanation does not tell the tokens apart (`explained`).

    What the rescoring costs grows with the window, and by clauses with the tokens: `rare_tokens` leaves light ones out.

    With window=None both parts search: the exact sum over all documents, those included that hold no word of the query. It
    takes longer. `certified` tells whether a page of the window is the exact one.

    With `collapse` there is no window either, because OpenSearch collapses nothing that it rescores: with a window, all
    documents that BM25 finds get the whole score.

    base: a query clause that stands where BM25 stands (boosts, phrases, a user's own query, with its filters); its scores
    must not be negative, and `text` and `fields` are not used. Only documents that it matches are hits, with any window.

    Raises ValueError for a weight that is not above 0, a window below 1, and as `bm25`.
    """
    if not 0 < weight < math.inf:
        raise ValueError(f"weight must be a number above 0, not {weight}")
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    first = dict(base) if base is not None else match_clause(text, fields)
    query = first
    if tokens and (window is None or collapse):
        added = sparse_clause(tokens, field, plugin, boost=weight)
        if base is None and window is None:
            query = {"bool": {"should": [first, added]}}
        else:
            # Which parts of a query of one's own restrict, and which only score, is not told apart: all of it has to match.
            query = {"bool": {"must": [first], "should": [added]}}
    body = page_body(filtered(query, filter), size, from_, source, track_total_hits, highlight, collapse)
    if tokens and window is not None and not collapse:
        added = rescoring_clause(tokens, field, plugin=plugin, forward=forward)
        stage = {"rescore_query": added, "rescore_query_weight": float(weight)}
        body["rescore"] = {"window_size": window, "query": stage}
    return body


def neural_sparse(
    tokens: Mapping[str, float],
    *,
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """All tokens: score(d) = Σ_t tokens[t] · d_t.

    With `plugin` the clause is `neural_sparse` with raw query tokens (neural-search plugin, no model on the cluster);
    without, a `bool` of linear `rank_feature` clauses, which every OpenSearch has. The scores are equal.
    """
    query = filtered(sparse_clause(tokens, field, plugin), filter)
    return page_body(query, size, from_, source, track_total_hits, highlight, collapse)


def high_idf_first(
    tokens: Mapping[str, float],
    *,
    rare: Rare = Rare(),
    window: int = 30,
    exact: bool = True,
    plugin: bool = True,
    forward: bool = False,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Rare tokens first, the best of what they find rescored with all tokens (`inference-free-sparse`, section 5.3.2).

    In phase one a common token adds the same to every document that holds it: `HELD` times its weight. What it weighs
    there is not read, and as it adds little, OpenSearch passes over documents that hold common tokens only, once rare ones
    have filled the window. Where rare tokens find too few documents the common ones fill up: a page is full whenever that of
    all tokens is.

    A hit's score is the full query's score. What is lost, by design: documents beyond the `window` best of phase one in each
    shard. The window is the same for every page, so that pages put together are one ranking without repeats. Hits beyond it
    come behind, in the order of phase one, and their scores are not the query's; a window of the deepest page that is asked
    for, or more, gives every hit its score.

    forward: phase two reads the documents' rows (`forward_index`), as in `bm25_sparse`.

    With `exact` the second phase scores with all tokens anew. Without, it adds the common tokens' scores to what the first
    has found and reads no rare token twice: the same sum but for the last bits of a float32, to which each phase rounds.
    Common tokens then add next to nothing in phase one, so that it chooses by rare tokens alone where these find enough.

    With `collapse` there is one phase, because OpenSearch collapses nothing that it rescores: every document is scored with
    all tokens. So there is no window and what lies beyond it is not lost; it takes longer.

    Tokens that all weigh the same are searched in one phase too. Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window}")
    # Of tokens that weigh the same, as a table without spread has them, none is rarer than another.
    first = rare_tokens(tokens, rare) if len(set(tokens.values())) > 1 else tokens
    common = {token: weight for token, weight in tokens.items() if token not in first}
    if not common or collapse:
        query = filtered(sparse_clause(tokens, field, plugin), filter)
        return page_body(query, size, from_, source, track_total_hits, highlight, collapse)
    held = [held_clause(token, weight * (HELD if exact else REPLACED), field) for token, weight in common.items()]
    query = filtered({"bool": {"should": [sparse_clause(first, field, plugin), *held]}}, filter)
    body = page_body(query, size, from_, source, track_total_hits, highlight, collapse)
    if exact:
        replaced = {"query_weight": REPLACED, "rescore_query_weight": 1.0}
        second = {"rescore_query": rescoring_clause(tokens, field, plugin=plugin, forward=forward), **replaced}
    else:
        # The sum of both phases counts, which is what OpenSearch does unless told otherwise.
        second = {"rescore_query": rescoring_clause(common, field, plugin=plugin, forward=forward)}
    body["rescore"] = {"window_size": window, "query": second}
    return body


def explained(body: Body) -> Body:
    """The body asking for explanations. What it rescores by rows it rescores by clauses then, to the same scores, because
    OpenSearch explains of a script no more than its result."""
    body = {**body, "explain": True}
    if isinstance(body.get("rescore"), list):
        return {**body, "rescore": [_by_clauses(stage) for stage in body["rescore"]]}
    return {**body, "rescore": _by_clauses(body["rescore"])} if "rescore" in body else body


def _by_clauses(stage: Body) -> Body:
    try:
        clause = stage["query"]["rescore_query"]
        field, tokens = sparse_tokens(clause) if "script_score" in clause else ("", {})
    except (AttributeError, KeyError, TypeError, ValueError):  # another script, or no stage that OpenSearch takes
        return stage
    if not field:
        return stage
    return {**stage, "query": {**stage["query"], "rescore_query": sparse_clause(tokens, field, plugin=False)}}


def searched_first(body: Body) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of the rare tokens of a `high_idf_first` body; of a body with one phase, all its tokens.

    Raises ValueError for a query that is not sparse.
    """
    query = body["query"]
    query = query["bool"]["must"][0] if "must" in query.get("bool", {}) else query
    parts = query.get("bool", {}).get("should", [])
    return sparse_tokens(parts[0] if any("constant_score" in part for part in parts) else query)


def held_scores(body: Body) -> dict[str, float] | None:
    """{common token: what phase one adds to a document that holds it} of a `high_idf_first` body with two phases; None of a
    `bm25_sparse` body, whose query may be any.

    The second phase tells which it is: that of `bm25_sparse` has a weight, and takes the first phase's score as it is.
    """
    stage = body["rescore"]["query"]
    if stage.get("query_weight", 1.0) == 1.0 and "rescore_query_weight" in stage:
        return None
    query = body["query"]
    parts = (query["bool"]["must"][0] if "must" in query["bool"] else query)["bool"]["should"]
    held = [part["constant_score"] for part in parts if "constant_score" in part]
    return {token_of(clause["filter"]["rank_feature"]): clause["boost"] for clause in held}
