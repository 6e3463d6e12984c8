"""The members of a body: OpenSearch knows each, and refuses a misspelled one."""

from __future__ import annotations

from difflib import get_close_matches

from opensearch_neural.lint.findings import RULES
from opensearch_neural.lint.request import LintedRequest

_NAMES = (
    "_source aggregations aggs collapse derived docvalue_fields explain ext fields from highlight "
    "include_named_queries_score indices_boost min_score pit post_filter profile query rescore script_fields search_after "
    "search_pipeline seq_no_primary_term size slice sort stats stored_fields suggest terminate_after timeout track_scores "
    "track_total_hits verbose_pipeline version"
)
MEMBERS = frozenset(_NAMES.split())
"""What 2.19.1 and 3.5.0 accept."""
LATEST = (3, 5)


def members(request: LintedRequest) -> None:
    outside = request.release == (0, 0) or request.release > LATEST
    for name in request.body:
        if name not in MEMBERS:
            near = get_close_matches(str(name), MEMBERS, n=1)
            remedy = f"write {near[0]}" if near else "leave it out; a query belongs in `query`"
            request.report("member", "doubtful" if outside else "rejected", (str(name),), RULES["member"], remedy)
