"""A local OpenSearch without Docker: from published Maven artifacts, on loopback, for trying things and for tests.

    from opensearch_neural import node

    running = node.start()                     # the same as `osn node start`
    running.url                                # http://127.0.0.1:9200
    node.stop()

Several nodes form one cluster of separate processes, so that one can be lost:

    node.start(nodes=3, port=9250, name="three")
    node.kill_node(2, "three")
    node.start(name="three")                   # restarts what died, with its data
"""

from __future__ import annotations

from opensearch_neural.node.clusters import ClusterStatus, NodeStatus, logs, status
from opensearch_neural.node.lifecycle import RunningNode, kill_node, start, stop

__all__ = ["ClusterStatus", "NodeStatus", "RunningNode", "kill_node", "logs", "start", "status", "stop"]
