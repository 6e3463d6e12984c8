"""Bodies whose answer explains its scores token by token."""

from __future__ import annotations

from typing import Any

from opensearch_neural.queries.body_parts import Body, forward_clause, reads_rows, replacing, says_pruned, sparse_tokens


def explained(body: Body) -> Body:
    """The body with `explain`. OpenSearch explains only the result of a script. So one script for each token replaces the
    script that reads rows for all tokens; the scores stay the same."""
    body = {**body, "explain": True}
    rescore = body.get("rescore")
    several = isinstance(rescore, list)
    stages = [] if rescore is None else [_told_apart(stage) for stage in (rescore if several else [rescore])]
    query, apart = body.get("query"), _by_tokens(body.get("query"))
    windows = [body.get("size", 10), body.get("from", 0)]
    windows += [stage.get("window_size", 10) if isinstance(stage, dict) else None for stage in stages]
    if apart != query and all(isinstance(each, int) for each in windows) and not body.keys() & {"collapse", "sort"}:
        # Only the hits are read once for each token: to read every document so often would take too long.
        size, from_, *others = windows
        stages = [{"window_size": max(1, from_ + size, *others), "query": replacing(apart)}, *stages]
    if not stages:
        return body
    return {**body, "rescore": stages if several or len(stages) > 1 else stages[0]}


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
    return {**query, "bool": {**inner, **{name: list(map(_by_tokens, clauses)) for name, clauses in parts.items()}}}
