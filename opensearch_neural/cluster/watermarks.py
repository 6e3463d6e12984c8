"""From when on a cluster counts a node's disk as full: its own watermarks, shares of the disk or bytes that are left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.cluster.capabilities import NodeResources

_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30, "t": 2**40}
_UNITS |= {"tb": 2**40, "p": 2**50, "pb": 2**50}


@dataclass(frozen=True)
class Watermarks:
    """The settings `cluster.routing.allocation.disk.watermark.…`; OpenSearch's defaults where they may not be read."""

    high: str = "90%"
    """From here on a node gets no new shards, and those that it has are moved away."""
    flood_stage: str = "95%"
    """From here on its indexes are not written."""
    enabled: bool = True
    """Whether the cluster looks at disks at all."""


def read_watermarks(client: OpenSearch) -> Watermarks:
    from opensearchpy.exceptions import TransportError

    prefix = "cluster.routing.allocation.disk"
    try:
        answer = client.cluster.get_settings(include_defaults=True, filter_path=f"*.{prefix}")
    except TransportError:
        return Watermarks()
    held: dict[str, Any] = {}
    for level in ("defaults", "persistent", "transient"):
        disk = answer.get(level, {}).get("cluster", {}).get("routing", {}).get("allocation", {}).get("disk", {})
        held |= {name: value for name, value in disk.items() if name != "watermark"} | disk.get("watermark", {})
    usual = Watermarks()
    return Watermarks(
        str(held.get("high", usual.high)),
        str(held.get("flood_stage", usual.flood_stage)),
        str(held.get("threshold_enabled", "true")) == "true",
    )


def is_reached(watermark: str, node: NodeResources) -> bool:
    """Whether a node's disk is as full as a watermark says: "90%" or "0.9" of it used, or "2gb" left."""
    if not node.disk_total:
        return False
    if watermark.endswith("%"):
        return 1 - node.disk_available / node.disk_total >= float(watermark[:-1]) / 100
    amount = re.fullmatch(r"([\d.]+)\s*([a-z]*)", watermark.strip().lower())
    if amount is None or amount[2] not in _UNITS:
        return False
    if not amount[2]:
        return 1 - node.disk_available / node.disk_total >= float(amount[1])
    return node.disk_available <= float(amount[1]) * _UNITS[amount[2]]


def in_words(watermark: str) -> str:
    """When a watermark is reached."""
    share = watermark.endswith("%") or re.fullmatch(r"[\d.]+", watermark)
    return f"from {watermark} on" if share else f"with less than {watermark} free"
