"""What the tests of the benchmarks share: a small index of real text with lexical vectors, and queries about it."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result
from docstring_corpus import docstrings, write_docstring_corpus
from loaded_index import write

from benchmarks.load import ceiling
from opensearch_neural.index import segments

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


def pytest_configure() -> None:
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        # Models here are so small that a second thread costs more than it does.
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return docstrings()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_docstring_corpus(tmp_path_factory.mktemp("load") / "docstrings")


@pytest.fixture(scope="session")
def loaded(client: OpenSearch, corpus: Path) -> Iterator[str]:
    """The name of an index of the corpus, merged to one segment."""
    name = f"osn-test-load-{uuid.uuid4().hex[:8]}"
    write(client, corpus, name)
    yield name
    client.indices.delete(index=name)


@pytest.fixture
def nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement so short, on a machine that is busy with other tests, may need all that the generator has."""
    monkeypatch.setattr(ceiling, "MOST_OF_CEILING", math.inf)
    monkeypatch.setattr(ceiling, "MOST_OF_A_CORE", math.inf)


@pytest.fixture
def measured(cluster_url: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command that grows indexes of the corpus and measures them, with short blocks and two clients. It leaves
    `out` and `record` in the test's folder."""

    def run(command: click.Command, *more: str) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
        where = ["--url", cluster_url, "--data", str(corpus), "--out", "out", "--record", "record"]
        quick = ["--clients", "2", "--warmup", "1,2", "--settle", "0.05"]
        return CliRunner().invoke(command, [*where, *quick, *more])

    return run
