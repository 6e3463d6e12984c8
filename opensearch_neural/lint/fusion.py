"""The processors that fuse the parts of a hybrid query: their techniques and weights."""

from __future__ import annotations

from typing import Any

from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_list, as_object
from opensearch_neural.queries.body_parts import Body, holds_hybrid

NORMALIZATION = "normalization-processor"
RANKER = "score-ranker-processor"
MEANS = ("arithmetic_mean", "geometric_mean", "harmonic_mean")


def fusion(request: LintedRequest) -> None:
    """Check the fusing processors: their parameters, and whether there is a hybrid query to fuse."""
    hybrid = as_object(request.body.get("query")).get("hybrid")
    parts = as_object(hybrid).get("queries")
    for name, config, path in request.processors("phase_results_processors"):
        if name not in (NORMALIZATION, RANKER):
            continue
        config = as_object(config)
        if hybrid is None and not holds_hybrid(request.body.get("query")):
            message = "it fuses the parts of a hybrid query, and does nothing to this one"
            request.report("fusion-without-hybrid", "bends", path, message, "drop the pipeline, or query with hybrid")
        combination = as_object(config.get("combination"))
        parameters = as_object(combination.get("parameters"))
        below = (*path, "combination")
        if name == RANKER:
            ranker(request, combination, parameters, below)
        else:
            techniques(request, config, combination, path)
        if "weights" in combination:
            message = "weights beside `technique` are ignored"
            request.report("fusion-weights", "bends", (*below, "weights"), message, "write them into `parameters`")
        if "weights" in parameters:
            where = (*below, "parameters", "weights")
            fusion_weights(request, parameters["weights"], None if parts is None else len(as_list(parts)), where)


def ranker(request: LintedRequest, combination: Body, parameters: Body, path: Path) -> None:
    request.check_cluster("rrf", path, RANKER, "queries.hybrid(…, method='min_max')")
    if "weights" in parameters and (refused := request.unless_release(3, 1)):
        message = "rank fusion takes weights from OpenSearch 3.1 on"
        remedy = "leave them out, or fuse by a normalization-processor"
        request.report("fusion-weights", refused, (*path, "parameters", "weights"), message, remedy)
    inside = "rank_constant" in parameters
    if not inside and "rank_constant" not in combination:
        return
    holder, where = (parameters, (*path, "parameters")) if inside else (combination, path)
    where = (*where, "rank_constant")
    # 2.19 reads combination.parameters.rank_constant, 3.0 and later combination.rank_constant.
    older = request.release < (3, 0)
    constant = holder["rank_constant"]
    outcome: Outcome
    if inside and not older:
        message = "combination.parameters takes no rank_constant from OpenSearch 3 on"
        outcome = "rejected" if request.release >= (3, 1) else "doubtful"
        request.report("rank-constant", outcome, where, message, "write combination.rank_constant")
    elif not inside and older and constant != 60:
        outcome = "bends" if request.release != (0, 0) else "doubtful"
        message = f"rank_constant {constant!r} is ignored here by OpenSearch 2.19, which fuses with 60"
        request.report("rank-constant", outcome, where, message, "write combination.parameters.rank_constant")
    elif not isinstance(constant, int) or not 1 <= constant <= 10_000:
        message = f"{constant!r} is not a whole number from 1 to 10,000"
        request.report("rank-constant", "rejected", where, message, "60 is usual")


def techniques(request: LintedRequest, config: Body, combination: Body, path: Path) -> None:
    technique = as_object(config.get("normalization")).get("technique", "min_max")
    where = (*path, "normalization", "technique")
    if technique == "z_score":
        if outcome := request.unless_release(3, 0):
            message = "z_score came with OpenSearch 3.0"
            request.report("fusion-technique", outcome, where, message, "min_max, or l2")
    elif technique not in ("min_max", "l2"):
        message = f"OpenSearch has no normalization {technique!r}"
        request.report("fusion-technique", "rejected", where, message, "min_max, l2, or z_score from 3.0 on")
    if (technique := combination.get("technique", "arithmetic_mean")) == "rrf":
        message = "rrf in a normalization-processor adds up normalized scores and does not use ranks"
        remedy = "use a score-ranker-processor: queries.hybrid(…, method='rrf')"
        request.report("fusion-technique", "bends", (*path, "combination", "technique"), message, remedy)
    elif technique not in MEANS:
        message = f"OpenSearch has no combination {technique!r}"
        request.report("fusion-technique", "rejected", (*path, "combination", "technique"), message, ", ".join(MEANS))


def fusion_weights(request: LintedRequest, weights: Any, parts: int | None, path: Path) -> None:
    listed = as_list(weights)
    remedy = "give one decimal for each query, from 0.0 to 1.0, with the sum 1.0"
    if not all(isinstance(weight, float) for weight in listed):
        # The processor casts to Double, which fails for a whole number, a Java Integer: an internal error.
        message = f"{weights!r} contains something other than decimals (1.0, not 1)"
    elif any(not 0 <= weight <= 1 for weight in listed):
        message = f"{weights!r} contains a weight outside 0.0 to 1.0"
    elif not abs(sum(listed) - 1) <= 0.01 + 1e-6:
        message = f"{weights!r} sums to {sum(listed):g}, not to 1"
    elif parts is not None and len(listed) != parts:
        message = f"{len(listed)} weights for {parts} queries"
    else:
        return
    request.report("fusion-weights", "rejected", path, message, remedy)
