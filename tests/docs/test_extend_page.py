"""What docs/how-to/extend.md shows, done as it stands there: its engine searches, its paper trains and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from corpora import job, write_jsonl
from extend_page import names_below

from ingest.job import run_job
from opensearch_neural.engines import ENGINES, open_engines
from opensearch_neural.evaluation.results import read

RECORDS = [
    {"_id": "title", "title": "Rainbow", "text": "light and water in the evening, seen from the hill"},
    {"_id": "text", "title": "Light", "text": "a rainbow in the rain, a rainbow over the hill"},
    {"_id": "none", "title": "Trout", "text": "a fish of cold water"},
]


@pytest.mark.cluster
def test_the_engine_of_the_page_counts_the_title_as_its_option_says(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = names_below("An engine")["Bm25Title"]
    monkeypatch.setitem(ENGINES, added.name, added)
    run_job(client, job(write_jsonl(tmp_path / "docs.jsonl", RECORDS), index_name), show_progress=False)

    def hits(**settings: Any) -> dict[str, float]:
        body = open_engines(client, index_name, weight=0.01, **settings).body("bm25-title", "rainbow")
        return {hit["_id"]: hit["_score"] for hit in client.search(index=index_name, body=body)["hits"]["hits"]}

    plain, boosted = hits(), hits(title_boost=10.0)
    assert plain.keys() == boosted.keys() == {"title", "text"}
    assert boosted["title"] > plain["title"] and boosted["text"] == pytest.approx(plain["text"])
    assert next(iter(boosted)) == "title"


def test_the_paper_of_the_page_trains_its_arms_and_records_rows_and_a_goal(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from tiny import tiny_backbone, tiny_beir

    data, start = tiny_beir(tmp_path / "tiny"), tiny_backbone(tmp_path / "start", positions=256)
    (data / "qrels" / "dev.tsv").rename(data / "qrels" / "test.tsv")
    arguments = ["--data", str(data), "--work", str(tmp_path / "work"), "--start", str(start), "--steps", "2"]
    command = names_below("A paper's table")["pooling"]
    result = CliRunner().invoke(command, [*arguments, "--record", str(tmp_path / "results")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / "results" / "quality")
    assert {row.engine for row in summary.rows} == {"mean", "cls"} and {row.seed for row in summary.rows} == {
        42,
        43,
        None,
    }
    (goal,) = summary.goals
    assert isinstance(goal.value, str) and goal.value.startswith(("+", "-")), "the goal was measured"
