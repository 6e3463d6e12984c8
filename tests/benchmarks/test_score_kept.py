"""What high-IDF-first keeps of the exact score, by window and documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.score_kept import certain_cost_rows, score_kept
from opensearch_neural.evaluation.results import read
from opensearch_neural.index import segments


@pytest.mark.cluster
def test_the_score_kept_stands_beside_the_overlap_by_window_and_documents(
    client, cluster_url: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Waiting makes an index smaller and changes nothing else, and takes half a minute.
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
    engines = "bm25,high-idf-first+window=1,high-idf-first+window=500,two-phase+prune=0.8+expansion=2.0"
    asked = ["--url", cluster_url, "--data", str(corpus), "--split", "test", "--record", str(tmp_path)]
    sizes = ["--documents", "300,400", "--limit-queries", "10", "--engines", engines, "--index", "osn-test-kept"]
    done = CliRunner().invoke(score_kept, [*asked, *sizes], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = read(tmp_path).rows
    rows = {(row.set, row.line, row.column): row.value for row in found}
    for documents in ("300 documents", "400 documents"):
        kept = {engine: rows[documents, engine, "score kept"] for engine in engines.split(",")[1:]}
        assert kept["high-idf-first+window=1"] < kept["high-idf-first+window=500"] == pytest.approx(1.0)
        assert {(documents, engine, "overlap@10") for engine in kept} <= rows.keys()
        certain = {engine: rows.get((documents, engine, "certified")) for engine in engines.split(",")}
        narrow, wide = certain["high-idf-first+window=1"], certain["high-idf-first+window=500"]
        assert narrow is not None and wide is not None and narrow < wide == 1.0  # 500 hits are all documents
        cost = {row.column: row for row in found if (row.set, row.line) == (documents, "high-idf-first+window=1")}
        assert cost["widened"].value == pytest.approx(1 - narrow) and cost["widened"].value > 0
        assert (
            1 < cost["window until certain"].value <= 256 and 0 <= cost["searched whole"].value < 1
        )  # 4 times 256 is too wide
        slower, whole = (cost[f"time until certain / {than}"] for than in ("its window", "the whole search"))
        assert slower.value > 1 and slower.low <= slower.value <= slower.high and whole.value > 0
        wide_cost = {
            row.column: row.value for row in found if (row.set, row.line) == (documents, "high-idf-first+window=500")
        }
        assert (wide_cost["widened"], wide_cost["window until certain"]) == (0, 500)
        assert certain["bm25"] is None and certain["two-phase+prune=0.8+expansion=2.0"] is None
    assert not client.indices.get(index="osn-test-kept-*")


@pytest.mark.cluster
def test_of_pruned_postings_it_tells_the_pages_that_are_filled_and_what_that_costs(
    client, cluster_url: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
    engines = ("bm25", "bm25-sparse+window=300+weight=0.01", "sparse+window=300", "high-idf-first+window=300")
    asked = ["--url", cluster_url, "--data", str(corpus), "--split", "test", "--record", str(tmp_path)]
    asked += ["--documents", "300", "--limit-queries", "10", "--engines", ",".join(engines), "--passes", "1"]
    for rule in ("top_k:1", "top_k:1000"):
        pruned = [*asked, "--index", "osn-test-kept-pruned", "--prune-postings", rule]
        done = CliRunner().invoke(score_kept, pruned, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        rows = {(row.line, row.column): row.value for row in read(tmp_path).rows}
        for engine in engines[2:]:
            assert rows[engine, "time of the whole search / its window"] > 0
            assert rows[engine, "time to fill an empty page / its window"] > 0
            assert (rows[engine, "filled"] > 0) == (rule == "top_k:1")
        assert (rows["sparse+window=300", "score kept"] == pytest.approx(1.0)) == (rule == "top_k:1000")
        # By the largest weights of whole vectors, which the index keeps.
        assert rows["bm25-sparse+window=300+weight=0.01", "certified"] > 0
        assert not {line for line, column in rows if column == "filled"} - {*engines[2:]}
    assert not client.indices.get(index="osn-test-kept-pruned-*")


def test_what_certainty_costs_is_a_ratio_of_the_times_of_all_queries() -> None:
    seconds = {"certain": [0.02, 0.08, 0.2], "window": [0.01, 0.02, 0.02], "whole": [0.05, 0.05, 0.1]}
    rows = {row.column: row for row in certain_cost_rows("docs", "sum", 30, [30, 480, None], seconds, seed=0)}
    assert rows["widened"].value == pytest.approx(2 / 3) and rows["searched whole"].value == pytest.approx(1 / 3)
    assert (rows["window until certain"].value, rows["window until certain"].n) == (255, 2)
    assert rows["time until certain / its window"].value == pytest.approx(0.3 / 0.05)
    assert rows["time until certain / the whole search"].value == pytest.approx(0.3 / 0.2)
    slow = rows["time until certain / its window"]
    assert slow.low is not None and slow.high is not None and 2 <= slow.low < slow.value < slow.high <= 10 + 1e-9
    of_last = {way: of_way[2:] for way, of_way in seconds.items()}
    rows_of_last = certain_cost_rows("docs", "sum", 30, [None], of_last, seed=0)
    assert "window until certain" not in {row.column for row in rows_of_last}
