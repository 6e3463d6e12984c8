"""A small judged corpus of real text that is on every machine: documentation strings of the standard library."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.speed.query_encoding import first_lines, standard_library_docstrings

DOCUMENTS = 500
QUERIES = 60


def docstrings() -> list[str]:
    return list(dict.fromkeys(standard_library_docstrings()))[:DOCUMENTS]


def write_docstring_corpus(folder: Path) -> Path:
    """A BEIR folder: each query is the first line of the document that is relevant for it."""
    texts = docstrings()
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"d{at}", "text": text, "title": ""}) for at, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    first = set(first_lines(texts))
    asked = [(at, line) for at, text in enumerate(texts) if (line := text.partition("\n")[0]) in first][:QUERIES]
    queries = [json.dumps({"_id": f"q{at}", "text": line}) for at, line in asked]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    qrels = [f"q{at}\td{at}\t1" for at, _ in asked]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n")
    return folder
