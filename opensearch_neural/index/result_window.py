"""How many hits a request may ask an index for: its setting index.max_result_window, 10,000 by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opensearch_neural.cluster.errors import allowed

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

SETTING = "index.max_result_window"


def most_hits(client: OpenSearch, index: str, wanted: int) -> int:
    """`wanted`, or less if an index of this name, alias or pattern allows only less. Also the limit of a scroll's pages.

    `wanted` if the user may not read the setting. Raises opensearch-py's errors.
    """
    answer = allowed(lambda: client.indices.get_settings(index=index, params={"flat_settings": "true"})) or {}
    return min([wanted, *(int(of["settings"][SETTING]) for of in answer.values() if SETTING in of["settings"])])
