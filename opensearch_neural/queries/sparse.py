"""Bodies that search words and tokens: BM25, a sparse model, both together, and rare tokens first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural.queries.clauses import (
    Body,
    Clause,
    PageOptions,
    every_row_clause,
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

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Weight of the first phase's score when the second phase's score replaces it. Added to the new score it vanishes in float32
# rounding. Hits that were not rescored keep it, so they keep their order, below all others. As a power of two it never makes
# two different scores equal.
REPLACED = 2.0**-40

# In phase one of high-IDF-first, a common token adds this share of its query weight to every document that holds it.
HELD = 0.2


def bm25(text: str, *, fields: Sequence[str] = ("contents",), **page: Unpack[PageOptions]) -> Body:
    """BM25 over `contents` (title and text together), or over several fields, with their scores added.

    `track_total_hits` is off by default, as in all functions: OpenSearch can then skip blocks of documents that cannot
    reach the top (block-max WAND), which makes BM25 fast. Raises ValueError without a field.
    """
    return page_body(match_clause(text, fields), **page)


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
    field: str = "sparse",
    **page: Unpack[PageOptions],
) -> Body:
    """BM25, and what a sparse model adds: score(d) = BM25(d) + weight · Σ_t tokens[t] · d_t.

    BM25 searches, and the model's score is added to its `window` best hits of each shard. Hits beyond the window keep their
    BM25 score and are ranked by it. The window is the same for every page, so that all pages form one ranking without
    repeats. If the window reaches to the end of the deepest page that is requested, every hit has its whole score.

    forward: rescore by the documents' rows (`forward_index`), which costs less than clauses. The scores are the same; an
    explanation shows single tokens only if `explained` made the body.

    pruned: True if the index has pruned postings (`pruned_sparse`). Then rows are always read: those of the window; without
    a window, of all documents; with `collapse`, of all documents that BM25 finds.

    The cost of rescoring grows with the window; with clauses it also grows with the number of tokens (`rare_tokens` removes
    light ones).

    With window=None both parts search: the exact sum over all documents, including those without a word of the query. It
    takes longer. `certified` tells whether the page of a window equals the exact page.

    With `collapse` there is no rescoring, because OpenSearch cannot collapse rescored hits: if `window` is a number, all
    documents that BM25 finds get the whole score.

    base: a query clause that replaces BM25 (boosts, phrases, a user's own query, with its filters). Its scores must not be
    negative; `text` and `fields` are ignored. Only documents that it matches are hits, with any window.

    Raises ValueError for a weight that is not above 0, for a window below 1, and as `bm25` does.
    """
    if not 0 < weight < math.inf:
        raise ValueError(f"weight must be a number above 0, not {weight}")
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    collapse = page.get("collapse")
    first = dict(base) if base is not None else match_clause(text, fields)
    query = first
    if tokens and (window is None or collapse):
        every = every_row_clause(tokens, field, boost=weight)
        added = every if pruned else sparse_clause(tokens, field, plugin, boost=weight)
        if base is None and window is None:
            query = {"bool": {"should": [first, added]}}
        else:
            # It is unknown which parts of a user's own query filter and which only score, so all of it must match.
            query = {"bool": {"must": [first], "should": [added]}}
    body = page_body(query, **page)
    if tokens and window is not None and not collapse:
        added = rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned)
        stage = {"rescore_query": added, "rescore_query_weight": float(weight)}
        body["rescore"] = {"window_size": window, "query": stage}
    return body


def neural_sparse(
    tokens: Mapping[str, float], *, plugin: bool = True, field: str = "sparse", **page: Unpack[PageOptions]
) -> Body:
    """Search with all tokens: score(d) = Σ_t tokens[t] · d_t.

    With `plugin` the clause is `neural_sparse` with raw query tokens (neural-search plugin, no model on the cluster).
    Without, it is a `bool` of linear `rank_feature` clauses, which every OpenSearch has. The scores are equal.

    In an index with pruned postings it finds and scores only each document's heaviest tokens (`pruned_sparse`).
    """
    return page_body(sparse_clause(tokens, field, plugin), **page)


def pruned_sparse(
    tokens: Mapping[str, float],
    *,
    window: int | None = 100,
    plugin: bool = True,
    field: str = "sparse",
    **page: Unpack[PageOptions],
) -> Body:
    """Search an index with pruned postings (`osn ingest --prune-postings`): score(d) = Σ_t tokens[t] · d_t.

    The postings hold each document's heaviest tokens; the rows (`forward_index`) hold all of them. The search reads the
    postings, then the `window` best hits of each shard get their whole score from their rows. Documents beyond the window
    are not rescored. The window is the same for every page; hits beyond it follow, as in `high_idf_first`.

    The postings do not find a document in which all tokens of the query are light. If they find few others, the page is
    short; `unsearched` makes the request that fills it.

    With window=None, or with `collapse` (OpenSearch cannot collapse rescored hits), the row of every document that passes
    the filter is read. The result is exact, and the time grows with the number of these documents.

    Raises ValueError for a window below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    whole = window is None or bool(page.get("collapse"))
    body = page_body(every_row_clause(tokens, field) if whole else sparse_clause(tokens, field, plugin), **page)
    if tokens and not whole:
        body["rescore"] = {
            "window_size": window,
            "query": _replacing(tokens, field, plugin=plugin, forward=True, pruned=True),
        }
    return body


def unsearched(body: Body, matches: int) -> Body | None:
    """The request that fills a short page of a `pruned_sparse`, `high_idf_first` or `cascade` body in an index with pruned
    postings. It finds documents that hold tokens of the query, but none of them in their postings. Append its hits to those
    of the body. None if the body's page cannot lack such documents: a full page, a body without a window, or of another
    kind.

    The hits are ranked by their whole scores, and all pages form one ranking without repeats. Their `_score` is the whole
    score times 2⁻⁸⁰ (or less, after a stage that replaces scores), below all others. The request reads the row of every
    document that the body's query does not find.

    matches: the number of documents that the body's query finds (`_count`). For a short page with hits it is `from` plus the
    number of hits.
    """
    try:
        stages: Any = body["rescore"]
        stages = [stage["query"] for stage in (stages if isinstance(stages, list) else [stages])]
        field, tokens = sparse_tokens(stages[0]["rescore_query"])
    except (IndexError, KeyError, ValueError):
        return None
    if stages[0].get("query_weight") != REPLACED or not says_pruned(stages[0]["rescore_query"]):
        return None
    # Below the hits that lie beyond the windows of all stages.
    boost = REPLACED * math.prod(stage.get("query_weight", 1.0) for stage in stages)
    inner, filters = unfiltered(body["query"])
    if reads_rows(inner):  # the query reads all rows already; `explained` has rescored its hits
        return None
    among = {"bool": {"must_not": [inner], **({"filter": filters} if filters else {})}}
    from_ = body.get("from", 0)
    lacking = from_ + body["size"] - max(matches, from_)
    if lacking <= 0:
        return None
    kept = {name: value for name, value in body.items() if name not in ("query", "rescore", "size", "from")}
    rest = {
        **kept,
        "query": every_row_clause(tokens, field, among=among, boost=boost),
        "size": lacking,
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
    field: str = "sparse",
    **page: Unpack[PageOptions],
) -> Body:
    """Search rare tokens first, then rescore the best hits with all tokens (`inference-free-sparse`, section 5.3.2).

    In phase one a common token adds a constant to every document that holds it: `HELD` times its query weight. Its weight
    in the document is not read. Since the constant is small, OpenSearch skips documents with only common tokens once
    documents with rare tokens fill the window. If rare tokens find too few documents, those with common tokens fill the
    page: it is full whenever a search with all tokens has a full page.

    A rescored hit has the full query's score. By design, documents beyond the `window` best of phase one in each shard are
    not rescored. The window is the same for every page, so that all pages form one ranking without repeats. Hits beyond it
    follow in the order of phase one, and their scores are not the query's. If the window reaches to the end of the deepest
    page that is requested, every hit has the query's score.

    forward: phase two reads the documents' rows (`forward_index`), as in `bm25_sparse`.

    pruned: True if the index has pruned postings (`pruned_sparse`). Then phase two reads rows, `exact` must be True, a
    search of one phase is that of `pruned_sparse`, and a page may be short (`unsearched`).

    With `exact` the second phase scores with all tokens again. Without, it adds the common tokens' scores to the first
    phase's score and reads no rare token twice. The sum is the same except for the last bits, because each phase rounds to
    float32. Common tokens then add almost nothing in phase one: if rare tokens find enough documents, they alone decide.

    With `collapse` there is one phase without a window, because OpenSearch cannot collapse rescored hits: every document is
    scored with all tokens. It takes longer.

    If all tokens weigh the same, there is one phase too. Raises ValueError for a window below 1, and for `pruned` without
    `exact`.
    """
    if window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window}")
    if pruned and not exact:
        raise ValueError("with pruned postings, phase one does not know whole scores: exact must be true")
    collapse = page.get("collapse")
    # If all tokens weigh the same, as in a table with one value, none is rarer than another.
    first = rare_tokens(tokens, rare) if len(set(tokens.values())) > 1 and not collapse else tokens
    common = {token: weight for token, weight in tokens.items() if token not in first}
    held = [held_clause(token, weight * (HELD if exact else REPLACED), field) for token, weight in common.items()]
    query = every_row_clause(tokens, field) if pruned and collapse else sparse_clause(first, field, plugin)
    query = {"bool": {"should": [query, *held]}} if held else query
    body = page_body(query, **page)
    if common and not exact:
        # OpenSearch adds the scores of both phases by default.
        second = {"rescore_query": rescoring_clause(common, field, plugin=plugin, forward=forward)}
    elif common or (pruned and tokens and not collapse):
        second = _replacing(tokens, field, plugin=plugin, forward=forward, pruned=pruned)
    else:
        return body
    return {**body, "rescore": {"window_size": window, "query": second}}


