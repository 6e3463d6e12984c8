"""What the tests of the ingest share: a folder of their own for everything that an ingest leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.writing import pipeline
from opensearch_neural.models import registry


@pytest.fixture(autouse=True)
def osn_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals and models of a test go here. Not by OSN_HOME, where the local node of the test session lives too."""
    home = tmp_path / "osn-home"
    monkeypatch.setattr(pipeline, "home", lambda: home)
    monkeypatch.setattr(registry, "home", lambda: home)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def osn(cluster_url: str, osn_home: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command `osn` in a process of its own, as a user does."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "opensearch_neural.cli", *arguments],
            env=os.environ | {"OSN_URL": cluster_url, "OSN_HOME": str(osn_home)},
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=120,
            **options,
        )

    return run
