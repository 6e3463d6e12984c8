"""Local clusters by the commands a user gives, and on the processes that they start."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from opensearchpy import OpenSearch
from osn_node import OSN_NODE, kill_node, osn_node, wait_for

from opensearch_neural import node
from opensearch_neural.errors import ClusterError
from opensearch_neural.node import configuration, processes
from opensearch_neural.node.clusters import ClusterState, NodeState, cluster_folder, read_state
from opensearch_neural.node.configuration import STARTED
from opensearch_neural.node.java_and_jars import PROFILES, find_java, prepare

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


@dataclass
class Started:
    name: str
    url: str
    pids: list[int]
    data: Path
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


def start_attached_and_kill(name: str) -> ClusterState:
    """The cluster as a process that started it attached left it, when it was killed."""
    script = (
        "import time; from opensearch_neural import node;"
        f"node.start(name={name!r}, port=0, heap='256m', attached=True); print(flush=True); time.sleep(600)"
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
    return state


@pytest.fixture(scope="module")
def one_node(cleaned_name: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Started:
    """One node, started by the command, with its data in a folder of the user's."""
    name, data = cleaned_name("one"), tmp_path_factory.mktemp("data")
    (data / "mine.txt").write_text("not the node's")
    full = PROFILES["full"]
    lib = prepare(full, find_java(full.java, "a test"), print)
    (lib.parent / STARTED).touch()  # the first start records no archive of classes
    first = osn_node(
        *("start", "--name", name, "--port", "0", "--heap", "512m", "--store", str(data)),
        *("--setting", "indices.query.bool.max_clause_count=2048"),
    )
    assert first.returncode == 0, first.stderr
    url = first.stdout.splitlines()[-1]
    state = read_state(name)
    assert state is not None
    return Started(name, url, [pid for n in state.nodes if (pid := n.pid)], data, first)


