"""Result files: what may be published, and that it survives its file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural import __version__
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import results
from opensearch_neural.evaluation.results import (
    Data,
    Goal,
    Row,
    Summary,
    clean_argument,
    code_commit,
    command_line,
    data_facts,
    machine_facts,
    read,
    read_all,
)
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
        (lambda content: content["goals"].append("done"), "goals[2] must be an object"),
        (lambda content: content["rows"][0].update(value="high"), "rows[0].value"),
        (lambda content: content["rows"][0].update(kind="sum"), "rows[0].kind must be one of value, difference"),
        (lambda content: content["rows"][0].update(kind="ratio"), "rows[0].baseline must name an engine"),
        (lambda content: content["rows"][0].update(seed="42"), "rows[0].seed"),
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
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "absent.json")
    with pytest.raises(InputError, match="holds no result files"):
        read_all(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("argument", "clean"),
    [
        ("https://me:pw@search:9200/x", "https://search:9200/x"),
        ("--url=http://me@search:9200", "--url=http://search:9200"),
        ("http://127.0.0.1:9200", "http://127.0.0.1:9200"),
        ("--token=abc", "--token=***"),
        ("OSN_PASSWORD=abc", "OSN_PASSWORD=***"),
        ("http://h/_search?api_key=abc&size=3", "http://h/_search?api_key=***&size=3"),
        ("--max-tokens=128", "--max-tokens=128"),
        ("--tokenizer", "--tokenizer"),
        ("../shared/data/scifact", "../shared/data/scifact"),
        ("/srv/data/scifact", ".../scifact"),
        ("--data=/srv/my data/scifact", "--data=.../scifact"),
        ("hf:/srv/data/set:train", "hf:.../set:train"),
        ("nDCG@10,RR@10", "nDCG@10,RR@10"),
    ],
)
def test_credentials_and_paths_of_this_machine_leave_an_argument(argument: str, clean: str) -> None:
    assert clean_argument(argument) == clean
    assert clean_argument(clean) == clean


def test_a_command_is_recorded_as_another_reader_can_use_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    argv = [
        "/usr/local/bin/osn", "eval", "--data", str(tmp_path / "work/data/scifact"), "--sparse",
        str(tmp_path / "home/my models/m1"), "--password", "hunter2", "--json", "--out", "runs here",
    ]  # fmt: skip
    assert command_line(argv) == (
        "osn eval --data data/scifact --sparse ~/'my models/m1' --password *** --json --out 'runs here'"
    )
    assert command_line(["osn", "--token", "--json"]) == "osn --token --json"


def test_a_recorded_command_passes_validation() -> None:
    command = command_line(
        ["osn", "x", "--token", "abc", "--data=/srv/a b/c", "--url", "https://u:p@h:9200", "--secret=x y"]
    )
    assert replace(SUMMARY, command=command).validate().command == command
    assert not re.search("abc|srv|u:p|x y", command)


def test_machine_facts_name_the_hardware_and_not_the_host() -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1  # type: ignore[operator]
    assert facts["memory_gib"] > 0  # type: ignore[operator]
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    text = json.dumps(facts)
    assert "/" not in str(facts["python"]) and str(Path.home()) not in text
    import platform

    assert platform.node() not in text.split('"')


def test_versions_of_heavy_packages_are_given_only_where_they_were_imported() -> None:
    code = (
        "import sys; from opensearch_neural.evaluation.results import machine_facts; "
        "print('torch' in machine_facts(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


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


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_code_is_named_by_its_commit_and_marked_when_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "opensearch_neural" / "evaluation"
    package.mkdir(parents=True)
    source = package / "results.py"
    source.write_text("one")
    monkeypatch.setattr(results, "__file__", str(source))
    # A package that lies in a folder without its own repository, or untracked in someone else's, goes by its version.
    assert code_commit() == f"opensearch-neural {__version__}"
    git(tmp_path, "init", "-q")
    assert code_commit() == f"opensearch-neural {__version__}"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert re.fullmatch("[0-9a-f]{40}", code_commit())
    results_file = tmp_path / "benchmarks" / "results" / "a" / "summary.json"
    results_file.parent.mkdir(parents=True)
    results_file.write_text("1")
    git(tmp_path, "add", ".")
    assert re.fullmatch("[0-9a-f]{40}", code_commit()), "a result file alone does not change the code"
    source.write_text("two")
    assert re.fullmatch("[0-9a-f]{40}-dirty", code_commit())


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
