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
from benchmarks.load.measurement import LoadSettings
from benchmarks.load.workload import ModelChoice
from benchmarks.score_kept import score_kept
from opensearch_neural.errors import ClusterError


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
    monkeypatch.setattr(command, "queries_of", lambda *_: (None, ["rain"]))
    monkeypatch.setattr(command, "prepared", lambda *_: nullcontext())
    monkeypatch.setattr(command, "run", lambda *_: run_of(blocks))
    refusal = pytest.raises(
        ClusterError, match=r"fast at 10 clients: .* needed 90% of a core\n.*remove .*load, and run"
    )
    nobody, folder = cast(Any, None), tmp_path / "load"
    with refusal if core_share > 0.85 else nullcontext():
        rows = rows_under_load(nobody, nobody, "docs", [], tmp_path, ModelChoice(), LoadSettings(), folder)
        assert {row.engine for row in rows} == {"bm25", "fast"}
