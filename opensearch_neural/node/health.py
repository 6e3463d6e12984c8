"""Waits until a cluster is up, and says why where it does not come up."""

from __future__ import annotations

import time
from pathlib import Path

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import rest
from opensearch_neural.node.state import ClusterState, NodeState, Report, count


def wait_for_health(cluster: ClusterState, timeout: float, report: Report) -> None:
    """Wait until every node has joined one cluster that is yellow or green."""
    began = shown = time.monotonic()
    pending = list(cluster.nodes)
    while True:
        for node in cluster.nodes:
            if not cluster.is_up(node):
                raise ClusterError(
                    f"node {node.index} of {cluster.name!r} died while starting; the end of its log:\n"
                    + _tail(cluster.log(node)),
                    f"the whole log: {cluster.log(node)}",
                )
        pending = [node for node in pending if not _has_joined(cluster, node)]
        if not pending:
            return
        now = time.monotonic()
        if now - began > timeout:
            node = pending[0]
            raise ClusterError(
                f"{cluster.name!r} is not healthy after {timeout:.0f} s (node {node.index}); the end of its log:\n"
                + _tail(cluster.log(node)),
                f"a slow machine may need more (--timeout); the whole log: {cluster.log(node)}",
            )
        if now - shown >= 5:
            shown = now
            report(f"  waiting for {count(pending)}, {now - began:.0f} s")
        time.sleep(0.1)


def _has_joined(cluster: ClusterState, node: NodeState) -> bool:
    """Whether this very process answers at the node's port, as a member of a healthy cluster of the full size."""
    health = rest.get(node.http_port, "/_cluster/health?cluster_manager_timeout=1s")
    if not health or health.get("status") not in ("yellow", "green"):
        return False
    if health["cluster_name"] != cluster.name or health["number_of_nodes"] != len(cluster.nodes):
        return False
    local = rest.get(node.http_port, "/_nodes/_local/process") or {}
    return any(member.get("process", {}).get("id") == node.pid for member in local.get("nodes", {}).values())


def _tail(log: Path, lines: int = 20) -> str:
    try:
        return "\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "  | (there is none)"
