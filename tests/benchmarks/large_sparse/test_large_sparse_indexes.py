"""Cuts, goals and kept files of large-sparse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_sparse.arms import cut_tokens


def test_a_cut_leaves_out_what_is_frequent_and_light() -> None:
    tokens, frequencies = {"rare": 4.0, "common": 1.0, "heavy": 3.0}, {"rare": 10, "common": 900, "heavy": 90}
    assert cut_tokens(tokens, frequencies, 0.5) == {"rare": 4.0, "heavy": 3.0}
    assert cut_tokens(tokens, frequencies, 0.05) == {"rare": 4.0}
    assert cut_tokens(tokens, frequencies, 0.0) == {"rare": 4.0}, "one token is searched at least"
    assert cut_tokens({**tokens, "nowhere": 9.0}, frequencies, 1.0) == tokens, "no document holds it"
    assert cut_tokens({}, frequencies, 0.5) == {}


def test_the_goal_asks_the_cheapest_of_those_that_keep_enough_of_the_sparse_score(tmp_path: Path) -> None:
    from benchmarks.grown.index import Growth
    from benchmarks.large_sparse.command import LOAD, LargeSparseExperiment, LargeSparseOptions, goals
    from benchmarks.large_sparse.indexes import Layout
    from opensearch_neural.evaluation.results import Row

    layout = Layout(Growth("corpus", "docs", 1000), (), tmp_path)
    load = replace(LOAD, clients=(20,), minutes=1.0, requests=10)
    experiment = LargeSparseExperiment(LargeSparseOptions(), (layout,), None, None, load)  # type: ignore[arg-type]

    def rows(name: str, kept: float, p99: float) -> list[Row]:
        ratio = Row("1,000 documents", name, "P99", p99, None, None, 9, "bm25", kind="ratio", level="20 clients")
        return [Row("1,000 documents", name, "score kept", kept, None, None, 9), ratio]

    measured = [*rows("bm25-sparse", 1.0, 0.8), *rows("bm25-sparse, window 20", 1.0, 0.7)]
    measured += [*rows("fast", 0.98, 0.9), *rows("good", 0.995, 1.05)]
    (met,) = goals(experiment, [*measured, *rows("exact", 1.0, 1.2)])
    assert met.met and met.value == "1.050 (good, 0.9950 kept)"
    (missed,) = goals(experiment, [*rows("fast", 0.98, 0.9), *rows("exact", 1.0, 1.2)])
    assert not missed.met and missed.value == "1.200 (exact, 1.0000 kept)"
    (unknown,) = goals(experiment, rows("fast", 0.98, 0.9))
    assert not unknown.met and unknown.value is None


@pytest.mark.parametrize("other", [{"minutes": 2.0}, {"heap": "8g"}, {"clients": (1,)}, {"requests": 20}])
def test_another_kind_of_load_is_measured_anew(other: dict[str, Any], tmp_path: Path) -> None:
    """Before, the kept rows of a load that was too short for a P99 stayed, however many --minutes were given."""
    from benchmarks.grown.index import Growth
    from benchmarks.large_sparse.command import LOAD, LargeSparseExperiment, LargeSparseOptions, settings_hash
    from benchmarks.large_sparse.indexes import Layout

    layout = Layout(Growth("corpus", "docs", 1000), (), tmp_path)
    options, load = LargeSparseOptions(), replace(LOAD, clients=(20,), minutes=1.0, requests=10)
    experiment = LargeSparseExperiment(options, (layout,), None, None, load)  # type: ignore[arg-type]
    changed = {"options": replace(options, **other)} if "heap" in other else {"load": replace(load, **other)}
    kept = replace(experiment, options=replace(options, keep=True))
    assert (
        settings_hash(experiment, layout)
        == settings_hash(kept, layout)
        != settings_hash(replace(experiment, **changed), layout)
    )


def test_the_bytes_of_an_index_are_kept_apart_for_each_choice_of_pruned_fields(tmp_path: Path) -> None:
    from benchmarks.grown.index import Growth
    from benchmarks.large_sparse.indexes import Layout
    from opensearch_neural.models.sparse.pruning import Pruning

    half, most = (Pruning.parse(f"alpha_mass:{share}") for share in (0.5, 0.7))
    choices = [(half,), (most,), (half, most), ()]
    files = [Layout(Growth("corpus", "docs", 1000), choice, tmp_path).bytes_file for choice in choices]
    assert len(set(files)) == len(choices)
    assert files[0] == Layout(Growth("corpus", "docs", 1000), choices[0], tmp_path).bytes_file
