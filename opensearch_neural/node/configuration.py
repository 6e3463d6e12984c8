"""A node's ports, data, configuration files and command line."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.node.clusters import LOOPBACK, ClusterState, NodeState, ask, known_clusters
from opensearch_neural.node.java_and_jars import Java, Profile

DATA_NOTE = "osn-node.json"
"""A file beside the data: the profile and the number of nodes that wrote the data."""

FIXED_SETTINGS = {
    "http.port": "--port",
    "path.data": "--store",
    "path.logs": "osn node logs",
    "cluster.name": "--name",
    "node.name": "--name",
    "transport.port": "--port",
}
"""Settings that `osn node` sets itself, and what to use instead."""

# Such as network.host, http.bind_host, transport.profiles.default.publish_host.
ADDRESS_SETTING = re.compile(r"(network|http|transport)\.(.+\.)?(host|bind_host|publish_host)(\..+)?")

DISK_WATERMARKS = {
    "cluster.routing.allocation.disk.watermark.low": "2gb",
    "cluster.routing.allocation.disk.watermark.high": "1gb",
    "cluster.routing.allocation.disk.watermark.flood_stage": "500mb",
}
"""Free space below which OpenSearch puts no new shard on a node, moves shards away, and makes indexes read-only. Its default
limits are shares of the disk in use (85, 90 and 95 %), which a laptop's disk often exceeds."""

# One plain log on stdout, which the guard writes to a file; the runner's own configuration writes six logs.
LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


# ------------------------------------------------------------------------------------------------------------- ports


def is_free(port: int) -> bool:
    """Whether no program listens on the port, and this user may listen there."""
    # Some systems allow binding 127.0.0.1 even if a program listens on all addresses.
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket() as probe:
        # Like the node's own socket, this ignores connections that are closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int, first: int, reserved: set[int]) -> list[int]:
    """The next `count` free ports from `first` on that are not in `reserved`."""
    ports: list[int] = []
    for port in range(first, 65536):
        if len(ports) == count:
            break
        if port not in reserved and is_free(port):
            ports.append(port)
    return ports


def check_ports(cluster: ClusterState, node: NodeState) -> None:
    """Raises ClusterError if a port of the node is taken.

    A restarted cluster keeps its ports, because its other nodes know them.
    """
    for port in (node.http_port, node.transport_port):
        if not is_free(port):
            stop_first = f"stop the cluster and start it with another --port (osn node stop --name {cluster.name})"
            raise port_taken(port, cluster.name, stop_first if cluster.running else None)


def port_taken(port: int, name: str, remedy: str | None = None) -> ClusterError:
    """The error that says who has the port that the cluster `name` needs. remedy: None: name a free port."""
    another = remedy or f"give another port (--port {free_ports(1, port + 1, set())[0]} is free, --port 0 takes any)"
    other = next((state for state in known_clusters() if any(n.http_port == port for n in state.running)), None)
    if other is not None and other.name != name:
        return ClusterError(
            f"port {port} is used by the local cluster {other.name!r}",
            f"use it (--name {other.name}), stop it (osn node stop --name {other.name}), or {another}",
        )
    answer = ask(port, "/", timeout=2.0)
    if answer and "cluster_name" in answer:
        number = answer.get("version", {}).get("number", "?")
        return ClusterError(
            f"port {port} is taken by a cluster that `osn node` did not start: {answer['cluster_name']!r}, {number}",
            f"use it (export OSN_URL=http://127.0.0.1:{port}), or {another}",
        )
    return ClusterError(f"port {port} is taken by another program", another)


# -------------------------------------------------------------------------------------------------------------- data


