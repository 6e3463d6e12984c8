"""The limits, fields and search pipelines of an index, which a search body is checked against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import ClusterError
from opensearch_neural.index.record import IndexMeta, record_in
from opensearch_neural.queries import MOST_HITS, MOST_RESCORED

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

MOST_TERMS = 65_536


@dataclass(frozen=True)
class IndexDescription:
    """Limits and fields of an index, and its search pipelines. The defaults are OpenSearch's."""

    max_result_window: int = MOST_HITS
    """The most hits that a request may page through (from + size)."""
    max_rescore_window: int = MOST_RESCORED
    """The largest window of a rescorer."""
    max_terms_count: int = MOST_TERMS
    """The most terms of a `terms` query."""
    fields: Mapping[str, Mapping[str, Any]] | None = None
    """{full name: mapping}; None if not known"""
    several: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """{index: its fields}, if the name stands for several indexes; else empty"""
    default_pipeline: str | None = None
    """The search pipeline for requests that name none."""
    pipelines: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """{name: search pipeline}"""
    meta: IndexMeta | None = None
    """The record of an index that `osn` wrote; None for other indexes, or if not known."""

    @classmethod
    def of(cls, client: OpenSearch, index: str) -> IndexDescription:
        """Read the description from the cluster, with two requests. If a name stands for several indexes, the first counts;
        fields are those of all.

        Raises ClusterError for an empty name and for a pattern that no index matches, and the client's errors: NotFoundError
        if there is no such index.
        """
        if not index:
            raise ClusterError("the name of the index is empty", "name one index, or an alias")
        answers = client.indices.get(index=index, flat_settings=True, include_defaults=True)
        if not answers:
            raise ClusterError(f"there is no index {index!r} on this cluster")
        answer = next(iter(answers.values()))
        settings = {**answer.get("defaults", {}), **answer.get("settings", {})}
        fields = {name: dict(_fields(each["mappings"])) for name, each in answers.items()}
        return cls(
            max_result_window=int(settings.get("index.max_result_window", MOST_HITS)),
            max_rescore_window=int(settings.get("index.max_rescore_window", MOST_RESCORED)),
            max_terms_count=int(settings.get("index.max_terms_count", MOST_TERMS)),
            # The fields of the first index are written last.
            fields={name: mapping for each in reversed(fields.values()) for name, mapping in each.items()},
            several=fields if len(fields) > 1 else {},
            default_pipeline=settings.get("index.search.default_pipeline") or None,
            pipelines=_pipelines(client),
            meta=record_in(answer["mappings"], index),
        )


def _fields(mappings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(full name, mapping) of every field."""
    for name, mapping in mappings.get("derived", {}).items():
        # What a derived object holds needs no mapping, as in a flat_object.
        yield name, {"type": "flat_object"} if mapping.get("type") == "object" else mapping
    yield from _flat_fields(mappings.get("properties", {}))


def _flat_fields(properties: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, mapping in properties.items():
        yield before + name, mapping
        yield from _flat_fields(mapping.get("properties", {}), f"{before}{name}.")
        yield from _flat_fields(mapping.get("fields", {}), f"{before}{name}.")


def _pipelines(client: OpenSearch) -> Mapping[str, dict[str, Any]]:
    from opensearchpy.exceptions import ConnectionError, TransportError

    try:
        return client.transport.perform_request("GET", "/_search/pipeline")
    except ConnectionError:
        raise
    except TransportError:  # no pipelines, or no permission to see them
        return {}
