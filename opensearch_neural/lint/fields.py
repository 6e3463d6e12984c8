"""Fields that the index does not have, such as misspelt ones: in queries, and beside the query."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from opensearch_neural.lint.clause_count import clauses
from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.one_field import ONE_FIELD
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_list, as_object
from opensearch_neural.queries.body_parts import Body, sort_entries

FIELD_IS_MEMBER = (*ONE_FIELD, "intervals", "knn", "neural_sparse", "span_term")
"""Queries of the form {kind: {field: …}}."""
LIST_FIELDS = ("combined_fields", "more_like_this", "multi_match", "query_string", "simple_query_string")
"""Queries with a list of fields, whose names may be patterns and have a boost."""
CHECKED_BY_TYPE = ("knn", "neural_sparse", "rank_feature")
"""Queries whose own rules need a field of one type."""
NO_FIELDS = ("after", "background_filter", "buckets_path", "highlight", "order", "params", "script", "sort")
"""Parameters of aggregations in which a member "field" is no field of the index."""


def named(kind: str, inner: Body) -> Iterator[tuple[Path, str]]:
    """(path inside the query, name or pattern) of the fields that a query searches."""
    if kind in FIELD_IS_MEMBER:
        yield from (((name,), name) for name in inner if name not in ("boost", "_name", "value_type"))
    elif kind in ("distance_feature", "exists", "rank_feature"):
        yield ("field",), inner.get("field", "")
    elif kind in LIST_FIELDS:
        listed = inner.get("fields")
        for place, name in enumerate(as_list(listed)):
            yield ("fields", place) if isinstance(listed, list) else ("fields",), str(name).partition("^")[0]
        if kind == "query_string" and not listed:
            yield ("default_field",), inner.get("default_field", "")


def query(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    """Check the fields that a query searches."""
    for below, name in named(kind, inner) if kind not in CHECKED_BY_TYPE else ():
        patterns = kind in (*LIST_FIELDS, "exists")
        missing(request, name, (*path, *below), "nothing is found there", patterns=patterns)


def function_filters(kind: str, inner: Body) -> Iterator[tuple[Path, Any]]:
    """(path, query) of the filters that choose which documents a function scores."""
    for place, function in enumerate(as_list(inner.get("functions")) if kind == "function_score" else ()):
        if "filter" in as_object(function):
            yield ("functions", place, "filter"), function["filter"]


def beside_query(request: LintedRequest) -> None:
    """Check the fields beside the query: of the order, of groups, highlights, aggregations and values."""
    body = request.body
    for path, name, how in sort_entries(body.get("sort")):
        if "unmapped_type" not in as_object(how):
            missing(request, name, ("sort", *path), "no hits can be sorted by it", "rejected")
    group = as_object(body.get("collapse")).get("field")
    missing(request, group, ("collapse", "field"), "no hits can be collapsed by it", "rejected")
    for path, name, _ in highlighted(body):
        missing(request, name, path, "nothing is marked there", patterns=True)
    shown(request, body, ())
    for member in ("aggs", "aggregations"):
        aggregations(request, as_object(body.get(member)), (member,))


def shown(request: LintedRequest, holder: Body, path: Path) -> None:
    """Check the fields, or patterns of fields, whose values come with the hits. holder: the body, or `top_hits`"""
    for member in ("docvalue_fields", "fields"):
        for place, entry in enumerate(as_list(holder.get(member))):
            field = entry.get("field") if isinstance(entry, dict) else entry
            missing(request, field, (*path, member, place), "hits come without it", patterns=True)


def highlighted(body: Body) -> Iterator[tuple[Path, str, Body]]:
    """(path, name or pattern, options) of the fields whose words are marked."""
    listed = as_object(body.get("highlight")).get("fields")
    for place, fields in enumerate(as_list(listed)):
        within: Path = ("highlight", "fields", place) if isinstance(listed, list) else ("highlight", "fields")
        yield from (((*within, name), name, as_object(options)) for name, options in as_object(fields).items())


def aggregations(request: LintedRequest, aggs: Body, path: Path) -> None:
    """Check the fields of aggregations, of those below them, and of their filters."""
    for name, aggregation in aggs.items():
        for kind, how in as_object(aggregation).items():
            where = (*path, name, kind)
            if kind in ("aggs", "aggregations"):
                aggregations(request, as_object(how), where)
            elif kind in ("adjacency_matrix", "filter", "filters"):
                for place, each in _filters(kind, as_object(how)):
                    for below, clause in clauses(each, (*where, *place)):
                        ((of, inner),) = clause.items()
                        query(request, of, inner, (*below, of))
            elif kind == "top_hits":
                shown(request, as_object(how), where)
            elif kind != "meta":
                outcome: Outcome = "rejected" if kind == "significant_text" else "bends"
                for below, field in _of_aggregation(how):
                    missing(request, field, (*where, *below), "it has no values", outcome)


def _filters(kind: str, how: Body) -> Iterator[tuple[Path, Any]]:
    """(path inside the aggregation, query) of its filters."""
    if kind == "filter":
        yield (), how
        return
    filters = how.get("filters")
    named = filters.items() if isinstance(filters, dict) else enumerate(as_list(filters))
    yield from ((("filters", name), each) for name, each in named)


def _of_aggregation(how: Any) -> Iterator[tuple[Path, Any]]:
    for step, value in how.items() if isinstance(how, dict) else enumerate(how) if isinstance(how, list) else ():
        if step in ("field", "path") and isinstance(value, str):
            yield (step,), value
        elif step == "fields":  # of matrix_stats
            yield from (((step, place), name) for place, name in enumerate(as_list(value)))
        elif step not in NO_FIELDS:
            yield from (((step, *below), name) for below, name in _of_aggregation(value))


def missing(
    request: LintedRequest,
    name: Any,
    path: Path,
    consequence: str,
    outcome: Outcome = "bends",
    *,
    patterns: bool = False,
) -> None:
    """Report a field that the index certainly does not have. patterns: * stands for any characters."""
    if not isinstance(name, str) or not name or not request.lacks(name, patterns=patterns):
        return
    what = (
        f"no field matches {name!r}" if patterns and "*" in name else f"the field {name!r} does not exist in this index"
    )
    near = get_close_matches(name, request.index.fields or (), n=1)
    remedy = f"write {near[0]}" if near else "GET INDEX/_mapping lists the index's fields"
    request.report("field", outcome, path, f"{what}: {consequence}", remedy)
