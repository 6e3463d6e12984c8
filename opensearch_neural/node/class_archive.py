"""An archive of the classes that a node loads, from which Java takes them faster: class data sharing (JEP 350).

A node that starts and ends at once records it. Java ignores an archive that does not fit its version or the class path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import configuration
from opensearch_neural.node.clusters import ClusterState, NodeState, Say
from opensearch_neural.node.java_and_jars import Java, Profile, preparing
from opensearch_neural.node.processes import Guard

TIMEOUT = 120.0
"""Seconds until a node that records is given up."""
STARTED = "started"
"""The file beside the jars that says that a node was started from them."""


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
        configuration.write_configuration(cluster, node)
        executable, *arguments = configuration.command(cluster, node, profile, java, lib)
        command = [executable, f"-XX:ArchiveClassesAtExit={recorded}", "-Dosn.node.ends=true", *arguments]
        status = guard.wait(guard.start(command, log, cluster.node_folder(node)), TIMEOUT)
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
    why = "this Java makes no archive of classes" if makes_none else f"a recording did not end in {TIMEOUT:.0f} s"
    archive.touch()
    report(f"{why} (its log: {log}); nodes start as before; to try again, remove {archive}")
