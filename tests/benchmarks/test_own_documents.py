"""Every benchmark leaves a query that is a document itself out of its own hits, as `osn eval` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import cluster_bm25, published_figures
from benchmarks.demo import demo
from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import open_engines

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

TEXTS = {
    "for": "Cities should ban cars from their centres.",
    "against": "Cars bring shoppers to the centres of cities.",
    "bread": "Bread rises because yeast turns sugar into gas.",
}


@pytest.fixture
def judged(tmp_path: Path) -> BeirData:
    """As in ArguAna: the query is a document, and its counterargument is the relevant one."""
    lines = {id: json.dumps({"_id": id, "text": text}) + "\n" for id, text in TEXTS.items()}
    (tmp_path / "corpus.jsonl").write_text("".join(lines.values()))
    (tmp_path / "queries.jsonl").write_text(lines["for"])
    (tmp_path / "qrels").mkdir()
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nfor\tagainst\t1\n")
    return BeirData.load(tmp_path, "test")


def test_of_published_figures_and_the_demo(
    client: OpenSearch, judged: BeirData, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(CorpusSource(str(judged.corpus_path)), models=Models(sparse="none"))
    measured = published_figures.measure(client, judged, job, {"bm25": "bm25 (english)"})
    assert measured["bm25 (english)"].mean["RR@10"] == 1.0
    monkeypatch.setattr(demo, "INDEX", index_name)
    monkeypatch.setattr(demo, "TIMED_QUERIES", 1)
    demo.write(client, judged, "none", "none", judged.corpus_path.parent)
    rows = demo.measure_engines(client, open_engines(client, index_name), ["bm25"], judged)
    assert {row.value for row in rows if row.measure == "nDCG@10"} == {1.0}


def test_of_bm25_as_it_is_tuned(client: OpenSearch, judged: BeirData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_bm25, "GRID", ((1.2,), (0.75,)))
    folder = judged.corpus_path.parent
    with cluster_bm25.cluster_bm25(client, judged.corpus_path, ["english"]) as engine:
        assert [*engine.scores(cluster_bm25.tuning_questions(folder)).values()] == [1.0]
