"""When a cluster counts a node's disk as full: its watermarks, as a share of the disk used or as bytes free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.capabilities import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.cluster.capabilities import NodeResources

_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30, "t": 2**40}
_UNITS |= {"tb": 2**40, "p": 2**50, "pb": 2**50}


@dataclass(frozen=True)
class Watermarks:
    """The settings `cluster.routing.allocation.disk.watermark.…`; OpenSearch's defaults if this user may not read them."""

    high: str = "90%"
    """Above it a node gets no new shards, and its shards are moved to other nodes."""
    flood_stage: str = "95%"
    """Above it OpenSearch blocks writing into indexes with a shard on the node."""
    enabled: bool = True
    """Whether the cluster checks disks."""


def read_watermarks(client: OpenSearch) -> Watermarks:
    from opensearchpy.exceptions import TransportError

    prefix = "cluster.routing.allocation.disk"
    try:
        answer = client.cluster.get_settings(
            include_defaults=True, filter_path=f"*.{prefix}", request_timeout=TIMEOUT_SECONDS
        )
    except TransportError:
        return Watermarks()
    thresholds: dict[str, Any] = {}
    for level in ("defaults", "persistent", "transient"):
        disk = answer.get(level, {}).get("cluster", {}).get("routing", {}).get("allocation", {}).get("disk", {})
        thresholds |= {name: value for name, value in disk.items() if name != "watermark"} | disk.get("watermark", {})
    usual = Watermarks()
    return Watermarks(
        str(thresholds.get("high", usual.high)),
        str(thresholds.get("flood_stage", usual.flood_stage)),
        str(thresholds.get("threshold_enabled", "true")) == "true",
    )


def is_reached(watermark: str, node: NodeResources) -> bool:
    """Whether a node's disk has reached a watermark: "90%" or "0.9" of it used, or "2gb" free."""
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
    """When a watermark is reached, as a phrase for messages."""
    share = watermark.endswith("%") or re.fullmatch(r"[\d.]+", watermark)
    return f"from {watermark} on" if share else f"with less than {watermark} free"
