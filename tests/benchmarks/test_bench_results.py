"""`osn bench results`: pages and tables are made of the result files."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.command import bench
from benchmarks.render import page
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Data, Goal, Row, Summary

SUMMARY = Summary(
    command="osn eval --index scifact --data ../scifact",
    code="0123456789abcdef",
    machine={"cpu": "a processor", "cores": 2},
    data=[Data("scifact", {"corpus.jsonl.gz": "0" * 64})],
    seeds=[0],
    rows=[
        Row("scifact", "bm25", "nDCG@10", 0.683, 0.641, 0.724, 300),
        Row("scifact", "bm25", "P50 ms", 2.25, None, None, 200),
        Row("scifact", "<sparse>", "nDCG@10", 0.7, 0.65, 0.75, 300),
    ],
    goals=[Goal("BM25 & co", "0.66 to 0.70", 0.683, True), Goal("dense", 0.64, None, False)],
    title="scifact (test)",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SUMMARY.write(tmp_path / "results" / "published")
    replace(SUMMARY, title="", rows=[], goals=[]).write(tmp_path / "results" / "speed" / "cpu")
    (tmp_path / "results" / "published" / "plot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return tmp_path / "results"


class Page(HTMLParser):
    """The texts of a page, its elements in balance, and every address that it refers to."""

    VOID = ("meta", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def test_the_page_holds_everything_and_refers_to_nothing_outside(folder: Path) -> None:
    result = CliRunner().invoke(bench, ["results", "--folder", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    parsed = Page()
    parsed.feed((folder / "index.html").read_text())
    assert parsed.open == []
    assert all(address.startswith(("#", "data:image/svg+xml;base64,")) for address in parsed.addresses)
    assert len([address for address in parsed.addresses if address.startswith("data:")]) == 1
    for text in ("scifact (test)", "speed/cpu", "<sparse>", "BM25 & co", "[0.641, 0.724]", "no", "0123456789abcdef"):
        assert text in parsed.texts, text
    assert "2 experiments, 1 of 2 goals met" in " ".join(parsed.texts)


def test_the_tables_of_the_terminal_hold_rows_goals_and_command(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.html"
    result = CliRunner().invoke(
        bench, ["results", "--folder", str(folder), "--html", str(target)], catch_exceptions=False
    )
    assert "| bm25     |   0.683 |  2.250 |" in result.stdout
    assert "| BM25 & co | 0.66 to 0.70 | 0.683 | yes |" in result.stdout
    assert "`osn eval --index scifact --data ../scifact` (0123456789ab)" in result.stdout
    assert target.exists() and not (folder / "index.html").exists()


def test_json_is_all_result_files(folder: Path) -> None:
    result = CliRunner().invoke(bench, ["results", "--folder", str(folder), "--json"], catch_exceptions=False)
    content = json.loads(result.stdout)
    assert content["published"] == json.loads((folder / "published" / "summary.json").read_text())
    assert list(content) == ["published", "speed/cpu"]


def test_a_folder_without_result_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no result files"):
        CliRunner().invoke(bench, ["results", "--folder", str(tmp_path)], catch_exceptions=False)


def test_a_value_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    hostile = replace(SUMMARY, title="<script>alert(1)</script>", code='"><b>')
    hostile.write(tmp_path / "x")
    assert "<script>" not in page({"x": hostile}, tmp_path) and "<b>" not in page({"x": hostile}, tmp_path)
