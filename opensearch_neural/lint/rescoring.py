"""Rescoring: windows, weights, and what a request that rescores may not contain."""

from __future__ import annotations

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_number, as_object, number_or
from opensearch_neural.queries.body_parts import Body, sorts_by_score


def rescoring(request: LintedRequest) -> None:
    stages = request.rescore_stages
    for path, rescore in stages:
        how = as_object(rescore.get("query"))
        rescore_window(request, rescore, path)
        for name in ("query_weight", "rescore_query_weight"):
            if number_or(how.get(name), 1) < 0:
                request.report(
                    "rescore-weight",
                    "bends",
                    (*path, "query", name),
                    "a negative weight ranks rescored hits below the others",
                    "give a weight of 0 or more",
                )
    if not stages:
        return
    windows = [number_or(rescore.get("window_size"), 10) for _, rescore in stages]
    for at in range(1, len(windows)):
        if windows[at] > windows[at - 1]:
            request.report(
                "rescore-order",
                "bends",
                (*stages[at][0], "window_size"),
                f"the stage before rescores {windows[at - 1]:g} hits a shard: other hits lack its part of the score",
                "give it a window no wider than that of the stage before",
            )
    with_rescoring(request, stages[0][0])
    if "hybrid" in as_object(request.body.get("query")):
        request.report(
            "rescore-of-hybrid",
            "bends",
            stages[0][0],
            "each part is rescored alone in each shard, before the parts are normalized: final scores change",
            "do not rescore a hybrid query: fuse first, and rank the page again in the application",
        )


def with_rescoring(request: LintedRequest, path: Path) -> None:
    """Check what a request must not contain if it rescores, itself or by a processor."""
    if not sorts_by_score(request.body.get("sort")):
        request.report(
            "rescore-with-sort",
            "rejected",
            ("sort",),
            "a request that rescores cannot be sorted",
            f"drop the sort, or {path[0]}; ties are ordered by shard and document",
        )
    if "collapse" in request.body:
        request.report(
            "rescore-with-collapse",
            "rejected",
            ("collapse",),
            "a request that rescores cannot be collapsed",
            "search without rescoring (queries.neural_sparse), or collapse the hits in the application",
        )
    if "min_score" in request.body:
        request.report(
            "rescore-min-score",
            "bends",
            ("min_score",),
            "it is compared with the score before rescoring, so hits below it are returned and others are lost",
            "cut the page in the application",
        )


def rescore_window(request: LintedRequest, rescore: Body, path: Path) -> None:
    value = rescore.get("window_size", 10)
    window, path = as_number(value), (*path, "window_size")
    most = request.index.max_rescore_window
    if window is None or window < 0:
        request.report(
            "rescore-window", "rejected", path, f"{value!r} is not a number of hits", "give from + size or more"
        )
    elif window > most:
        request.report(
            "rescore-window",
            "rejected",
            path,
            f"{value} hits a shard are more than index.max_rescore_window, {most:,}",
            "rescore fewer, or raise the index's setting",
        )
    elif int(window) < request.page_end and request.size:
        said = f"the {value} best hits" if "window_size" in rescore else "by default the 10 best hits"
        request.report(
            "rescore-window",
            "bends",
            path,
            f"{said} of a shard are rescored, and the page ends at {request.page_end:.0f}: later hits keep another score",
            "give a window of at least from + size",
        )
