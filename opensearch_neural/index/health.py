"""Whether the shards of an index are available, as far as this user may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed
from opensearch_neural.cluster.patience import patience

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


def index_health(client: OpenSearch, index: str, **params: Any) -> dict[str, Any] | None:
    """`GET _cluster/health/INDEX`; None if this user may not ask (cluster:monitor/health), or the service cannot answer."""
    health: dict[str, Any] | None = allowed(lambda: client.cluster.health(index=index, params=params))
    return health


def all_shards_answer(client: OpenSearch, index: str) -> bool:
    """Whether a search reaches every shard. It shows that the primaries are available if the health may not be asked."""
    from opensearchpy.exceptions import TransportError

    try:
        with patience(0):
            shards = client.count(index=index)["_shards"]
    except TransportError as error:
        if error.status_code == 503:
            return False
        raise
    return int(shards["successful"]) == int(shards["total"])
