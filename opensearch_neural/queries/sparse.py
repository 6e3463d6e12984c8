"""Bodies by words and by tokens: BM25, a sparse model, both together, and rare tokens first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from opensearch_neural.queries.clauses import (
    DEFAULT_SOURCE,
    Body,
    Clause,
    Filter,
    every_row_clause,
    filtered,
    forward_clause,
    held_clause,
    match_clause,
    page_body,
    reads_rows,
    rescoring_clause,
    says_pruned,
    sparse_clause,
    sparse_tokens,
    token_of,
    unfiltered,
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
    track_total_hits: bool | int = False,
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
    pruned: bool = False,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool | int = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """BM25, and what a sparse model adds: score(d) = BM25(d) + weight · Σ_t tokens[t] · d_t.

    BM25 searches, and its `window` best hits of each shard get what the model adds. What lies beyond the window keeps its
    BM25 score, and is ranked by it: the window is the same for every page, so that pages put together are one ranking
    without repeats. A window of the deepest page that is asked for, or more, gives every hit its whole score.

    forward: rescore by the documents' rows (`forward_index`), which costs less than clauses do. The scores are the same; an
    explanation does not tell the tokens apart (`explained`).

    pruned: say so of an index with pruned postings (`pruned_sparse`). Then rows are read always: those of the window, of all
    documents without a window, of all that BM25 finds with `collapse`.

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
        every = every_row_clause(tokens, field, boost=weight)
        added = every if pruned else sparse_clause(tokens, field, plugin, boost=weight)
        if base is None and window is None:
            query = {"bool": {"should": [first, added]}}
        else:
            # Which parts of a query of one's own restrict, and which only score, is not told apart: all of it has to match.
            query = {"bool": {"must": [first], "should": [added]}}
    body = page_body(filtered(query, filter), size, from_, source, track_total_hits, highlight, collapse)
    if tokens and window is not None and not collapse:
        added = rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned)
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
    track_total_hits: bool | int = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """All tokens: score(d) = Σ_t tokens[t] · d_t.

    With `plugin` the clause is `neural_sparse` with raw query tokens (neural-search plugin, no model on the cluster);
    without, a `bool` of linear `rank_feature` clauses, which every OpenSearch has. The scores are equal.

    In an index with pruned postings it finds, and scores, each document's heaviest tokens alone (`pruned_sparse`).
    """
    query = filtered(sparse_clause(tokens, field, plugin), filter)
    return page_body(query, size, from_, source, track_total_hits, highlight, collapse)


def pruned_sparse(
    tokens: Mapping[str, float],
    *,
    window: int | None = 100,
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool | int = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """All tokens, in an index with pruned postings (`osn ingest --prune-postings`): score(d) = Σ_t tokens[t] · d_t.

    Postings hold each document's heaviest tokens, rows (`forward_index`) hold all of them. The postings search, and the
    `window` best hits of each shard get their whole score, by their rows. What is lost: documents beyond the window. It is
    the same for every page, and hits beyond it come behind, as those of `high_idf_first` do.

    A document that holds only light tokens of the query is not found by its postings: where few others are, the page is
    short. `unsearched` makes the request that fills it.

    With window=None the row of every document is read: the exact result, in time that grows with the documents that pass
    the filter. With `collapse`, too, because OpenSearch collapses nothing that it rescores.

    Raises ValueError for a window below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    whole = window is None or bool(collapse)
    query = filtered(every_row_clause(tokens, field) if whole else sparse_clause(tokens, field, plugin), filter)
    body = page_body(query, size, from_, source, track_total_hits, highlight, collapse)
    if tokens and not whole:
        body["rescore"] = {
            "window_size": window,
            "query": _replacing(tokens, field, plugin=plugin, forward=True, pruned=True),
        }
    return body


def unsearched(body: Body, matches: int) -> Body | None:
    """The request that fills a short page of a `pruned_sparse`, `high_idf_first` or `cascade` body of an index with pruned
    postings: for the documents that hold tokens of the query, but none among their heaviest. Its hits belong behind those of
    the body. None for a body whose page lacks none of these: one without a window, or of another kind.

    They are ranked by their whole scores, and all pages put together are one ranking without repeats; their `_score` is that
    times 2⁻⁸⁰ (or less, after a stage that replaces scores), below all others. The row of every document that the body's
    query does not find is read.

    matches: how many documents the body's query finds (`_count`). Of a short page with hits that is from + these hits.
    """
    try:
        stages: Any = body["rescore"]
        stages = [stage["query"] for stage in (stages if isinstance(stages, list) else [stages])]
        field, tokens = sparse_tokens(stages[0]["rescore_query"])
    except (IndexError, KeyError, ValueError):
        return None
    if stages[0].get("query_weight") != REPLACED or not says_pruned(stages[0]["rescore_query"]):
        return None
    # Below what is beyond the windows of all stages.
    boost = REPLACED * math.prod(stage.get("query_weight", 1.0) for stage in stages)
    inner, filters = unfiltered(body["query"])
    if reads_rows(inner):  # of every document, which `explained` has rescored
        return None
    among = {"bool": {"must_not": [inner], **({"filter": filters} if filters else {})}}
    from_ = body.get("from", 0)
    kept = {name: value for name, value in body.items() if name not in ("query", "rescore", "size", "from")}
    rest = {
        **kept,
        "query": every_row_clause(tokens, field, among=among, boost=boost),
        "size": from_ + body["size"] - max(matches, from_),
        "from": max(0, from_ - matches),
    }
    return explained(rest) if body.get("explain") else rest


def high_idf_first(
    tokens: Mapping[str, float],
    *,
    rare: Rare = Rare(),
    window: int = 30,
    exact: bool = True,
    plugin: bool = True,
    forward: bool = False,
    pruned: bool = False,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool | int = False,
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

    pruned: say so of an index with pruned postings (`pruned_sparse`). Then phase two reads rows, `exact` is needed, where
    there is one phase it is as in `pruned_sparse`, and a page may be short likewise (`unsearched`).

    With `exact` the second phase scores with all tokens anew. Without, it adds the common tokens' scores to what the first
    has found and reads no rare token twice: the same sum but for the last bits of a float32, to which each phase rounds.
    Common tokens then add next to nothing in phase one, so that it chooses by rare tokens alone where these find enough.

    With `collapse` there is one phase, because OpenSearch collapses nothing that it rescores: every document is scored with
    all tokens. So there is no window and what lies beyond it is not lost; it takes longer.

    Tokens that all weigh the same are searched in one phase too. Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window}")
    if pruned and not exact:
        raise ValueError("what phase one has found in pruned postings is no document's score: exact must be true")
    # Of tokens that weigh the same, as a table without spread has them, none is rarer than another.
    first = rare_tokens(tokens, rare) if len(set(tokens.values())) > 1 else tokens
    common = {token: weight for token, weight in tokens.items() if token not in first}
    if not common or collapse:
        if pruned:
            return pruned_sparse(
                tokens,
                window=window,
                plugin=plugin,
                size=size,
                from_=from_,
                field=field,
                filter=filter,
                source=source,
                track_total_hits=track_total_hits,
                highlight=highlight,
                collapse=collapse,
            )
        query = filtered(sparse_clause(tokens, field, plugin), filter)
        return page_body(query, size, from_, source, track_total_hits, highlight, collapse)
    held = [held_clause(token, weight * (HELD if exact else REPLACED), field) for token, weight in common.items()]
    query = filtered({"bool": {"should": [sparse_clause(first, field, plugin), *held]}}, filter)
    body = page_body(query, size, from_, source, track_total_hits, highlight, collapse)
    if exact:
        second = _replacing(tokens, field, plugin=plugin, forward=forward, pruned=pruned)
    else:
        # The sum of both phases counts, which is what OpenSearch does unless told otherwise.
        second = {"rescore_query": rescoring_clause(common, field, plugin=plugin, forward=forward)}
    body["rescore"] = {"window_size": window, "query": second}
    return body


def _replacing(tokens: Mapping[str, float], field: str, *, plugin: bool, forward: bool, pruned: bool) -> Body:
    """A second phase by tokens, whose scores stand in the place of the first one's."""
    return _in_its_place(rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned))


