"""The reasons in an error that OpenSearch answers with, on one line.

An error holds reasons at several depths: "all shards failed" outside, "runtime error" as the root cause, and what the
script stumbled over in a `caused_by` of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST = 3
"""Root causes on the line, at most. There are several if shards or indexes failed for different reasons."""


def reasons_on_one_line(error: Any) -> str:
    """The reasons of an error on one line, the outer before the inner ("failed to parse field [n]: For input string"); ""
    if it tells none.

    error: the object `error` of a response, or the `reason` of a failed shard. The outermost reason is left out if there
    are root causes: it says "all shards failed". A reason that repeats another is left out too. A cause without a reason is
    told by its type. Different root causes are told one after the other, with semicolons.
    """
    if not isinstance(error, Mapping):
        return _on_one_line(error)
    listed = error.get("root_cause")
    roots = [root for root in listed if isinstance(root, Mapping)] if isinstance(listed, list) else []
    if not any(root.get("reason") for root in roots):
        return _joined(_chain(error))
    shards = error.get("failed_shards")
    failed = shards[0].get("reason") if isinstance(shards, list) and shards and isinstance(shards[0], Mapping) else None
    first, *others = (_joined(_chain(root)) for root in roots)
    inner = (*_chain(failed), *_chain(error.get("caused_by")))
    # Causes below another root would be told as if they were the first one's.
    main = first if any(other != first for other in others) else _joined((first, *inner))
    return "; ".join([main, *[other for other in dict.fromkeys(others) if other and other != first][: MOST - 1]])


def _chain(error: Any) -> Iterator[str]:
    """The reasons of an error and of what caused it, the outer first."""
    while isinstance(error, Mapping):
        yield _on_one_line(error.get("reason") or error.get("type"))
        error = error.get("caused_by")


def _joined(reasons: Iterator[str] | tuple[str, ...]) -> str:
    parts: list[str] = []
    for reason in reasons:
        if reason and not any(reason in other for other in parts):
            parts = [*(other for other in parts if other not in reason), reason]
    return ": ".join(parts)


def _on_one_line(text: Any) -> str:
    return "" if text is None else " ".join(str(text).split())
