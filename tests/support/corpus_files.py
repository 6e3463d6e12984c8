"""Small corpora in every format, and what is read of them."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.reader import read_corpus

RECORDS: list[dict[str, Any]] = [
    {"_id": "a", "title": "Rainbow", "text": "Light is refracted in drops.", "url": "https://e.org/a", "lang": "en"},
    {
        "_id": "b",
        "title": "",
        "text": 'Straße, "quotes",\ttabs\nand lines\n\nαβγ 😀',
        "url": "https://e.org/b",
        "lang": "de",
    },
    {"_id": "3", "title": "Only a title", "text": "", "url": "https://e.org/c", "lang": "fr"},
]


def jsonl(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def separated(records: list[dict[str, Any]], delimiter: str, *, quoted: bool = False) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(
        out, list(records[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    )
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def parquet(records: list[dict[str, Any]], path: Path, **options: Any) -> Path:
    pa = pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    from pyarrow import parquet as pq

    pq.write_table(pa.Table.from_pylist(records), path, **options)
    return path


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason=".zst needs the extra [corpora]")
    return zstandard.ZstdCompressor().compress(data)


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read(path: str | Path, **options: Any) -> tuple[list[Document], list[Rejected]]:
    rejected: list[Rejected] = []
    return list(read_corpus(path, on_reject=rejected.append, check_first=True, **options)), rejected


def ids(path: str | Path, **options: Any) -> list[str]:
    return [document.id for document in read(path, **options)[0]]


GOOD = b'{"_id": "good", "text": "t"}'


def numbered(first: int, last: int, seed: int = 0) -> bytes:
    """Records whose texts do not compress well, so that damage falls where it is put."""
    words = random.Random(seed)
    return jsonl([{"_id": str(n), "text": f"{words.getrandbits(400):x}"} for n in range(first, last)])
