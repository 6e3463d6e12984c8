"""The archive of classes: made once for each Java, and done without where a Java makes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from opensearch_neural.node import class_archive as recording
from opensearch_neural.node.class_archive import class_archive
from opensearch_neural.node.java_and_jars import PROFILES, Java

WRITES = 'for option; do case $option in -XX:ArchiveClassesAtExit=*) echo classes >"${option#*=}";; esac; done'


def java(folder: Path, script: str) -> Java:
    """A Java that writes its arguments to `calls`, a line a call, and then runs the script."""
    executable = folder / "java"
    executable.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/calls"\n{script}\n')
    executable.chmod(0o755)
    return Java(executable, 17)


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    lib = tmp_path / "home" / "node" / "full" / "lib"
    lib.mkdir(parents=True)
    return lib


def test_it_is_recorded_once_for_each_java_by_a_node_that_ends(tmp_path: Path, lib: Path) -> None:
    told: list[str] = []
    archives = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        runs = java(tmp_path / name, WRITES)
        archive = class_archive(PROFILES["full"], runs, lib, told.append)
        assert archive is not None and archive.read_text() == "classes\n"
        assert class_archive(PROFILES["full"], runs, lib, told.append) == archive
        (call,) = (tmp_path / name / "calls").read_text().splitlines()
        assert "-Dosn.node.ends=true" in call and f"-cp {lib}/*" in call
        archives.append(archive)
    assert archives[0] != archives[1] and {*lib.parent.iterdir()} == {lib, *archives}
    assert len(told) == 2 and "starts and ends once" in told[0]
    assert not list((tmp_path / "home" / "node" / "clusters").iterdir())


@pytest.mark.parametrize("script", ["exit 0", f"{WRITES}; exit 1"], ids=["none is written", "it fails half way"])
def test_nodes_start_without_where_java_makes_none_and_it_is_not_tried_again(
    tmp_path: Path, lib: Path, script: str
) -> None:
    fails = java(tmp_path, script)
    for _ in range(2):
        assert class_archive(PROFILES["full"], fails, lib, lambda line: None) is None
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_a_node_that_records_too_long_is_given_up_and_a_later_start_tries_again(
    tmp_path: Path, lib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = java(tmp_path, f"{WRITES}; test -e {tmp_path}/quick || exec sleep 60")
    with monkeypatch.context() as patched:
        patched.setattr(recording, "TIMEOUT", 0.5)
        assert class_archive(PROFILES["full"], waits, lib, lambda line: None) is None
    (tmp_path / "quick").touch()
    archive = class_archive(PROFILES["full"], waits, lib, lambda line: None)
    assert archive is not None and archive.read_text() == "classes\n"
