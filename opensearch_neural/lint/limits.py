"""Limits of the index and the cluster: pages, clauses, terms."""

from __future__ import annotations

from opensearch_neural.lint.clause_count import count
from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_object, number_or, number_or_nan, whole
from opensearch_neural.queries.body_parts import Body, sort_entries, sorts_by_score

MOST_CLAUSES = 1024


def page(request: LintedRequest) -> None:
    for name in ("from", "size"):
        number = number_or_nan(request.body.get(name, 0))
        if number is None or whole(number) < 0:
            request.report(
                "page", "rejected", (name,), f"{request.body[name]!r} is not a number of 0 or more", f"give {name} ≥ 0"
            )
            return
    most = request.index.max_result_window
    if request.page_end > most:
        request.report(
            "page",
            "rejected",
            ("size",),
            f"from + size is {request.page_end:,.0f}, and index.max_result_window is {most:,}",
            "page with search_after, or raise the index's setting, which costs heap",
        )
    after = request.body.get("search_after")
    if after is None:
        return
    if number_or(request.body.get("from"), 0) > 0:
        request.report("page", "rejected", ("from",), "`from` must be 0 beside search_after", "leave `from` out")
    group = as_object(request.body.get("collapse")).get("field")
    by_group = [name for _, name, _ in sort_entries(request.body.get("sort"))] == [group]
    outcome = request.unless_release(3, 3) if by_group else "rejected"
    if group is not None and outcome:
        message = "search_after goes with collapse only from 3.3 on, where the sort is by the collapsed field alone"
        request.report("page", outcome, ("search_after",), message, "page by `from`, or collapse in the application")
    if sorts_by_score(request.body.get("sort")):
        request.report(
            "page",
            "rejected",
            ("search_after",),
            "search_after needs a sort by more than the descending score",
            'sort by [{"_score": "desc"}, {"_id": "asc"}] or by a field',
        )


def clause_counts(request: LintedRequest) -> None:
    most = (request.capabilities.max_clause_count if request.capabilities else None) or MOST_CLAUSES
    for path, query in request.queries:
        clauses = count(query, request.analyzer_of)
        certainly = clauses.widest_low > most or clauses.low > most + 1
        if not certainly and max(clauses.high, clauses.widest_high) <= most:
            continue
        counted = max(clauses.low, clauses.widest_low) if certainly else clauses.high
        request.report(
            "too-many-clauses",
            "rejected" if certainly else "doubtful",
            path,
            f"{'at least' if certainly else 'up to'} {counted:,} clauses, and this cluster allows {most:,}",
            "keep only the heaviest tokens, shorten the text, or raise indices.query.bool.max_clause_count "
            "in every node's opensearch.yml",
        )


def terms(request: LintedRequest, inner: Body, path: Path) -> None:
    for name, values in inner.items():
        if isinstance(values, list) and len(values) > request.index.max_terms_count:
            request.report(
                "too-many-terms",
                "rejected",
                (*path, name),
                f"{len(values):,} values, and index.max_terms_count is {request.index.max_terms_count:,}",
                "split the list over several terms queries, or filter by a field that groups the values",
            )
