"""Bodies that search words and tokens: BM25, a sparse model, both together, and rare tokens first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural.queries.body_parts import (
    REPLACED,
    Body,
    Clause,
    PageOptions,
    checked_clause,
    constant_clause,
    every_row_clause,
    holds_hybrid,
    match_clause,
    page_body,
    reads_rows,
    replacing,
    rescoring_clause,
    says_pruned,
    sparse_clause,
    sparse_tokens,
    token_of,
    unfiltered,
)
from opensearch_neural.queries.explain import explained
from opensearch_neural.queries.rare import Rare, rare_tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    rare_first: tuple[str, str] | None = None,
    field: str = "sparse",
    **page: Unpack[PageOptions],
) -> Body:
    """BM25, and what a sparse model adds: score(d) = BM25(d) + weight · Σ_t tokens[t] · d_t.

    weight: a plain factor, which means something else for every model. The engines divide theirs by the index's scale
    (`sparse_scale` in the record's `extra`), so that it means the same for all.

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

    rare_first: (rare words, other words) of `text`, by `rare_words`. In phase one the rare words then decide: the others
    count 2⁻⁴⁰ of their score, so that OpenSearch skips most documents that hold only them, and still finds such documents
    where rare words find too few. The hits of the window get the other words' score before the model's, so they have the
    same score as without; hits beyond the window have BM25's score of the rare words alone. Every word must find the same
    alone as in the text: no synonyms of several words, no phrases. `certified` refuses such a body. `rare_first` is ignored
    with window=None, with `collapse` or `base`, without tokens, and if there are no rare or no other words.

    base: a query clause that replaces BM25 (boosts, phrases, a user's own query, with its filters). Its scores must not be
    negative; `text` and `fields` are ignored. Only documents that it matches are hits, with any window. It holds no hybrid
    query, which has no scores before its parts are fused.

    Raises ValueError for a weight that is not above 0, for a window below 1, for a base that is or contains a hybrid query,
    TypeError for a base that is no query clause, and as `bm25` does.
    """
    if not 0 < weight < math.inf:
        raise ValueError(f"weight must be a number above 0, not {weight}")
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    collapse = page.get("collapse")
    first = checked_clause(base, "base") if base is not None else match_clause(text, fields)
    if holds_hybrid(base):
        raise ValueError(
            "base is or contains a hybrid query, whose hits have no scores to add to before its parts are fused: give a"
            " query without one, such as a bool with the parts in its should"
        )
    query = first
    if tokens and (window is None or collapse):
        # It is unknown which parts of a user's own query filter and which only score, so all of it must match.
        first_must_match = base is not None or window is not None
        query = _both_search(first, _searching_clause(tokens, field, plugin, pruned, boost=weight), first_must_match)
    if window is None or collapse or not tokens:
        return page_body(query, **page)
    added = rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned)
    second = {"rescore_query": added, "rescore_query_weight": float(weight)}
    if base is not None or rare_first is None or not all(rare_first):
        return _rescored(page_body(query, **page), window, second)
    rare, others = (match_clause(words, fields, for_any_text=True) for words in rare_first)
    almost_nothing = {"bool": {"should": [others], "boost": REPLACED}}
    phase_one = page_body({"bool": {"should": [rare, almost_nothing]}}, **page)
    return _rescored(phase_one, window, {"rescore_query": others, "rescore_query_weight": 1.0}, second)


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
    every_row = window is None or bool(page.get("collapse"))
    body = page_body(_searching_clause(tokens, field, plugin, every_row), **page)
    if every_row or window is None or not tokens:
        return body
    return _rescored(body, window, replacing(rescoring_clause(tokens, field, plugin=plugin, forward=True, pruned=True)))


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
    lacking = from_ + body.get("size", 10) - max(matches, from_)
    if lacking <= 0:
        return None
    unchanged = {name: value for name, value in body.items() if name not in ("query", "rescore", "size", "from")}
    rest = {
        **unchanged,
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
    share = HELD if exact else REPLACED
    common_clauses = [constant_clause(token, weight * share, field) for token, weight in common.items()]
    query = _searching_clause(first, field, plugin, pruned and bool(collapse))
    query = {"bool": {"should": [query, *common_clauses]}} if common_clauses else query
    body = page_body(query, **page)
    if common and not exact:
        # OpenSearch adds the scores of both phases by default.
        second = {"rescore_query": rescoring_clause(common, field, plugin=plugin, forward=forward)}
    elif common or (pruned and tokens and not collapse):
        second = replacing(rescoring_clause(tokens, field, plugin=plugin, forward=forward, pruned=pruned))
    else:
        return body
    return _rescored(body, window, second)


def _searching_clause(
    tokens: Mapping[str, float], field: str, plugin: bool, every_row: bool, boost: float = 1.0
) -> Clause:
    """The clause that searches all tokens. every_row: by the rows of all documents, not by the postings."""
    if every_row:
        return every_row_clause(tokens, field, boost=boost)
    return sparse_clause(tokens, field, plugin, boost=boost)


def _both_search(first: Clause, added: Clause, first_must_match: bool) -> Clause:
    """The sum of the scores of two clauses, for the documents that match either, or only for those that match `first`."""
    if first_must_match:
        return {"bool": {"must": [first], "should": [added]}}
    return {"bool": {"should": [first, added]}}


def _rescored(body: Body, window: int, *phases: Body) -> Body:
    """The body with further phases for the `window` best hits of each shard."""
    stages = [{"window_size": window, "query": phase} for phase in phases]
    return {**body, "rescore": stages if len(stages) > 1 else stages[0]}


def searched_first(body: Body) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of the rare tokens of a `high_idf_first` body, or of all tokens if it has one phase.

    Raises ValueError for a query that is not sparse.
    """
    query, _ = unfiltered(body["query"])
    parts = query.get("bool", {}).get("should", [])
    return sparse_tokens(parts[0] if any("constant_score" in part for part in parts) else query)


def constant_scores(body: Body) -> dict[str, float] | None:
    """{common token: score that phase one adds to a document with it} for a `high_idf_first` body with two phases; None for
    a `bm25_sparse` body, whose query can be anything.

    The second phase tells them apart: that of `bm25_sparse` has a weight, and keeps the first phase's score unchanged.
    """
    stage = body["rescore"]["query"]
    if stage.get("query_weight", 1.0) == 1.0 and "rescore_query_weight" in stage:
        return None
    query, _ = unfiltered(body["query"])
    constants = [part["constant_score"] for part in query["bool"]["should"] if "constant_score" in part]
    return {token_of(clause["filter"]["rank_feature"]): clause["boost"] for clause in constants}
