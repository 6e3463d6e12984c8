"""Options of the load benchmark's command, and of others that share them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.bm25_sparse.command import bm25_sparse
from benchmarks.load.command import queries_of
from benchmarks.score_kept import score_kept


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