def _replacing(tokens: Mapping[str, float], field: str, *, plugin: bool, forward: bool, pruned: bool) -> Body:
    """A second phase by tokens, whose scores replace the first phase's."""
    return _in_its_place(rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned))


def _in_its_place(clause: Clause) -> Body:
    return {"rescore_query": clause, "query_weight": REPLACED, "rescore_query_weight": 1.0}


def explained(body: Body) -> Body:
    """The body with `explain`. OpenSearch explains only the result of a script. So one script for each token replaces the
    script that reads rows for all tokens; the scores stay the same."""
    body = {**body, "explain": True}
    held = body.get("rescore")
    stages = list(map(_told_apart, held)) if isinstance(held, list) else [] if held is None else [_told_apart(held)]
    query, apart = body.get("query"), _by_tokens(body.get("query"))
    windows = [body.get("size", 10), body.get("from", 0)]
    windows += [stage.get("window_size", 10) if isinstance(stage, dict) else None for stage in stages]
    if apart != query and all(isinstance(each, int) for each in windows) and not body.keys() & {"collapse", "sort"}:
        # To read every document once for each token would take too long, so only the hits are.
        size, from_, *others = windows
        stages = [{"window_size": max(1, from_ + size, *others), "query": _in_its_place(apart)}, *stages]
    if not stages:
        return body
    return {**body, "rescore": stages if isinstance(held, list) or len(stages) > 1 else stages[0]}


