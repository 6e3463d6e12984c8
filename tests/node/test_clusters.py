"""What is known of a local cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from osn_node import osn_node

from opensearch_neural.node import processes
from opensearch_neural.node.clusters import ClusterState, NodeState, read_state

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


class TestState:
    def test_it_survives_being_written_and_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OSN_HOME", str(tmp_path))
        state = ClusterState(
            "mine", "abc", "full", "2.19.1", "1g", "/data", [NodeState(1, 9200, 9300, 17), NodeState(2, 9201, 9301)]
        )
        state.write()
        assert read_state("mine") == state

    def test_a_file_of_something_else_is_named_and_not_a_traceback(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OSN_HOME", str(tmp_path))
        path = tmp_path / "node" / "clusters" / "mine" / "state.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"name": "mine"}')
        failed = osn_node("status")
        assert failed.returncode == 1
        assert str(path) in failed.stderr
        assert "Traceback" not in failed.stderr

    def test_a_pid_that_another_process_was_given_is_not_the_node(self) -> None:
        """The pid of this very test runs, and does not carry the mark."""
        state = ClusterState("x", "f00dcafe", "full", "2.19.1", "1g", "/data", [NodeState(1, 9200, 9300, os.getpid())])
        assert state.running == []
        assert processes.end(state.pids, state.mark) == []