def _in_its_place(clause: Clause) -> Body:
    return {"rescore_query": clause, "query_weight": REPLACED, "rescore_query_weight": 1.0}


def explained(body: Body) -> Body:
    """The body asking for explanations. OpenSearch explains of a script no more than its result: so what is scored by rows
    is scored by the row of each token apart then, to the same scores."""
    body = {**body, "explain": True}
    held = body.get("rescore")
    stages = list(map(_told_apart, held)) if isinstance(held, list) else [] if held is None else [_told_apart(held)]
    query, apart = body.get("query"), _by_tokens(body.get("query"))
    windows = [body.get("size", 10), body.get("from", 0)]
    windows += [stage.get("window_size", 10) if isinstance(stage, dict) else None for stage in stages]
    if apart != query and all(isinstance(each, int) for each in windows) and not body.keys() & {"collapse", "sort"}:
        # Every document read once for each token would take too long: the hits alone are scored so.
        size, from_, *others = windows
        stages = [{"window_size": max(1, from_ + size, *others), "query": _in_its_place(apart)}, *stages]
    if not stages:
        return body
    return {**body, "rescore": stages if isinstance(held, list) or len(stages) > 1 else stages[0]}


def _told_apart(stage: Any) -> Any:
    try:
        clause = stage["query"]["rescore_query"]
    except (KeyError, TypeError):  # no stage that OpenSearch takes
        return stage
    return {**stage, "query": {**stage["query"], "rescore_query": _by_tokens(clause)}}


def _by_tokens(query: Any) -> Any:
    """The query with each clause that reads rows for several tokens as one clause a token."""
    if not isinstance(query, dict):
        return query
    if reads_rows(query):
        try:
            field, tokens = sparse_tokens(query)
        except ValueError:  # damaged
            return query
        outer, pruned = query["script_score"], says_pruned(query)
        scripts = [forward_clause({token: tokens[token]}, field, pruned=pruned)["script_score"] for token in tokens]
        return {"bool": {"should": [{"script_score": {**outer, "script": each["script"]}} for each in scripts]}}
    inner = query.get("bool")
    if not isinstance(inner, dict):
        return query
    parts = {name: inner[name] for name in ("must", "should") if isinstance(inner.get(name), list)}
    return {**query, "bool": {**inner, **{name: list(map(_by_tokens, held)) for name, held in parts.items()}}}


def searched_first(body: Body) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of the rare tokens of a `high_idf_first` body; of a body with one phase, all its tokens.

    Raises ValueError for a query that is not sparse.
    """
    query, _ = unfiltered(body["query"])
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
    query, _ = unfiltered(body["query"])
    held = [part["constant_score"] for part in query["bool"]["should"] if "constant_score" in part]
    return {token_of(clause["filter"]["rank_feature"]): clause["boost"] for clause in held}