@pytest.mark.cluster
class TestOneNode:
    def test_the_url_is_all_that_stdout_says(self, one_node: Started) -> None:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", one_node.first.stdout)
        assert one_node.client.info()["version"]["number"] == "2.19.1"

    def test_a_second_start_finds_the_first(self, one_node: Started) -> None:
        again = osn_node("start", "--name", one_node.name)
        assert (again.returncode, again.stdout) == (0, one_node.first.stdout)
        assert "runs already" in again.stderr
        assert [n.pid for n in one_node.state.nodes] == one_node.pids

    def test_a_second_start_that_asks_for_something_else_is_refused(self, one_node: Started) -> None:
        failed = osn_node("start", "--name", one_node.name, "--nodes", "3", "--heap", "2g")
        assert failed.returncode == 1
        assert "--nodes is 1, not 3; --heap is 512m, not 2g" in failed.stderr
        assert f"osn node stop --name {one_node.name}" in failed.stderr

    def test_the_port_of_another_local_cluster_is_named_as_that(self, one_node: Started, never_started: str) -> None:
        failed = osn_node("start", "--name", never_started, "--port", one_node.url.rpartition(":")[2])
        assert failed.returncode == 1
        assert f"is used by the local cluster '{one_node.name}'" in failed.stderr

    def test_it_listens_on_loopback_only(self, one_node: Started) -> None:
        addresses = listening_addresses(one_node.pids[0])
        assert addresses, "it has listening sockets"
        assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    def test_it_has_the_plugins_and_the_settings_it_was_given(self, one_node: Started) -> None:
        plugins = {row["component"] for row in one_node.client.cat.plugins(format="json")}
        assert set(PROFILES["full"].plugins) <= plugins
        settings = one_node.client.cluster.get_settings(include_defaults=True, flat_settings=True)["defaults"]
        assert settings["indices.query.bool.max_clause_count"] == "2048"
        assert settings["cluster.routing.allocation.disk.threshold_enabled"] == "true"
        assert {name: settings[name] for name in configuration.DISK_WATERMARKS} == configuration.DISK_WATERMARKS

    def test_the_heap_is_what_was_asked_for(self, one_node: Started) -> None:
        (member,) = one_node.client.nodes.stats(metric="jvm")["nodes"].values()
        assert member["jvm"]["mem"]["heap_max_in_bytes"] == 512 * 2**20
        assert "-Xms512m" in processes.command_line(one_node.pids[0])

    def test_its_classes_come_out_of_the_archive(self, one_node: Started) -> None:
        named = re.search(r"-XX:SharedArchiveFile=(\S+\.jsa)", processes.command_line(one_node.pids[0]))
        assert named is not None and Path(named[1]).stat().st_size > 10 * 2**20
        (member,) = one_node.state.nodes
        assert "[cds" not in one_node.state.log(member).read_text(), "Java warns of an archive that it cannot use"
        if (maps := Path(f"/proc/{one_node.pids[0]}/maps")).exists():
            assert named[1] in maps.read_text()

    def test_it_can_index_and_search(self, one_node: Started) -> None:
        """A Java that lacks a part starts, and then creates no index: see LocalNode.java."""
        mappings = {"properties": {"sparse": {"type": "rank_features"}}}
        one_node.client.indices.create(index="a", body={"mappings": mappings})
        one_node.client.index(index="a", body={"sparse": {"cat": 1.5, "mat": 0.5}}, params={"refresh": "true"})
        body = {"query": {"neural_sparse": {"sparse": {"query_tokens": {"cat": 2.0}}}}}
        (hit,) = one_node.client.search(index="a", body=body)["hits"]["hits"]
        assert hit["_score"] == 3.0
        one_node.client.indices.delete(index="a")

    def test_status_tells_people_and_programs(self, one_node: Started, never_started: str) -> None:
        told = osn_node("status", "--name", one_node.name)
        assert f"{one_node.name}  {one_node.url}  green  full 2.19.1  heap 512m  1 of 1 running" in told.stdout
        (cluster,) = json.loads(osn_node("status", "--name", one_node.name, "--json").stdout)
        assert (cluster["name"], cluster["url"], cluster["health"]) == (one_node.name, one_node.url, "green")
        assert cluster["nodes"][0]["pid"] == one_node.pids[0]
        assert cluster["nodes"][0]["running"] is True
        assert json.loads(osn_node("status", "--name", never_started, "--json").stdout) == []

    def test_logs_print_the_end_and_follow(self, one_node: Started) -> None:
        told = osn_node("logs", "--name", one_node.name, "-n", "5000").stdout
        assert f"publish_address {{{one_node.url.removeprefix('http://')}}}" in told
        assert len(osn_node("logs", "--name", one_node.name, "-n", "3").stdout.splitlines()) == 3
        lines = node.logs(one_node.name, lines=0, follow=True)
        one_node.client.indices.create(index="seen-in-the-log")
        assert any("seen-in-the-log" in line for line in lines)
        one_node.client.indices.delete(index="seen-in-the-log")

    def test_logs_of_what_is_not_there_are_an_error(self, one_node: Started, never_started: str) -> None:
        assert f"no local cluster '{never_started}'" in osn_node("logs", "--name", never_started).stderr
        assert "has no node 2" in osn_node("logs", "--name", one_node.name, "--node", "2").stderr

    def test_data_survives_a_kill_and_a_stop_until_it_is_purged(self, one_node: Started) -> None:
        """The last of this class: it takes the node away."""
        name = one_node.name
        one_node.client.index(index="kept", id="1", body={"a": 1}, params={"refresh": "true"})

        kill_node(1, name)
        ((known, health),) = node.status(name)
        assert (known.running, health) == ([], None)
        # A pid file that is stale in the worst way: the pid is that of another process, which must be left alone.
        state = one_node.state
        replace(state, nodes=[replace(state.nodes[0], pid=os.getpid())]).write()
        again = node.start(name=name)
        assert again.url == one_node.url
        assert again.pids != one_node.pids
        assert one_node.client.get(index="kept", id="1")["_source"] == {"a": 1}
        assert known.log(known.nodes[0]).with_suffix(".log.1").exists(), "what the node wrote before it died is kept"

        assert node.stop(name) is True
        assert node.stop(name) is False
        assert not any(processes.command_line(pid) for pid in again.pids)
        with pytest.raises(
            ClusterError, match=r"profile full \(2\.19\.1\) with 1 node\(s\), not full \(2\.19\.1\) with 2"
        ):
            node.start(name=name, nodes=2)
        with pytest.raises(ClusterError, match="unknown setting"):
            node.start(name=name, settings={"no.such.setting": "1"})
        resumed = node.start(name=name)
        assert (resumed.url, resumed.heap, resumed.data) == (one_node.url, "512m", str(one_node.data))
        assert resumed.settings == {"indices.query.bool.max_clause_count": "2048"}
        client = OpenSearch(resumed.url, timeout=30)
        assert client.get(index="kept", id="1")["_source"] == {"a": 1}

        purged = osn_node("stop", "--name", name, "--purge")
        assert "stopped, its data removed" in purged.stderr
        assert [path.name for path in one_node.data.iterdir()] == ["mine.txt"]
        assert node.status(name) == []