def claim_data(cluster: ClusterState) -> bool:
    """Record the profile and the number of nodes beside the data. Returns whether there was no data before.

    Raises ClusterError for data of another version, which would not open, or of another number of nodes, which would not
    elect a leader.
    """
    path = Path(cluster.data) / DATA_NOTE
    note = {"profile": cluster.profile, "version": cluster.version, "nodes": len(cluster.nodes)}
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = None
    if known is not None and known != note:
        raise ClusterError(
            f"the data in {cluster.data} belongs to profile {known.get('profile')} ({known.get('version')}) with "
            f"{known.get('nodes')} node(s), not {cluster.profile} ({cluster.version}) with {len(cluster.nodes)}",
            f"start it as before (--profile {known.get('profile')} --nodes {known.get('nodes')}), give another --store "
            f"or --name, or remove it (osn node stop --name {cluster.name} --purge)",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(note) + "\n")
    except OSError as error:
        raise InputError(f"{cluster.data} cannot hold data: {error.strerror}", "give another --store") from None
    return known is None and not any(cluster.data_folder(node).exists() for node in cluster.nodes)


def remove_data(cluster: ClusterState) -> None:
    """Remove the nodes' data, and nothing else that may be in a --store folder."""
    for node in cluster.nodes:
        shutil.rmtree(cluster.data_folder(node), ignore_errors=True)
    (Path(cluster.data) / DATA_NOTE).unlink(missing_ok=True)
    with suppress(OSError):
        Path(cluster.data).rmdir()


# -------------------------------------------------------------------------------------------- files and command line


def checked_heap(heap: str) -> str:
    """The heap size in lower case, such as 512m or 2g. Raises InputError for a size that Java does not accept."""
    size = re.fullmatch(r"([1-9]\d*)([mMgG])", heap)
    if size is None or int(size[1]) * (1024 if size[2] in "gG" else 1) < 128:
        raise InputError(f"a heap of {heap!r} cannot be given to Java", "for example 512m or 2g; 128m at least")
    return heap.lower()


def check_settings(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raises InputError for an invalid name of a setting, and for a setting that `osn node` sets itself.

    As in OpenSearch, `{"network": {"host": …}}` means `network.host`.
    """
    for key, value in settings.items():
        name = f"{prefix}{key}"
        # Names are written into a YAML file, in which a line end or a colon would begin another setting.
        if not re.fullmatch(r"[A-Za-z0-9_*-]+(\.[A-Za-z0-9_*-]+)*", name):
            raise InputError(f"{name!r} is no name of a setting", "letters, digits, '_', '-', '*' and '.'")
        if isinstance(value, Mapping):
            check_settings(value, f"{name}.")
        elif name in FIXED_SETTINGS:
            raise InputError(
                f"the setting {name} is decided by `osn node` itself", f"use {FIXED_SETTINGS[name]} instead"
            )
        elif ADDRESS_SETTING.fullmatch(name):
            raise InputError(
                f"the setting {name} is decided by `osn node` itself: a local node listens on loopback only",
                "for a cluster that others can reach, with TLS and passwords, install OpenSearch or use its container",
            )


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
        **DISK_WATERMARKS,
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
    """Keep the previous log, so that the reason why a node ended can be read after a restart."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))


def command(
    cluster: ClusterState, node: NodeState, profile: Profile, java: Java, lib: Path, classes: Path | None = None
) -> list[str]:
    """The node's command line. `classes`: an archive of class_archive.py."""
    folder = cluster.node_folder(node)
    options = [
        f"-Dosn.node={cluster.mark}/{node.index}",
        f"-Dosn.node.name={cluster.node_name(node)}",
        f"-Dosn.http.port={node.http_port}",
        f"-Xms{cluster.heap}",
        f"-Xmx{cluster.heap}",
        # After running out of memory, a node's state is undefined; it is better to end it.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={folder / 'logs' / 'crash-%p.log'}",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "--add-opens=java.base/java.io=ALL-UNNAMED",
    ]
    if classes is not None:
        options.append(f"-XX:SharedArchiveFile={classes}")
    if java.version >= 21:
        # Lucene calls the system's memory advice; later versions of Java refuse native access that is not enabled.
        options.append("--enable-native-access=ALL-UNNAMED")
    # Lucene computes vector distances several times faster with this module. It uses the module from Java 20 on, and
    # reduced runtimes lack it.
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
    return [str(java.executable), *options, "-cp", f"{lib}/*", *runner]
