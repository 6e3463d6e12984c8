"""An archive of the classes that a node loads, from which Java takes them faster: class data sharing (JEP 350).

A node that starts and ends at once records it. Java ignores an archive that does not fit its version or the class path.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from opensearch_neural.node import configuration, processes
from opensearch_neural.node.clusters import ClusterState, NodeState, Say, cluster_folder, locked, node_home
from opensearch_neural.node.java_and_jars import Java, Profile

TIMEOUT = 300
"""Seconds until a node that records is given up; a later start tries again."""


def class_archive(profile: Profile, java: Java, lib: Path, report: Say) -> Path | None:
    """The archive for this Java beside the jars, which is recorded if it does not exist; None if there is none."""
    executable = java.executable.resolve()
    made_for = hashlib.sha256(f"{executable} {executable.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    archive = lib.parent / f"classes-{made_for}.jsa"
    if not archive.exists():
        busy = f"another process is recording the classes of OpenSearch {profile.version}; waiting for it"
        with locked(node_home() / f"{profile.label}.lock", busy, report):
            if not archive.exists():
                report(f"OpenSearch {profile.version} starts and ends once, so that nodes then start faster")
                _record(archive, profile, java, lib)
    return archive if archive.exists() and archive.stat().st_size else None


def _record(archive: Path, profile: Profile, java: Java, lib: Path) -> None:
    """Let a node write `archive`. An empty file says that this Java makes none, so that no later start tries again."""
    name = f"recording-{profile.label}"
    cluster = ClusterState(
        name=name,
        mark=name,
        profile=profile.name,
        version=profile.version,
        heap="256m",
        data=str(cluster_folder(name) / "data"),
        nodes=[NodeState(index=1, http_port=0, transport_port=0)],  # any free ports
    )
    (node,) = cluster.nodes
    unfinished = archive.with_suffix(".unfinished")
    shutil.rmtree(cluster.folder, ignore_errors=True)  # of a killed attempt
    try:
        configuration.write_configuration(cluster, node)
        executable, *arguments = configuration.command(cluster, node, profile, java, lib)
        recording = [executable, f"-XX:ArchiveClassesAtExit={unfinished}", "-Dosn.node.ends=true", *arguments]
        with cluster.log(node).open("wb") as log:
            ended = subprocess.run(
                recording,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cluster.node_folder(node),
                env=processes.environment(),
                timeout=TIMEOUT,
                check=False,
            )
        if ended.returncode != 0 or not unfinished.exists():
            unfinished.unlink(missing_ok=True)
            unfinished.touch()
        unfinished.replace(archive)
    except subprocess.TimeoutExpired:
        unfinished.unlink(missing_ok=True)
    finally:
        shutil.rmtree(cluster.folder, ignore_errors=True)
