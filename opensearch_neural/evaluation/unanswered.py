"""The queries that engines cannot answer, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opensearch_neural.errors import Unanswerable

NAMED = 10
"""Queries that a sentence names; more are only counted."""


def unanswered_sentences(
    unanswered: Mapping[str, Mapping[str, Unanswerable]], queries: Sequence[str], then: str
) -> list[str]:
    """A sentence on the queries that engines could not answer: {engine: {query: reason}}. Engines that lack the same queries
    for the same reason share one.

    then: what happened to these queries, such as "get no hits from {engines}"
    """
    lines: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for engine, reasons in unanswered.items():
        of_reasons: dict[str, list[str]] = {}
        for query in queries:
            if query in reasons:
                of_reasons.setdefault(reasons[query].why, []).append(query)
        for why, without in of_reasons.items():
            lines.setdefault((why, tuple(without)), []).append(engine)
    return [
        f"{len(lacking):,} of {len(queries):,} queries {then.format(engines=', '.join(engines))}, because {why}: "
        + ", ".join(lacking[:NAMED])
        + (", …" if len(lacking) > NAMED else "")
        for (why, lacking), engines in lines.items()
    ]
