"""What may not be shown is not shown, anywhere; and what is written can be read again."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programmed_endpoint import ANSWER
from runs import block, run_of, simulated, workload_at

from benchmarks.load import result
from benchmarks.load.blocks import Level, Turn, block_of
from benchmarks.load.ceiling import Strain, endpoint, measure_ceilings, strain_of
from benchmarks.load.generator import Generators, WorkerMeasurement
from benchmarks.load.measurement import Measurement
from benchmarks.load.server import IndexStatistics
from benchmarks.load.statistics import cells
from opensearch_neural.evaluation.results import Row
from opensearch_neural.evaluation.results import read as read_summary


def measures(run: Measurement, engine: str, level: str = "10 clients") -> dict[str, Row]:
    return {row.column: row for row in result.rows(run) if (row.line, row.level) == (engine, level)}


def test_a_cell_of_too_few_requests_has_no_p99_and_no_ratio_of_it() -> None:
    few = measures(simulated(1, rounds=20, requests=400), "fast")
    assert "P90 ms" in few and "P90 / bm25" in few
    assert "P99 ms" not in few and "P99 / bm25" not in few
    enough = measures(simulated(1, rounds=20, requests=500), "fast")
    assert enough["P99 ms"].n == 10_000 and "P99 / bm25" in enough and "P99.9 ms" not in enough


def test_a_table_says_how_many_requests_a_p99_lacks() -> None:
    few, enough = (result.text(simulated(1, rounds=20, requests=requests)) for requests in (400, 500))
    assert "A P99 needs 10,000 requests: bm25 lacks 2,000, fast lacks 2,000 (" in few
    assert "A P99 needs" not in enough


def test_a_table_shows_counts_as_whole_numbers() -> None:
    shown = result.text(simulated(1, rounds=4, requests=60))
    assert " 240 |" in shown and "240.0" not in shown


def test_a_table_shows_that_there_is_no_ratio_as_the_pages_do() -> None:
    """The baseline's cells were empty, as those of too few requests are."""
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in result.text(simulated(1, rounds=20, requests=400)).splitlines()
        if line.startswith("|")
    ]
    header, of_engine = lines[0], {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines}
    assert "P99 / bm25" not in header, "too few requests of all"
    assert of_engine["bm25"]["requests/s / bm25"] == "–" and "[" in of_engine["fast"]["requests/s / bm25"]


def test_above_its_ceiling_the_generator_refuses_to_report() -> None:
    """60 requests a second where the generator could make 80: three quarters of what it can do is too much."""
    blocks = [
        block(number, name, np.full(600, times), seconds=10)
        for number in range(5)
        for name, times in (("bm25", 5.0), ("fast", 4.0))
    ]
    fine, near = run_of(blocks, ceiling=600.0), run_of(blocks, ceiling=80.0)
    assert "requests/s" in measures(fine, "fast")
    assert set(measures(near, "fast")) == set(measures(near, "bm25")) == {"refused"}
    shown = result.text(near)
    assert "refused: fast: 75% of what the generator can do" in shown
    assert "60.0" not in shown and "| refused |" in shown and "yes" in shown


def test_tables_show_the_quality_of_an_engine_and_not_its_difference() -> None:
    run = simulated(1, rounds=3)
    run.quality = [
        Row("docs", "fast", "nDCG@10", 0.456, 0.4, 0.5, 9),
        Row("docs", "fast", "nDCG@10", 0.078, 0.0, 0.1, 9, kind="difference", baseline="bm25"),
        Row("docs", "fast", "nDCG@10", 0.01, None, None, 9, kind="p-value", baseline="bm25"),
    ]
    (line,) = [line for line in result.text(run).splitlines() if line.startswith("| fast")]
    assert "0.456" in line and "0.078" not in line and "0.010" not in line


def test_ratios_to_a_refused_baseline_are_refused_too() -> None:
    blocks = [block(number, name, np.full(600, 5.0)) for number in range(5) for name in ("bm25", "fast")]
    run = run_of(blocks)
    run.ceilings["bm25"] = 61.0
    shown = measures(run, "fast")
    assert "requests/s" in shown and not any("/ bm25" in measure for measure in shown)


@pytest.mark.parametrize(
    ("strain", "words"),
    [
        (Strain(ceiling_share=0.71), "71% of what the generator can do"),
        (Strain(core_share=0.9), "needed 90% of a core"),
        (Strain(late_share=0.3), "late by 30% of the P99"),
        (Strain(ceiling_share=0.69, core_share=0.84, late_share=0.24), None),
    ],
)
def test_each_strain_has_its_limit(strain: Strain, words: str | None) -> None:
    refusal = strain.refusal()
    assert refusal is None if words is None else refusal is not None and words in refusal


def test_other_work_of_the_machine_is_noted() -> None:
    """A closed loop whose generator starved looked like a slow engine: its share of a core is lowest then."""
    plain = block(0, "bm25", np.full(60, 5.0))
    cases = [(None, None), (0.09, 0.3), (0.34, 0.1), (None, 2.0)]
    told = [strain_of(plain.level, [replace(plain, others=others, wait=wait)], None) for others, wait in cases]
    assert [strain.disturbances() for strain in told] == [
        [],
        [],
        ["other processes used 34% of the cores"],
        ["requests waited 39% of their mean latency for the generator"],
    ]
    slow_encoder = replace(plain, wait=20.0, encode=9.0)
    assert strain_of(plain.level, [slow_encoder], None).disturbances() == [], "other queries were encoded meanwhile"
    run = run_of([replace(plain, round=number, others=0.34) for number in range(3)], variants=("bm25",))
    assert "bm25 at 10 clients: other processes used 34% of the cores" in result.summary(run).notes
    assert "! bm25 at 10 clients: other processes used 34%" in result.text(run)


