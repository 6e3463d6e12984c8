"""The members of a body: OpenSearch tells them apart by their names and by the kinds of their values."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from opensearch_neural.lint.findings import Outcome
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_int32, as_object, is_time, number_or_nan
from opensearch_neural.queries.body_parts import Body

_MEMBERS_BY_KINDS = {
    "object": "aggregations aggs collapse derived ext highlight pit post_filter query script_fields slice suggest",
    "object or list": "indices_boost rescore",
    "object or list or string": "sort",
    "object or list or string or boolean": "_source",
    "object or string": "search_pipeline",
    "list": "docvalue_fields fields search_after stats",
    "list or string": "stored_fields",
    "boolean or string": "explain include_named_queries_score profile seq_no_primary_term track_scores verbose_pipeline "
    "version",
    "boolean or number or string": "track_total_hits",
    "number or string": "from min_score size terminate_after",
    "string or number": "timeout",
}
MEMBERS = {name: kinds for kinds, names in _MEMBERS_BY_KINDS.items() for name in names.split()}
"""{member: the kinds of values that it takes}, the same in 2.19.1 and 3.5.0.

`sort` and `search_pipeline` read a number or boolean as the name of a field or pipeline, which nobody means."""
LATEST = (3, 5)
"""The latest release that was tried. It also counts where no cluster is asked."""
FIRST_RELEASES = {
    "pit": (2, 4),
    "search_pipeline": (2, 8),
    "include_named_queries_score": (2, 13),
    "derived": (2, 14),
    "verbose_pipeline": (2, 19),
}
"""{member: the first release that may know it}, from the release notes; the other members are as old as OpenSearch."""
KINDS: dict[type, str] = {
    dict: "object",
    list: "list",
    tuple: "list",
    str: "string",
    bool: "boolean",  # before int, which it also is
    int: "number",
    float: "number",
}
CHECKED_ELSEWHERE = ("from", "post_filter", "query", "size")
"""The rules `page` and `malformed` check these values, except for null."""

_QUERIES = (
    "bool boosting combined_fields common constant_score dis_max distance_feature exists field_masking_span "
    "function_score fuzzy geo_bounding_box geo_distance geo_polygon geo_shape has_child has_parent hybrid ids "
    "intervals knn match match_all match_bool_prefix match_none match_phrase match_phrase_prefix more_like_this "
    "multi_match nested neural neural_sparse parent_id percolate prefix query_string range rank_feature regexp script "
    "script_score simple_query_string span_containing span_first span_multi span_near span_not span_or span_term "
    "span_within template term terms terms_set wildcard wrapper"
)
QUERIES = frozenset(_QUERIES.split())
"""Kinds of query, also of plugins and of some releases only."""
_PARAMETERS = (
    "_source_excludes _source_includes allow_no_indices allow_partial_search_results batched_reduce_size "
    "cancel_after_time_interval ccs_minimize_roundtrips expand_wildcards ignore_throttled ignore_unavailable index "
    "max_concurrent_shard_requests phase_took pre_filter_shard_size preference q request_cache rest_total_hits_as_int "
    "routing scroll search_type typed_keys"
)
PARAMETERS = frozenset(_PARAMETERS.split())
"""What the URL of a search takes, and its body does not."""
REMEDIES = {
    **dict.fromkeys(QUERIES, "put it into `query`"),
    **dict.fromkeys(("must", "must_not", "should"), "put it into `query`, inside a `bool`"),
    "filter": "put it into `bool.filter`, or into the knn query",
    **dict.fromkeys(PARAMETERS, "send it as a parameter of the URL"),
    "runtime_mappings": "define such fields in `derived`",
}
"""{name that is no member: what to do with it}"""
TIMES = 'write a whole number with its unit, in quotation marks: "500ms", "10s", "1m"'


def members(request: LintedRequest, body: Body) -> None:
    """body: all members of the request, null ones too"""
    unknown = request.capabilities is not None and request.release == (0, 0)
    outcome: Outcome = "doubtful" if unknown or request.release > LATEST else "rejected"
    for name, value in body.items():
        path = (str(name),)
        if name not in MEMBERS:
            request.report("member", outcome, path, f"OpenSearch knows no member {name!r}", remedy(str(name)))
            continue
        first = FIRST_RELEASES.get(name, (1, 0))
        kind = kind_of(value)
        if request.unless_release(*first) == "rejected":
            message = f"OpenSearch knows no member {name!r} before {first[0]}.{first[1]}"
            request.report("member", "rejected", path, message, "leave it out")
        elif value is None:
            request.report("member", outcome, path, f"{name} cannot be null", "leave it out")
        elif kind and kind not in MEMBERS[name].split(" or ") and name not in CHECKED_ELSEWHERE:
            article = "an" if MEMBERS[name].startswith("object") else "a"
            request.report("member", outcome, path, f"{name} takes no {kind}", f"write {article} {MEMBERS[name]}")
        elif kind and (wanted := unread(name, value)) is not None:
            request.report("member", outcome, path, f"{name} is {wanted[0]}: {value!r}", wanted[1])
        elif name == "terminate_after" and kind and (as_int32(value) or 0) < 0:
            request.report("member", "bends", path, "a negative terminate_after finds nothing", "leave it out")
        elif name == "pit" and "keep_alive" in as_object(value):
            keep_alive = value["keep_alive"]
            if not (isinstance(keep_alive, str) and is_time(keep_alive)):
                request.report(
                    "member", outcome, ("pit", "keep_alive"), f"keep_alive is no time: {keep_alive!r}", TIMES
                )


def unread(name: str, value: Any) -> tuple[str, str] | None:
    """(what a value is not, what to write), if OpenSearch cannot read it although the member takes values of its kind."""
    if name == "timeout" and not is_time(value):
        return "no time", TIMES
    if name == "min_score" and number_or_nan(value) is None:
        return "no number", "write a number"
    if name == "terminate_after" and as_int32(value) is None:
        return "no whole number of 32 bits", "write a whole number"
    if name == "track_total_hits" and not isinstance(value, bool) and value not in ("true", "false"):
        count = as_int32(value)
        if count is None or count < -1:
            return "no count", "write true, false, or a whole number to count to"
    if MEMBERS[name] == "boolean or string" and value not in (True, False, "true", "false", ""):
        return "neither true nor false", "write true or false"
    return None


def kind_of(value: Any) -> str | None:
    """The kind of a value that JSON has: object, list, string, boolean or number; None for null and anything else."""
    return next((kind for type_, kind in KINDS.items() if isinstance(value, type_)), None)


def remedy(name: str) -> str:
    """What to do with a name that is no member."""
    if name in REMEDIES:
        return REMEDIES[name]
    near = get_close_matches(name, MEMBERS, n=1)
    return f"write {near[0]}" if near else "leave it out; a query belongs in `query`"
