"""Filters as users write them, and why one matches no document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

NO_FIELD = "is not there"
"""The reason of `_unmatched` if the index does not map the field."""


def parse_filter(text: str) -> dict[str, Any]:
    """A filter clause from FIELD=VALUE or from JSON. Raises InputError for anything else."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the filter {text[:200]!r} is not valid JSON: {error}") from None
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise InputError(f"the filter {text!r}: expected FIELD=VALUE, or an OpenSearch clause as JSON")
    return {"term": {field: value}}


def unmatched_filters(client: OpenSearch, index: str, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why {"term": {FIELD: VALUE}} clauses match nothing, or may match nothing, whatever documents there are.

    Empty if the user may not read the mapping.
    """
    fields = sorted({field for clause in clauses for field in clause.get("term", {})})
    mappings = allowed(lambda: client.indices.get_mapping(index=index)) if fields else None
    of_indexes = [each["mappings"].get("properties", {}) for each in (mappings or {}).values()]
    warnings = []
    for field in fields if of_indexes else ():
        reasons = [_unmatched(field, properties) for properties in of_indexes]
        if all(reasons):
            missing = f"{index!r} has no field {field!r} to filter by"
            warnings.append(missing if NO_FIELD in reasons else f"{field!r} {reasons[0]}")
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
