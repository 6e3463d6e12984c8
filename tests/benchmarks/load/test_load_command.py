"""Options of the load benchmark's command, and of others that share them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pytest
from click.testing import CliRunner
from runs import block, run_of

from benchmarks.bm25_sparse.command import bm25_sparse
from benchmarks.load import command
from benchmarks.load.command import queries_of, rows_under_load
from benchmarks.load.measurement import LoadSettings, Measurement
from benchmarks.load.run import measuring_code
from benchmarks.load.workload import ModelChoice
from benchmarks.score_kept import score_kept
from opensearch_neural.errors import ClusterError
from opensearch_neural.evaluation.results import Row


def test_judged_queries_need_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\train\t1\nq2\tsun\t1\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "rainbow"}\n{"_id": "q2", "text": "light"}\n')
    judged, texts = queries_of(None, tmp_path, "test", 1)
    assert judged is not None and (judged.qrels, texts) == ({"q1": {"rain": 1}}, ["rainbow"])


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (score_kept, ["--documents", "1000,2000,1000"]),
        (bm25_sparse, ["--documents", "1000,1000"]),
        (bm25_sparse, ["--seeds", "42,42"]),
    ],
)
def test_a_size_or_seed_that_stands_twice_is_refused_before_anything_is_measured(
    command: click.Command, options: list[str]
) -> None:
    """Before, the rows were refused when all was measured, and a seed's own values stood as a mean over seeds."""
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2 and f"{options[1]!r} names a number twice" in result.output


@pytest.mark.parametrize("core_share", [0.5, 0.9])
def test_what_the_generator_was_too_slow_for_is_not_kept_as_a_row(
    core_share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one row of a refused engine was shown nowhere, and kept: the same command never measured it again."""
    shares = {"bm25": 0.1, "fast": core_share}
    blocks = [
        block(number, name, np.ones(60), core_share=share) for number in range(4) for name, share in shares.items()
    ]
    refusal = pytest.raises(
        ClusterError, match=r"fast at 10 clients: .* needed 90% of a core\n.*remove .*load, and run"
    )
    with refusal if core_share > 0.85 else nullcontext():
        rows, notes = under_load(run_of(blocks), tmp_path / "load", monkeypatch)
        assert {row.engine for row in rows} == {"bm25", "fast"} and notes == []


def test_what_happened_in_a_load_is_kept_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was logged, and lost."""
    run = run_of([block(number, "bm25", np.ones(60)) for number in range(4)])
    run.incidents.append("throughput was not yet steady after 90 s of warm-up")
    _, notes = under_load(run, tmp_path / "load", monkeypatch)
    assert notes == ["docs: throughput was not yet steady after 90 s of warm-up"]
    run.changes.append("'docs' changed while it was measured")
    with pytest.raises(
        ClusterError, match=r"does not count: 'docs' changed while it was measured\n.*remove .*load, and"
    ):
        under_load(run, tmp_path / "load", monkeypatch)


def under_load(run: Measurement, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Row], list[str]]:
    """What `rows_under_load` makes of the run, which it must continue with the same code alone."""

    def measured(*_: object, code: str) -> Measurement:
        assert code == measuring_code()
        return run

    monkeypatch.setattr(command, "queries_of", lambda *_: (None, ["rain"]))
    monkeypatch.setattr(command, "prepared", lambda *_: nullcontext())
    monkeypatch.setattr(command, "run", measured)
    nobody = cast(Any, None)
    return rows_under_load(nobody, nobody, "docs", [], folder, ModelChoice(), LoadSettings(), folder)
