"""The two-phase processor of neural-search: its parameters, and which queries it splits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.rescoring import with_rescoring
from opensearch_neural.lint.values import as_list, as_number, as_object, number_or, whole
from opensearch_neural.queries.body_parts import Body

TWO_PHASE = "neural_sparse_two_phase_processor"


def two_phase(request: LintedRequest) -> None:
    for name, config, path in request.processors("request_processors"):
        config = as_object(config)
        if name != TWO_PHASE or config.get("enabled") is False:
            continue
        request.check_cluster("two_phase", path, name, "queries.high_idf_first needs no processor")
        parameters = as_object(config.get("two_phase_parameter"))
        if not two_phase_parameters(request, parameters, (*path, "two_phase_parameter")):
            continue
        split = list(split_queries(request.body.get("query")))
        if not split:
            request.report(
                "two-phase-not-split",
                "bends",
                path,
                "the query has no neural_sparse at the top or in bool.should: the processor does nothing",
                "put the query into bool.should with minimum_should_match beside the filter, or use "
                "queries.high_idf_first, which splits everywhere",
            )
            continue
        with_rescoring(request, path)
        two_phase_window(request, parameters, path)
        if request.rescore_stages:
            message = "the processor adds a second rescoring: its tokens' scores are added to the body's rescoring"
            request.report("two-phase-with-rescore", "bends", ("rescore",), message, "keep one of the two")
        if any(pruned_to_nothing(tokens, parameters) for tokens in split):
            request.report(
                "two-phase-empty",
                "bends",
                (*path, "two_phase_parameter"),
                "phase one keeps no token of this query, so it finds nothing",
                "prune by max_ratio or top_k, which always keep the heaviest token",
            )


def split_queries(clause: Any) -> Iterator[Body]:
    """The tokens of each neural_sparse that the processor splits."""
    clause = as_object(clause)
    for options in as_object(clause.get("neural_sparse")).values():
        yield as_object(as_object(options).get("query_tokens"))
    for query in as_list(as_object(clause.get("bool")).get("should")):
        yield from split_queries(query)


def two_phase_parameters(request: LintedRequest, parameters: Body, path: Path) -> bool:
    kind = str(parameters.get("prune_type", "max_ratio"))
    ratio = as_number(parameters.get("prune_ratio", 0.4))
    ranges = {
        "max_ratio": (0, 1, "from 0, below 1"),
        "alpha_mass": (0, 1, "from 0, below 1"),
        "abs_value": (0, math.inf, "0 or more"),
        "top_k": (1, math.inf, "a whole number from 1"),
    }
    wrong: list[tuple[str, str]] = []
    if kind in ranges:
        low, high, said = ranges[kind]
        if ratio is None or not low <= ratio < high or (kind == "top_k" and ratio != int(ratio)):
            wrong.append(("prune_ratio", f"must be {said} for {kind}"))
    elif kind != "none":
        wrong.append(("prune_type", f"must be one of {', '.join(ranges)} and none"))
    if number_or(parameters.get("expansion_rate"), 5.0) < 1:
        wrong.append(("expansion_rate", "must be 1 or more"))
    if number_or(parameters.get("max_window_size"), 10_000) < 50:
        wrong.append(("max_window_size", "must be 50 or more"))
    for name, message in wrong:
        value = parameters.get(name)
        request.report("two-phase-parameter", "rejected", (*path, name), f"{value!r} {message}", "correct the pipeline")
    return not wrong


def two_phase_window(request: LintedRequest, parameters: Body, path: Path) -> None:
    window = whole(request.size * number_or(parameters.get("expansion_rate"), 5.0))
    most = min(number_or(parameters.get("max_window_size"), 10_000), request.index.max_rescore_window)
    if window > most:
        request.report(
            "two-phase-window",
            "rejected",
            path,
            f"size × expansion_rate is {window:,.0f}, and at most {most:,.0f} hits may be rescored",
            "ask for a smaller page, or lower expansion_rate",
        )
    elif request.size and window < request.page_end:
        request.report(
            "two-phase-window",
            "bends",
            ("from",),
            f"the processor rescores size × expansion_rate = {window:.0f} hits a shard for any `from`, and the page "
            f"ends at {request.page_end:.0f}",
            "raise expansion_rate to (from + size) / size, or use queries.high_idf_first, with one window for all pages",
        )


def pruned_to_nothing(tokens: Body, parameters: Body) -> bool:
    weights = sorted((number_or(weight, 0) for weight in tokens.values()), reverse=True)
    ratio = number_or(parameters.get("prune_ratio"), 0.4)
    if not weights:
        return False
    if parameters.get("prune_type") == "abs_value":
        return weights[0] < ratio
    return parameters.get("prune_type") == "alpha_mass" and weights[0] > ratio * sum(weights)
