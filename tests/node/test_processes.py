"""Nothing that was started outlives whoever asked for it, unless released."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from osn_node import wait_for

from opensearch_neural.errors import ClusterError
from opensearch_neural.node import processes
from opensearch_neural.node.processes import Guard

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)",
]


class TestGuard:
    """Nothing that it started outlives whoever asked for it, unless released."""

    def test_a_closed_pipe_ends_what_was_started_and_removes_what_was_named(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        guard = Guard()
        pid = guard.start([*SLEEP, "mark-1"], tmp_path / "log", tmp_path)
        guard.remove_when_ended(tmp_path / "data")
        assert processes.is_running(pid, "mark-1")
        guard.end_nodes()
        assert not processes.is_running(pid, "mark-1")
        assert not (tmp_path / "data").exists()

    def test_what_was_released_stays(self, tmp_path: Path) -> None:
        guard = Guard()
        pid = guard.start([*SLEEP, "mark-2"], tmp_path / "log", tmp_path)
        guard.release()
        time.sleep(0.3)
        assert processes.is_running(pid, "mark-2")
        assert processes.end([pid], "mark-2") == []
        assert not processes.is_running(pid, "mark-2")

    def test_a_killed_owner_takes_its_processes_along(self, tmp_path: Path) -> None:
        script = (
            "import pathlib, sys, time; from opensearch_neural.node.processes import Guard;"
            "folder = pathlib.Path(sys.argv[1]);"
            "guard = Guard(); print(guard.start(sys.argv[2:], folder / 'log', folder), flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", script, str(tmp_path), *SLEEP, "mark-3"]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert processes.is_running(pid, "mark-3")
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert processes.wait_until_gone([pid], "mark-3", 10.0) == []

    def test_half_a_request_of_a_killed_owner_ends_what_was_started(self, tmp_path: Path) -> None:
        guard = Guard()
        pid = guard.start([*SLEEP, "mark-5"], tmp_path / "log", tmp_path)
        assert guard._process.stdin is not None
        guard._process.stdin.write(b'{"start": ["half')
        guard.end_nodes()
        assert not processes.is_running(pid, "mark-5") and guard._process.returncode == 0

    def test_a_command_that_does_not_exist_is_an_error_and_no_hang(self, tmp_path: Path) -> None:
        guard = Guard()
        with pytest.raises(ClusterError, match="could not be started"):
            guard.start([str(tmp_path / "absent")], tmp_path / "log", tmp_path)
        guard.end_nodes()

    def test_it_tells_how_a_process_ended_or_that_it_still_runs(self, tmp_path: Path) -> None:
        guard = Guard()
        ended = guard.start([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", tmp_path)
        running = guard.start([*SLEEP, "mark-6"], tmp_path / "log", tmp_path)
        assert guard.wait(ended, 30.0) == 3
        assert guard.wait(running, 0.1) is None
        processes.send(running, "mark-6", signal.SIGKILL)
        assert guard.wait(running, 30.0) == -signal.SIGKILL
        guard.end_nodes()

    def test_what_ignores_sigterm_is_killed(self, tmp_path: Path) -> None:
        guard = Guard()
        pid = guard.start([*DEAF, "mark-4"], tmp_path / "log", tmp_path)
        guard.release()
        wait_for(lambda: (tmp_path / "log").stat().st_size)
        assert processes.end([pid], "mark-4", grace=0.5) == [pid]
        assert not processes.is_running(pid, "mark-4")

    def test_it_needs_nothing_but_the_standard_library(self) -> None:
        """It is run by file name, so that a package that is only on a path of the caller's making will do."""
        imported = re.findall(r"^(?:import|from) (\w+)", Path(processes.__file__).read_text(), re.MULTILINE)
        assert set(imported) <= {*sys.stdlib_module_names}