def _told_apart(stage: Any) -> Any:
    try:
        clause = stage["query"]["rescore_query"]
    except (KeyError, TypeError):  # OpenSearch will refuse this stage
        return stage
    return {**stage, "query": {**stage["query"], "rescore_query": _by_tokens(clause)}}


def _by_tokens(query: Any) -> Any:
    """The query, with each clause that reads rows split into one clause for each token."""
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
    """(field, {token: weight}) of the rare tokens of a `high_idf_first` body, or of all tokens if it has one phase.

    Raises ValueError for a query that is not sparse.
    """
    query, _ = unfiltered(body["query"])
    parts = query.get("bool", {}).get("should", [])
    return sparse_tokens(parts[0] if any("constant_score" in part for part in parts) else query)


def held_scores(body: Body) -> dict[str, float] | None:
    """{common token: score that phase one adds to a document with it} for a `high_idf_first` body with two phases; None for
    a `bm25_sparse` body, whose query can be anything.

    The second phase tells them apart: that of `bm25_sparse` has a weight, and keeps the first phase's score unchanged.
    """
    stage = body["rescore"]["query"]
    if stage.get("query_weight", 1.0) == 1.0 and "rescore_query_weight" in stage:
        return None
    query, _ = unfiltered(body["query"])
    held = [part["constant_score"] for part in query["bool"]["should"] if "constant_score" in part]
    return {token_of(clause["filter"]["rank_feature"]): clause["boost"] for clause in held}
