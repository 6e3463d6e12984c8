"""Nested queries, and fields that are asked for within or outside one."""

from __future__ import annotations

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import Body, LintedRequest
from opensearch_neural.lint.weights import ONE_FIELD


def nested(request: LintedRequest, inner: Body, path: Path) -> None:
    if not isinstance(name := inner.get("path"), str):
        request.report("malformed", "rejected", path, "nested has no path", 'give "path": the field of type nested')
    elif (type_ := request.type_of(name)) not in (None, "nested"):
        request.report_wrong_field((*path, "path"), name, "nested", "rejected", type_)


def finds_nothing(request: LintedRequest, inner: Body) -> bool:
    """Whether a nested query names no object at all, and says that it may."""
    unmapped = isinstance(name := inner.get("path"), str) and request.type_of(name) not in (None, "nested", "object")
    return unmapped and inner.get("ignore_unmapped") in (True, "true")


def fields(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    """The fields that a query names, if its kind is asked of one."""
    if kind in ("exists", "rank_feature"):
        if isinstance(name := inner.get("field"), str):
            nested_field(request, name, (*path, "field"))
    elif kind in ONE_FIELD or kind == "terms":
        for name in inner:
            if isinstance(name, str) and name not in ("boost", "_name"):
                nested_field(request, name, (*path, name))


def nested_field(request: LintedRequest, name: str, path: Path) -> None:
    """A field that is asked for among other documents than those that have it."""
    if request.type_of(name) in (None, "", "nested", "object"):
        return
    above = request.nested_path(name)
    if above == request.within:
        return
    if above is None:
        message = f"the nested documents {request.within!r} have no field {name!r}: nothing is found"
        remedy = "ask for it outside the nested query"
    else:
        message = f"{name!r} is a field of the nested documents {above!r}, and others are asked: nothing is found"
        remedy = f'write {{"nested": {{"path": "{above}", "query": {{…}}, "score_mode": "max"}}}}'
    request.report("nested-field", "bends", path, message, remedy)
