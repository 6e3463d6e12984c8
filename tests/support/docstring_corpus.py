"""A small judged corpus of real text that is on every machine: documentation strings of the standard library."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path

DOCUMENTS = 500
QUERIES = 60


def docstrings() -> list[str]:
    return list(dict.fromkeys(standard_library_docstrings()))[:DOCUMENTS]


def standard_library_docstrings() -> list[str]:
    """Documentation strings of the standard library's modules, parsed and never imported."""
    texts = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                texts.append(text)
    return texts


def first_lines(texts: Sequence[str]) -> list[str]:
    """First lines of five to ten words: the length of a typical query."""
    lines = dict.fromkeys(text.partition("\n")[0] for text in texts)
    return [line for line in lines if 5 <= len(line.split()) <= 10]


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
