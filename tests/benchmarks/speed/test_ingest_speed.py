"""The writing benchmark measures what it says: the same documents, all of them, by each arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from corpora import records, write_jsonl

from benchmarks.speed import ingest_speed as module
from benchmarks.speed.ingest_speed import (
    ARMS,
    BASELINE,
    SHORT,
    goals,
    ingest_speed,
    prepared,
    race,
    rows,
)
from benchmarks.speed.turns import ratio
from opensearch_neural.evaluation.results import Summary


def test_every_arm_writes_every_document_and_short_weights_are_shorter(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 50)
    full, short = prepared(write_jsonl(tmp_path / "d.jsonl", records(120)))
    assert [id for id, _ in full] == [id for id, _ in short] == [record["_id"] for record in records(120)]
    assert all(one["sparse"].keys() == other["sparse"].keys() for (_, one), (_, other) in zip(full, short, strict=True))
    times = race(client, full, short, 2)
    assert {arm: len(of_arm) for arm, of_arm in times.items()} == dict.fromkeys(ARMS, 2)
    found = {(row.line, row.column): row.value for row in rows("d", times, full, short)}
    assert found[SHORT, "bytes of JSON a document"] < 0.8 * found[BASELINE, "bytes of JSON a document"]


def test_goals_by_hand() -> None:
    times = {
        BASELINE: [2.0, 4.0],
        "osn": [2.0, 4.0],
        SHORT: [1.0, 2.0],
    }
    assert ratio(times[BASELINE], times[SHORT]) == (2.0, 2.0, 2.0)
    assert [goal.met for goal in goals(times)] == [True]
    times["osn"] = [3.0, 3.0]
    # As fast on the whole, but not surely so.
    assert [goal.met for goal in goals(times)] == [False]
    assert [goal.value for goal in goals(times)] == [1.0]


def test_the_summary_can_be_published(tmp_path: Path) -> None:
    times = {arm: [1.0, 1.1] for arm in ARMS}
    documents = [("a", {"text": "x"})]
    made = [*rows("scifact", times, documents, documents)]
    Summary("python -m benchmarks.speed.ingest_speed", "abc", {"cores": 2}, [], [0], made, goals(times)).validate()


def test_the_command_reads_and_writes_only_what_is_named(cluster_url: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(ingest_speed, [])
    assert done.exit_code == 2 and "--data" in done.output
    measured = ("--data", str(write_jsonl(tmp_path / "d.jsonl", records(30))), "--rounds", "2", "--url", cluster_url)
    done = CliRunner().invoke(ingest_speed, measured)
    assert done.exit_code == 0 and "written:" not in done.output
    done = CliRunner().invoke(ingest_speed, [*measured, "--output", str(tmp_path / "record")])
    assert f"written: {tmp_path / 'record' / 'summary.json'}" in done.output
