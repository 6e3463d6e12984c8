"""The kernel of the papers' experiments: each thing is done once, and rows and goals say what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import experiment
from benchmarks.beir_parts import check_data
from benchmarks.experiment import (
    SEED_ERROR,
    JudgedSet,
    PaperPart,
    Table,
    compared,
    facts,
    for_each,
    goal_of,
    is_above,
    kept_measured,
    mean_values,
    means,
    pairs,
    run_parts,
    shared,
    slug,
    trials,
)
from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import MeasuredEngine, Row, read
from opensearch_neural.evaluation.significance import interval
from trainers.data.loading import load_training

WORKER = """
import os, sys, time
from functools import partial
from pathlib import Path
from benchmarks.experiment import shared

folder, names = Path(sys.argv[1]), sys.argv[2].split(",")

def work(name):
    file = folder / name
    if not file.exists():
        (folder / f"{name}.begun-{os.getpid()}").touch()
        end = time.monotonic() + 60
        while not (folder / "go").exists():
            assert time.monotonic() < end, "nobody said go"
            time.sleep(0.01)
        time.sleep(0.05)
        file.write_text(str(os.getpid()))
    return file.read_text()

print(",".join(shared({folder / name: partial(work, name) for name in names})))
"""


def worker(folder: Path, names: str = "a,b,c,d") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), names], stdout=subprocess.PIPE, text=True)


def wait_for(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(folder: Path, name: str) -> list[Path]:
    return list(folder.glob(f"{name}.begun-*"))


def test_processes_do_different_jobs_and_all_have_every_result(tmp_path: Path) -> None:
    first = worker(tmp_path)
    wait_for(lambda: begun(tmp_path, "a"))
    second = worker(tmp_path)
    wait_for(lambda: begun(tmp_path, "b"))  # while the first is at a
    (tmp_path / "go").touch()
    found = [process.communicate(timeout=60)[0].strip().split(",") for process in (first, second)]
    assert found[0] == found[1]
    assert found[0][:2] == [str(first.pid), str(second.pid)]
    assert all(len(begun(tmp_path, name)) == 1 for name in "abcd")


def test_a_job_whose_process_is_killed_is_done_by_the_one_that_waits(tmp_path: Path) -> None:
    first = worker(tmp_path, "a")
    wait_for(lambda: begun(tmp_path, "a"))
    second = worker(tmp_path, "a,b")
    wait_for(lambda: begun(tmp_path, "b"))
    first.kill()
    first.communicate()
    (tmp_path / "go").touch()
    assert second.communicate(timeout=60)[0].strip().split(",") == [str(second.pid)] * 2


def test_results_are_in_the_order_of_the_jobs_and_jobs_may_share_others(tmp_path: Path) -> None:
    def outer() -> list[int]:
        return shared({tmp_path / "inner": lambda: 1})

    assert shared({tmp_path / "z": outer, tmp_path / "inner": lambda: [2]}) == [[1], [2]]


def test_a_job_that_fails_fails_here_and_is_free_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        shared({tmp_path / "new" / "a": lambda: 1 // 0})
    assert shared({tmp_path / "new" / "a": partial(str, 1)}) == ["1"]


# ------------------------------------------------ arms and seeds


def test_repeated_arms_have_every_seed_and_the_others_the_first() -> None:
    assert trials(["a", "b"], ["a"], (1, 2)) == [MeasuredEngine("a", 1), MeasuredEngine("b", 1), MeasuredEngine("a", 2)]


def test_names_of_files_hold_letters_and_digits() -> None:
    assert slug("MLR last:2, λ 0.01") == "mlr-last-2-λ-0-01"


def test_engines_that_are_made_alike_are_made_once(tmp_path: Path) -> None:
    asked: list[MeasuredEngine] = []
    engines = [MeasuredEngine("a", 1), MeasuredEngine("b", 1), MeasuredEngine("a", 2)]
    results = for_each(
        engines, lambda engine: tmp_path / engine.name, lambda engine: asked.append(engine) or engine.name
    )
    assert results == {engines[0]: "a", engines[1]: "b", engines[2]: "a"}
    assert len(asked) == 2


# ------------------------------------------------ measurements


def measured(*values: float) -> Measured:
    per_query = {f"q{at}": value for at, value in enumerate(values)}
    return Measured({"AP": per_query}, {"AP": sum(values) / len(values)}, len(values), 0, 0)


def test_kept_costs_of_other_code_or_another_machine_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of several versions and machines stood in one result, whose code and machine are those of the last command."""
    row = Row("100 documents", "bm25", "requests/s", 50.0, None, None, 10, level="1 client")
    monkeypatch.setattr(experiment, "code_commit", lambda: "abc")
    monkeypatch.setattr(experiment, "machine_facts", lambda: {"cpu": "Xeon", "cores": 2})

    def costs(name: str = "costs") -> tuple[list[Row], list[str]]:
        return experiment.kept_costs(tmp_path / f"{name}.json", lambda: ([row], ["not yet steady"]))

    assert costs() == costs() == ([row], ["not yet steady"])
    monkeypatch.setattr(experiment, "code_commit", lambda: "def")
    assert costs() == ([row], ["not yet steady", "costs: measured before, by abc on Xeon, 2 cores"])
    (tmp_path / "older.json").write_text(json.dumps([row.to_json()]))
    assert costs("older") == ([row], ["older: measured before, by unknown code on an unknown machine"])


