"""The page that `osn bench load --report` writes."""

from __future__ import annotations

import numpy as np
import pytest
from page_elements import Elements
from runs import block, run_of, simulated

from benchmarks.load import report_page, result
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import cells
from opensearch_neural.evaluation.results import Row


def page_of(run: Measurement) -> Elements:
    levels = cells(run)
    return Elements(report_page.page(run, result.summary(run, levels=levels), levels))


@pytest.mark.parametrize(
    ("factor", "told"),
    [(0.7, "faster than bm25: fast 0."), (1.4, "slower: fast 1."), (1.0, "neither for sure: fast ")],
)
def test_the_verdict_is_that_of_the_whole_interval(factor: float, told: str) -> None:
    assert f"docs, 10 clients, by P99 as a share of that of bm25: {told}" in page_of(simulated(1, factor=factor)).text


def test_where_p99_rests_on_too_little_the_verdict_takes_another() -> None:
    shown = page_of(simulated(1, factor=0.7, requests=100)).text
    assert "by P90 as a share" in shown and "P99 / bm25" not in shown


def test_quality_stands_against_p99_and_hostile_names_are_text() -> None:
    run = simulated(1)
    run.incidents.append("<script>window.hacked = 5</script>")
    run.quality = [
        Row("docs", engine, "nDCG@10", value, None, None, 9) for engine, value in (("bm25", 0.6), ("fast", 0.7))
    ]
    page = page_of(run)
    assert "fast: 0.700, " in (page.of("svg", "costs")[-1]["aria-label"] or "")
    assert "window.hacked = 5" in page.text and len(page.of("script")) == 1


def test_latency_and_throughput_stand_against_the_number_of_clients() -> None:
    labels = [svg["aria-label"] or "" for svg in page_of(simulated(1)).of("svg", "costs")]
    assert len(labels) == 3, "P99, P50 and requests/s"
    assert all("bm25: " in label and "fast: " in label and "at 10 clients" in label for label in labels)


def test_what_was_refused_or_is_partial_is_said() -> None:
    blocks = [block(number, name, np.full(600, 5.0)) for number in range(5) for name in ("bm25", "fast")]
    run = run_of(blocks, ceiling=61.0)
    run.partial = "interrupted"
    shown = page_of(run).text
    assert "Refused: fast, docs, 10 clients." in shown
    assert "This is a part of the result: interrupted. Nothing was measured often enough" in shown
