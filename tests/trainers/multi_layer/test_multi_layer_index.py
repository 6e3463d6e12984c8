"""A multi-layer model through ingest and search: several vectors a document in one index, found by the nearest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.load.quality import exact_dense  # noqa: E402
from ingest.corpus import CorpusSource  # noqa: E402
from ingest.documents import Documents  # noqa: E402
from ingest.inspection import inspect_index  # noqa: E402
from ingest.job import Job, run_job  # noqa: E402
from ingest.settings import Models, NewIndex  # noqa: E402
from ingest.vectors.encode_corpus import EncodeJob, run_encode  # noqa: E402
from ingest.writing import journal  # noqa: E402
from opensearch_neural import queries  # noqa: E402
from opensearch_neural.engines import open_engines  # noqa: E402
from opensearch_neural.errors import ModelError  # noqa: E402
from opensearch_neural.index.mapping import index_body, knn_vector  # noqa: E402
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta  # noqa: E402
from opensearch_neural.models import registry  # noqa: E402
from opensearch_neural.models.dense.multi_layer import StackedEncoder, load_multi_layer, load_single_or_several  # noqa: E402
from opensearch_neural.queries import multi_vector  # noqa: E402
from opensearch_neural.retrievers.exact_multi_vector import MultiVectorRetriever  # noqa: E402
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever  # noqa: E402
from trainers.common.settings import EncoderSettings  # noqa: E402
from trainers.data.settings import SetSettings  # noqa: E402
from trainers.multi_layer.settings import MlrConfig, RepresentationSettings  # noqa: E402
from trainers.multi_layer.train import build  # noqa: E402

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

DOCUMENTS = 60


@pytest.fixture(autouse=True)
def osn_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (journal, registry):
        monkeypatch.setattr(module, "home", lambda: tmp_path / "osn-home")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny", documents=DOCUMENTS)


def exported(folder: Path, beir: Path, **representation: Any) -> Path:
    config = MlrConfig(
        output=folder,
        start=str(tiny_backbone(folder / "start", layers=3)),
        train=[SetSettings(beir)],
        encoder=EncoderSettings(tied=False, query_length=16, document_length=32, normalize=True),
        representation=RepresentationSettings(**{"pooling": "multi-vector", **representation}),
    )
    model = build(config)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    (folder / "model").mkdir()
    model.eval().export(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, beir: Path) -> Path:
    return exported(tmp_path_factory.mktemp("model"), beir, layers=[1, 3])


def corpus(beir: Path) -> CorpusSource:
    return CorpusSource(str(beir / "corpus.jsonl"))


@pytest.mark.parametrize(("type", "source"), [("float", "layers"), ("byte", "layers"), ("float", "first-tokens")])
def test_the_engine_dense_finds_the_documents_of_the_nearest_vectors(
    client: OpenSearch, index_name: str, beir: Path, model: Path, tmp_path: Path, type: Any, source: str
) -> None:
    vectors = 2 if source == "layers" else 20  # more than there are tokens in most documents
    if source != "layers":
        model = exported(tmp_path, beir, source=source, count=vectors)
    job = Job(
        corpus(beir),
        index_name,
        models=Models(sparse="none", dense=str(model)),
        new_index=NewIndex(dense_type=type, replicas=0),
    )
    assert run_job(client, job, show_progress=False).documents == DOCUMENTS
    engines = open_engines(client, index_name)
    assert engines.meta.dense and (engines.meta.dense.vectors, engines.meta.dense.dimension) == (vectors, 32)
    # Not the nested documents, which OpenSearch counts.
    assert inspect_index(client, index_name, sample=0).documents == DOCUMENTS
    texts = {
        line["_id"]: line["text"] for line in map(json.loads, (beir / "queries.jsonl").read_text().splitlines()[:8])
    }
    documents = {
        line["_id"]: line["text"] for line in map(json.loads, (beir / "corpus.jsonl").read_text().splitlines())
    }
    encoder = load_multi_layer(model)
    exact = MultiVectorRetriever(
        list(documents), encoder.encode_documents(list(documents.values())), encoder.encode_queries
    ).retrieve(texts, DOCUMENTS)
    run = OpenSearchRetriever(client, index_name, "dense", engines.body_of("dense")).retrieve(texts, 10)
    if type == "float":
        # What a load benchmark compares with: every vector, by script.
        compared = OpenSearchRetriever(client, index_name, "exact", lambda text, k: exact_dense(engines, text, k))
        assert {query: list(hits.values()) for query, hits in compared.retrieve(texts, 10).items()} == {
            query: pytest.approx(list(hits.values()), abs=1e-5) for query, hits in run.items()
        }
    for query in texts:
        best, hits = list(exact[query].values())[:10], run[query]
        if type == "float":
            # The same similarities in the same order, whichever of two that are all but equal comes first.
            assert [exact[query][document] for document in hits] == pytest.approx(best, abs=1e-5)
            # Lucene's score of a cosine.
            assert list(hits.values()) == pytest.approx([(1 + similarity) / 2 for similarity in best], abs=1e-5)
        else:
            assert [exact[query][document] for document in hits] == pytest.approx(best, abs=0.02)


def test_files_of_vectors_make_the_same_index_and_passages_work(
    client: OpenSearch, index_name: str, beir: Path, model: Path, tmp_path: Path
) -> None:
    models = Models(sparse="none", dense=str(model), passages=PassageMeta(5, 3))
    run_encode(EncodeJob(corpus(beir), tmp_path / "v", models, shard_records=64), show_progress=False)
    plain = NewIndex(replicas=0, store_vectors=True)
    run_job(client, Job(corpus(beir), f"{index_name}-m", models=models, new_index=plain), show_progress=False)
    run_job(client, Job(None, f"{index_name}-f", vectors=tmp_path / "v", new_index=plain), show_progress=False)
    sources = []
    for name in (f"{index_name}-m", f"{index_name}-f"):
        hits = client.search(index=name, body={"size": 1000, "query": {"match_all": {}}})["hits"]["hits"]
        sources.append({hit["_id"]: hit["_source"] for hit in hits})
    assert sources[0].keys() == sources[1].keys() and len(sources[0]) > DOCUMENTS
    for id, source in sources[0].items():
        own, other = ([nested["vector"] for nested in each["dense"]] for each in (source, sources[1][id]))
        assert len(own) == 2
        np.testing.assert_allclose(own, other, atol=1e-5)
    body = open_engines(client, f"{index_name}-f").body("dense", "bab dek", size=5)
    hits = client.search(index=f"{index_name}-f", body=body)["hits"]["hits"]
    assert len(queries.best_passages(body, hits, size=5)) == 5


def test_a_hybrid_of_several_vectors_is_filtered_inside(
    client: OpenSearch, index_name: str, beir: Path, model: Path
) -> None:
    run_job(
        client,
        Job(corpus(beir), index_name, models=Models(sparse="none", dense=str(model)), new_index=NewIndex(replicas=0)),
        show_progress=False,
    )
    engines = open_engines(client, index_name)
    if not engines.serves("hybrid"):
        pytest.skip("the cluster lacks the neural-search plugin")
    only = {"ids": {"values": ["d1", "d2", "d3"]}}
    body = engines.body("hybrid", "bab dek", filter=only)
    several = body["query"]["hybrid"]["queries"][1]["nested"]
    clause = several["query"]["knn"]["dense.vector"]
    assert several["path"] == "dense" and clause["k"] == 100 and "filter" in clause
    hits = client.search(index=index_name, body=body)["hits"]["hits"]
    assert {hit["_id"] for hit in hits} == {"d1", "d2", "d3"}


def test_single_documents_are_added_changed_and_deleted_with_their_vectors(
    client: OpenSearch, index_name: str, beir: Path, model: Path
) -> None:
    run_job(
        client,
        Job(corpus(beir), index_name, models=Models(sparse="none", dense=str(model)), new_index=NewIndex(replicas=0)),
        show_progress=False,
    )
    documents = Documents(client, index_name)
    documents.add([{"_id": "new", "text": "bab dek gol"}])
    documents.update("new", {"text": "gol gol bab"})
    vectors = load_multi_layer(model).encode_documents(["gol gol bab"]).values
    engines = open_engines(client, index_name)
    hits = client.search(index=index_name, body=multi_vector.nearest(vectors[0], k=1, size=1))["hits"]["hits"]
    assert hits[0]["_id"] == "new" and hits[0]["_score"] == pytest.approx(1, abs=1e-5)
    assert documents.delete(["new", "d1"]) == 2
    body = engines.body("dense", "gol gol bab", size=DOCUMENTS, k=DOCUMENTS)
    ids = {hit["_id"] for hit in client.search(index=index_name, body=body)["hits"]["hits"]}
    assert len(ids) == DOCUMENTS - 1 and not ids & {"new", "d1"}
    client.indices.forcemerge(index=index_name, params={"max_num_segments": 1})
    assert inspect_index(client, index_name, sample=0).documents == DOCUMENTS - 1


def test_an_index_with_a_field_for_each_vector_is_not_read(client: OpenSearch, index_name: str) -> None:
    meta = IndexMeta(dense=DenseMeta("m", "h", 4, "float", True, vectors=2))
    body = index_body(meta, replicas=0)
    body["mappings"]["properties"]["dense"] = {"properties": {"at_0": knn_vector(meta.dense)}}
    client.indices.create(index=index_name, body=body)
    with pytest.raises(ModelError, match="a field for each of several vectors"):
        open_engines(client, index_name)


def test_a_document_of_fewer_tokens_than_vectors_has_its_first_in_their_place(tmp_path: Path, beir: Path) -> None:
    first = exported(tmp_path, beir, source="first-tokens", count=5)
    stacked, encoder = load_single_or_several(first), load_multi_layer(first)
    assert isinstance(stacked, StackedEncoder) and stacked.vectors == 5
    texts = ["bab", "dek gol bab dek gol bab"]
    own = encoder.encode_documents(texts)
    assert own.counts[0] < 5 == own.counts[1]
    short, long = stacked.encode_documents(texts).reshape(2, 5, -1)
    assert (long == own[1]).all() and (short[: own.counts[0]] == own[0]).all()
    assert (short[own.counts[0] :] == own[0][0]).all()
    queries = stacked.encode_queries(["gol", "bab"])
    # The maximum, which is the score, is what it is without.
    assert np.allclose((queries @ short.T).max(axis=1), (queries @ own[0].T).max(axis=1))


def test_a_model_of_the_vectors_of_all_tokens_is_refused(tmp_path: Path, beir: Path, model: Path) -> None:
    stacked = load_single_or_several(model)
    assert isinstance(stacked, StackedEncoder) and stacked.vectors == 2
    assert stacked.encode_documents(["bab", "dek gol"]).shape == (2, 64)
    assert stacked.encode_documents([]).shape == (0, 64)
    tokens = exported(tmp_path, beir, source="tokens")
    with pytest.raises(ModelError, match="more vectors"):
        load_single_or_several(tokens)
    pooled = exported(tmp_path / "pooled", beir, source="first-tokens", count=3, pooling="average")
    assert load_single_or_several(pooled).vectors == 1
