"""An index for tests of the load benchmark: a corpus with lexical vectors, merged to one segment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex, Writing

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


def write(client: OpenSearch, corpus: Path, index: str) -> None:
    job = Job(
        CorpusSource(str(corpus)),
        index,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=corpus.parent / f"{index}.letters",
        writing=Writing(merge=True),
    )
    run_job(client, job, show_progress=False)
