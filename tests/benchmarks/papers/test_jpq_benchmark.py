"""The benchmark of JPQ, on tiny data: it measures what it says, and its goals follow from its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.papers import jpq  # noqa: E402
from benchmarks.papers.jpq import CONTROL, FLAT, JPQ, OPQ, quality_goals  # noqa: E402
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row, read  # noqa: E402
from trainers.common.config import to_dict  # noqa: E402
from trainers.common.run_folder import differing  # noqa: E402


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jpq, "START", str(tiny_backbone(tmp_path / "start")))
    monkeypatch.setattr(jpq, "SETS", {"both": ("a", "b")})
    monkeypatch.setattr(jpq, "SEEDS", (1, 2))
    monkeypatch.setattr(jpq, "SEVERAL_SEEDS", (4,))
    monkeypatch.setattr(jpq, "HOLD_BACK", 20)
    monkeypatch.setattr(jpq, "TRAINED", (CONTROL, JPQ))
    monkeypatch.setattr(jpq, "M", (4,))
    for at, name in enumerate("ab"):
        folder = tiny_beir(tmp_path / "data" / name, documents=140, seed=at)
        (folder / "qrels" / "dev.tsv").rename(folder / "qrels" / "test.tsv")
        with (folder / "qrels" / "train.tsv").open("a") as train:
            train.write("q1\td0\t1\n")  # One of test's questions in each set is about a document of train's.
    return tmp_path / "data"


MEAN = "seeds 1 to 2"


def test_quality_measures_every_engine_and_goes_on_where_it_was(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"

    def run(m: int) -> list[Row]:
        rows, goals = jpq.quality(jpq.JpqExperiment(data, work, "both", steps=2), [m])
        assert len(goals) == 5
        return rows

    rows = run(4)
    measured = {(row.line, row.column): row for row in rows if row.set == "both, 4 bytes"}
    trained = [f"{engine}, {MEAN}" for engine in (jpq.FLAT_TUNED, jpq.PQ, OPQ, CONTROL, JPQ)]
    for engine in (FLAT, *trained):
        assert 0 < measured[engine, "R@100"].value <= 1
        assert measured[engine, "nDCG@10"].n == 70
    mean, control = f"{JPQ}, {MEAN}", f"{CONTROL}, {MEAN}"
    gain = measured[mean, "nDCG@10"].value - measured[control, "nDCG@10"].value
    assert measured[mean, f"nDCG@10 - {control}"].value == pytest.approx(gain)
    assert (mean, f"nDCG@10 - {FLAT}") in measured and (FLAT, f"nDCG@10 - {OPQ}, seed 1") in measured
    each = [measured[f"{JPQ}, seed {seed}", "nDCG@10"].value for seed in (1, 2)]
    assert measured[mean, "nDCG@10"].value == pytest.approx(sum(each) / 2)
    assert not list((work / "models").iterdir())
    parts = [
        {(row.line, row.column): row for row in rows if row.set == f"both, 4 bytes, {part}"}
        for part in (jpq.ASKED, jpq.NEW)
    ]
    assert [part[mean, "nDCG@10"].n for part in parts] == [2, 68]
    for column, whole in (("nDCG@10", measured[mean, "nDCG@10"].value), (f"nDCG@10 - {control}", gain)):
        together = sum(part[mean, column].value * part[mean, column].n for part in parts) / 70
        assert together == pytest.approx(whole)

    def no_training(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("trainers.jpq.train.train_jpq", no_training)
    assert run(4) == rows
    monkeypatch.setattr(jpq, "HOLD_BACK", 24)
    with pytest.raises(AssertionError, match="trained again"):
        run(4)


def test_each_arm_differs_from_jpq_by_what_its_name_says(tmp_path: Path) -> None:
    def changes(engine: str) -> set[str]:
        whole, arm = (
            to_dict(jpq.JpqExperiment(tmp_path, tmp_path, "scifact", 9).configuration(MeasuredEngine(name, 1), 16))
            for name in (JPQ, engine)
        )
        return {line.partition(": ")[0] for line in differing(whole, arm)} - {"output"}

    fixed = {"quantizer.train_centroids", "quantizer.learning_rate"}
    assert changes(CONTROL) == {*fixed, "objective.documents"}
    assert changes(jpq.FROZEN) == fixed
    assert changes(jpq.FLAT_TUNED) == {*fixed, "objective.documents", "negatives.search"}


def test_the_command_records_each_set_in_a_file_of_its_own(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(experiment: jpq.JpqExperiment, sizes: Any) -> tuple[list[Row], list[Goal]]:
        row = Row(f"{experiment.name}, 16 bytes", JPQ, "nDCG@10", 0.5, 0.4, 0.6, 9)
        return [row], quality_goals(experiment.name, [row])

    monkeypatch.setattr(jpq, "quality", measured)
    monkeypatch.setattr(jpq, "SETS", {"scifact": ("a",), "squad-mix + wikiqa-sent": ("a", "b")})
    options = ["--data", data, "--work", tmp_path / "w", "--record", tmp_path / "out"]
    done = CliRunner().invoke(jpq.jpq, [str(option) for option in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for folder, name, parts in (("scifact", "scifact", 1), ("squad-mix-wikiqa-sent", "squad-mix + wikiqa-sent", 2)):
        summary = read(tmp_path / "out" / "quality" / folder)
        assert [row.set for row in summary.rows] == [f"{name}, 16 bytes"]
        assert len(summary.data) == parts
        assert [goal.goal.endswith(f"({name})") for goal in summary.goals] == [True] * 5


def test_goals_are_what_the_rows_say() -> None:
    def rows(gain: float, low: float, share: float) -> list[Row]:
        def of(m: int) -> dict[str, Any]:
            return {"seeds": (42, 43, 44)} if m in jpq.SEVERAL_SEEDS else {"seed": 42}

        gains = [
            Row(f"s, {m} bytes", JPQ, "nDCG@10", gain, low, 9, 9, baseline=rival, kind="difference", **of(m))
            for m in jpq.M
            for rival in (OPQ, CONTROL)
        ]
        return [
            *gains,
            Row("s, 48 bytes", FLAT, "nDCG@10", 0.5, None, None, 9),
            Row("s, 48 bytes", JPQ, "nDCG@10", 0.5 * share, None, None, 9, **of(48)),
        ]

    assert [goal.met for goal in quality_goals("s", rows(0.02, 0.01, 0.98))] == [True] * 5
    assert [goal.met for goal in quality_goals("s", rows(0.02, 0.01, 0.97997))] == [True] * 4 + [False], "rounded first"
    # A gain whose interval holds zero is none.
    assert [goal.met for goal in quality_goals("s", rows(0.02, -0.01, 0.97))] == [False] * 5
    assert quality_goals("s", rows(0.02, -0.01, 0.97))[0].value == "0 of 4, 4 without regard to the interval"
    assert [goal.met for goal in quality_goals("s", rows(-0.02, -0.05, 1.1))] == [False] * 4 + [True]
