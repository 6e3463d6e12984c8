"""The whole table from one command: every idea searched on a real cluster, tuned, measured under load, and resumed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from quick_load import quick

from benchmarks.docs_tables import rendered
from benchmarks.large_sparse import command
from benchmarks.large_sparse.arms import FieldSearch
from benchmarks.load.variants import Variant
from benchmarks.render import SCORE_KEPT
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row, read
from opensearch_neural.index import segments
from opensearch_neural.queries import Rare

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


def quick_arguments(
    cluster_url: str, corpus: Path, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Of the command on 600 documents, with few settings to choose from and a load test that is over at once."""
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
    small: dict[str, object] = {
        "WINDOWS": (10, 500),
        "CUTS": (0.5,),
        "RARE": (Rare(),),
        "PRUNE_RATIOS": (0.4,),
        "EXPANSIONS": (2.0,),
    }
    small |= {"TUNING_QUERIES": 10, "PASSES": 1, "LOAD": quick(command.LOAD)}
    for name, value in small.items():
        monkeypatch.setattr(command, name, value)
    data = tmp_path / corpus.name
    shutil.copytree(corpus, data)
    shutil.copy(data / "qrels" / "test.tsv", data / "qrels" / "train.tsv")
    return [
        "--url", cluster_url, "--model", "lexical", "--data", str(data), "--work", str(tmp_path / "work"),
        "--record", str(tmp_path / "record"), "--documents", "600", "--index", index_name, "--clients", "2",
        "--requests", "20", "--minutes", "1", "--prune", "top_k:5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "expected", "timed"),
    [
        ({"fast": (0.999, 0.989), "middle": (0.994, 0.99), "slow": (0.999, 0.998)}, "middle", ["middle", "slow"]),
        ({"fast": (0.991, None), "middle": (0.994, 0.99), "slow": (0.989, None)}, "fast", ["fast", "middle"]),
        ({"fast": (0.97, 0.96), "middle": (0.985, 0.95), "slow": (0.98, 0.97)}, "middle", []),
    ],
)
def test_the_fastest_setting_that_surely_keeps_the_score_is_chosen_else_that_which_keeps_most(
    kept: dict[str, tuple[float, float | None]], expected: str, timed: list[str]
) -> None:
    asked: list[str] = []

    def times(variants: Sequence[Variant]) -> dict[str, float]:
        asked.extend(each.name for each in variants)
        return {name: ms for name, ms in (("fast", 1.0), ("middle", 2.0), ("slow", 3.0)) if name in asked}

    rows = [Row("train", name, SCORE_KEPT, value, low, None, 10) for name, (value, low) in kept.items()]
    rows += [Row("train", name, "overlap@10", 0.5, 0.4, None, 10) for name in kept]
    made = command.choice(rows, [Variant(name, "sparse") for name in kept], times)
    assert (made["chosen"], asked) == (expected, timed)
    assert made["settings"]["slow"] == {
        "kept": kept["slow"][0],
        "low": kept["slow"][1],
        "ms": 3.0 if "slow" in timed else None,
    }


@pytest.mark.cluster
@pytest.mark.usefixtures("nothing_is_refused")
def test_one_command_measures_every_idea_and_goes_on_where_it_stopped(
    client: OpenSearch,
    cluster_url: str,
    corpus: Path,
    index_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = quick_arguments(cluster_url, corpus, index_name, tmp_path, monkeypatch)

    # The requests of pruned fields fail once: the command stops, and what was written before stays.
    broken = pytest.MonkeyPatch()
    broken.setattr(FieldSearch, "builder", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(command.large_sparse, [*arguments, "--keep-indexes"], catch_exceptions=False)
    broken.undo()
    written = client.indices.get_settings(index=f"{index_name}-*")
    assert len(written) == 1
    uuids = {name: each["settings"]["index"]["uuid"] for name, each in written.items()}

    done = CliRunner().invoke(command.large_sparse, [*arguments, "--keep-indexes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    again = client.indices.get_settings(index=f"{index_name}-*")
    assert {name: each["settings"]["index"]["uuid"] for name, each in again.items()} == uuids, (
        "an index was written anew"
    )

    summary = read(tmp_path / "record")
    kept = {row.engine: row.value for row in summary.rows if row.measure == "score kept"}
    # What a pruned document has lost it is not found by, but it is rescored by.
    as_they_are, rescored = (kept[f"pruned: documents top_k:5, {how}"] for how in ("as they are", "rows 500"))
    assert as_they_are < rescored < 0.99
    exact = {"bm25", "sparse"}
    assert not exact & kept.keys()
    for measure in ("nDCG@10", "bytes read, a document"):
        of = {row.engine: row.value for row in summary.rows if row.measure == measure and row.kind == "value"}
        assert of.keys() == kept.keys() | exact and all(value > 0 for value in of.values()), measure
    under_load = [row for row in summary.rows if row.where == "600 documents, 2 clients"]
    loaded = {row.engine for row in under_load if row.measure == "requests/s"}
    assert loaded == kept.keys() | exact, "an idea was not put under load"
    assert not any(row.value for row in summary.rows if row.measure == "failed")
    assert ["P99 on 600 documents, 2 clients" in goal.goal for goal in summary.goals] == [True]
    of_both = [row.measure for row in summary.rows if row.engine.startswith("pruned: documents top_k:5, query 0.5")]
    assert {"score kept", "bytes read, a document"} <= set(of_both)
    assert kept.keys() >= {"high-idf-first", *command.SUMS, "two-phase"}
    page = rendered("kept-and-cost", [summary])
    assert "| 600 documents" in page and "pruned: documents top_k:5, rows" in page and "P99 on 600 documents" in page

    assert CliRunner().invoke(command.large_sparse, arguments, catch_exceptions=False).exit_code == 0
    assert read(tmp_path / "record").rows == summary.rows, "what is kept is measured again"
    assert not client.indices.get(index=f"{index_name}-*")


def test_data_without_train_questions_are_refused(corpus: Path, tmp_path: Path) -> None:
    arguments = ["--model", "lexical", "--data", str(corpus), "--work", str(tmp_path)]
    with pytest.raises(InputError, match="has no train split"):
        CliRunner().invoke(command.large_sparse, arguments, catch_exceptions=False)


def test_a_load_that_cannot_work_is_refused_before_anything_is_written(
    corpus: Path, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = quick_arguments("http://127.0.0.1:9", corpus, index_name, tmp_path, monkeypatch)
    with pytest.raises(InputError, match="numbers of clients and rates must be above 0"):
        CliRunner().invoke(command.large_sparse, [*arguments, "--clients", "0"], catch_exceptions=False)
