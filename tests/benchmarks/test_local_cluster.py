"""Indexes that a benchmark writes and deletes again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.local_cluster import ingested
from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models, NewIndex

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@pytest.mark.cluster
def test_an_index_of_its_own_goes_with_its_block_and_leaves_no_file(
    client: OpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, here = tmp_path / "corpus.jsonl", tmp_path / "here"
    corpus.write_text('{"_id": "1", "text": "tide"}\n{"_id": "2", "text": 7}\n')
    here.mkdir()
    monkeypatch.chdir(here)
    job = Job(CorpusSource(str(corpus)), models=Models(sparse="none"), new_index=NewIndex(replicas=0))
    with ingested(client, job) as index:
        assert client.count(index=index)["count"] == 1
    assert not client.indices.exists(index=index)
    assert not list(here.iterdir()), "the rejected document was kept for nobody"
    letters = tmp_path / "rejected.jsonl"
    named = Job(
        CorpusSource(str(corpus)),
        "osn-test-named",
        models=Models(sparse="none"),
        new_index=NewIndex(replicas=0),
        dead_letters=letters,
    )
    with ingested(client, named) as index:
        assert index == "osn-test-named"
    assert not client.indices.exists(index=index)
    assert letters.exists()
