"""The records of a corpus in their order, however many of them are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ingest.commands.ingest import ingest
from ingest.corpus import KEPT_BYTES, CorpusSource, everything, spooled
from opensearch_neural.corpus.documents import Document, Rejected


def numbered(*counts: int, raw: str = "") -> Callable[[Callable[[Rejected], None]], Iterator[Document]]:
    """Records that number themselves: so many rejected ones, a document, so many rejected ones, …"""

    def read(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
        line = 0
        for at, count in enumerate(counts):
            for _ in range(count):
                line += 1
                on_reject(Rejected("f", line, "bad \ud83d", f"{line} {raw}"))
            if at < len(counts) - 1:
                line += 1
                yield Document(str(line), "text", file="f", line=line)

    return read


def test_rejected_records_keep_their_place_and_content_however_many_wait() -> None:
    for raw in ("", "\ud83d\n" * 2000):
        counts = (3, 0, 2_000, 1, 2_000)
        read = list(everything(numbered(*counts, raw=raw)))
        assert [record.line for record in read] == list(range(1, sum(counts) + len(counts)))
        rejected = [record for record in read if isinstance(record, Rejected)]
        assert {(each.file, each.reason) for each in rejected} == {("f", "bad \ud83d")}
        assert all(each.raw == f"{each.line} {raw}" for each in rejected)


def test_the_copy_of_a_killed_process_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill left a copy of the whole corpus in the temporary folder."""
    code = "import time\nfrom ingest.corpus import spooled\nwith spooled('-'): print('copied', flush=True); time.sleep(600)"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with ExitStack() as stack:
        processes, copies = [], []
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdin and process.stdout
            process.stdin.write(b'{"_id": "a", "text": "b"}\n')
            process.stdin.close()
            assert process.stdout.readline() == b"copied\n"
            (copy,) = {*tmp_path.iterdir()} - {*copies}
            os.utime(copy, (0, 0))
            processes.append(process)
            copies.append(copy)
        processes[0].kill()
        processes[0].wait()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO()))
        with spooled("-") as place:
            assert {*tmp_path.iterdir()} == {copies[1], Path(place)}


def test_a_limit_counts_documents_and_its_help_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"_id": "a", "text": "t"}\n{"_id": "none"}\n{"_id": "b", "text": "t"}\n{"_id": "c", "text": "t"}\n'
    )
    rejected: list[Rejected] = []
    documents = CorpusSource(str(path), limit=2).reader(str(path))(rejected.append)
    assert [document.id for document in documents] == ["a", "b"] and [each.line for each in rejected] == [2]
    told = CliRunner().invoke(ingest, ["--help"]).output
    assert "Read only the first N documents; unreadable records do not count." in " ".join(told.split())


def test_of_rejected_records_that_wait_few_are_in_memory() -> None:
    large = "x" * 10_000
    tracemalloc.start()
    try:
        count = sum(isinstance(record, Rejected) for record in everything(numbered(5_000, raw=large)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 5_000 and most < 4 * KEPT_BYTES < 5_000 * len(large) / 10
