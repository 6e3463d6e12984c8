"""Jobs that several processes share: each is worked on once, and none is lost with the process that was at it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.papers.jobs import share_stage, shared

WORKER = """
import os, sys, time
from functools import partial
from pathlib import Path
from benchmarks.papers.jobs import shared

folder, names = Path(sys.argv[1]), sys.argv[2].split(",")

def work(name):
    file = folder / name
    if not file.exists():
        (folder / f"{name}.begun-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        time.sleep(0.05)
        file.write_text(str(os.getpid()))
    return file.read_text()

print(",".join(shared({folder / name: partial(work, name) for name in names})))
"""


def worker(folder: Path, names: str = "a,b,c,d") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), names], stdout=subprocess.PIPE, text=True)


def wait_for(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(folder: Path, name: str) -> list[Path]:
    return list(folder.glob(f"{name}.begun-*"))


def test_processes_do_different_jobs_and_all_have_every_result(tmp_path: Path) -> None:
    first = worker(tmp_path)
    wait_for(lambda: begun(tmp_path, "a"))
    second = worker(tmp_path)
    wait_for(lambda: begun(tmp_path, "b"))  # while the first is at a
    (tmp_path / "go").touch()
    found = [process.communicate(timeout=60)[0].strip().split(",") for process in (first, second)]
    assert found[0] == found[1]
    assert found[0][:2] == [str(first.pid), str(second.pid)]
    assert all(len(begun(tmp_path, name)) == 1 for name in "abcd")


def test_a_job_whose_process_is_killed_is_done_by_the_one_that_waits(tmp_path: Path) -> None:
    first = worker(tmp_path, "a")
    wait_for(lambda: begun(tmp_path, "a"))
    second = worker(tmp_path, "a,b")
    wait_for(lambda: begun(tmp_path, "b"))
    first.kill()
    first.communicate()
    (tmp_path / "go").touch()
    assert second.communicate(timeout=60)[0].strip().split(",") == [str(second.pid)] * 2


def test_results_are_in_the_order_of_the_jobs_and_jobs_may_share_others(tmp_path: Path) -> None:
    def outer() -> list[int]:
        return shared({tmp_path / "inner": lambda: 1})

    assert shared({tmp_path / "z": outer, tmp_path / "inner": lambda: [2]}) == [[1], [2]]


def test_a_job_that_fails_fails_here_and_is_free_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        shared({tmp_path / "new" / "a": lambda: 1 // 0})
    assert shared({tmp_path / "new" / "a": partial(str, 1)}) == ["1"]


def test_a_shared_stage_is_copied_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, output = tmp_path / "trained", tmp_path / "later" / "stage"
    (trained / "inside").mkdir(parents=True)
    (trained / "inside" / "weights").write_text("w")
    with monkeypatch.context() as broken:
        broken.setattr("benchmarks.papers.jobs.Path.rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            share_stage(trained, output)
    assert not output.exists()
    share_stage(trained, output)
    assert (output / "inside" / "weights").read_text() == "w" and [one.name for one in output.parent.iterdir()] == [
        "stage"
    ]
    (output / "inside" / "weights").write_text("trained on")
    share_stage(trained, output)
    assert (output / "inside" / "weights").read_text() == "trained on"
