"""`osn ingest opensearch:INDEX`: an index that is there, read whole with its fields, in the same order each time."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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


def test_an_index_is_read_by_an_ingest_alone() -> None:
    with pytest.raises(InputError, match="only `osn ingest` reads an index"), spooled("opensearch:articles"):
        pass
