"""The page that `osn eval --report` writes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from judged_page import write_judgements, write_report
from page_elements import Elements

from opensearch_neural.cli import osn
from opensearch_neural.evaluation.results import Row, Summary
from opensearch_neural.ui.report import difference_forest, verdict
from opensearch_neural.ui.report_parts import LABEL_HEIGHT, plot, report_page


def rows(low: float, high: float, engine: str = "mine") -> list[Row]:
    value = (low + high) / 2
    row = Row("set", engine, "nDCG@10", value, low, high, 40, baseline="bm25", kind="difference")
    p = Row("set", engine, "nDCG@10", 0.01, None, None, 40, baseline="bm25", kind="p-value")
    return [Row("set", engine, "nDCG@10", 0.5, None, None, 40), row, p]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.01, 0.03, "mine is better than bm25: nDCG@10 +0.020 [+0.010, +0.030] p=0.010, over 40 queries."),
        (-0.01, 0.03, "No engine is shown to be better than bm25"),
        (-0.03, -0.01, "Worse than it: mine."),
    ],
)
def test_the_verdict_is_that_of_the_whole_interval(low: float, high: float, told: str) -> None:
    summary = Summary("osn", "c0ffee", {}, [], [0], rows(low, high))
    assert told in verdict(summary, "nDCG@10", "bm25")
    assert "nothing to compare" in verdict(summary, "nDCG@10", None)


@pytest.mark.parametrize(("low", "high", "never"), [(0.045, 0.35, "is better"), (-0.35, -0.045, "Worse")])
def test_an_interval_beside_a_large_corrected_p_decides_nothing(low: float, high: float, never: str) -> None:
    holm = Row("set", "mine", "nDCG@10", 0.5, None, None, 5, baseline="bm25", kind="holm")
    told = verdict(Summary("osn", "c0ffee", {}, [], [0], [*rows(low, high), holm]), "nDCG@10", "bm25")
    assert told.startswith("No engine is shown to be better") and never not in told and "p=0.500" in told


@pytest.mark.parametrize("noisy", [(-0.01, 0.2), (-0.3, -0.1)])
def test_an_engine_that_is_better_for_sure_is_named_whatever_others_are(noisy: tuple[float, float]) -> None:
    """Before, one engine with a higher mean and a wide interval made the verdict "No engine is shown to be better"."""
    every = [*rows(*noisy, "noisy"), *rows(0.01, 0.03, "sure"), *rows(0.02, 0.04, "surer")]
    told = verdict(Summary("osn", "c0ffee", {}, [], [0], every), "nDCG@10", "bm25")
    assert told.startswith("surer is better than bm25: nDCG@10 +0.030")


def test_a_segment_does_not_decide_and_is_named() -> None:
    segment = [replace(row, set="set: tail", n=9) for row in rows(0.2, 0.4)]
    every = rows(-0.01, 0.03) + segment
    told = verdict(Summary("osn", "c0ffee", {}, [], [0], every), "nDCG@10", "bm25")
    assert told.startswith("No engine is shown to be better") and "over 40 queries" in told
    assert [bar.label for bar in difference_forest(every, "nDCG@10", "bm25").bars] == ["mine", "mine (tail)"]


def test_the_forest_has_the_corrected_p_that_the_tables_print() -> None:
    holm = Row("set", "mine", "nDCG@10", 0.04, None, None, 40, baseline="bm25", kind="holm")
    (bar,) = difference_forest([*rows(0.01, 0.03), holm], "nDCG@10", "bm25").bars
    assert bar.text.endswith("p=0.040"), "0.010 before the correction"


@pytest.mark.parametrize(
    ("engines", "segments", "told"),
    [
        (1, 0, ""),
        (2, 0, ", p corrected (Holm)"),
        (1, 1, ""),
        (1, 5, ", p of segments corrected (Holm)"),
        (2, 5, ", p corrected (Holm), that of segments separately"),
    ],
)
def test_the_forest_says_which_p_are_corrected(engines: int, segments: int, told: str) -> None:
    """The engines are corrected for their number, and the segments apart from them: a single engine is not corrected."""
    whole = [row for engine in ("mine", "other")[:engines] for row in rows(0.01, 0.03, engine)]
    of_segments = [replace(row, set=f"set: {at}") for at in range(segments) for row in whole]
    title = difference_forest([*whole, *of_segments], "nDCG@10", "bm25").title
    assert title == f"nDCG@10: difference to bm25, 95% intervals{told}"


def test_a_forest_lies_to_the_right_of_zero_if_all_gain() -> None:
    drawn = difference_forest(rows(0.01, 0.03), "nDCG@10", "bm25")
    (bar,) = drawn.bars
    assert drawn.zero < bar.low < bar.x < bar.high
    assert bar.x == pytest.approx((bar.low + bar.high) / 2, abs=0.1)


@pytest.mark.cluster
def test_labels_of_near_points_do_not_cover_each_other_and_alike_points_stand_in_the_middle() -> None:
    near = plot("", "", [("a", 1.0, 0.5, ""), ("b", 1.1, 0.5, ""), ("c", 1.0, 0.501, ""), ("", 1.0, 0.7, "")]).points
    labels = sorted(point.y + point.below for point in near if point.label)
    assert all(second - first >= LABEL_HEIGHT for first, second in pairwise(labels))
    alike = plot("", "", [("a", 1.0, 0.5, ""), ("", 2.0, 0.5, "")]).points
    assert [point.y for point in alike] == [90, 90]


def test_the_report_is_one_page_with_all_that_was_measured(cluster_url: str, page_index: str, tmp_path: Path) -> None:
    page = Elements(write_report(cluster_url, page_index, tmp_path).read_text())
    assert len(page.of("svg", "forest")) == 4 and len(page.of("svg", "costs")) == len(page.of("svg", "scatter")) == 1
    assert len(page.of("article", "opened")) == 3
    assert "osn eval" in page.text or "--report" in page.text
    assert "SHA-256" in page.text and "unjudged" in page.text
    assert len(page.of("script")) == 1 and not page.of("link")
    assert "window.hacked = 4" in page.text


def test_a_report_says_with_which_models_and_settings_it_was_measured() -> None:
    notes = ["sparse tiny, c0ffee", "bm25-sparse: weight 0.8", "told above"]
    summary = Summary("osn", "c0ffee", {}, [], [0], rows(0.01, 0.03), notes=notes)
    text = Elements(report_page("osn eval", summary, "none", notes=["told above"])).text
    assert all(note in text.partition("How it was measured")[2] for note in notes[:2])
    assert text.count("told above") == 1


def test_two_runs_make_a_report_without_a_cluster(tmp_path: Path) -> None:
    for name, lines in (("a", "q1 Q0 trout 1 2 a\nq1 Q0 rain 2 1 a\n"), ("b", "q1 Q0 rain 1 2 b\nq2 Q0 trout 1 1 b\n")):
        (tmp_path / f"{name}.trec").write_text(lines)
    runs = [str(tmp_path / f"{name}.trec") for name in "ab"]
    out = tmp_path / "report.html"
    (tmp_path / "segments.tsv").write_text("q1\tweather\n")
    asked = [*write_judgements(tmp_path), "--segments", str(tmp_path / "segments.tsv"), "--report", str(out)]
    done = CliRunner().invoke(osn, ["eval", "runs", *runs, *asked])
    assert done.exit_code == 0, done.output
    page = Elements(out.read_text())
    assert {"rain", "trout"} == {item["data-document"] for item in page.of("li") if "data-document" in item}
    assert page.text.count("All measures") == page.text.count("Segment weather") == 1
    hashed = page.text[page.text.index("How it was measured") :]
    assert all(name in hashed for name in ("judged.qrels", "queries.jsonl", "a.trec", "b.trec", "segments.tsv"))
