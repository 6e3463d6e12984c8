"""Highlights: a field is marked only with words that are searched in it."""

from __future__ import annotations

from typing import Any

from opensearch_neural.lint.clause_count import HOLDERS, MUST_NOT, clauses
from opensearch_neural.lint.fields import CHECKED_BY_TYPE, highlighted, named
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import matches, number_or

WORDLESS = (*CHECKED_BY_TYPE, "distance_feature", "exists", "ids", "match_all", "match_none")
"""Queries of which nothing is marked."""
BUILT_IN = ("unified", "plain", "fvh")
"""Types of highlights that mark the words of the query; plugins have others."""


def highlight(request: LintedRequest) -> None:
    """Report highlights that certainly mark nothing, because the query searches none of their fields."""
    parts = [{**request.body["highlight"], "name": name, **how} for _, name, how in highlighted(request.body)]
    searched = [_searched(part.get("highlight_query", request.body.get("query"))) for part in parts]
    if not parts or any(names is None for names in searched):
        return
    for part, names in zip(parts, searched, strict=True):
        if number_or(part.get("no_match_size"), 0) > 0 or part.get("type", "unified") not in BUILT_IN:
            return
        in_any_field = part.get("require_field_match") in (False, "false") or "matched_fields" in part
        if names and (in_any_field or any(_may_be_same(request, part["name"], name) for name in names)):
            return
    request.report(
        "highlight",
        # An alias may stand for a field that is searched.
        "bends" if request.index.fields is not None or not any(searched) else "doubtful",
        ("highlight",),
        "nothing is marked: the query searches no word in these fields, and what rescores it does not count",
        'give "highlight_query": {"multi_match": {"query": WORDS, "fields": […]}} over these fields',
    )


def _searched(query: Any) -> list[str] | None:
    """The fields, or patterns of fields, in which a query searches words; None if they are not known."""
    names = []
    for _, clause in clauses(query, (), beside=MUST_NOT):
        ((kind, inner),) = clause.items()
        if kind in HOLDERS or kind in WORDLESS:
            continue
        searched = [name for _, name in named(kind, inner) if isinstance(name, str) and name]
        if not searched:
            return None
        names += searched
    return names


def _may_be_same(request: LintedRequest, marked: str, searched: str) -> bool:
    """Whether the two may be one field; * stands for any characters."""
    if "*" in marked and "*" in searched:
        return True
    of_marked, of_searched = (_fields_named(request, name) for name in (marked, searched))
    return any(matches(a, b) or matches(b, a) for a in of_marked for b in of_searched)


def _fields_named(request: LintedRequest, name: str) -> set[str]:
    """The name, or pattern, and the fields that its aliases stand for."""
    fields = request.index.fields or {}
    return {name} | {mapping["path"] for each, mapping in fields.items() if "path" in mapping and matches(name, each)}
