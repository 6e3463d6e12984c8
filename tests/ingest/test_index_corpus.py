"""`osn ingest opensearch:INDEX`: an index that is there, read whole with its fields, in the same order each time."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fault_proxy import Fault, FaultProxy

from ingest.corpus import CorpusSource, spooled
from ingest.index_corpus import copy_index
from ingest.job import Job, run_job
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

pytestmark = pytest.mark.cluster


@pytest.fixture
def theirs(client: OpenSearch, index_name: str) -> Any:
    """An index that `osn` did not write: texts under another name, several pages of hits, two shards."""
    name = f"{index_name}-theirs"
    client.indices.create(index=name, body={"settings": {"number_of_shards": 2, "number_of_replicas": 0}})
    lines: list[dict[str, Any]] = []
    for number in reversed(range(2500)):
        lines += [{"index": {"_id": f"d{number}"}}, {"headline": f"Number {number}", "story": "rain", "price": number}]
    client.bulk(index=name, body=lines, refresh=True)
    yield name
    client.indices.delete(index=name)


def test_every_document_is_read_once_in_the_order_of_ids(client: OpenSearch, theirs: str) -> None:
    copies = []
    for _ in range(2):
        file = io.BytesIO()
        assert copy_index(client, f"opensearch:{theirs}", file) == 2500
        copies.append(file.getvalue())
    assert copies[0] == copies[1]
    records = [json.loads(line) for line in copies[0].splitlines()]
    assert [record["_id"] for record in records] == sorted(f"d{number}" for number in range(2500))
    assert records[0] == {"_id": "d0", "headline": "Number 0", "story": "rain", "price": 0}


def test_an_ingest_takes_the_documents_with_their_fields(
    client: OpenSearch, theirs: str, index_name: str, tmp_path: Path
) -> None:
    source = CorpusSource(f"opensearch:{theirs}", title_field="headline", text_field="story")
    job = Job(source, index_name, replicas=0, dead_letters=tmp_path / "dead.jsonl")
    assert run_job(client, job, show_progress=False).documents == 2500
    document = client.get(index=index_name, id="d7")["_source"]
    assert document == {"title": "Number 7", "text": "rain", "price": 7}
    assert client.count(index=index_name)["count"] == 2500


@pytest.mark.skipif(not Path("/proc").exists(), reason="elsewhere the second run waits for a minute")
def test_a_killed_ingest_of_an_index_continues_and_takes_every_document_once(
    client: OpenSearch,
    cluster_url: str,
    theirs: str,
    index_name: str,
    osn: Callable[..., subprocess.CompletedProcess[str]],
    osn_home: Path,
) -> None:
    """SIGKILL, and the same command at once: the killed process is not waited for, although nobody has reaped it."""
    fields = ["--title-field", "headline", "--text-field", "story"]
    ingest = ["ingest", f"opensearch:{theirs}", "--index", index_name, *fields, "--batch-docs", "50", "--replicas", "0"]
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.1)
        killed = subprocess.Popen(
            [sys.executable, "-m", "opensearch_neural.cli", *ingest],
            env=os.environ | {"OSN_URL": proxy.url, "OSN_HOME": str(osn_home)},
        )
        deadline = time.monotonic() + 60
        while len(proxy.bulks) < 20:
            assert killed.poll() is None and time.monotonic() < deadline, "the ingest does not write"
            time.sleep(0.01)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    began = time.monotonic()
    again = osn(*ingest, "--json")
    assert again.returncode == 0, again.stderr
    assert time.monotonic() - began < 30
    killed.wait()
    report = json.loads(again.stdout)
    assert report["documents"] == 2500
    # Of at least twenty batches of fifty, 2 · writers + 1 were under way.
    assert report["skipped"] >= 500
    client.indices.refresh(index=index_name)
    hits = client.search(index=index_name, body={"size": 5000, "_source": ["price"]})["hits"]["hits"]
    assert sorted(hit["_id"] for hit in hits) == sorted(f"d{number}" for number in range(2500))
    assert all(hit["_id"] == f"d{hit['_source']['price']}" for hit in hits)


def test_an_index_is_read_by_an_ingest_alone() -> None:
    with pytest.raises(InputError, match="only `osn ingest` reads an index"), spooled("opensearch:articles"):
        pass
