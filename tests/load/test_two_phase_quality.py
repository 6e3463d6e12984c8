"""What high-IDF-first loses is measured on the set itself, and judged by the goal."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.load.two_phase_quality import ENGINES, goal, two_phase
from opensearch_neural.results import read


def test_a_gain_meets_the_goal_and_a_loss_of_more_than_half_a_point_misses_it() -> None:
    assert goal("docs", {"sparse": 0.5, "high-idf-first": 0.6}).met
    assert goal("docs", {"sparse": 0.504, "high-idf-first": 0.5}).met
    lost = goal("docs", {"sparse": 0.506, "high-idf-first": 0.5})
    assert not lost.met and lost.value == 0.6


@pytest.mark.cluster
def test_the_command_measures_and_leaves_no_index(client, cluster_url: str, corpus: Path, tmp_path: Path) -> None:
    arguments = ["--url", cluster_url, "--data", str(corpus), "--record", str(tmp_path)]
    done = CliRunner().invoke(two_phase, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = read(tmp_path)
    ndcg = {row.engine: row for row in found.rows if row.measure == "nDCG@10"}
    assert set(ndcg) == set(ENGINES) and all(row.n == 60 and row.value > 0.5 for row in ndcg.values())
    assert found.goals[0].goal.endswith(f"all tokens on {corpus.name}")
    assert not client.indices.get(index="osn-published-*")
