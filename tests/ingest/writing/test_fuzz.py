"""Corpus files damaged at random, through everything that an ingest does with a corpus: never a traceback.

A file either is refused as a whole, with a message, or every record of it ends as a document or as a dead letter.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import job, letters, records, snapshot
from test_bulk_actions import Given

from ingest.corpus import CorpusSource
from ingest.job import run_job
from ingest.writing.bulk_actions import prepare
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import OsnError
from opensearch_neural.index.record import IndexMeta

FILES = int(os.environ.get("OSN_FUZZ_FILES", "1000"))

pytestmark = pytest.mark.faults


def jsonl() -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records(30))


def table(delimiter: str) -> bytes:
    buffer = io.StringIO()
    columns = ["_id", "title", "text", "url", "year"]
    writer = csv.DictWriter(buffer, columns, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records(30))
    return buffer.getvalue().encode()


def parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    rows = [{name: record.get(name) for name in ("_id", "title", "text", "url", "year")} for record in records(30)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer, row_group_size=10)
    return buffer.getvalue()


def zstandard() -> bytes:
    import zstandard

    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (jsonl()[:2000], jsonl()[2000:]))


def dead_letters() -> bytes:
    lines = []
    for record in records(15):
        lines.append({"dead_letter": 1, "reason": "r", "file": "f", "line": 3, "document": record})
        lines.append({"dead_letter": 1, "reason": "r", "file": "f", "line": 4, "raw": json.dumps(record)})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


GOOD: dict[str, Callable[[], bytes]] = {
    "c.jsonl": jsonl,
    "c.jsonl.gz": lambda: gzip.compress(jsonl()[:3000]) + gzip.compress(jsonl()[3000:]),
    "c.jsonl.zst": zstandard,
    "c.csv": lambda: table(","),
    "c.tsv": lambda: table("\t"),
    "c.parquet": parquet,
    "letters.jsonl": dead_letters,
}
SPLICES = [
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"{",
    b"}" * 9,
    b"[" * 300,
    b"\n",
    b"\r",
    b"NaN",
    b"1e999",
    b"\\ud800",
    b"9" * 400,
]


def damaged(good: bytes, random_: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(random_.choice([1, 1, 2, 5, 40])):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << random_.randrange(8)
            case 1:
                del data[at : at + random_.choice([1, 10, 500])]
            case 2:
                data[at:at] = random_.choice(SPLICES)
            case 3:
                data = data[:at]
            case 4:
                start = random_.randrange(len(data) + 1)
                data[at:at] = data[start : start + random_.choice([5, 300])]
            case _:
                data[at:at] = random_.randbytes(random_.choice([1, 20]))
    return bytes(data)


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    return {name: make() for name, make in GOOD.items()}


class AnyText(Given):
    def __init__(self) -> None:
        super().__init__({})

    def vectors(self, documents: Any) -> Any:
        self.sparse = {document.text: {"rain": 1.0} for document in documents}
        return super().vectors(documents)


def test_no_damage_ends_in_a_traceback(good: dict[str, bytes], tmp_path: Path) -> None:
    random_ = random.Random(2026)
    outcomes = {"refused": 0, "documents": 0, "letters": 0}
    for number in range(FILES):
        name = random_.choice(list(good))
        path = tmp_path / name
        path.write_bytes(damaged(good[name], random_))
        rejected: list[Rejected] = []
        try:
            documents: list[Document] = list(CorpusSource(str(path)).reader(str(path))(rejected.append))
        except OsnError as error:
            assert str(error), "an error says something"
            outcomes["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"file {number}, {name}, is kept at {path}") from error
        prepared = prepare(documents, AnyText(), IndexMeta())
        assert len(prepared.actions) + len(prepared.unfit) == len(documents)
        assert all(each.reason for each in rejected)
        outcomes["documents"] += len(prepared.actions)
        outcomes["letters"] += len(rejected) + len(prepared.unfit)
    # The damage is neither harmless nor fatal.
    assert outcomes["documents"] > 5 * FILES and outcomes["letters"] > FILES // 4, outcomes


def test_what_is_left_of_damaged_files_is_in_the_index_and_the_rest_in_the_letters(
    client: Any, index_name: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    random_ = random.Random(7)
    for number in range(max(8, FILES // 100)):
        name = list(good)[number % len(good)]
        path = tmp_path / name
        path.write_bytes(damaged(good[name], random_))
        index = f"{index_name}-{number}"
        settings = job(path, index, sparse="none")
        rejected: list[Rejected] = []
        try:
            documents = list(settings.corpus.reader(str(path))(rejected.append))
        except OsnError:
            with pytest.raises(OsnError):
                run_job(client, settings, show_progress=False)
            continue
        report = run_job(client, settings, show_progress=False)
        found = snapshot(client, index)
        refused = {letter["document"]["_id"] for letter in told(index) if "status" in letter}
        assert found.keys() == {document.id for document in documents} - refused
        assert report.documents == len(found)
        assert report.letters == len(documents) + len(rejected) - len(found)
        client.indices.delete(index=index)


def told(index: str) -> list[dict[str, Any]]:
    return letters(Path(f"{index}.dead-letters.jsonl"))
