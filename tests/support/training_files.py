"""Small training files, as tests of trainers write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path


def write_lines(path: Path, values: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(value) + "\n" for value in values)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def beir(folder: Path, documents: dict[str, str], queries: dict[str, str], qrels: dict[str, list[tuple]]) -> Path:
    write_lines(
        folder / "corpus.jsonl.gz", [{"_id": key, "title": "", "text": text} for key, text in documents.items()]
    )
    write_lines(folder / "queries.jsonl.gz", [{"_id": key, "text": text} for key, text in queries.items()])
    (folder / "qrels").mkdir()
    for split, rows in qrels.items():
        text = "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def pairs(tmp_path: Path, name: str, rows: list[tuple[str, str]], negatives: list[list[str]] | None = None) -> Path:
    values = [{"query": q, "positive": p} for q, p in rows]
    for value, texts in zip(values, negatives or [], strict=False):
        value["negatives"] = texts
    return write_lines(tmp_path / f"{name}.jsonl", values)