class TestStopOnAFullDisk:
    @pytest.mark.parametrize("purge", [True, False])
    def test_it_stops_the_cluster_and_with_purge_makes_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purge: bool
    ) -> None:
        """Before, it ended at recording that the nodes are stopped, and --purge removed nothing."""
        monkeypatch.setenv("OSN_HOME", str(tmp_path))
        state = ClusterState(
            "mine", "abc", "full", "2.19.1", "1g", str(tmp_path / "data"), [NodeState(1, 9200, 9300, 17)]
        )
        state.write()
        state.data_folder(state.nodes[0]).mkdir(parents=True)

        def full(self: ClusterState) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(ClusterState, "write", full)
        node.stop("mine", purge=purge)
        assert Path(state.data).exists() == state.folder.exists() == (not purge)


@pytest.mark.cluster
class TestLifeOfACluster:
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
        assert name not in processes.command_line(pid)
        # Nothing was stored: a start with other nodes or another profile is not refused for it.
        assert not (cluster_folder(name) / "data").exists()

    @pytest.mark.parametrize(("lost", "leaves"), [("http_port", True), ("transport_port", False)])
    def test_a_node_that_lost_its_port_to_another_program_is_started_again(
        self, cleaned_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, lost: str, leaves: bool
    ) -> None:
        """Also if that program `leaves` the port before anybody looks."""
        name = cleaned_name("late")
        rivals: list[socket.socket] = []

        def configured(cluster: ClusterState, member: NodeState) -> None:
            if not rivals:  # the first choice alone: every port was free a moment ago
                rivals.append(socket.create_server(("127.0.0.1", getattr(member, lost))))
            write_configuration(cluster, member)

        def up(cluster: ClusterState, member: NodeState) -> bool:
            if is_up(cluster, member):
                return True
            for rival in rivals if leaves else ():
                rival.close()
            return False

        write_configuration, is_up = configuration.write_configuration, ClusterState.is_up
        monkeypatch.setattr(configuration, "write_configuration", configured)
        monkeypatch.setattr(ClusterState, "is_up", up)
        told: list[str] = []
        try:
            started = node.start(name=name, port=0, heap="256m", report=told.append)
        finally:
            for rival in rivals:
                rival.close()
        assert OpenSearch(started.url, timeout=30).info()["cluster_name"] == name
        assert [line for line in told if "took a port" in line] == [
            f"another program took a port of '{name}' before its node listened there; choosing again"
        ]

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
        assert processes.wait_until_gone(state.pids, state.mark, 30.0) == []

    def test_attached_nodes_and_their_data_go_with_a_process_that_is_killed(
        self, cleaned_name: Callable[[str], str]
    ) -> None:
        name = cleaned_name("attached")
        state = start_attached_and_kill(name)
        assert processes.wait_until_gone(state.pids, state.mark, 30.0) == []
        wait_for(lambda: not state.folder.exists())

    def test_data_that_was_there_before_stays_when_an_attached_process_is_killed(
        self, cleaned_name: Callable[[str], str]
    ) -> None:
        name = cleaned_name("kept")
        running = node.start(name=name, port=0, heap="256m")
        OpenSearch(running.url, timeout=30).indices.create(index="kept")
        assert start_attached_and_kill(name).pids == running.pids, "it found the running cluster"
        assert len(running.running) == 1
        kill_node(1, name)
        restarted = start_attached_and_kill(name)
        assert processes.wait_until_gone(restarted.pids, restarted.mark, 30.0) == []
        again = node.start(name=name)
        assert OpenSearch(again.url, timeout=30).indices.exists(index="kept")

    def test_a_broken_index_does_not_keep_the_others_from_being_used(self, cleaned_name: Callable[[str], str]) -> None:
        """Before, such a cluster could not be started again, and its good indexes were lost with it."""
        name = cleaned_name("red")
        running = node.start(name=name, port=0, heap="256m")
        client = OpenSearch(running.url, timeout=30)
        for index in ("good", "bad"):
            client.index(index=index, id="1", body={"a": 1}, params={"refresh": "true"})
        client.indices.flush(index="bad")
        number = client.indices.get_settings(index="bad")["bad"]["settings"]["index"]["uuid"]
        node.stop(name)
        segments = list(Path(running.data).glob(f"node-1/**/indices/{number}/0/index/segments_*"))
        assert segments
        for file in segments:
            file.write_bytes(b"broken")

        told: list[str] = []
        again = node.start(name=name, timeout=120, report=told.append)
        assert [line for line in told if line.startswith("warning: shards of these indexes are missing: bad;")]
        assert OpenSearch(again.url, timeout=30).get(index="good", id="1")["_source"] == {"a": 1}
        assert osn_node("start", "--name", name).stdout == f"{again.url}\n", "it runs on, and is used as it is"
