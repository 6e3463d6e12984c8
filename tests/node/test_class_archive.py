"""The archive of classes: made once for each Java, and done without where a Java makes none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from osn_node import wait_for

from opensearch_neural.node import configuration, processes
from opensearch_neural.node.clusters import cluster_folder
from opensearch_neural.node.configuration import STARTED, class_archive
from opensearch_neural.node.java_and_jars import PROFILES, Java, preparing

FULL = PROFILES["full"]
WRITES = 'for option; do case $option in -XX:ArchiveClassesAtExit=*) echo classes >"${option#*=}";; esac; done'
NO_BASE = "echo DynamicDumpSharedSpaces is unsupported when base CDS archive is not loaded"


def java(folder: Path, script: str) -> Java:
    """A Java that writes its arguments to `calls`, a line a call, and then runs the script."""
    folder.mkdir(exist_ok=True)
    executable = folder / "java"
    executable.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/calls"\n{script}\n')
    executable.chmod(0o755)
    return Java(executable, 17)


def calls(runs: Java) -> list[str]:
    return runs.executable.with_name("calls").read_text().splitlines()


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    lib = tmp_path / "home" / "node" / "full" / "lib"
    lib.mkdir(parents=True)
    (lib.parent / STARTED).touch()
    return lib


def test_the_first_start_records_nothing(tmp_path: Path, lib: Path) -> None:
    (lib.parent / STARTED).unlink()
    told: list[str] = []
    assert class_archive(FULL, java(tmp_path, WRITES), lib, told.append) is None
    assert not told and not (tmp_path / "calls").exists()
    assert class_archive(FULL, java(tmp_path, WRITES), lib, told.append) is not None


def test_it_is_recorded_once_for_each_java_by_a_node_that_ends(tmp_path: Path, lib: Path) -> None:
    told: list[str] = []
    archives = []
    for name in ("one", "other"):
        runs = java(tmp_path / name, WRITES)
        archive = class_archive(FULL, runs, lib, told.append)
        assert archive is not None and archive.read_text() == "classes\n"
        assert class_archive(FULL, runs, lib, told.append) == archive
        (call,) = calls(runs)
        assert "-Dosn.node.ends=true" in call and f"-cp {lib}/*" in call
        archives.append(archive)
    assert archives[0] != archives[1] and {*lib.parent.iterdir()} == {
        lib,
        lib.parent / STARTED,
        lib.parent / "recording.log",
        *archives,
    }
    assert len(told) == 2 and "recording the classes of OpenSearch 2.19.1, once" in told[0]


def test_a_shim_that_runs_another_java_has_another_archive(tmp_path: Path, lib: Path) -> None:
    shim = java(tmp_path, WRITES)
    archives = {class_archive(FULL, Java(shim.executable, version), lib, lambda line: None) for version in (17, 21)}
    assert len(archives) == 2


def test_a_failure_that_may_pass_is_told_and_the_next_start_tries_again(tmp_path: Path, lib: Path) -> None:
    told: list[str] = []
    fails = java(tmp_path, f"{WRITES}; test -e {tmp_path}/mended || exit 1")
    assert class_archive(FULL, fails, lib, told.append) is None
    assert "could not be recorded: Java ended with status 1" in told[-1] and "next start tries again" in told[-1]
    assert {*lib.parent.iterdir()} == {lib, lib.parent / STARTED, lib.parent / "recording.log"}
    (tmp_path / "mended").touch()
    archive = class_archive(FULL, fails, lib, told.append)
    assert archive is not None and archive.read_text() == "classes\n"


def test_a_file_that_cannot_be_written_keeps_no_node_from_starting(tmp_path: Path, lib: Path) -> None:
    (lib.parent / "recording.log").mkdir()
    told: list[str] = []
    assert class_archive(FULL, java(tmp_path, WRITES), lib, told.append) is None
    assert "could not be recorded: Is a directory" in told[-1]


@pytest.mark.parametrize("script", ["exit 0", f"{NO_BASE}; exit 1"], ids=["Java 25", "Java 17"])
def test_nodes_start_without_where_java_makes_none_and_it_is_not_tried_again(
    tmp_path: Path, lib: Path, script: str
) -> None:
    told: list[str] = []
    makes_none = java(tmp_path, script)
    for _ in range(2):
        assert class_archive(FULL, makes_none, lib, told.append) is None
    assert len(calls(makes_none)) == 1
    assert len(told) == 2 and "this Java makes no archive of classes" in told[1]


def test_a_node_that_records_too_long_is_ended_which_is_told_and_not_tried_again(
    tmp_path: Path, lib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    waits = java(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(configuration, "RECORDING_TIMEOUT", 0.5)
    for _ in range(2):
        assert class_archive(FULL, waits, lib, told.append) is None
    assert len(calls(waits)) == 1
    (empty,) = lib.parent.glob("*.jsa")
    assert len(told) == 2 and "did not end" in told[1] and f"to try again, remove {empty}" in told[1]
    assert not processes.command_line(int((tmp_path / "pid").read_text()))


def test_a_java_that_records_ends_with_a_start_that_is_killed(tmp_path: Path, lib: Path) -> None:
    java(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    script = (
        "import pathlib, sys; from opensearch_neural.node.configuration import class_archive;"
        "from opensearch_neural.node.java_and_jars import PROFILES, Java;"
        "class_archive(PROFILES['full'], Java(pathlib.Path(sys.argv[1]), 17), pathlib.Path(sys.argv[2]), print)"
    )
    start = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "java"), str(lib)])
    pid = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    start.kill()
    start.wait()
    wait_for(lambda: not processes.command_line(int(pid)))
    wait_for(lambda: not [*lib.parent.glob("recording-*")])


def test_of_the_archives_of_other_javas_the_newest_stays(tmp_path: Path, lib: Path) -> None:
    kept = []
    for day, name in enumerate(("first", "second", "third"), start=1):
        archive = class_archive(FULL, java(tmp_path / name, WRITES), lib, lambda line: None)
        assert archive is not None
        os.utime(archive, (86400 * day, 86400 * day))
        kept.append(archive)
    assert {*lib.parent.glob("*.jsa")} == {*kept[1:]}


def test_no_cluster_is_touched_whatever_its_name(tmp_path: Path, lib: Path) -> None:
    """The folder of a recording was once that of a cluster `recording-full-2.19.1`."""
    for name in ("recording", f"recording-{FULL.label}"):
        cluster_folder(name).mkdir(parents=True)
    assert class_archive(FULL, java(tmp_path, WRITES), lib, lambda line: None)
    assert len(list((tmp_path / "home" / "node" / "clusters").iterdir())) == 2


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, lib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut an empty file would say that this Java makes none."""
    synced: list[int] = []

    def sync(file: int) -> None:
        assert not [*lib.parent.glob("*.jsa")]
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    assert class_archive(FULL, java(tmp_path, WRITES), lib, lambda line: None)
    assert synced == [len("classes\n")]


def test_whoever_waits_is_told_for_what_whether_jars_or_classes_are_made(lib: Path) -> None:
    told: list[str] = []
    script = (
        "import sys; from opensearch_neural.node.java_and_jars import PROFILES, preparing\n"
        "with preparing(PROFILES['full'], print): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None and holder.stdout.readline() == "held\n"

    def tell(line: str) -> None:
        told.append(line)
        holder.communicate()

    with preparing(FULL, tell):
        assert told == ["another process is preparing OpenSearch 2.19.1; waiting for it"]
