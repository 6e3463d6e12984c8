"""What a node is started with: its configuration files, its command line, its ports."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.node.java import Java
from opensearch_neural.node.profiles import Profile
from opensearch_neural.node.state import ClusterState, NodeState

LOOPBACK = "127.0.0.1"

# One plain log on stdout, which the guard writes to a file; the runner's own configuration writes six.
LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""

FIXED = {
    "http.port": "--port",
    "path.data": "--data",
    "path.logs": "osn node logs",
    "cluster.name": "--name",
    "node.name": "--name",
    "network.host": "nothing: a local node listens on loopback only",
    "http.host": "nothing: a local node listens on loopback only",
    "transport.host": "nothing: a local node listens on loopback only",
}
"""Settings that `osn node` decides itself, and what to use instead."""


def is_free(port: int) -> bool:
    """Whether nothing listens on the port, and this user may."""
    # Some systems let one bind 127.0.0.1 beside a program that listens on every address.
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket() as probe:
        # As the node does it: connections that are closing down do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int, first: int, taken: set[int]) -> list[int]:
    """The next `count` free ports from `first` on that are not in `taken`."""
    found: list[int] = []
    for port in range(first, 65536):
        if len(found) == count:
            break
        if port not in taken and is_free(port):
            found.append(port)
    return found


def checked_heap(heap: str) -> str:
    """A heap size as Java takes it, such as 512m or 2g. Raises InputError."""
    size = re.fullmatch(r"([1-9]\d*)([mMgG])", heap)
    if size is None or int(size[1]) * (1024 if size[2] in "gG" else 1) < 128:
        raise InputError(f"a heap of {heap!r} cannot be given to Java", "for example 512m or 2g; 128m at least")
    return heap.lower()


def checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    for name, instead in FIXED.items():
        if name in settings:
            raise InputError(f"the setting {name} is decided by `osn node` itself", f"use {instead}")
    return settings


def write_configuration(cluster: ClusterState, node: NodeState) -> None:
    """Write the node's `opensearch.yml` and `log4j2.properties`."""
    folder = cluster.node_folder(node)
    for part in ("conf", "logs", "tmp"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    cluster.data_folder(node).mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "network.host": LOOPBACK,
        "transport.port": str(node.transport_port),
        "node.attr.osn_node": str(node.index),
        # A laptop's disk is often fuller than the 85 to 95 % at which OpenSearch stops allocating shards and turns
        # indexes read-only: right for a fleet that can move shards elsewhere, no help where there is one disk.
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    if len(cluster.nodes) == 1:
        settings["discovery.type"] = "single-node"
    else:
        settings["discovery.seed_hosts"] = [f"{LOOPBACK}:{member.transport_port}" for member in cluster.nodes]
        settings["cluster.initial_cluster_manager_nodes"] = [cluster.node_name(member) for member in cluster.nodes]
    settings |= cluster.settings
    # JSON values are YAML values.
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in settings.items()]
    (folder / "conf" / "opensearch.yml").write_text("".join(lines))
    (folder / "conf" / "log4j2.properties").write_text(LOG4J)


def rotate_log(log: Path) -> None:
    """Keep the log of the start before, so that what ended a node can be read after it was restarted."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))


def command(cluster: ClusterState, node: NodeState, profile: Profile, java: Java, lib: Path) -> list[str]:
    """The node's command line."""
    folder = cluster.node_folder(node)
    options = [
        f"-Dosn.node={cluster.mark}/{node.index}",
        f"-Dosn.node.name={cluster.node_name(node)}",
        f"-Dosn.http.port={node.http_port}",
        f"-Xms{cluster.heap}",
        f"-Xmx{cluster.heap}",
        # A node that ran out of memory is in no known state; it is better gone than half there.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={folder / 'logs' / 'crash-%p.log'}",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "--add-opens=java.base/java.io=ALL-UNNAMED",
    ]
    if java.version >= 21:
        # Lucene calls the system's memory advice; later versions of Java refuse what is not announced.
        options.append("--enable-native-access=ALL-UNNAMED")
    # Lucene computes vector distances several times faster with this module; Java 20 is the first whose form of it
    # Lucene uses, and trimmed-down runtimes lack it.
    if java.version >= 20 and java.has_module("jdk.incubator.vector"):
        options.append("--add-modules=jdk.incubator.vector")
    runner = [
        "LocalNode",
        *("-basePath", str(folder)),
        *("-confPath", str(folder / "conf")),
        *("-logsPath", str(folder / "logs")),
        *("-dataPath", str(cluster.data_folder(node))),
        *("-clusterName", cluster.name),
        *("-numOfNode", "1"),
        "-useLogger",
    ]
    if profile.plugins:
        runner += ["-pluginTypes", ",".join(profile.plugins)]
    return [str(java.executable), *options, "-cp", f"{lib}{os.pathsep}{lib}/*", *runner]


def environment() -> dict[str, str]:
    """The environment of a node: ours, without the credentials that other `osn` commands take from it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OSN_", "AWS_"))}
