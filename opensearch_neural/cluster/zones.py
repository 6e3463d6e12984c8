"""Clusters that balance their zones: how many replicas an index must have there."""

from __future__ import annotations

import re
from typing import Any

from opensearch_neural.cluster.errors import reason_of


def demanded_copies(error: Any) -> int | None:
    """N if a cluster refused an index because its copies must be a multiple of N, the number of its zones; else None.

    That is how a cluster with `cluster.routing.allocation.awareness.balance` answers, as managed services have it.
    """
    if error.status_code != 400:
        return None
    demand = re.search(
        r"total copies needs to be a multiple of total awareness attributes \[(\d+)\]", reason_of(error)[1]
    )
    return int(demand[1]) if demand else None


def balanced_replicas(replicas: int, zones: int) -> int:
    """The fewest replicas, `replicas` at least, with which each of the zones has as many copies as the others."""
    return -(-(replicas + 1) // zones) * zones - 1
