"""A local OpenSearch without Docker: from published Maven artifacts, on loopback, for experiments and tests.

    from opensearch_neural import node

    running = node.start()                     # the same as `osn node start`
    running.url                                # http://127.0.0.1:9200
    node.stop()

A cluster can have several nodes, each a process of its own, so that one can fail:

    node.start(nodes=3, port=9250, name="three")
    node.start(name="three")                   # restarts nodes that died, with their data

start_and_stop.py  start, restart and stop
configuration.py   data, configuration and command line of a node; an archive of its classes, from which it starts faster
java_and_jars.py   profiles, Java, and the jars that Maven fetches
processes.py       processes by pid and mark, and the guard that ends nodes with the process that asked
clusters.py        the known clusters: their state, status, ports and logs
"""

from __future__ import annotations

from opensearch_neural.node.clusters import ClusterState, logs, status
from opensearch_neural.node.start_and_stop import start, stop

__all__ = ["ClusterState", "logs", "start", "status", "stop"]
