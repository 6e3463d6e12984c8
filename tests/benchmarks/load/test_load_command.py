"""Options of the load benchmark's command, and of others that share them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from benchmarks.bm25_sparse.command import bm25_sparse
from benchmarks.score_kept import score_kept


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
