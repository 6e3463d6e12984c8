"""Nested queries, and fields that are searched inside or outside a nested query."""

from __future__ import annotations

from opensearch_neural.lint.fields import LIST_FIELDS, named
from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.queries.body_parts import Body


def nested(request: LintedRequest, inner: Body, path: Path) -> None:
    if not isinstance(name := inner.get("path"), str):
        request.report("malformed", "rejected", path, "nested has no path", 'give "path": the field of type nested')
    else:
        # An index without the path is then left out.
        unmapped: Outcome | None = "bends" if inner.get("ignore_unmapped") in (True, "true") else None
        request.check_field(name, "nested", (*path, "path"), missing=unmapped)


def finds_nothing(request: LintedRequest, inner: Body) -> bool:
    """Whether the path of a nested query does not exist, and `ignore_unmapped` allows that."""
    unmapped = isinstance(name := inner.get("path"), str) and request.type_of(name) not in (None, "nested", "object")
    return unmapped and inner.get("ignore_unmapped") in (True, "true")


def fields(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    """Check the fields that a query searches."""
    listed = kind in LIST_FIELDS
    for below, name in named(kind, inner):
        if isinstance(name, str):
            nested_field(request, name, (*path, *below), "nothing is found there" if listed else "nothing is found")


def nested_field(request: LintedRequest, name: str, path: Path, consequence: str = "nothing is found") -> None:
    """Report a field that is searched in documents that cannot have it."""
    if request.type_of(name) in (None, "", "nested", "object"):
        return
    above = request.nested_path(name)
    if above == request.within or _copied_to_searched(request, above):
        return
    if above is None:
        message = f"the nested documents {request.within!r} have no field {name!r}: {consequence}"
        remedy = "search it outside the nested query"
    else:
        message = f"{name!r} is a field of the nested documents {above!r}, and others are searched: {consequence}"
        remedy = f'write {{"nested": {{"path": "{above}", "query": {{…}}, "score_mode": "max"}}}}'
    request.report("nested-field", "bends", path, message, remedy)


def _copied_to_searched(request: LintedRequest, nested: str | None) -> bool:
    """Whether the documents that are searched also have the fields of nested documents."""
    while nested is not None:
        mapping = (request.index.fields or {}).get(nested, {})
        if request.within is None and mapping.get("include_in_root"):
            return True
        if not mapping.get("include_in_parent"):
            return False
        nested = request.nested_path(nested)
        if nested == request.within:
            return True
    return False
