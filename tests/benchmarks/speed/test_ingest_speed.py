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
    goals,
    ingest_speed,
    prepared,
    race,
    rows,
)
from benchmarks.turns import ratio
from opensearch_neural.evaluation.results import Summary


def test_every_arm_writes_every_document(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 50)
    documents = prepared(write_jsonl(tmp_path / "d.jsonl", records(120)))
    assert [id for id, _ in documents] == [record["_id"] for record in records(120)]
    assert all(source["sparse"] for _, source in documents)
    times = race(client, documents, 2)
    assert {arm: len(seconds) for arm, seconds in times.items()} == dict.fromkeys(ARMS, 2)


def test_goals_by_hand() -> None:
    times = {BASELINE: [2.0, 4.0], "osn": [1.0, 2.0]}
    assert ratio(times[BASELINE], times["osn"]) == (2.0, 2.0, 2.0)
    assert [(goal.met, goal.value) for goal in goals(times)] == [(True, 2.0)]
    # As fast on the whole, but not surely so.
    assert [(goal.met, goal.value) for goal in goals({**times, "osn": [3.0, 3.0]})] == [(False, 1.0)]


def test_the_summary_can_be_published() -> None:
    times = {arm: [1.0, 1.1] for arm in ARMS}
    made = [*rows("scifact", times, 1)]
    Summary("python -m benchmarks.speed.ingest_speed", "abc", {"cores": 2}, [], [0], made, goals(times)).validate()


def test_the_command_reads_and_writes_only_what_is_named(cluster_url: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(ingest_speed, [])
    assert done.exit_code == 2 and "--data" in done.output
    measured = ("--data", str(write_jsonl(tmp_path / "d.jsonl", records(30))), "--rounds", "2", "--url", cluster_url)
    done = CliRunner().invoke(ingest_speed, measured)
    assert done.exit_code == 0 and "written:" not in done.output
    done = CliRunner().invoke(ingest_speed, [*measured, "--output", str(tmp_path / "record")])
    assert f"written: {tmp_path / 'record' / 'summary.json'}" in done.output
