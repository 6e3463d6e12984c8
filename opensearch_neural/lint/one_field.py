"""Queries that name one field, such as match and range: how many fields they name, and the kind of value that each takes."""

from __future__ import annotations

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.members import kind_of
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.queries.body_parts import Body

_TEXT = "match match_phrase match_phrase_prefix match_bool_prefix term prefix wildcard regexp fuzzy"
ONE_FIELD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_TEXT.split(), ("object", "string", "number", "boolean")),
    **dict.fromkeys(("range", "terms_set"), ("object",)),
    "terms": ("list", "object"),
}
"""{kind of query: the kinds of values that its field takes}"""
BESIDE = {"terms": ("boost", "_name", "value_type")}
"""{kind of query: what it takes beside its field}; the others take their boost and name inside the field's object."""


def one_field(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    fields = [name for name in inner if name not in BESIDE.get(kind, ())]
    if len(fields) != 1:
        named = f"and has {', '.join(map(repr, fields))}" if fields else "and has none"
        beside = [name for name in fields if name in ("boost", "_name")]
        request.report(
            "malformed",
            "rejected",
            path,
            f"{kind} takes exactly one field, {named}",
            f"put {beside[0]} into the field's object" if beside else "join several by bool, or use multi_match",
        )
        return
    takes, given = ONE_FIELD[kind], kind_of(inner[fields[0]])
    if given not in takes and (given is not None or inner[fields[0]] is None):
        request.report(
            "malformed",
            "rejected",
            (*path, fields[0]),
            f"a field of {kind} takes no {given or 'null'}",
            "for several values use terms" if given == "list" else f"write a {' or '.join(takes)}",
        )
