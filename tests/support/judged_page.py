"""Judgements of the documents in hostile_documents.py, and a report on them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from opensearch_neural.cli import osn

JUDGED = {
    "q1": ("what causes a rainbow", {"rain": 2, "trout": 0}),
    "q2": ("fish of rivers", {"trout": 2}),
    "q3": ("<script>window.hacked = 4</script> colours", {"light": 2, "sun": 1}),
}


def write_judgements(folder: Path) -> list[str]:
    """The options that name them."""
    queries, qrels = folder / "queries.jsonl", folder / "judged.qrels"
    queries.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, (text, _) in JUDGED.items()))
    qrels.write_text("".join(f"{id} 0 {doc} {grade}\n" for id, (_, of) in JUDGED.items() for doc, grade in of.items()))
    return ["--queries", str(queries), "--qrels", str(qrels)]


def write_report(url: str, index: str, folder: Path) -> Path:
    out = folder / "report.html"
    asked = ["eval", "--index", index, "--engines", "bm25,sparse", "--timed", "3", "--report", str(out), "--url", url]
    done = CliRunner().invoke(osn, [*asked, *write_judgements(folder)])
    assert done.exit_code == 0, done.output
    return out
