"""Result files: what may be published, and that it survives its file."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.provenance import code_commit, command_line, machine_facts
from opensearch_neural.evaluation.results import Data, Goal, Row, Summary, data_facts, read, read_all
from opensearch_neural.evaluation.tables import number, result_table, table

HASH = "0" * 64
SUMMARY = Summary(
    command="osn eval --index scifact --data ../scifact",
    code="abc123",
    machine={"cpu": "a processor", "cores": 2},
    data=[Data("scifact", {"corpus.jsonl.gz": HASH})],
    seeds=[0],
    rows=[
        Row("scifact", "bm25", "nDCG@10", 0.683, 0.641, 0.724, 300),
        Row("scifact", "bm25", "P50 ms", 2.25, None, None, 200),
        Row("scifact", "sparse", "nDCG@10", 0.7, 0.65, 0.75, 300),
    ],
    goals=[Goal("BM25 nDCG@10", "0.66 to 0.70", 0.683, True), Goal("dense", 0.64, None, False)],
)


def test_a_summary_of_this_run_has_its_command_code_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/osn", "bench", "x"])
    summary = Summary.of_this_run(title="t", rows=SUMMARY.rows, data=SUMMARY.data, seeds=(1, 2)).validate()
    assert (summary.command, summary.seeds, summary.goals) == ("osn bench x", [1, 2], [])
    assert summary.code == code_commit() and summary.machine["cores"] == machine_facts()["cores"]


def test_what_a_row_compares_with_is_shown_by_its_column() -> None:
    row = partial(Row, "s", "MLR", "nDCG@10", 0.1, None, None, 9, baseline="dual", seed=42)
    assert row(kind="difference").column == "nDCG@10 - dual, seed 42"
    assert row(kind="p-value").column == "p(nDCG@10 - dual, seed 42)"
    assert row(kind="ratio").column == "nDCG@10 / dual, seed 42"
    assert row(kind="ratio", measure_label="times dual").column == "times dual"
    assert row(kind="difference", variant="two layers").line == "MLR, seed 42, two layers"


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    path = SUMMARY.write(tmp_path / "published")
    assert path == tmp_path / "published" / "summary.json"
    assert read(path) == SUMMARY
    assert read(tmp_path / "published") == SUMMARY
    assert read_all(tmp_path) == {"published": SUMMARY}
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]


def test_the_file_holds_the_fields_that_result_files_have(tmp_path: Path) -> None:
    content = json.loads(SUMMARY.write(tmp_path).read_text())
    assert {"command", "code", "machine", "data", "seeds", "rows", "goals"} <= content.keys()
    assert content["rows"][0] == {
        "set": "scifact", "engine": "bm25", "measure": "nDCG@10", "value": 0.683, "low": 0.641, "high": 0.724, "n": 300,
    }  # fmt: skip
    assert content["goals"][0] == {"goal": "BM25 nDCG@10", "target": "0.66 to 0.70", "value": 0.683, "met": True}


def test_notes_are_kept_and_a_file_without_any_is_as_before(tmp_path: Path) -> None:
    noted = replace(SUMMARY, notes=["bm25-sparse: weight 0.8, window 30"])
    assert read(noted.write(tmp_path / "noted")) == noted
    assert "notes" not in json.loads(SUMMARY.write(tmp_path / "plain").read_text())


def test_a_summary_that_is_refused_leaves_the_old_file(tmp_path: Path) -> None:
    SUMMARY.write(tmp_path)
    with pytest.raises(InputError):
        replace(SUMMARY, command="").write(tmp_path)
    assert read(tmp_path) == SUMMARY


ROW = SUMMARY.rows[0]
GOAL = SUMMARY.goals[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": " "}, "command must not be empty"),
        ({"code": ""}, "code must not be empty"),
        ({"machine": {}}, "machine must name"),
        ({"seeds": [1.5]}, "seeds[0]"),
        ({"data": [Data("", {"f": HASH})]}, "data[0]"),
        ({"data": [Data("x", {})]}, "data[0]"),
        ({"data": [Data("x", {"f": "short"})]}, "data[0].files['f']"),
        ({"rows": [replace(ROW, value=float("nan"))]}, "rows[0].value must be a finite number"),
        ({"rows": [replace(ROW, high=float("inf"))]}, "rows[0].high must be a finite number"),
        ({"rows": [replace(ROW, value=None)]}, "rows[0].value"),
        ({"rows": [replace(ROW, value=True)]}, "rows[0].value"),
        ({"rows": [replace(ROW, low=0.8)]}, "low 0.8 above high 0.724"),
        ({"rows": [replace(ROW, n=-1)]}, "rows[0].n"),
        ({"rows": [replace(ROW, engine="")]}, "rows[0].engine"),
        ({"rows": [ROW, replace(ROW, value=0.9)]}, "rows[1] repeats"),
        ({"notes": ["weight 0.8", 7]}, "notes[1]"),
        ({"goals": [replace(GOAL, goal="")]}, "goals[0].goal"),
        ({"goals": [replace(GOAL, target=None)]}, "goals[0].target"),
        ({"goals": [replace(GOAL, met="yes")]}, "goals[0].met"),
        ({"goals": [replace(GOAL, value=None)]}, "goals[0].met cannot be true"),
        ({"command": "osn eval --url https://me:pw@search:9200"}, "credential"),
        ({"command": "osn eval --password hunter2 --index x"}, "credential"),
        ({"command": "osn eval --data /srv/data/scifact"}, "path of this machine"),
    ],
)
def test_what_may_not_be_published_is_refused_by_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        replace(SUMMARY, **change).validate()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content.pop("rows"), "lacks the field 'rows'"),
        (lambda content: content["rows"][1].pop("n"), "rows[1] lacks the field 'n'"),
        (lambda content: content["rows"][1].update(colour=1), "rows[1] has the unknown field 'colour'"),
        (lambda content: content.update(rows={}), "rows must be a list"),
        (lambda content: content.update(seeds=None), "seeds must be a list"),
        (lambda content: content.update(notes="weight 0.8"), "notes must be a list"),
        (lambda content: content["goals"].append("done"), "goals[2] must be an object"),
        (lambda content: content["rows"][0].update(value="high"), "rows[0].value"),
        (lambda content: content["rows"][0].update(kind="sum"), "rows[0].kind must be one of value, difference"),
        (lambda content: content["rows"][0].update(kind="ratio"), "rows[0].baseline must name an engine"),
        (lambda content: content["rows"][0].update(seed="42"), "rows[0].seed"),
        (lambda content: content["rows"][0].update(seeds=7), "rows[0].seeds"),
        (lambda content: content["rows"][0].update(seeds=["7", 8]), "rows[0].seeds"),
        (lambda content: content["rows"][0].update(level=20), "rows[0].level"),
    ],
)
def test_a_file_that_is_no_result_file_is_refused_with_file_and_field(tmp_path: Path, edit: Any, message: str) -> None:
    path = SUMMARY.write(tmp_path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        read(path)
    assert str(path) in raised.value.message


def test_a_file_that_is_no_json_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{\n"rows": [}')
    with pytest.raises(InputError, match="line 2"):
        read(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "absent.json")
    for content in ('{"rows": ' + "1" * 5000 + "}", "[" * 100_000):
        (tmp_path / "summary.json").write_text(content)
        with pytest.raises(InputError, match=r"summary\.json: not valid JSON"):
            read(tmp_path)
    with pytest.raises(InputError, match="holds no result files"):
        read_all(tmp_path / "nowhere")


def test_a_recorded_command_passes_validation() -> None:
    command = command_line(
        ["osn", "x", "--token", "abc", "--data=/srv/a b/c", "--url", "https://u:p@h:9200", "--secret=x y"]
    )
    assert replace(SUMMARY, command=command).validate().command == command
    assert not re.search("abc|srv|u:p|x y", command)


def test_data_facts_name_a_set_and_hash_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_bytes(b"abc")
    (folder / "qrels" / "test.tsv").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"x")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert data_facts(folder) == Data("toy", {"corpus.jsonl": abc, "qrels/test.tsv": empty})
    assert data_facts(folder, ["corpus.jsonl"]) == Data("toy", {"corpus.jsonl": abc})
    assert data_facts(folder / "corpus.jsonl") == Data("corpus.jsonl", {"corpus.jsonl": abc})
    with pytest.raises(InputError, match="cannot be read"):
        data_facts(folder, ["absent"])


def test_a_table_has_a_line_for_each_engine_and_a_column_for_each_measure() -> None:
    assert result_table(SUMMARY.rows).splitlines() == [
        "| engine | nDCG@10 | P50 ms |",
        "| ------ | ------: | -----: |",
        "| bm25   |   0.683 |  2.250 |",
        "| sparse |   0.700 |        |",
    ]
    two_sets = [*SUMMARY.rows, replace(ROW, set="other")]
    assert result_table(two_sets, ["nDCG@10"], intervals=True).splitlines()[0].split() == [
        "|",
        "set",
        "|",
        "engine",
        "|",
        "nDCG@10",
        "|",
    ]
    assert "0.683 [0.641, 0.724]" in result_table(two_sets, ["nDCG@10"], intervals=True)


def test_a_cell_cannot_break_its_table() -> None:
    assert table(["a", "b"], [["x|y", "1"]]).splitlines()[-1] == "| x\\|y |   1 |"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.68312, "0.683"),
        (-0.0211, "-0.021"),
        (0.0001, "1.0e-04"),
        (12.345, "12.3"),
        (47123.4, "47,123"),
    ],
)
def test_numbers_are_as_long_as_they_are_worth_reading(value: float, text: str) -> None:
    assert number(value) == text


def test_a_goal_is_shown_with_its_target() -> None:
    shown = {
        Goal("points over BM25, mean of 9 sets, at least", 2.5, 4.12, True): (
            "met: points over BM25, mean of 9 sets, at least 2.5: 4.12"
        ),
        Goal("P99 in BM25's, at most, with 0.99 of the score kept", 1.1, "1.2 (rows)", False): (
            "missed: P99 in BM25's, at most 1.1, with 0.99 of the score kept: 1.2 (rows)"
        ),
        Goal("BM25 nDCG@10 between 0.66 and 0.70", "0.66 to 0.7", 0.683, True): (
            "met: BM25 nDCG@10 between 0.66 and 0.70: 0.683"
        ),
        Goal("above OPQ at every M", "4 of 4", "3 of 4", False): "missed: above OPQ at every M (goal: 4 of 4): 3 of 4",
        Goal("equal within 1e-3", 0.001, 6.6e-06, True): "met: equal within 1e-3: 6.6e-06",
        Goal("above, interval above zero", "low above 0", "+0.1", True): "met: above, interval above zero: +0.1",
        Goal("P99, at most", 1.25, None, False): "not measured: P99, at most 1.25",
    }
    assert {str(goal): text for goal, text in shown.items() if str(goal) != text} == {}
