"""Finds a Java that is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import ClusterError

INSTALLED = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
"""Where Debian, Fedora, Homebrew, macOS, sdkman and IDEs put a JDK."""


@dataclass(frozen=True)
class Java:
    executable: Path
    version: int
    """The feature release: 17, 21, …"""

    def has_module(self, name: str) -> bool:
        listed = subprocess.run([self.executable, "--list-modules"], capture_output=True, text=True, check=False)
        return any(line.split("@")[0] == name for line in listed.stdout.splitlines())


def java_version(executable: Path) -> int | None:
    """The feature release of a java executable, or None where it does not run (as a stub of macOS)."""
    try:
        told = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if told.returncode == 0 and found else None


def find_java(oldest: int, needed_by: str) -> Java:
    """The Java of JAVA_HOME where that is set, else the one on the PATH, else the newest in the usual folders.

    Raises ClusterError: none at all, JAVA_HOME without one, or none that is new enough.
    """
    if home := os.environ.get("JAVA_HOME"):
        executable = Path(home) / "bin" / "java"
        version = java_version(executable)
        if version is None:
            raise ClusterError(
                f"JAVA_HOME is {home}, but {executable} does not run",
                f"let JAVA_HOME name a JDK of version {oldest} or later, or unset it; {how_to_install(oldest)}",
            )
        if version < oldest:
            raise ClusterError(
                f"{needed_by} needs Java {oldest} or later, and JAVA_HOME ({home}) is Java {version}",
                f"let JAVA_HOME name a newer one, or unset it; {how_to_install(oldest)}",
            )
        return Java(executable, version)
    found = [Java(path, version) for path in _candidates() if (version := java_version(path)) is not None]
    if not found:
        raise ClusterError(
            f"no Java was found, and {needed_by} needs version {oldest} or later", how_to_install(oldest)
        )
    if found[0].version >= oldest:
        return found[0]
    newest = max(found, key=lambda java: java.version)
    if newest.version < oldest:
        raise ClusterError(
            f"{needed_by} needs Java {oldest} or later; the newest found is {newest.version} ({newest.executable})",
            how_to_install(oldest),
        )
    return newest


def how_to_install(version: int) -> str:
    """One line with the usual commands, the one of this system first."""
    ways = {
        "debian": f"Debian or Ubuntu: sudo apt install openjdk-{version}-jre-headless",
        "macos": f"macOS: brew install openjdk@{version}",
        "any": f"anywhere: sdk install java {version}-tem (sdkman)",
    }
    first = "macos" if sys.platform == "darwin" else "debian"
    return "; ".join([ways.pop(first), *ways.values()])


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for pattern in INSTALLED:
        # pathlib cannot glob an absolute pattern; its parts below the root can.
        below = Path(pattern).expanduser().relative_to("/")
        yield from sorted(Path("/").glob(f"{below}/bin/java"))
