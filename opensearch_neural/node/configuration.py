"""A node's data, configuration files and command line, and the archive of its classes.

From the archive Java takes classes faster: class data sharing (JEP 350). A node that starts and ends at once records it.
Java ignores an archive that does not fit its version or the class path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.node.clusters import LOOPBACK, ClusterState, NodeState, Say
from opensearch_neural.node.java_and_jars import Java, Profile, preparing
from opensearch_neural.node.processes import Guard

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
"""Free space below which OpenSearch puts no new shard on a node, moves its shards away, and makes its indexes read-only. On
a single data node the first does nothing, and the second allows no new index. OpenSearch's own limits are shares of the disk
in use (85, 90 and 95 %), which a laptop's disk often exceeds."""

RECORDING_TIMEOUT = 120.0
"""Seconds until a node that records is given up."""
STARTED = "started"
"""The file beside the jars that says that a node was started from them."""

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
    """The node's command line. classes: the archive that `class_archive` returns"""
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


# ------------------------------------------------------------------------------------------------- archive of classes


class _Recording(ClusterState):
    """The cluster of the node that records. Its folder is beside the jars: one in `clusters/` might be a user's cluster."""

    @property
    def folder(self) -> Path:
        return Path(self.data).parent


def class_archive(profile: Profile, java: Java, lib: Path, report: Say) -> Path | None:
    """The archive for this Java beside the jars, which is recorded if it does not exist; None if there is none.

    The first start from these jars does not record: it takes longer than recording saves, if no other start follows. An
    empty file says that a recording would fail again, so that no later start tries it.
    """
    if not (lib.parent / STARTED).exists():
        with suppress(OSError):
            (lib.parent / STARTED).touch()
        return None
    executable = java.executable.resolve()
    # The version, because one shim (of jenv, asdf, mise) runs several Javas.
    identity = f"{executable} {java.version} {executable.stat().st_mtime_ns}"
    archive = lib.parent / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.jsa"
    if not archive.exists():
        with preparing(profile, report):
            if not archive.exists():
                report(
                    f"recording the classes of OpenSearch {profile.version}, once, so that its nodes start faster "
                    "(some seconds)"
                )
                try:
                    _record(archive, profile, java, lib, report)
                except (OSError, ClusterError) as error:
                    reason = error.message if isinstance(error, ClusterError) else error.strerror
                    report(
                        f"the classes could not be recorded: {reason}; nodes start as before, and the next start tries again"
                    )
    return archive if archive.exists() and archive.stat().st_size else None


def _record(archive: Path, profile: Profile, java: Java, lib: Path, report: Say) -> None:
    """Let a node write `archive`, or write an empty file. Raises OSError or ClusterError if a later start may do better."""
    for left in lib.parent.glob("recording-*/"):  # by an attempt whose guard was killed
        shutil.rmtree(left, ignore_errors=True)
    # Of other Javas' archives, which take 80 to 90 MB each, the newest stays. Running nodes keep what they have mapped.
    others = [other for other in lib.parent.glob("classes-*.jsa") if other.stat().st_size]
    for older in sorted(others, key=lambda other: other.stat().st_mtime)[:-1]:
        older.unlink()
    folder = Path(tempfile.mkdtemp(prefix="recording-", dir=lib.parent))
    cluster = _Recording(
        name="recording",
        mark=folder.name,
        profile=profile.name,
        version=profile.version,
        heap="256m",
        data=str(folder / "data"),
        nodes=[NodeState(index=1, http_port=0, transport_port=0)],  # any free ports
    )
    (node,) = cluster.nodes
    recorded = folder / archive.name
    log = lib.parent / "recording.log"
    log.write_text("")
    guard = Guard()
    try:
        guard.remove_when_ended(folder)
        write_configuration(cluster, node)
        executable, *arguments = command(cluster, node, profile, java, lib)
        recording = [executable, f"-XX:ArchiveClassesAtExit={recorded}", "-Dosn.node.ends=true", *arguments]
        status = guard.wait(guard.start(recording, log, cluster.node_folder(node)), RECORDING_TIMEOUT)
        if status == 0 and recorded.exists():
            # Else a power cut could leave an empty file under the archive's name.
            with recorded.open("rb") as file:
                os.fsync(file.fileno())
            recorded.replace(archive)
            return
    finally:
        guard.end_nodes()
    # Java 17 ends with status 1, Java 25 with 0, if the archive of Java's own classes, on which this one builds, is missing.
    makes_none = status == 0 or "base CDS archive is not loaded" in log.read_text(errors="replace")
    if status is not None and not makes_none:
        raise ClusterError(f"Java ended with status {status} (its log: {log})")
    why = (
        "this Java makes no archive of classes"
        if makes_none
        else f"a recording did not end in {RECORDING_TIMEOUT:.0f} s"
    )
    archive.touch()
    report(f"{why} (its log: {log}); nodes start as before; to try again, remove {archive}")
