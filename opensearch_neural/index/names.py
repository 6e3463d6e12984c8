"""Names of indexes as a server tells them: no path may be made of one that leads elsewhere."""

from __future__ import annotations

import re

from opensearch_neural.errors import ClusterError

MAX_NAME_BYTES = 255  # OpenSearch's limit, in UTF-8


def checked_name(name: str) -> str:
    """`name` if OpenSearch could have given it to an index, or a uuid to one. Raises ClusterError otherwise."""
    forbidden = re.search(r'[\\/*?"<>| ,#:\x00-\x1f\x7f]', name)
    if forbidden or not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES or name in (".", ".."):
        raise ClusterError(
            f"the server names an index {name[:80]!r}, which no index can have for a name",
            "is it OpenSearch that answers there? no file is written under such a name",
        )
    return name
