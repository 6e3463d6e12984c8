"""The engines by name: each loads what it needs and nothing else, and refuses what the index cannot serve."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import job, records, write_jsonl
from quantized_models import quantized_model

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural import queries
from opensearch_neural.engines import ENGINES, open_engines
from opensearch_neural.engines.engine import Missing, lost_documents
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.search.request import Request, find

DENSE = "all-MiniLM-L6-v2"
TEXTS = {
    "sky": "Sunlight refracted by droplets makes an arc of colours in the sky.",
    "cake": "Beat the eggs with sugar and fold in the flour.",
    "engine": "The piston compresses the mixture before the spark.",
}


@pytest.fixture(scope="module", params=["float", "byte"])
def index(client, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(f"engines-{request.param}")
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in TEXTS.items()))
    name = f"osn-test-{folder.name.lower()}"
    job = Job(
        CorpusSource(str(corpus)),
        name,
        models=Models(sparse="lexical", dense=DENSE),
        new_index=NewIndex(dense_type=request.param, replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)


def test_documents_are_called_lost_only_where_all_shards_answered() -> None:
    body = queries.listed({"a": 2.0, "b": 1.0})
    answer = {
        "timed_out": False,
        "_shards": {"total": 2, "successful": 2, "failed": 0},
        "hits": {"total": {"value": 1}},
    }
    assert lost_documents(body, answer, "documents", "docs") == Missing(
        ("1 of the documents are not in 'docs' any more",)
    )
    assert lost_documents(body, answer, "documents", "docs", stored_count=2) == Missing()
    failed = {"total": 2, "successful": 1, "failed": 1, "failures": []}
    assert lost_documents(body, {**answer, "_shards": failed}, "documents", "docs") == Missing()


def test_every_engine_has_a_row_in_a_table_of_the_docs() -> None:
    pages = [Path(__file__).parents[2] / name for name in ("README.md", "docs/queries.md")]
    rows = [row for page in pages for row in re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    named = {name for row in rows for name in re.findall(r"[`*]([a-z0-9-]+)[`*]", row)}
    assert sorted(ENGINES.keys() - named) == [], "give each of these a row in the table of engines in docs/queries.md"


@pytest.mark.cluster
def test_every_engine_answers_from_one_index(client, index: str) -> None:
    engines = open_engines(client, index)
    served = [engine for engine in ENGINES if engines.serves(engine)]
    assert served == ["bm25", "bm25-sparse", "sparse", "high-idf-first", "dense", "cascade", "hybrid", "hybrid-rrf"]
    for engine in served:
        hits = client.search(index=index, body=engines.body(engine, "sunlight in droplets", size=3))["hits"]["hits"]
        assert hits[0]["_id"] == "sky", engine


@pytest.mark.cluster
def test_a_search_by_name_sends_the_body_to_the_copies_that_answer_this_query(
    client, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = open_engines(client, index).load("bm25-sparse")
    text, page = "sunlight in droplets", {"size": 2, "filter": {"ids": {"values": ["sky", "cake"]}}}
    sent: list[tuple[str, Any, Any]] = []
    send = client.transport.perform_request

    def noting(method: str, url: str, *, params: Any = None, **more: Any) -> Any:
        sent.append((url, dict(params or {}), more.get("body")))
        return send(method, url, params=params, **more)

    monkeypatch.setattr(client.transport, "perform_request", noting)
    answer = engines.search("bm25-sparse", text, **page)
    body = engines.body("bm25-sparse", text, **page)
    assert sent == [(f"/{index}/_search", {"preference": queries.preference(text)}, body)]
    assert answer["hits"] == client.search(index=index, body=body)["hits"]
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["sky"]
    with pytest.raises(InputError, match="there is no engine 'splade'"):
        engines.search("splade", text)
    with pytest.raises(ClusterError, match="needs a connection"):
        replace(engines, connect=None).search("bm25", text)


@pytest.mark.cluster
def test_a_filter_that_can_be_read_only_once_holds_in_every_part_and_every_request(
    client, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, text, only = open_engines(client, index), "sunlight in droplets", {"ids": {"values": ["cake"]}}
    for name in filter(engines.serves, ENGINES):
        hits = engines.search(name, text, filter=iter([only]))["hits"]["hits"]
        assert {hit["_id"] for hit in hits} <= {"cake"}, name
    asked = Request.make(engines, "bm25", text, clauses=iter([only]))  # type: ignore[arg-type]
    assert asked.clauses == asked.page["filter"] == [only]
    sent: list[Any] = []
    search = client.msearch
    monkeypatch.setattr(client, "msearch", lambda **how: sent.extend(how["body"][1::2]) or search(**how))
    for name in ("bm25-sparse", "high-idf-first"):
        engines.with_settings(window=1).engine(name).certified(client, text, {"size": 1, "filter": iter([only])})
    pages = [body for body in sent if body["size"] == 1 and "rescore" in body]
    assert pages and all(only in body["query"]["bool"]["filter"] for body in pages)


@pytest.mark.cluster
def test_dense_finds_what_shares_no_word(client, index: str) -> None:
    body = open_engines(client, index).body("dense", "how does a rainbow form?", size=1)
    hits = client.search(index=index, body=body)["hits"]["hits"]
    assert hits[0]["_id"] == "sky"


@pytest.mark.cluster
@pytest.mark.parametrize("first", ["bm25-sparse", "high-idf-first"])
def test_the_cascade_adds_cosines_where_the_index_has_vectors_and_no_codes(client, index: str, first: str) -> None:
    text, scores = "how do droplets and flour make colours", {}
    for weight in (0.1, 0.3):
        engines = open_engines(client, index, first=first, weight=weight)
        body = engines.body("cascade", text)
        scores[weight] = {hit["_id"]: hit["_score"] for hit in client.search(index=index, body=body)["hits"]["hits"]}
    encoder = engines.models.dense
    (asked,) = encoder.encode_queries([text])
    cosines = dict(zip(TEXTS, encoder.encode_documents(list(TEXTS.values())) @ asked, strict=True))
    unit = sum(engines.models.query_encoder.encode(text).values())
    if first == "bm25-sparse":
        unit /= engines.meta.extra["sparse_scale"]
    for id, score in scores[0.3].items():
        # One standard deviation of cosines, 1/√384, counts the weight's share of the tokens' weights.
        expected = 0.2 * unit * (cosines[id] + 1) * 384**0.5
        assert score - scores[0.1][id] == pytest.approx(expected, rel=0.01)
    assert scores[0.3].keys() >= {"sky", "cake"}


@pytest.mark.cluster
@pytest.mark.parametrize("first", ["bm25-sparse", "high-idf-first"])
def test_the_cascade_searches_by_its_first_stage_where_a_query_has_no_vector(
    client, index: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = open_engines(client, index, first=first)
    assert "knn_score" in json.dumps(engines.body("cascade", "how do droplets and flour make colours"))
    monkeypatch.setattr(type(engines.models.dense), "encode_queries", lambda *_, **__: np.zeros((1, 384), np.float32))
    body = engines.body("cascade", "how do droplets and flour make colours")
    assert "knn_score" not in json.dumps(body)
    assert {hit["_id"] for hit in client.search(index=index, body=body)["hits"]["hits"]} == {"sky", "cake"}
    with pytest.raises(InputError, match="all zeros"):
        engines.body("dense", "how do droplets and flour make colours")


@pytest.mark.cluster
def test_an_unknown_engine_is_answered_with_the_list(client, index: str) -> None:
    with pytest.raises(InputError, match="there is no engine 'splade'"):
        open_engines(client, index).body_of("splade")


@pytest.mark.cluster
def test_a_setting_that_no_engine_has_is_answered_with_the_list(client, index: str) -> None:
    with pytest.raises(InputError, match="no engine has the setting 'wieght'") as raised:
        open_engines(client, index, wieght=5)
    assert "tokens, tome, urls, weight, weights, window" in str(raised.value.remedy)


@pytest.mark.cluster
def test_the_pages_of_hybrid_ask_for_neighbours_up_to_their_end(client, index: str) -> None:
    engines = open_engines(client, index)

    def neighbours(**page: Any) -> int:
        (clause,) = queries.nearest_clauses(engines.body("hybrid", "light", **page)["query"]["hybrid"]["queries"][1])
        return int(clause["k"])

    assert neighbours(size=10) == 100
    assert neighbours(from_=200, size=10) == 210
    assert neighbours(from_=200, size=10, collapse="parent") == 210 * queries.COLLAPSED_PASSAGES
    assert neighbours(from_=9_000, size=1_000, collapse="parent") == 10_000


@pytest.mark.cluster
def test_the_pages_of_hybrid_are_one_ranking_of_documents_in_an_index_of_passages(
    client, index_name: str, tmp_path: Path
) -> None:
    """Before, each page from the third on was fused from more passages than the one before: documents were repeated, and
    others were on no page."""
    documents = [record | {"_id": str(number)} for number, record in enumerate(records(100, words=60))]
    codes = quantized_model(tmp_path, [document["text"] for document in documents])
    how: dict[str, Any] = {"passages": PassageMeta(10, 8), "pq": str(codes), "reconstruct": True, "device": "cpu"}
    settings = job(write_jsonl(tmp_path / "d.jsonl", documents), index_name, dead_letters=tmp_path / "dead", **how)
    run_job(client, settings, show_progress=False)
    engines = open_engines(client, index_name)

    def page(engine: str, from_: int, size: int) -> list[str]:
        asked = Request.make(engines, engine, "rain bow light", size=size, from_=from_)
        return [hit["id"] for hit in find(client, asked).hits]

    for engine in ("hybrid", "hybrid-rrf"):
        pages = [document for from_ in range(0, 100, 10) for document in page(engine, from_, 10)]
        assert pages == page(engine, 0, 100), engine
        assert len(pages) == len(set(pages)) > 90


@pytest.mark.cluster
def test_hybrid_needs_the_plugin_and_says_so(client, index: str) -> None:
    engines = open_engines(client, index)
    engines.plugin = False
    with pytest.raises(ClusterError, match="neural-search plugin"):
        engines.body_of("hybrid")


@pytest.mark.cluster
def test_an_index_of_someone_else_is_refused(client, index_name: str) -> None:
    client.indices.create(index=index_name)
    with pytest.raises(ModelError, match="was not written by osn"):
        open_engines(client, index_name)


@pytest.mark.cluster
def test_an_absent_index_is_named(client) -> None:
    with pytest.raises(ClusterError, match="no index 'osn-test-nowhere'"):
        open_engines(client, "osn-test-nowhere")


@pytest.mark.cluster
def test_a_model_that_is_not_on_this_machine_is_named(
    client, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSN_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = open_engines(client, index).models
    assert models.query_encoder.encode("sunlight")  # the cluster keeps it
    with pytest.raises(ModelError, match="is not on this machine"):
        _ = models.sparse


@pytest.mark.cluster
def test_sparse_and_bm25_searches_never_import_torch(index: str, cluster_url: str) -> None:
    script = (
        "import sys; from opensearch_neural.cluster.connect import connect\n"
        "from opensearch_neural.engines import open_engines\n"
        f"engines = open_engines(connect({cluster_url!r}), {index!r})\n"
        "for engine in ('bm25', 'bm25-sparse', 'sparse', 'high-idf-first'):\n"
        "    assert engines.search(engine, 'sunlight', size=1)['hits']['hits'], engine\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules and 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
