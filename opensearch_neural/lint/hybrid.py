"""Hybrid queries: where they may be, and what may be beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opensearch_neural.lint.clause_count import HOLDERS, MUST_NOT
from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.fusion import NORMALIZATION, RANKER
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_list, as_number, as_object, number_or
from opensearch_neural.queries.body_parts import Body, sort_entries

MOST_HYBRID_QUERIES = 5


def hybrid(request: LintedRequest, inner: Body, path: Path) -> None:
    request.check_cluster("hybrid", path, "hybrid", "search with each query and fuse the hits in the application")
    if path != ("query", "hybrid"):
        nested_hybrid(request, path)
    if not 1 <= len(as_list(inner.get("queries"))) <= MOST_HYBRID_QUERIES:
        message = f"hybrid takes one to {MOST_HYBRID_QUERIES} queries"
        request.report("hybrid-queries", "rejected", (*path, "queries"), message, "join some of them by bool.should")
    if "boost" in inner:
        message = "hybrid takes no boost"
        request.report(
            "hybrid-option", "rejected", (*path, "boost"), message, "give weights to its parts in the processor"
        )
    if "filter" in inner and (outcome := request.unless_release(3, 0)):
        message = "hybrid takes a filter from OpenSearch 3.0 on"
        request.report("hybrid-option", outcome, (*path, "filter"), message, "give the filter to each of its parts")


def filters(request: LintedRequest, kind: str, inner: Body) -> Iterator[tuple[Path, Any]]:
    """(path, query) of a hybrid query's filter, if the release accepts one."""
    if kind == "hybrid" and "filter" in inner and request.unless_release(3, 0) is None:
        yield ("filter",), inner["filter"]


def nested_hybrid(request: LintedRequest, path: Path) -> None:
    """Check a hybrid below another query: OpenSearch refuses some of these, and adds up raw scores in others."""
    if path[0] not in ("query", "rescore"):
        return  # where only matching counts, a hybrid works like a bool
    around: list[tuple[str, str]] = []
    alone, node = True, request.body
    for place, step in enumerate(path[:-1]):
        node = node[step]  # type: ignore[index]
        if step in HOLDERS and isinstance(node, dict):
            around.append((str(step), str(path[place + 1])))
            alone &= sum(len(as_list(node.get(each))) for each in HOLDERS[str(step)]) == 1
    outcome: Outcome = "bends"
    if path[0] == "query" and {kind for kind, _ in around} <= {"bool", "dis_max"}:
        members = {member for _, member in around}
        if alone and not members & {"filter", *MUST_NOT}:
            return  # OpenSearch unwraps such a query
        outcome = "bends" if alone and not members & {*MUST_NOT} else "rejected"
        kinds = {kind for kind, _ in around}
        if outcome == "rejected" and "dis_max" in kinds and (len(kinds) > 1 or request.has_nested is not False):
            outcome = "doubtful"  # OpenSearch finds a hybrid below bools only, or below dis_max only
    request.report(
        "hybrid-nested",
        outcome,
        path,
        "hybrid is below another query, where its parts are not normalized",
        "make it the top-level query, and give filters to each of its parts",
    )


def hybrid_request(request: LintedRequest) -> None:
    """Check a request whose top-level query is hybrid."""
    query = as_object(request.body.get("query"))
    if "hybrid" not in query:
        return
    known, _, _ = request.pipeline
    fusing = [name for name, _, _ in request.processors("phase_results_processors") if name in (NORMALIZATION, RANKER)]
    if known and not fusing:
        request.report(
            "hybrid-without-pipeline",
            "bends",
            ("query", "hybrid"),
            "no processor fuses the parts: hits occur several times, with markers of -9549511920 among their scores",
            "name a search pipeline with a normalization-processor or a score-ranker-processor; queries.hybrid writes "
            "one into the body",
        )
    pagination(request, as_object(query["hybrid"]))
    beside_hybrid(request)


def pagination(request: LintedRequest, hybrid: Body) -> None:
    path: Path = ("query", "hybrid", "pagination_depth")
    value = hybrid.get("pagination_depth")
    deep = number_or(request.body.get("from"), 0) > 0
    if deep and value is not None:
        message = "if fewer hits than `from` are fused, the answer is an error, not an empty page"
        request.report("hybrid-pagination", "doubtful", ("from",), message, "treat this error as the end of the hits")
    if value is None:
        if deep:
            message = "`from` needs pagination_depth in hybrid"
            remedy = f'"pagination_depth": {max(100, request.page_end):.0f}'
            request.report("hybrid-pagination", "rejected", ("from",), message, remedy)
        return
    if outcome := request.unless_release(2, 19):
        message = "pagination_depth came with OpenSearch 2.19"
        request.report("hybrid-pagination", outcome, path, message, "queries.hybrid(…, depth=None), without `from`")
    depth, most = as_number(value), request.index.max_result_window
    if depth is None or not 1 <= depth <= most:
        message = f"{value!r} is not a number from 1 to index.max_result_window, {most:,}"
        request.report("hybrid-pagination", "rejected", path, message, "fuse some hundreds of hits of each part")
    elif depth < request.page_end:
        message = f"{value} hits of each part are fused in each shard, and the page ends at {request.page_end:.0f}"
        request.report("hybrid-pagination", "bends", path, message, "give a depth of at least from + size")


def beside_hybrid(request: LintedRequest) -> None:
    fields = [name for _, name, _ in sort_entries(request.body.get("sort"))]
    if "_score" in fields and len(fields) > 1:
        message = "hybrid is sorted by the score or by fields, not by both"
        request.report("hybrid-with", "rejected", ("sort",), message, "sort by one of them")
    if request.body.get("profile"):
        old = (0, 0) < request.release < (3, 0)
        message = "OpenSearch 2 cannot profile hybrid"
        request.report("hybrid-with", "rejected" if old else "doubtful", ("profile",), message, "profile each part")
    if request.size == 0 and "pagination_depth" in as_object(request.body["query"]["hybrid"]):
        message = "an index with one shard fails from the second time on, when it answers from its cache"
        request.report("hybrid-with", "doubtful", ("size",), message, "ask for one hit, or ?request_cache=false")
    late = {
        "collapse": ((3, 1), "is ignored before OpenSearch 3.1: several hits of a group are returned"),
        "min_score": ((3, 5), "is compared with the parts' scores before OpenSearch 3.5, not with the fused ones"),
    }
    for name, (release, message) in late.items():
        outcome = request.unless_release(*release) if name in request.body else None
        if outcome:
            outcome = "bends" if outcome == "rejected" else outcome
            request.report("hybrid-with", outcome, (name,), f"{name} {message}", "do it in the application")
