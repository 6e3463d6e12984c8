"""The requests of docs/how-to/backup.md, as they stand there, on a real cluster: what was lost is there again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from corpora import job, records, write_jsonl

from ingest.job import run_job
from ingest.versions.builds import serving_index
from ingest.writing import journal
from opensearch_neural import node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.engines import open_engines
from opensearch_neural.index.hidden_index import INDEX
from opensearch_neural.models import registry

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "backup.md"


@pytest.fixture
def with_repository(tmp_path: Path) -> Iterator[OpenSearch]:
    """A node that may write snapshots to a folder."""
    name = f"osn-test-backup-{os.getpid()}"
    settings = {"path.repo": str(tmp_path / "repository")}
    running = node.start(port=0, heap="512m", name=name, attached=True, settings=settings)
    connected = connect(running.url)
    yield connected
    connected.close()
    node.stop(name, purge=True)


def test_a_snapshot_of_both_brings_searches_without_model_files_back(
    with_repository: OpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = with_repository
    for module in (journal, registry):
        monkeypatch.setattr(module, "home", lambda: tmp_path / "home")
    run_job(client, job(write_jsonl(tmp_path / "docs.jsonl", records(60)), "", alias="docs"), show_progress=False)
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "another-home")

    def hits() -> list[Any]:
        body = open_engines(client, "docs").body("bm25-sparse", "rain bow light")
        found: list[Any] = client.search(index="docs", body=body)["hits"]["hits"]
        return found

    expected = hits()
    text = PAGE.read_text(encoding="utf-8")
    requests = re.findall(r"^```\n([A-Z]+) (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    repository, snapshot, restore, renamed, copy = requests

    def send(request: tuple[str, str, str]) -> Any:
        method, path, body = request
        return client.transport.perform_request(method, path, body=body)

    send(repository)
    assert send(snapshot)["snapshot"]["state"] == "SUCCESS"
    client.indices.delete(index=f"{serving_index(client, 'docs')},{INDEX}")
    send(restore)
    assert hits() == expected != []

    lost = client.search(index=INDEX, body={"size": 100, "_source": False})["hits"]["hits"]
    client.index(index=INDEX, id="encoder-of-others", body={"name": "theirs"})
    for each in lost:
        client.delete(index=INDEX, id=each["_id"])
    send(renamed)
    (script,) = re.findall(r'`("script": [^`]*)`', text)
    method, path, body = copy
    newer = send((method, path, json.dumps(json.loads(body) | json.loads(f"{{{script}}}"))))
    assert (newer["created"], newer["noops"]) == (len(lost) - 1, 1), "the largest weights are left out"
    assert send(copy)["created"] == 1 < len(lost)
    assert hits() == expected and client.exists(index=INDEX, id="encoder-of-others")
