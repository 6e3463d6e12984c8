"""Each idea for a faster search is one engine of one table, on an index that differs in that one thing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grown.ablation import ablation, asked_of, variations
from benchmarks.grown.documents import rounded
from benchmarks.grown.index import Growth
from benchmarks.load.variants import PRESETS, parse_variants
from opensearch_neural.evaluation.results import read


def test_each_index_differs_in_one_thing_and_is_asked() -> None:
    first, *others = indexes = variations(Growth("corpus", "docs", 1000))
    for other in others:
        changed = {each.name for each in fields(Growth) if getattr(other, each.name) != getattr(first, each.name)}
        assert changed - {"index", "settings"} <= {"prune", "weight_bits", "segments"} and len(changed) in (2, 3)
    asked = {variant.index for variant in parse_variants(",".join(asked_of(indexes)))}
    assert asked == {other.index for other in others}


def test_weights_are_rounded_to_their_significant_bits() -> None:
    weights = np.array([1.0, 1.06, 1.2, 3.3, 0.013, 100.0], dtype=np.float32)
    assert rounded(weights, 3).tolist() == pytest.approx([1.0, 1.0, 1.25, 3.5, 0.013671875, 96.0])
    assert rounded(weights, 24).tolist() == weights.tolist()
    assert rounded(weights, None) is weights


@pytest.mark.cluster
def test_the_command_measures_every_idea_and_leaves_no_index(client, tmp_path: Path, measured, monkeypatch) -> None:
    monkeypatch.setitem(
        PRESETS, "ablation", ("bm25", "sparse", "high-idf-first", "high-idf-first+window=10", "two-phase")
    )
    how = ["--requests", "20", "--rounds", "1", "--limit-queries", "20", "--block-seconds", "0.1,1"]
    done = measured(ablation, "--documents", "600", *how)
    assert done.exit_code == 0, done.output
    found = read(tmp_path / "record")
    speed = {row.line for row in found.rows if row.column == "requests/s"}
    assert speed == {
        *PRESETS["ablation"],
        *(each.partition("=")[0] for each in asked_of(variations(Growth("x", "x", 1)))),
    }
    kept = {row.line: row.value for row in found.rows if row.column == "overlap@10"}
    assert kept["high-idf-first:pruned"] < 1.0 and kept["high-idf-first:sorted"] == pytest.approx(
        kept["high-idf-first"], abs=0.02
    )
    assert not client.indices.get(index="osn-ablation*")
