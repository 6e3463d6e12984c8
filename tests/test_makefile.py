"""`make` says what a fresh machine lacks, and how to install it, before it spends minutes on anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")

Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs make where the PATH is one empty folder, `bin`, and nothing of this machine's set-up is seen."""
    (tmp_path / "bin").mkdir()

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR")}
        return subprocess.run(
            [str(MAKE), "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            env={**kept, "PATH": str(tmp_path / "bin"), **environment},
        )

    return run


def executable(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_without_java_the_first_thing_said_is_how_to_get_it(make: Make, goal: str) -> None:
    done = make(goal)
    assert done.returncode != 0
    assert "Java is missing" in done.stderr
    assert "apt-get install openjdk" in done.stderr and "brew install openjdk" in done.stderr
    assert f"make {goal} OSN_URL=" in done.stderr


def test_without_maven_the_way_to_get_it_is_said(make: Make, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "java")
    done = make("check-java")
    assert done.returncode != 0
    assert "Maven is missing" in done.stderr
    assert "apt-get install maven" in done.stderr


def test_java_and_maven_outside_the_path_are_seen(make: Make, tmp_path: Path) -> None:
    executable(tmp_path / "jdk" / "bin" / "java")
    executable(tmp_path / "maven" / "bin" / "mvn")
    done = make("check-java", JAVA_HOME=str(tmp_path / "jdk"), MAVEN_HOME=str(tmp_path / "maven"))
    assert done.returncode == 0, done.stderr


def test_a_cluster_of_ones_own_needs_neither(make: Make) -> None:
    assert make("check-java", "OSN_URL=http://localhost:9200").returncode == 0


def test_without_python_the_way_to_get_it_is_said(make: Make) -> None:
    done = make("check-python")
    assert done.returncode != 0
    assert "Python is missing" in done.stderr
    assert "apt-get install python3" in done.stderr


def test_an_old_python_is_named_with_its_version(make: Make, tmp_path: Path) -> None:
    old = executable(tmp_path / "bin" / "python3", 'test "$1" != --version || { echo Python 3.9.1; exit 0; }; exit 1')
    assert old.exists()
    done = make("check-python")
    assert done.returncode != 0
    assert "Python 3.9.1 is too old: Python 3.10 or later" in done.stderr
