"""What a start may ask for, and what is said of what it may not."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from osn_node import osn_node

from opensearch_neural import node
from opensearch_neural.errors import InputError
from opensearch_neural.node import configuration
from opensearch_neural.node.clusters import cluster_folder, is_free, read_state
from opensearch_neural.node.java_and_jars import PROFILES

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


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
    def test_a_value_that_cannot_be_used_is_named(
        self, options: dict[str, Any], complaint: str, never_started: str
    ) -> None:
        with pytest.raises(InputError, match=complaint):
            node.start(**{"name": never_started, **options})
        assert read_state(never_started) is None

    def test_a_cluster_that_never_was_has_no_data_to_remove(self, never_started: str) -> None:
        done = osn_node("stop", "--name", never_started, "--purge")
        assert (done.returncode, done.stderr) == (0, f"there is no local cluster '{never_started}'\n")

    def test_a_number_of_lines_is_not_negative(self, never_started: str) -> None:
        assert "-5 is not in the range" in osn_node("logs", "--name", never_started, "-n", "-5").stderr

    def test_a_setting_without_a_value_is_named(self, never_started: str) -> None:
        failed = osn_node("start", "--name", never_started, "--setting", "indices.query")
        assert failed.returncode == 1
        assert "'indices.query' is not KEY=VALUE" in failed.stderr

    def test_a_port_that_another_program_has_is_named_with_a_free_one(self, never_started: str) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            failed = osn_node("start", "--name", never_started, "--port", str(port))
        assert failed.returncode == 1
        assert f"port {port} is taken by another program" in failed.stderr
        offered = int(re.findall(r"--port (\d+) is free", failed.stderr)[0])
        assert offered > port
        assert is_free(offered)

    def test_a_data_folder_that_cannot_be_one_is_named(self, tmp_path: Path, never_started: str) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot hold data"):
            node.start(name=never_started, data=tmp_path / "file", port=0)
        assert not cluster_folder(never_started).exists()

    def test_a_home_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        failed = osn_node("start", OSN_HOME=str(tmp_path / "file"))
        assert failed.returncode == 1
        assert f"{tmp_path / 'file'}" in failed.stderr
        assert "set OSN_HOME to a folder" in failed.stderr
        assert "Traceback" not in failed.stderr


def test_the_docker_way_is_pinned_and_on_loopback() -> None:
    import yaml

    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    (service,) = yaml.safe_load(compose)["services"].values()
    assert "_cluster/health" in service["healthcheck"]["test"][1]
    assert service["volumes"] == ["opensearch-data:/usr/share/opensearch/data"]
    assert service["environment"]["DISABLE_SECURITY_PLUGIN"] == "true"
    disk = {name: value for name, value in service["environment"].items() if ".disk." in name}
    assert disk == configuration.DISK_WATERMARKS, "as the local node has them"
    assert f"image: opensearchproject/opensearch:{PROFILES['full'].version}\n" in compose
    ports = re.findall(r'^\s+- "([\d.:]+:9200)"$', compose, re.MULTILINE)
    assert ports == ["127.0.0.1:9200:9200"]
