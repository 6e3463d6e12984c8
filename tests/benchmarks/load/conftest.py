"""What the tests of the load benchmark share: a small index of real text with lexical vectors, and queries about it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result
from loaded_index import write

from benchmarks.load import growth
from benchmarks.speed.query_encoding import first_lines, standard_library_docstrings

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

DOCUMENTS = 500


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Documentation strings of the standard library: on every machine."""
    return list(dict.fromkeys(standard_library_docstrings()))[:DOCUMENTS]


@pytest.fixture(scope="session")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: each query is the first line of the document that is relevant for it."""
    folder = tmp_path_factory.mktemp("load") / "docstrings"
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"d{at}", "text": text, "title": ""}) for at, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    asked = [
        (at, line) for at, text in enumerate(texts) if (line := text.partition("\n")[0]) in set(first_lines(texts))
    ]
    queries = [json.dumps({"_id": f"q{at}", "text": line}) for at, line in asked[:60]]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    qrels = [f"q{at}\td{at}\t1" for at, _ in asked[:60]]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n")
    return folder


@pytest.fixture(scope="session")
def loaded(client: OpenSearch, corpus: Path) -> Iterator[str]:
    """The name of an index of the corpus, merged to one segment."""
    name = f"osn-test-load-{uuid.uuid4().hex[:8]}"
    write(client, corpus, name)
    yield name
    client.indices.delete(index=name)


@pytest.fixture
def measured(cluster_url: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command that grows indexes of the corpus and measures them, with short blocks and two clients. It leaves
    `out` and `record` in the test's folder."""

    def run(command: click.Command, *more: str) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(growth, "LEASE_PATIENCE", 0.0)
        where = ["--url", cluster_url, "--data", str(corpus), "--out", "out", "--record", "record"]
        quick = ["--clients", "2", "--warmup", "1,2", "--settle", "0.05"]
        return CliRunner().invoke(command, [*where, *quick, *more])

    return run
