"""Filters as users write them, and why one matches no document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import mapping_of

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

NUMBERS = frozenset(
    {"byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "double", "scaled_float"}
)
DATES = frozenset({"date", "date_nanos"})
RANGED = NUMBERS | DATES
ISO = ("strict_date_optional_time", "strict_date_optional_time_nanos", "date_optional_time", "iso8601")
"""Formats of dates that take a year, or a month, alone. The first is the default."""
PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2})?")
"""A year, or a month of a year."""
NO_FIELD = "is not there"
"""The reason of `_unmatched` if the index does not map the field."""


def parse_filter(text: str) -> dict[str, Any]:
    """A filter clause from FIELD=VALUE or from JSON. Raises InputError for anything else."""
    if _is_json(text):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the filter {text[:200]!r} is not valid JSON: {error}") from None
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise InputError(f"the filter {text!r}: expected FIELD=VALUE, or an OpenSearch clause as JSON")
    return {"term": {field: value}}


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def clauses_of(client: OpenSearch, index: str, filters: Sequence[str]) -> list[dict[str, Any]]:
    """The clauses of filters. FIELD=FROM..TO, without one of both or with both, is a range if the field holds numbers or
    dates; in any other field it is a value. Raises as `parse_filter` does."""
    clauses = [parse_filter(text) for text in filters]
    maybe = [_range_in(clause) if not _is_json(text) else None for text, clause in zip(filters, clauses, strict=True)]
    if not any(maybe):
        return clauses
    of_indexes = _properties(client, index)
    return [
        clause if parts is None else _as_range(clause, parts, of_indexes)
        for clause, parts in zip(clauses, maybe, strict=True)
    ]


def _range_in(clause: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """(field, first value, last value) of {"term": {FIELD: "FROM..TO"}}; a value may be empty."""
    term = clause.get("term")
    ((field, value),) = term.items() if isinstance(term, dict) and len(term) == 1 else [("", None)]
    first, dots, last = value.partition("..") if isinstance(value, str) else ("", "", "")
    return (field, first.strip(), last.strip()) if dots and (first.strip() or last.strip()) else None


def _as_range(
    clause: dict[str, Any], parts: tuple[str, str, str], of_indexes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The clause as a range, if it is one in each index that has the field.

    parts: those of `_range_in`
    of_indexes: the properties of each index
    """
    field, first, last = parts
    mappings = _mappings(field, of_indexes)
    kinds = set(map(_type_of, mappings))
    if not kinds or kinds - RANGED:
        return clause
    if all(map(_reads_iso, mappings)) and (alone := PERIOD.fullmatch(last)):
        last += "||/M" if alone[1] else "||/y"  # to its end, not to the end of its first day
    return {"range": {field: {name: bound for name, bound in (("gte", first), ("lte", last)) if bound}}}


def _no_range(field: str, of_indexes: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a field has no ranges, as words that follow its name; None if it has."""
    kinds = set(map(_type_of, _mappings(field, of_indexes)))
    others = sorted(kinds - RANGED)
    if kinds & RANGED:
        return f"is mapped as {' and '.join(others)} in some of these indexes" if others else None
    return "is mapped as neither numbers nor dates"


def _mappings(field: str, of_indexes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The mapping of a field in each index that has it."""
    return [mapping for properties in of_indexes if (mapping := _mapping(field, properties)) is not None]


def _mapping(field: str, properties: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The mapping of a field, or of a subfield, in an index with these properties; None if it has none. Of an alias, that of
    its field."""
    mapping = mapping_of(properties, field)
    if mapping is None:
        around, _, name = field.rpartition(".")
        whole = mapping_of(properties, around) or {}
        mapping = whole.get("fields", {}).get(name)
    elif mapping.get("type") == "alias":
        return _mapping(mapping["path"], properties)
    return mapping


def _type_of(mapping: Mapping[str, Any]) -> str:
    return str(mapping.get("type", "object"))


def _reads_iso(mapping: Mapping[str, Any]) -> bool:
    """Whether a field holds dates and reads a year as one, and not as a number of seconds or milliseconds."""
    formats = str(mapping.get("format", ISO[0])).split("||")
    first = next((each for each in formats if each in ISO or each.startswith("epoch_")), None)
    return _type_of(mapping) in DATES and first in ISO


def _properties(client: OpenSearch, index: str) -> list[Mapping[str, Any]]:
    """The properties of each index; empty if the user may not read the mapping."""
    mappings = allowed(lambda: client.indices.get_mapping(index=index))
    return [each["mappings"].get("properties", {}) for each in (mappings or {}).values()]


def unmatched_filters(client: OpenSearch, index: str, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why clauses {"term": {FIELD: VALUE}} and {"range": {FIELD: …}} match nothing, or may match nothing, whatever documents
    there are.

    Empty if the user may not read the mapping.
    """
    fields = sorted({field for clause in clauses for kind in ("term", "range") for field in clause.get(kind, {})})
    of_indexes = _properties(client, index) if fields else []
    values = {parts[0]: clause["term"][parts[0]] for clause in clauses if (parts := _range_in(clause)) is not None}
    warnings = []
    for field in fields if of_indexes else ():
        reasons = [_unmatched(field, properties) for properties in of_indexes]
        if all(reasons):
            missing = f"{index!r} has no field {field!r} to filter by"
            warnings.append(missing if NO_FIELD in reasons else f"{field!r} {reasons[0]}")
        elif field in values and (why := _no_range(field, of_indexes)):
            warnings.append(f"{field!r} {why}: {values[field]!r} is a value, not a range")
    return warnings


def _unmatched(field: str, properties: Mapping[str, Any]) -> str | None:
    """Why a filter by a field's value matches nothing in an index with these properties, as words that follow the field's
    name; None if it may match."""
    parts = field.split(".")
    inside = properties
    for at, part in enumerate(parts, 1):
        if part not in inside:
            return NO_FIELD
        mapping = inside[part]
        name, kind = ".".join(parts[:at]), mapping.get("type", "object")
        if kind == "alias":
            return _unmatched(".".join([mapping["path"], *parts[at:]]), properties)
        if kind == "flat_object":
            return None  # whose fields have no mapping
        if kind == "nested":
            clause = {"nested": {"path": name, "query": {"term": {field: "VALUE"}}}}
            return f"is in nested documents: filter by {json.dumps(clause, ensure_ascii=False)}"
        if kind == "text" and at == len(parts):
            whole = [sub for sub, each in mapping.get("fields", {}).items() if each.get("type") == "keyword"]
            reason = "is a text, in which a filter finds single words, as the analyzer writes them"
            return f"{reason}; {field}.{whole[0]} has the whole value" if whole else reason
        inside = mapping.get("properties") or mapping.get("fields", {})
    return None