def test_what_was_measured_is_kept_question_by_question(tmp_path: Path) -> None:
    first = kept_measured(tmp_path / "new" / "a.json", lambda: measured(0.1, 1 / 3))
    again = kept_measured(tmp_path / "new" / "a.json", lambda: pytest.fail("measured again"))
    assert first == again == measured(0.1, 1 / 3)
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(asdict(measured(0.1)) | {"unfound": 0}))
    assert kept_measured(file, lambda: pytest.fail("measured again")) == measured(0.1), "as an earlier version kept it"


def test_facts_have_the_engines_seed_and_variant_and_no_interval() -> None:
    rows = facts("docs", MeasuredEngine("student", 1, "free"), {"terms": 2.0, "FLOPS": 0.5}, 9)
    assert [(row.line, row.column, row.value, row.low, row.n) for row in rows] == [
        ("student, seed 1, free", "terms", 2.0, None, 9),
        ("student, seed 1, free", "FLOPS", 0.5, None, 9),
    ]


def test_questions_about_one_article_are_one_group(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(
        "".join(f'{{"query": "q{at}", "positive": "d{at}"}}\n' for at in range(3)), encoding="utf-8"
    )
    data = load_training(tmp_path / "pairs.jsonl")
    article = {document: "x" if document != data.documents.ids[2] else "y" for document in data.documents.ids}
    judged = JudgedSet.grouped(data, article)
    assert judged.name == "pairs" and judged.clusters == dict(zip(judged.texts, ["x", "x", "y"], strict=True))


def test_a_mean_value_is_over_all_seeds_of_one_set_engine_variant_and_measure() -> None:
    def row(value: float, seed: int | None, engine: str = "student", measure: str = "FLOPS") -> Row:
        return Row("docs", engine, measure, value, None, None, 5, seed=seed, variant="free")

    rows = [row(1.0, 1), row(3.0, 2), row(9.0, 1, "other"), row(5.0, 1, measure="terms"), row(7.0, None)]
    (mean,) = mean_values(rows, (1, 2))
    assert (mean.engine, mean.measure, mean.value, mean.seed) == ("student", "FLOPS", 2.0, None)
    assert (mean.variant, mean.seeds) == ("free", (1, 2))
    assert mean_values(rows, (1,)) == []


def test_means_are_over_all_seeds_or_none() -> None:
    values = {
        MeasuredEngine("a", 1): measured(0.0, 1.0),
        MeasuredEngine("a", 2): measured(1.0, 1.0),
        MeasuredEngine("a", 1, "free"): measured(0.0, 0.0),
        MeasuredEngine("a", 2, "free"): measured(0.5, 0.0),
        MeasuredEngine("b", 1): measured(1.0, 1.0),
    }
    mean = means(values, (1, 2))
    assert mean == {
        MeasuredEngine("a", seeds=(1, 2)): measured(0.5, 1.0),
        MeasuredEngine("a", variant="free", seeds=(1, 2)): measured(0.25, 0.0),
    }
    assert means(values, (1,)) == {}


# ------------------------------------------------ rows


def test_an_engine_is_compared_with_the_baseline_of_its_seed_and_variant() -> None:
    ways: list[Any] = [(1,), (2,), (1, "free"), (None, "", (1, 2))]
    every = [
        *(MeasuredEngine(name, *how) for name in "ab" for how in ways),
        MeasuredEngine("published"),
        MeasuredEngine("bm25"),
    ]
    assert pairs(every, [("a", "b")]) == [(MeasuredEngine("a", *how), MeasuredEngine("b", *how)) for how in ways]
    assert {baseline for _, baseline in pairs(every, [("a", "bm25")])} == {MeasuredEngine("bm25")}
    assert pairs(every, [("published", "b"), ("published", "bm25")]) == [
        (MeasuredEngine("published"), MeasuredEngine("b", 1)),
        (MeasuredEngine("published"), MeasuredEngine("bm25")),
    ]
    assert pairs(every, [("a", "c"), ("c", "a"), ("bm25", "bm25")]) == []


def test_an_engine_is_compared_with_the_very_one_that_is_named_whatever_its_own_seed_and_variant() -> None:
    start, others = MeasuredEngine("a", None, "start"), [MeasuredEngine("a", 1, "x"), MeasuredEngine("a", 2, "x")]
    every = [start, *others, MeasuredEngine("b", 1, "x")]
    assert pairs(every, [("a", start)]) == [(engine, start) for engine in others]
    assert pairs(others, [("a", start)]) == []


def test_rows_hold_values_paired_differences_and_how_far_seeds_lie_apart() -> None:
    values = {
        MeasuredEngine("a", 1): measured(0.5, 0.5, 0.9),
        MeasuredEngine("a", 2): measured(0.1, 0.5, 0.9),
        MeasuredEngine("b", 1): measured(0.5, 0.2, 0.9),
        MeasuredEngine("b", 2): measured(0.5, 0.2, 0.9),
        MeasuredEngine("bm25"): measured(0.0, 0.0, 0.3),
    }
    values |= means(values, (1, 2))
    clusters = {"q0": "x", "q1": "x", "q2": "y"}
    rows = compared("set", values, [("a", "b")], clusters=clusters, seeds=(1, 2))
    table = Table(rows, (1, 2))
    assert len([row for row in rows if row.kind == "value"]) == len(values), "each once"
    bm25 = table.value("set", "bm25", "AP")
    assert bm25 is not None and (bm25.low, bm25.high) == interval([0.0, 0.0, 0.3], clusters=["x", "x", "y"])
    gains = table.by_seed("set", "a", "b", "AP")
    assert [row.value for row in gains] == pytest.approx([0.1, -0.1 / 3])
    mean = table.difference("set", "a", "b", "AP")
    assert mean is not None and mean.value == pytest.approx(0.1 / 3) and mean.n == 3
    error = table.difference("set", "a", "b", f"AP, {SEED_ERROR}")
    # Two values whose deviation from their mean is 0.2 / 3 each: √2 × 0.2 / 3 over √2.
    assert error is not None and error.value == pytest.approx(0.2 / 3) and error.n == 2
    assert (error.line, error.column) == ("a, seeds 1 to 2", f"AP, {SEED_ERROR} - b, seeds 1 to 2")

    # A baseline without seed or variant is named as such, whatever the engine's variant.
    ours = {engine._replace(variant="ours") if engine.name == "a" else engine: own for engine, own in values.items()}
    errors = [row for row in compared("set", ours, [("a", "bm25")], seeds=(1, 2)) if row.measure == f"AP, {SEED_ERROR}"]
    assert [(row.line, row.against) for row in errors] == [("a, seeds 1 to 2, ours", "bm25")]


# ------------------------------------------------ goals and summaries


def test_of_several_seeds_the_mean_is_judged_and_of_one_that() -> None:
    def gain(value: float, seed: int | None = None, seeds: tuple[int, ...] = ()) -> Row:
        return Row("s", "a", "AP", value, None, None, 9, baseline="b", seed=seed, kind="difference", seeds=seeds)

    rows = [gain(0.1, 1), gain(0.2, 2), gain(0.15, seeds=(1, 2))]
    assert Table(rows, (1, 2)).difference("s", "a", "b", "AP") == rows[2]
    assert Table(rows[:2], (1,)).difference("s", "a", "b", "AP") == rows[0]
    assert Table([gain(0.3)]).difference("s", "a", "b", "AP") == gain(0.3)
    assert Table(rows, (1, 2)).difference("s", "a", "other", "AP") is None
    assert Table(rows, (1, 2)).differences(["s", "t"], "a", "b", "AP") == {"s": rows[2]}


def test_a_measure_is_found_by_the_name_of_rows_and_by_that_of_ir_measures() -> None:
    """A goal that asked for RR@10 was "not measured": rows call it MRR@10."""
    measured = {
        MeasuredEngine(name, 1): Measured({"RR@10": {"q": value}}, {"RR@10": value}, 1, 0, 0)
        for name, value in (("a", 1.0), ("b", 0.5))
    }
    table = Table(compared("s", measured, [("a", "b")]), (1,))
    for name in ("RR@10", "MRR@10"):
        row = table.difference("s", "a", "b", name)
        assert row is not None and row.value == 0.5 and table.by_seed("s", "a", "b", name) == [row]


def test_only_an_interval_above_zero_is_above_and_what_was_not_measured_is_not_met() -> None:
    def gain(low: float | None) -> Row:
        return Row("s", "a", "AP", 0.5, low, None if low is None else 0.9, 9, baseline="b", kind="difference")

    assert [is_above(row) for row in (gain(0.1), gain(0.0), gain(-0.1), gain(None), None)] == [True, *[False] * 4]
    assert (goal_of("g", 1, None, True).met, goal_of("g", 1, "", True).value) == (False, None)
    assert goal_of("g", 1, 0.0, True).met and goal_of("g", 1, "2 of 2", True).met


def test_each_part_writes_a_summary_and_plots_are_left_out_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    monkeypatch.setattr("sys.argv", ["osn", "bench", "x"])

    def draw(rows: object, folder: Path) -> None:
        assert (folder / "summary.json").exists()
        raise MissingExtra("drawing plots", "bench")

    def part(name: str) -> PaperPart:
        rows = [Row("s", name, measure, 0.5, None, None, 9) for measure in ("AP", "hidden")]
        goals = [goal_of("a goal", 1, 0.5, False)]
        return PaperPart(name, lambda: (rows, goals), [tmp_path / "data"], [1], lambda row: row.measure == "AP", draw)

    run_parts({"one": part("first"), "two": part("second")}, tmp_path / "record")
    assert [read(tmp_path / "record" / name).title for name in ("one", "two")] == ["first", "second"]
    printed = capsys.readouterr().out
    assert "AP" in printed and "hidden" not in printed and "missed: a goal (goal: 1): 0.5" in printed
    run_parts({"one": part("first"), "two": part("second")}, tmp_path / "some", ["two"])
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["two"]
    run_parts({"": part("whole")}, tmp_path / "other")
    assert (tmp_path / "other" / "summary.json").exists()
    assert experiment.shared({}) == []


def test_a_folder_of_work_is_of_one_start_and_of_the_same_data(tmp_path: Path) -> None:
    for name in ("start", "other", "set"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"name": "{name}"}}')
    work, data = tmp_path / "work", [tmp_path / "set"]
    work.mkdir()
    check_data(work, data)
    for _ in range(2):
        check_data(work, data, models={"start": tmp_path / "start", "model": "lexical"})
    with pytest.raises(InputError, match=r"was begun with another start than .*other"):
        check_data(work, data, models={"start": tmp_path / "other"})
    (tmp_path / "set" / "corpus.jsonl").write_text("{}")
    with pytest.raises(InputError, match="was begun with another set"):
        check_data(work, data)
