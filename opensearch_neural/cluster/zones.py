"""How many replicas an index must have on a cluster that balances its zones."""

from __future__ import annotations

import re
from typing import Any

from opensearch_neural.cluster.errors import reason_of


def demanded_copies(error: Any) -> int | None:
    """N if a cluster refused an index because its copies must be a multiple of N, the number of its zones; else None.

    Clusters with `cluster.routing.allocation.awareness.balance` answer so; managed services often set it.
    """
    if error.status_code != 400:
        return None
    # Of "total copies", or of "max cap on auto expand".
    demand = re.search(r"to be a multiple of total awareness attributes \[(\d+)\]", reason_of(error)[1])
    return int(demand[1]) if demand else None


def balanced_replicas(replicas: int, zones: int) -> int:
    """The smallest number of replicas, at least `replicas`, that gives each zone the same number of copies."""
    return -(-(replicas + 1) // zones) * zones - 1
