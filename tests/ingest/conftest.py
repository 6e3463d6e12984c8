"""What the tests of the ingest share: a folder of their own for everything that an ingest leaves behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from osn_command import osn_command
from tiny_splade import write_splade

from ingest.writing import journal
from opensearch_neural.models import registry


@pytest.fixture(autouse=True)
def osn_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals and models of a test go here. Not by OSN_HOME, where the local node of the test session lives too."""
    home = tmp_path / "osn-home"
    monkeypatch.setattr(journal, "home", lambda: home)
    monkeypatch.setattr(registry, "home", lambda: home)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture(scope="session")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPLADE without a table for queries."""
    return write_splade(tmp_path_factory.mktemp("model") / "my-splade")


@pytest.fixture
def osn(cluster_url: str, osn_home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command `osn` in the test's folder."""
    environment = {"OSN_URL": cluster_url, "OSN_HOME": str(osn_home)}
    return partial(osn_command, environment=environment)
