"""One ingest that watches its own memory; `benchmarks.speed.ingest_speed` starts it in a process of its own.

    python -m benchmarks.speed.ingest_speed_child URL CORPUS INDEX FIRST

Prints {"first": bytes resident when FIRST documents were written, "most": at most after that, "documents_per_second"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from ingest.writing import pipeline
from opensearch_neural.cluster.connect import connect
from opensearch_neural.progress import Progress


def resident() -> int:
    """Bytes, from Linux's accounting of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell a process its memory in /proc")


class Watched(Progress):
    """Reads the memory with every batch that is written."""

    first_documents = 0
    first = most = 0

    def update(self, count: int, *, skipped: bool = False) -> None:
        super().update(count, skipped=skipped)
        now = resident()
        if self.count <= Watched.first_documents or not Watched.first:
            Watched.first = now
        Watched.most = max(Watched.most, now)


def main() -> None:
    url, corpus, index, first = sys.argv[1:]
    Watched.first_documents = int(first)
    pipeline.Progress = Watched  # type: ignore[misc]
    report = run_job(
        connect(url), Job(CorpusSource(corpus), index, models=Models(sparse="lexical"), new_index=NewIndex(replicas=0))
    )
    rate = report.documents / report.seconds
    print(json.dumps({"first": Watched.first, "most": Watched.most, "documents_per_second": rate}))


if __name__ == "__main__":
    main()
