"""`osn bench results`: pages and tables are made of the result files."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.command import bench
from benchmarks.render import (
    COSTS,
    arms,
    costs,
    gains,
    kept_and_cost,
    of_first,
    page,
    plain,
    quality_and_cost,
    ratios,
    runs,
)
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


def test_parts_of_several_results_are_not_mixed() -> None:
    """Before, a P99 that the newer result lacked stood beside its P50."""

    def cost(measure: str, value: float, level: str) -> Row:
        return Row("100 documents", "hybrid", measure, value, None, None, 9, "bm25", kind="ratio", level=level)

    newer = [cost("P50", 2.0, "20 clients")]
    older = [cost(measure, 9.0, level) for level in ("1 client", "20 clients") for measure in ("P50", "P99")]
    gain = Row("scifact", "hybrid", "nDCG@10", 0.1, None, None, 9, "bm25", kind="difference")
    assert of_first([newer, [*older, gain]]) == [*newer, *older[:2], gain]
    # Nor are gains of two trainings: that on a set is of the model of the mean.
    mean = replace(gain, set="mean of 9 sets", sets=9, seed=42)
    of_seeds = [replace(row, seed=None, seeds=(42, 43)) for row in (gain, mean)]
    assert of_first([[mean], of_seeds, newer]) == [mean, *newer]
    kept = Row("100 documents", "hybrid", "score kept", 0.99, None, None, 9)
    assert of_first([[kept], [replace(kept, value=0.98, seed=42)]]) == [kept]


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


def test_a_load_test_is_shown_by_its_ratios() -> None:
    rows = [
        Row("docs", "bm25", "P99 ms", 8.0, 7.5, 8.5, 100, level="5 clients"),
        Row("docs", "fast", "P99", 0.912, 0.871, 0.953, 100, "bm25", kind="ratio", level="5 clients"),
        Row("docs", "fast", "requests/s", 1.1, None, None, 100, "bm25", kind="ratio", level="5 clients"),
        Row("docs", "sparse", "P99", 2.0, 1.9, 2.1, 100, "bm25", kind="ratio", level="80 clients"),
    ]
    header, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ratios(rows).splitlines()]
    assert header == [
        "",
        "fast: P99 / bm25",
        "sparse: P99 / bm25",
        "fast: requests/s / bm25",
        "sparse: requests/s / bm25",
    ]
    assert lines == [
        ["docs, 5 clients", "0.91 [0.87, 0.95]", "", "1.10", ""],
        ["docs, 80 clients", "", "2.00 [1.90, 2.10]", "", ""],
    ]


def test_differences_to_a_baseline_are_shown_in_points() -> None:
    rows = [
        Row("docs", "BM25", "nDCG@10", 0.6825, 0.66, 0.7, 100),
        Row("docs", "student", "nDCG@10", 0.7325, 0.71, 0.75, 100),
        Row("docs", "student", "nDCG@10", 0.05, 0.027, 0.074, 100, kind="difference", baseline="BM25"),
        Row("docs", "student", "R@100", 0.01, 0.0, 0.02, 100, kind="difference", baseline="BM25"),
    ]
    header, _, line = [[cell.strip() for cell in line.split("|")[1:-1]] for line in gains(rows).splitlines()]
    assert header == ["", "BM25: nDCG@10", "student: points above"]
    assert line == ["docs", "0.682", "5.00 [2.70, 7.40]"]
    tuned = [
        Row("docs", "BM25 tuned", "nDCG@10", 0.7, 0.69, 0.71, 100),
        Row("docs", "student", "nDCG@10", 0.0325, 0.01, 0.05, 100, kind="difference", baseline="BM25 tuned"),
    ]
    assert gains([*rows, *tuned], "BM25") == gains(rows)
    over = [cell.strip() for cell in gains([*rows, *tuned], "BM25 tuned").splitlines()[-1].split("|")[1:-1]]
    assert over == ["docs", "0.700", "3.25 [1.00, 5.00]"]


def test_arms_have_a_line_for_each_that_they_are_compared_with() -> None:
    rows = [
        Row("dev", "dual", "nDCG@10", 0.8, None, None, 5),
        Row("docs", "dual", "Success@5", 0.7, 0.6, 0.8, 100),
        Row("docs", "MLR", "Success@5", 0.75, 0.7, 0.8, 100),
        Row("docs", "MLR", "Success@5", 0.05, 0.01, 0.09, 100, kind="difference", baseline="dual"),
        Row("docs", "MLR", "Success@5", 0.01, None, None, 100, kind="p-value", baseline="dual"),
        Row("docs", "MLR", "nDCG@10", 0.02, 0.0, 0.04, 100, kind="difference", baseline="dual"),
        Row("more", "MLR", "Success@5", 0.5, 0.4, 0.6, 100),
        Row("docs", "MLR", "Success@5", -0.01, -0.02, 0.0, 100, kind="difference", baseline="rival"),
    ]
    header, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in arms(rows).splitlines()]
    assert header == ["", "compared with", "docs: Success@5", "points above", "more: Success@5", "points above"]
    assert lines == [
        ["dual", "", "0.700", "", "", ""],
        ["MLR", "dual", "0.750", "5.00 [1.00, 9.00]", "0.500", "–"],
        ["", "rival", "", "-1.00 [-2.00, 0.00]", "", "–"],
    ]


def test_what_engines_cost_stands_beside_what_their_models_find() -> None:
    cost = [
        Row("docs", "dual", "index MiB", 10.0, None, None, 5, variant="faiss"),
        Row("docs", "dual", "nDCG@10", 0.1, None, None, 5, variant="faiss"),
        Row("docs", "MLR 2, several", "index MiB", 20.0, None, None, 5, variant="OpenSearch, nested"),
        Row("docs", "unknown", "index MiB", 5.0, None, None, 5, engine_label="OpenSearch, unknown"),
        Row("docs", "dual", "documents encoded/s", 90.0, None, None, 5),
    ]
    one = [
        Row("docs", "dual", "Success@5", 0.7, None, None, 100, seed=42),
        Row("docs", "dual", "Success@5", 0.6, None, None, 100, seed=43),
        Row("docs", "dual", "Success@5", 0.5, None, None, 100, seeds=(43, 44, 45)),
        Row("more", "MLR 2, several", "Success@5", 0.4, None, None, 100, seed=42),
    ]
    other = [Row("docs", name, "Success@5", 0.8, None, None, 9, seed=42) for name in ("dual", "MLR 2, several")]
    shown = costs([*cost, *one, *other], ["index MiB", "P50 ms"], "Success@5")
    header, _, *lines = [[part.strip() for part in line.split("|")[1:-1]] for line in shown.splitlines()]
    assert header == ["", "index MiB", "Success@5 (trained)"]
    assert lines == [
        ["dual, faiss", "10.0", "0.700"],
        ["MLR 2, several, OpenSearch, nested", "20.0", "0.800"],
        ["OpenSearch, unknown", "5.000", ""],
    ]


def test_quality_stands_beside_cost_of_the_same_engine_and_model() -> None:
    def gain(set_: str, value: float, low: float, high: float, variant: str = "published", **more: Any) -> Row:
        return Row(
            set_, "sum", "nDCG@10", value, low, high, 9, kind="difference", baseline="bm25", variant=variant, **more
        )

    rows = [
        gain("one", 0.02, 0.01, 0.03),
        gain("two", -0.02, -0.03, -0.01),
        gain("mean of 2 sets", 0.0, -0.01, 0.01, sets=2),
        gain("mean of 2 sets", 0.01, 0.0, 0.02, "trained", seed=1, sets=2),
        gain("mean of 2 sets", 0.03, 0.02, 0.04, "trained", seeds=(1, 2, 3), sets=2),
        replace(gain("mean of 2 sets", -0.01, -0.02, 0.0, sets=2), engine="sparse"),
        gain("mean of 2 sets", 0.04, 0.03, 0.05, "trained, averaged", seeds=(1, 2, 3), sets=2),
        replace(gain("mean of 2 sets", 0.07, 0.06, 0.08, sets=2), measure="R@100"),
        replace(gain("one", 0.5, 0.4, 0.6), measure="R@100"),
        Row(
            "5 documents", "sum", "P99", 1.2, 1.1, 1.3, 9, "bm25", kind="ratio", variant="published", level="20 clients"
        ),
        Row("5 documents", "sum", "score kept", 0.995, None, None, 9, variant="published"),
        *(replace(gain(name, -0.05, -0.06, -0.04), baseline="bm25 tuned") for name in ("one", "mean of 2 sets")),
    ]
    header, _, published, trained, averaged, sparse = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in quality_and_cost(rows).splitlines()
    )
    assert header[2:] == [
        "points over bm25, mean of 2 sets", "sets above / below", "points of R@100, mean of 2 sets",
        "P99, 5 documents, 20 clients", "score kept, 5 documents",
    ]  # fmt: skip
    recall, cost = "7.00 [6.00, 8.00]", "1.20 [1.10, 1.30]"
    assert published == ["sum", "published", "0.00 [-1.00, 1.00]", "1 / 1 of 2", recall, cost, "0.995"]
    assert trained == ["sum", "trained", "3.00 [2.00, 4.00]", "–", "–", "–", "–"]  # the mean over seeds, not the first
    assert averaged[:3] == ["sum", "trained, averaged", "4.00 [3.00, 5.00]"]  # a model's name may hold a comma
    assert sparse[:2] == ["sparse", "published"], "an engine's models stand beside each other"


def test_what_is_kept_and_what_it_costs_stand_in_one_line() -> None:
    def kept(engine: str, measure: str, value: float, set_: str = "1,000 documents") -> Row:
        return Row(set_, engine, measure, value, None, None, 9)

    def cost(engine: str, value: float, set_: str = "1,000 documents") -> Row:
        of_level: Any = {"kind": "ratio", "baseline": "bm25", "level": "20 clients"}
        return Row(set_, engine, "P99", value, value - 0.1, value + 0.1, 9, **of_level)

    rows = [kept("bm25", "nDCG@10", 0.5), kept("sparse", "nDCG@10", 0.6), kept("pruned", "score kept", 0.99)]
    rows += [cost("sparse", 4.0), cost("pruned", 1.05), kept("pruned", "score kept", 0.97, "10,000 documents")]
    small, large = kept_and_cost(rows).split("\n\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in small.splitlines()]
    assert lines[0] == ["1,000 documents", "score kept", "nDCG@10", *(f"{each}, 20 clients" for each in COSTS)]
    assert lines[2:] == [
        ["bm25", "", "0.500", "–", "–", "–"],
        ["sparse", "", "0.600", "–", "4.00 [3.90, 4.10]", "–"],
        ["pruned", "0.9900", "", "–", "1.05 [0.95, 1.15]", "–"],
    ]
    assert large.splitlines()[0].startswith("| 10,000 documents") and "0.970" in large


def test_a_score_kept_near_its_goal_has_four_decimals() -> None:
    row = Row("100,000 documents", "bm25-sparse", "score kept", 0.98964, None, None, 300)
    assert [plain(replace(row, value=value)) for value in (0.98964, 0.9909, 0.9941, 0.9889)] == [
        "0.9896", "0.9909", "0.994", "0.989",
    ]  # fmt: skip
    assert plain(replace(row, measure="nDCG@10")) == "0.990" and plain(None) == ""
    assert " 0.9896 |" in kept_and_cost([row])


def test_runs_of_the_same_models_stand_beside_each_other() -> None:
    def gain(value: float, variant: str, **options: Any) -> Row:
        return Row("all", "sum", "nDCG@10", value, None, None, 9, "bm25", kind="difference", variant=variant, **options)

    other = Row("all", "sum", "nDCG@10", 0.9, None, None, 9, "bm25 tuned", kind="difference", variant="as published")
    first = [gain(0.0412, "as published"), gain(0.049, "trained", seed=42), other]
    second = [gain(0.05, "trained", seed=42), gain(0.0482, "trained", seeds=(42, 43)), gain(0.04, "trained", seed=43)]
    shown = runs(
        {"first": replace(SUMMARY, rows=first), "second": replace(SUMMARY, rows=second, code="f" * 12)},
        "sum",
        "bm25",
        "all",
    )
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if "--" not in line] == [
        ["result", "code", "as published", "trained"],
        ["first", "01234567", "4.12", "4.90, seed 42"],
        ["second", "ffffffff", "–", "4.82, seeds 42 to 43"],
    ]
