"""What the page is tried on: a real index of a published sparse model, with documents among it that are hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_documents import DOCUMENTS

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural.models.directory import published_splade_directory


@pytest.fixture(scope="session")
def page_index(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    corpus, name = folder / "docs.jsonl", f"osn-test-page-{folder.parent.name}"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in DOCUMENTS))
    model = str(published_splade_directory() or "lexical")
    job = Job(
        CorpusSource(str(corpus)),
        name,
        models=Models(sparse=model),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)