def test_the_time_of_other_processes_is_what_nodes_and_generator_do_not_use() -> None:
    parts = [WorkerMeasurement(cpu_ns=250_000_000), WorkerMeasurement(cpu_ns=250_000_000)]
    turn = Turn(0, Level("closed", 1), "bm25")
    others = block_of(turn, 2.0, parts, server_cpu=1.0, busy=3.5).others
    assert others == pytest.approx(2.0 / (2.0 * (os.cpu_count() or 1)))
    assert block_of(turn, 2.0, parts, server_cpu=1.0).others is None


def test_a_partial_result_says_so_under_any_title() -> None:
    measurement = simulated(1)
    measurement.partial = "interrupted"
    assert result.summary(measurement, title="Ideas").title == "Ideas (partial)"


def test_an_endpoint_that_answered_nothing_is_no_ceiling() -> None:
    refusal = strain_of(Level("closed", 10), simulated(1).blocks, 0.0).refusal()
    assert refusal is not None and "answered nothing" in refusal


def test_a_generator_that_was_late_in_an_open_loop_is_refused() -> None:
    level = Level("open", 60)
    late = run_of(
        [block(at, "bm25", np.full(600, 20.0), level=level, late_ms=8.0) for at in range(3)], variants=("bm25",)
    )
    assert cells(late)[level]["bm25"].refused is not None


def test_ctrl_c_is_left_to_the_parent_of_the_endpoint() -> None:
    """A terminal sends it to all processes; the endpoint's own end would be shown as a traceback."""
    with endpoint({"bm25": b"{}"}):
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(0.5)
        assert process.is_alive()


def test_an_endpoint_as_fast_as_none_is_refused_by_the_ceiling_that_was_measured() -> None:
    """What answers at once measures the generator: its ceiling is met, and nothing is reported."""
    answer = json.dumps(ANSWER).encode()
    with endpoint({"bm25": answer}) as url:
        workload = workload_at(url)
        ceilings = measure_ceilings(workload, {"bm25": answer}, clients=8, processes=2, seconds=1.5)
        with Generators(workload, 2) as generators:
            parts = generators.run("bm25", "closed", clients=8, settle=0.3, length=1.5, seed=1)
    assert not any(part.failures for part in parts)
    measured = block_of(Turn(0, Level("closed", 8), "bm25"), 1.5, parts)
    run = run_of([measured], variants=("bm25",))
    assert ceilings["bm25"] > 200
    # Two measurements of one thing, on a machine that may be busy with other tests: the same within that.
    run.ceilings = ceilings
    assert (cells(run)[Level("closed", 8)]["bm25"].strain.ceiling_share or 0) > 0.1
    run.ceilings = {"bm25": measured.completed / 1.5}
    assert set(measures(run, "bm25", "8 clients")) == {"refused"}


def test_failures_are_shown_and_reach_the_percentiles() -> None:
    blocks = [
        block(number, name, np.full(980, 5.0), failures={"rejected (429)": 20} if name == "fast" else None)
        for number in range(12)
        for name in ("bm25", "fast")
    ]
    run = run_of(blocks)
    shown = measures(run, "fast")
    assert shown["failed"].value == pytest.approx(0.02)
    assert "P50 ms" in shown and "P99 ms" not in shown  # a P99 that 2% failures reach is no number
    assert "failed: fast: 240 × rejected (429)" in result.text(run)
    assert next(iter(result.summary(run).notes)) == (
        "fast at 10 clients: failures reach P99 ms, which no row has then (240 × rejected (429), of 12,000 requests)"
    )
    assert "∞" in result.text(run) and "2.00%" in result.text(run) and "12,000" in result.text(run)


def test_a_partial_result_says_so_first_and_everywhere(tmp_path: Path) -> None:
    run = simulated(1)
    run.partial = "the cluster stopped answering during fast at 10 clients"
    run.blocks.append(block(20, "fast", np.full(5, 5.0), failures={"connection": 90}, broken="no connection"))
    assert result.text(run).startswith("PARTIAL RESULT: the cluster stopped answering")
    assert "left out: fast at 10 clients, no connection: 90 × connection" in result.text(run)
    assert "(partial)" in result.summary(run).title
    result.write(tmp_path, result.summary(run))
    assert "(partial)" in read_summary(tmp_path).title
    assert measures(run, "fast")["requests/s"] == measures(simulated(1), "fast")["requests/s"]


def test_the_result_file_says_what_was_measured_how_and_what_happened() -> None:
    """It had the figures alone: nothing of the documents, the engines' settings or an unsteady warm-up."""
    run = simulated(1)
    run.indexes = {"docs": IndexStatistics(documents=1000, bytes=2**20, segments=3, shards=1, uuid="u")}
    run.partial, run.incidents = "the cluster at http://me:pw@host:1 is gone", ["continued after 3 blocks"]
    run.notes = ["bm25-sparse: weight 0.8, window 30"]
    notes = result.summary(run, run).notes
    assert notes[:3] == [
        "partial: the cluster at http://host:1 is gone",
        "continued after 3 blocks",
        "docs: 1,000 documents, 1.0 MiB, 3 segments, 1 shards",
    ]
    assert notes[-1] == "bm25-sparse: weight 0.8, window 30" and any("not steady" in note for note in notes)
    assert len(notes) == len({*notes})


def test_everything_is_written(tmp_path: Path) -> None:
    run = simulated(1)
    run.quality = [Row("docs", "fast", "overlap@10", 0.98, 0.97, 0.99, 200)]
    result.write(tmp_path, result.summary(run))
    assert read_summary(tmp_path).rows == result.rows(run)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "load.csv").read_text())))
    assert len(lines) == len(result.rows(run)) and lines[0]["measure"] == "overlap@10"
