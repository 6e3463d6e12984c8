"""The benchmark of the ground, on tiny data: it measures what it says, and its goals follow from its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.papers import training_ground  # noqa: E402
from benchmarks.papers.training_ground import (  # noqa: E402
    OURS,
    SETS,
    THEIRS,
    TRAINED,
    UNTRAINED,
    configuration,
    quality_goal,
    speed_goals,
    speed_rows,
    step_with_ours,
    step_with_sentence_transformers,
)
from opensearch_neural.evaluation.results import Row, read  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.encoders.tower import EncoderSettings  # noqa: E402


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    start = tiny_backbone(tmp_path / "start", positions=256)
    monkeypatch.setattr(training_ground, "START", str(start))
    for at, one in enumerate(SETS):
        tiny_beir(tmp_path / "data" / one.name, seed=at)
        qrels = tmp_path / "data" / one.name / "qrels"
        # Its test split asks what dev asks elsewhere.
        (qrels / "dev.tsv").rename(qrels / "test.tsv")
        (qrels / "dev.tsv").write_text("\n".join((qrels / "train.tsv").read_text().splitlines()[:8]) + "\n")
    return tmp_path / "data"


def test_quality_trains_compares_on_test_and_records(tmp_path: Path, data: Path) -> None:
    arguments = ["--data", str(data), "--work", str(tmp_path / "work"), "--record", str(tmp_path / "out")]
    result = CliRunner().invoke(
        training_ground.training_ground, [*arguments, "--part", "quality", "--only", "tldr"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / "out")
    by_engine = {(row.line, row.column): row for row in summary.rows}
    assert by_engine[(TRAINED, "nDCG@10")].n == 15
    difference = by_engine[(TRAINED, "nDCG@10 - MiniLM")]
    assert difference.value == pytest.approx(
        by_engine[(TRAINED, "nDCG@10")].value - by_engine[("MiniLM", "nDCG@10")].value
    )
    assert summary.goals[0].met is False  # one set cannot be two


def test_both_trainers_are_timed_step_by_step(tmp_path: Path, data: Path) -> None:
    config = configuration(SETS[-1], data, tmp_path / "work")
    config = replace(
        config,
        unseen=[],
        output=tmp_path / "model",
        encoder=EncoderSettings(query_length=16, document_length=32),
        selection=replace(config.selection, hold_back=None),
        training=TrainingSettings(steps=3, batch_size=8, log_every=1, device="cpu"),
    )
    assert len(step_with_ours(config)) == 3
    assert len(step_with_sentence_transformers(config)) == 3


def test_ratios_are_paired_and_above_one_where_ours_is_faster_or_larger() -> None:
    rows = speed_rows("set", {OURS: [1.0, 2.0], THEIRS: [2.0, 6.0]}, {OURS: [50.0, 60.0], THEIRS: [100.0, 100.0]})
    found = {(row.line, row.column): row.value for row in rows}
    # seconds a step: 1.5 and 4 on average; ratios 2 and 3; memory 1/2 and 3/5
    assert found[(OURS, "steps/s")] == pytest.approx(1 / 1.5)
    assert found[(THEIRS, "steps/s")] == pytest.approx(1 / 4)
    assert found[(OURS, f"steps/s ÷ {THEIRS}")] == pytest.approx(2.5)
    assert found[(OURS, f"peak MiB ÷ {THEIRS}")] == pytest.approx(0.55)


def test_the_goals_are_what_the_rows_say() -> None:
    def gain(name: str, low: float) -> Row:
        return Row(name, TRAINED, "nDCG@10", 0.05, low, 0.1, 100, baseline=UNTRAINED, kind="difference")

    def ratio(measure: str, value: float) -> Row:
        return Row("s", OURS, measure, value, None, None, 30, baseline=THEIRS, kind="ratio")

    assert quality_goal([gain("a", 0.01), gain("b", 0.02), gain("c", -0.01)]).met
    assert not quality_goal([gain("a", 0.01), gain("b", -0.02)]).met
    assert [goal.met for goal in speed_goals([ratio("steps/s", 1.0), ratio("peak MiB", 0.9)])] == [True, True]
    assert [goal.met for goal in speed_goals([ratio("steps/s", 0.99), ratio("peak MiB", 1.01)])] == [False, False]
