"""A local OpenSearch without Docker: from published Maven artifacts, on loopback, for trying things and for tests.

    from opensearch_neural import node

    running = node.start()                     # the same as `osn node start`
    running.url                                # http://127.0.0.1:9200
    node.stop()

Several nodes form one cluster of separate processes, so that one can be lost:

    node.start(nodes=3, port=9250, name="three")
    node.start(name="three")                   # restarts those that died, with their data

lifecycle.py  start, restart and stop; a start reads top to bottom here
launch.py     what a start asks for, checked; ports, data, configuration and command line of a node
parts.py      profiles, Java, and the jars that Maven fetches
process.py    processes by pid and mark, and the pipe to the guard
guard.py      the script that starts nodes and ends them with whoever asked
clusters.py   the known clusters: their state, status and logs
"""

from __future__ import annotations

from opensearch_neural.node.clusters import ClusterState, logs, status
from opensearch_neural.node.lifecycle import start, stop

__all__ = ["ClusterState", "logs", "start", "status", "stop"]
