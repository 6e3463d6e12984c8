"""The goal of the compare page's speed, and the command that measures it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.speed.compare_page import Pair, main, told


def test_each_page_is_held_against_its_own_slowest_engine() -> None:
    pairs = [Pair(80.0, 20.0), Pair(80.0, 20.0), Pair(80.0, 10.0)]
    assert [pair.ratio for pair in pairs] == [1.5, 1.5, 3.0]
    assert "1.50 in the median, up to 1.5 for 67% of them" in told(pairs)
    assert told(pairs).endswith("met") and told(pairs[2:]).endswith("missed")


@pytest.mark.cluster
def test_every_query_is_a_pair(cluster_url: str, page_index: str, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"_id": id, "text": f"rainbow {id}"}) + "\n" for id in ("light", "fish")))
    done = CliRunner().invoke(main, ["--index", page_index, "--queries", str(queries), "--url", cluster_url])
    assert done.exit_code in (0, 1) and done.output.startswith("2 queries: the page ")
