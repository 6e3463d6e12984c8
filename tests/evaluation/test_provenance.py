"""What a result file says of its command, code and machine is true and fit to be published."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opensearch_neural import __version__
from opensearch_neural.evaluation import provenance
from opensearch_neural.evaluation.provenance import clean_argument, code_commit, command_line, machine_facts


@pytest.mark.parametrize(
    ("argument", "clean"),
    [
        ("https://me:pw@search:9200/x", "https://search:9200/x"),
        ("--url=http://me@search:9200", "--url=http://search:9200"),
        ("https://me:p@ss@search:9200/x", "https://search:9200/x"),
        ("http://127.0.0.1:9200", "http://127.0.0.1:9200"),
        ("--token=abc", "--token=***"),
        ("OSN_PASSWORD=abc", "OSN_PASSWORD=***"),
        ("http://h/_search?api_key=abc&size=3", "http://h/_search?api_key=***&size=3"),
        ("--max-tokens=128", "--max-tokens=128"),
        ("--tokenizer", "--tokenizer"),
        ("../shared/data/scifact", "../shared/data/scifact"),
        ("/srv/data/scifact", ".../scifact"),
        ("--data=/srv/my data/scifact", "--data=.../scifact"),
        ("objective.teachers=[/srv/a/model, /srv/b/model]", "objective.teachers=[.../model, .../model]"),
        ("train=[{path: /srv/docs}, {path: (/srv/more)}]", "train=[{path: .../docs}, {path: (.../more)}]"),
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


def test_machine_facts_name_the_hardware_and_not_the_host() -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1  # type: ignore[operator]
    assert facts["memory_gib"] > 0  # type: ignore[operator]
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    text = json.dumps(facts)
    assert "/" not in str(facts["python"]) and str(Path.home()) not in text
    assert platform.node() not in text.split('"')


def test_versions_of_heavy_packages_are_given_only_where_they_were_imported() -> None:
    code = (
        "import sys; from opensearch_neural.evaluation.provenance import machine_facts; "
        "print('torch' in machine_facts(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_code_is_named_by_its_commit_and_marked_when_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "opensearch_neural" / "evaluation"
    package.mkdir(parents=True)
    source = package / "provenance.py"
    source.write_text("one")
    monkeypatch.setattr(provenance, "__file__", str(source))
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
