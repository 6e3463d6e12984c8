"""Scores from codes: the script, what it is given, and the engines that rest on it, against a real node."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import uuid
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from corpora import parts_of
from quantized_models import quantized_model

from benchmarks.bm25_sparse import vectors
from benchmarks.load.variants import parse_variants, spec_of
from benchmarks.load.workload import LoadTarget, body_builders, prepare
from ingest.corpus import CorpusSource
from ingest.documents import Documents, delete_documents
from ingest.job import Job, run_job
from ingest.settings import Models
from ingest.vectors.encode_corpus import EncodeJob, run_encode, write_index
from opensearch_neural import queries
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.tune import tune
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.dense import look_up_table
from opensearch_neural.engines.settings import RARE_FIRST_WEIGHT, Bm25SparseSetting, CascadeSetting, HighIdfFirstSetting
from opensearch_neural.engines.sparse import Bm25Sparse
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, QuantizedMeta, write_record
from opensearch_neural.models.dense.onnx_encoder import INT8_FILE
from opensearch_neural.models.dense.quantized import QuantizedModel, Quantizer, load_quantized
from opensearch_neural.models.registry import link_of
from opensearch_neural.models.sparse.lexical import LexicalEncoder
from opensearch_neural.queries import Rare
from opensearch_neural.queries.look_up_table import spread
from opensearch_neural.retrievers.faiss import QuantizedRetriever
from opensearch_neural.retrievers.opensearch import read_codes
from opensearch_neural.search.explanation import doubts, shares
from opensearch_neural.search.oracle import StoredWeights, predict
from opensearch_neural.tune import Questions, Tried
from opensearch_neural.tune.cascade import CascadeTuning

TEXT = """
rain bow light drop sun water glass angle prism sky cloud storm engine piston spark fuel valve crank bread flour
yeast salt butter oven crust dough
"""
WORDS = TEXT.split()


def test_what_cannot_be_rescored_is_refused() -> None:
    table = np.eye(1, 256)
    with pytest.raises(ValueError, match="before its parts are fused"):
        queries.quantized_rescore(queries.hybrid(queries.bm25("a"), queries.bm25("b")), table)
    for weights in ({"weight": 0.0}, {"weight": float("nan")}, {"first_weight": -1.0}):
        with pytest.raises(ValueError, match="weight must be above 0"):
            queries.quantized_rescore(queries.bm25("a"), table, **weights)
    with pytest.raises(ValueError, match="no quantized scores"):
        queries.quantized_offset(queries.bm25("a"))
    with pytest.raises(ValueError, match="1,001 documents are more than a request can list"):
        queries.listed({str(number): 1.0 for number in range(1001)})


# ---------------------------------------------------------------------------------------------------------- the script


def random_quantizer(dimension: int, parts: int) -> Quantizer:
    random = np.random.default_rng(parts)
    rotation = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
    assigning = random.normal(size=(parts, 256, dimension // parts)) / np.sqrt(dimension)
    scoring = assigning + 0.1 * random.normal(size=assigning.shape) / np.sqrt(dimension)
    return Quantizer(*(tensor.astype(np.float32) for tensor in (rotation, assigning, scoring)))


@pytest.mark.cluster
@pytest.mark.parametrize("parts", [1, 8, 48, 96])
def test_the_script_scores_every_document_as_faiss_does(client, index_name: str, parts: int) -> None:
    quantizer = random_quantizer(96, parts)
    random = np.random.default_rng(1)
    documents = random.normal(size=(400, 96)).astype(np.float32) / np.sqrt(np.float32(96))
    asked = random.normal(size=(4, 96)).astype(np.float32) / np.sqrt(np.float32(96))
    codes = quantizer.encode(documents)
    meta = IndexMeta(quantized=QuantizedMeta("m", "h", parts))
    client.indices.create(index=index_name, body=index_body(meta, replicas=0))
    lines: list[dict[str, Any]] = []
    for number, code in enumerate(codes):
        lines += [{"index": {"_id": str(number)}}, {"text": "rainbow", "pq": b64encode(code).decode()}]
    lines += [{"index": {"_id": "without"}}, {"text": "rainbow"}]
    assert not client.bulk(index=index_name, body=lines, refresh=True)["errors"]
    ids = [str(number) for number in range(len(codes))]
    run = QuantizedRetriever(ids, codes, quantizer, lambda texts: asked).retrieve(dict.fromkeys("abcd", ""), k=400)
    for query, vector in zip("abcd", asked, strict=True):
        body = queries.quantized(quantizer.table(vector), size=1000)
        hits = client.search(index=index_name, body=body)["hits"]["hits"]
        scores = {hit["_id"]: hit["_score"] - queries.quantized_offset(body) for hit in hits}
        assert scores == pytest.approx(run[query], abs=1e-5)
        first = queries.bm25("rainbow", size=401)
        rescored = queries.quantized_rescore(first, quantizer.table(vector), window=401, weight=2.0)
        hits = client.search(index=index_name, body=rescored)["hits"]["hits"]
        shift = queries.quantized_offset(rescored)
        assert {hit["_id"]: hit["_score"] - shift for hit in hits if hit["_id"] != "without"} == pytest.approx(
            {id: 2 * score for id, score in run[query].items()}, abs=2e-5
        )
        assert hits[-1]["_id"] == "without"
        assert hits[-1]["_score"] == pytest.approx(0, abs=1e-8)


# ---------------------------------------------------------------------------------------------------------- the engines


class Written:
    """An index with everything in it, and what its scores are made of."""

    def __init__(self, client: Any, index: str, model: Path, texts: list[str]) -> None:
        self.client, self.index, self.texts = client, index, texts
        self.ids = [f"d{number:03}" for number in range(len(texts))]
        self.model = load_quantized(model, device="cpu")
        self.codes = self.model.encode_documents(texts)

    def engines(self, **how: Any) -> Engines:
        return open_engines(self.client, self.index, **how)

    def hits(self, body: queries.Body) -> dict[str, float]:
        return {hit["_id"]: hit["_score"] for hit in self.client.search(index=self.index, body=body)["hits"]["hits"]}

    def inner_products(self, text: str) -> dict[str, float]:
        (scores,) = self.model.encode_queries([text]) @ self.model.quantizer.reconstruct(self.codes).T
        return dict(zip(self.ids, scores.tolist(), strict=True))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    random = np.random.default_rng(2)
    return [" ".join(random.choice(WORDS, size=8)) for _ in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    return quantized_model(tmp_path_factory.mktemp("quantized"), texts)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n:03}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def job_of(corpus: Path, index: str, model: Path, **settings: Any) -> Job:
    sparse = None if "vectors" in settings else "lexical"
    settings = {"sparse": sparse, "pq": str(model), "replicas": 0, "device": "cpu", **settings}
    letters = corpus.with_name(f"{index}.dead.jsonl")
    return Job(CorpusSource(str(corpus)), index, dead_letters=letters, **parts_of(settings))


@pytest.fixture(scope="module")
def written(client, corpus: Path, model: Path, texts: list[str]) -> Iterator[Written]:
    name = f"osn-test-quantized-{uuid.uuid4().hex[:8]}"
    run_job(client, job_of(corpus, name, model, reconstruct=True), show_progress=False)
    yield Written(client, name, model, texts)
    client.indices.delete(index=name)


QUERY = "sun light water"


@pytest.mark.cluster
def test_the_index_says_what_its_codes_and_vectors_are_made_of(written: Written) -> None:
    meta = written.engines().meta
    info = written.model.info
    assert meta.quantized == QuantizedMeta("model", info.hash, 4)
    assert meta.reconstructed is not None
    assert (meta.reconstructed.hash, meta.reconstructed.dimension) == (info.hash, 32)
    ids, codes = read_codes(written.client, written.index, 4)
    assert sorted(ids) == written.ids
    assert (codes[np.argsort(ids)] == written.codes).all()


def check_last_stage(
    written: Written, engines: Engines, second: dict[str, float], weight: float, *, rel: float
) -> None:
    """That the cascade's page is the best 5 of the second stage's scores, with what their codes add."""
    third = sorted(second, key=second.__getitem__, reverse=True)[:5]
    inner = written.inner_products(QUERY)
    body = engines.body("cascade", QUERY, size=5)
    shift = queries.quantized_offset(body)
    assert written.hits(body) == pytest.approx({id: second[id] + weight * inner[id] + shift for id in third}, rel=rel)
    assert list(written.hits(body)) == sorted(third, key=lambda id: -(second[id] + weight * inner[id]))
    assert [stage["window_size"] for stage in body["rescore"]] == [12, 5]


@pytest.mark.cluster
def test_the_cascade_in_one_request_gives_what_three_requests_give(written: Written) -> None:
    engines = written.engines(first="high-idf-first", rare=Rare("count", 2), window=12, dense_window=5, weight=0.02)
    tokens = engines.models.query_encoder.encode(QUERY)
    weight = 0.02 * sum(tokens.values()) / look_up_table(engines.models, QUERY).var(axis=1).sum() ** 0.5
    rare = written.hits({"query": queries.high_idf_first(tokens, rare=Rare("count", 2))["query"], "size": 12})
    everything = written.hits(queries.neural_sparse(tokens, size=60))
    check_last_stage(written, engines, {id: everything[id] for id in rare}, weight, rel=1e-5)


@pytest.mark.cluster
def test_the_cascade_after_bm25_sparse_adds_codes_to_its_sum(written: Written) -> None:
    engines = written.engines(window=12, dense_window=5, weight=0.4)
    bm25_sparse = engines.engine("bm25-sparse")
    assert isinstance(bm25_sparse, Bm25Sparse)
    # The weight and window of the cascade are not those of bm25-sparse, which has its own.
    plain = written.engines(window=60).body("bm25-sparse", QUERY, size=60)
    assert engines.body("cascade", QUERY)["rescore"][0]["query"] == plain["rescore"]["query"]
    tokens = engines.models.query_encoder.encode(QUERY)
    weight = 0.4 * sum(tokens.values()) / bm25_sparse.load_scale() / spread(look_up_table(engines.models, QUERY))
    best = list(written.hits(queries.bm25(QUERY, size=12)))
    second = {id: score for id, score in written.hits(plain).items() if id in best}
    check_last_stage(written, engines, second, weight, rel=1e-4)


@pytest.mark.cluster
def test_a_query_that_the_dense_model_has_no_vector_for_is_searched_by_the_first_stages(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = written.engines()
    stages = engines.body("cascade", QUERY, size=5)["rescore"]
    zeros = np.zeros((1, engines.models.quantized.quantizer.dimension), np.float32)
    monkeypatch.setattr(QuantizedModel, "encode_queries", lambda *_, **__: zeros)
    body = engines.body("cascade", QUERY, size=5)
    assert (len(stages), body["rescore"]["query"]) == (2, stages[0]["query"])
    assert len(written.client.search(index=written.index, body=body)["hits"]["hits"]) == 5


@pytest.mark.cluster
def test_the_oracle_predicts_the_cascade(written: Written) -> None:
    encoder = LexicalEncoder.load(link_of(written.engines().meta.sparse.hash))  # type: ignore[union-attr]
    documents = StoredWeights.of(encoder.encode_documents(written.texts).rows(), written.codes)
    body = written.engines(first="high-idf-first", window=60, dense_window=60).body("cascade", QUERY, size=60)
    predicted = {written.ids[number]: score for number, score in predict(body, documents).items()}
    assert written.hits(body) == pytest.approx(predicted, rel=1e-6)


@pytest.mark.cluster
def test_jpq_rescore_ranks_what_bm25_found_by_inner_products_alone(written: Written) -> None:
    body = written.engines(dense_window=20).body("jpq-rescore", QUERY)
    lexical = written.hits(queries.bm25(QUERY, size=20))
    inner = written.inner_products(QUERY)
    best = sorted(lexical, key=inner.__getitem__, reverse=True)[:10]
    assert list(written.hits(body)) == best


@pytest.mark.cluster
def test_jpq_hnsw_finds_the_nearest_reconstructed_vectors(written: Written) -> None:
    inner = written.inner_products(QUERY)
    best = sorted(inner, key=inner.__getitem__, reverse=True)[:10]
    assert list(written.hits(written.engines().body("jpq-hnsw", QUERY))) == best


@pytest.mark.cluster
def test_reconstructed_vectors_are_not_searched_with_another_model(
    written: Written, texts: list[str], tmp_path: Path
) -> None:
    path = str(written.model.info.path)
    same = written.hits(written.engines(dense=path).body("jpq-hnsw", QUERY))
    assert same == written.hits(written.engines().body("jpq-hnsw", QUERY))
    other = quantized_model(tmp_path / "other", texts, seed=5)
    with pytest.raises(ModelError, match=r"was written with the dense model .*, and this is .*other"):
        written.engines(dense=str(other)).body("jpq-hnsw", QUERY)


@pytest.mark.cluster
def test_as_bytes_they_are_found_too_however_long_the_query_is(
    written: Written, index_name: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written.model.info.path
    job = job_of(corpus, index_name, path, reconstruct=True, dense_type="byte", sparse="none")
    run_job(written.client, job, show_progress=False)
    as_bytes = Written(written.client, index_name, path, written.texts)
    engines = as_bytes.engines()
    inner = written.inner_products(QUERY)
    best = sorted(inner, key=inner.__getitem__, reverse=True)[:10]
    encoder = engines.models.reconstructed
    vector = encoder.encode_queries([QUERY])
    for length in (1, 30):
        monkeypatch.setattr(type(encoder), "encode_queries", lambda self, texts, by=length: by * vector)
        assert len(set(as_bytes.hits(engines.body("jpq-hnsw", QUERY))) & set(best)) >= 9, length


@pytest.mark.cluster
def test_faiss_here_and_the_script_there_give_the_same_ranking(written: Written) -> None:
    engines = written.engines()
    inner = written.inner_products(QUERY)
    best = sorted(inner, key=inner.__getitem__, reverse=True)
    by_faiss = engines.body("faiss", QUERY, size=7, from_=3)
    assert list(written.hits(by_faiss)) == best[3:10]
    assert list(written.hits(queries.quantized(look_up_table(engines.models, QUERY), size=7, from_=3))) == best[3:10]
    narrowed = {"terms": {"_id": best[20:30]}}
    assert list(written.hits(engines.body("faiss", QUERY, size=5, filter=narrowed))) == best[20:25]
    with pytest.raises(InputError, match="at most 1,000 hits by their ids, not 1,001"):
        engines.body("faiss", QUERY, size=1001)


@pytest.mark.cluster
def test_documents_deleted_since_the_codes_were_read_leave_no_gap(client, index_name: str, corpus: Path, model: Path,
                                                                  texts: list[str]) -> None:  # fmt: skip
    run_job(client, job_of(corpus, index_name, model), show_progress=False)
    written = Written(client, index_name, model, texts)
    engines = written.engines()
    engines.body_of("faiss")
    before = list(written.hits(engines.body("faiss", QUERY, size=10)))
    documents = Documents(client, index_name, device="cpu")
    documents.delete(before[:3])
    documents.add([{"_id": "new", "text": "sun light water sun light water"}])
    after = list(written.hits(engines.body("faiss", QUERY, size=10)))
    assert after[:7] == before[3:]
    assert len(after) == 10
    # A document that was added has its code, and the next to read the codes finds it.
    ids, codes = read_codes(client, index_name, 4)
    assert (codes[ids.index("new")] == written.model.encode_documents(["sun light water sun light water"])).all()


@pytest.mark.cluster
def test_passages_are_found_once_by_their_best_codes(client, index_name: str, corpus: Path, model: Path) -> None:
    settings = {"passages": PassageMeta(6, 3), "reconstruct": True}
    run_job(client, job_of(corpus, index_name, model, **settings), show_progress=False)
    engines = open_engines(client, index_name)
    for engine in ("jpq-rescore", "jpq-hnsw", "faiss", "cascade", "cascade after high-idf-first"):
        engine, _, first = engine.partition(" after ")
        body = engines.with_settings(first=first or None).body(engine, QUERY, size=5)
        hits = client.search(index=index_name, body=body)["hits"]["hits"]
        passages = queries.best_passages(body, hits, size=5)
        assert len({id for id, _ in passages}) == len(passages) == 5, engine


# ------------------------------------------------------------------------------------------------ what does not fit


@pytest.mark.cluster
def test_codes_of_another_model_are_refused(written: Written, corpus: Path, texts: list[str], tmp_path: Path) -> None:
    other = quantized_model(tmp_path / "other", texts, seed=5)
    with pytest.raises(ModelError, match="was written with the quantized model model"):
        run_job(written.client, job_of(corpus, written.index, other), show_progress=False)
    with pytest.raises(ModelError, match="was written with the quantized model model"):
        written.engines(pq=str(other)).body_of("cascade")
    with pytest.raises(ModelError, match="holds quantized vectors, and this ingest brings none"):
        run_job(written.client, job_of(corpus, written.index, other, pq="none", dense="none"), show_progress=False)
    with pytest.raises(InputError, match="reconstructed vectors need the codes of a quantized model"):
        run_job(
            written.client, job_of(corpus, f"{written.index}-x", other, pq=None, reconstruct=True), show_progress=False
        )


@pytest.mark.cluster
def test_codes_from_files_make_the_same_index_as_codes_from_the_model(
    client,
    index_name: str,
    corpus: Path,
    model: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: dict[str, Any] = {"sparse": "none", "store_vectors": True}
    faiss = tmp_path / "codes.faiss"
    encoding = EncodeJob(
        CorpusSource(str(corpus)), tmp_path / "v", Models(sparse="none", pq=str(model), device="cpu"), faiss=faiss
    )
    run_encode(encoding, show_progress=False)
    for dense_type in ("float", "byte"):
        names = [f"{index_name}-{dense_type}-{kind}" for kind in "mv"]
        settings = {**kept, "reconstruct": True, "dense_type": dense_type}
        run_job(client, job_of(corpus, names[0], model, **settings), show_progress=False)
        settings = {**settings, "pq": None, "sparse": None, "vectors": tmp_path / "v"}
        run_job(client, job_of(corpus, names[1], model, **settings), show_progress=False)
        from_model, from_files = (
            {hit["_id"]: hit["_source"] for hit in client.search(index=name, body={"size": 100})["hits"]["hits"]}
            for name in names
        )
        assert from_model == from_files
        assert {"pq", "dense"} <= from_model["d000"].keys()
    # The machine that writes may not know the model that encoded: then it is named.
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(ModelError):
        run_job(client, job_of(corpus, f"{index_name}-e", model, **settings), show_progress=False)
    run_job(client, job_of(corpus, f"{index_name}-e", model, **{**settings, "pq": str(model)}), show_progress=False)
    # Once named it is known, for queries too.
    assert open_engines(client, f"{index_name}-e").models.quantized.info.hash == load_quantized(model).info.hash
    other = quantized_model(tmp_path / "other", texts, seed=5)
    with pytest.raises(InputError, match="is another model"):
        run_job(client, job_of(corpus, f"{index_name}-f", model, **{**settings, "pq": str(other)}), show_progress=False)
    monkeypatch.undo()
    with pytest.raises(InputError, match="--dense, --tokenizer"):
        beside = {"vectors": tmp_path / "v", "dense": str(model)}
        run_job(client, job_of(corpus, index_name, model, **beside), show_progress=False)
    # What `osn encode --faiss` wrote serves in place of the index's codes, and what was deleted since is told.
    engines = open_engines(client, names[1], faiss=faiss)
    body = engines.body("faiss", QUERY, size=5)
    assert queries.listed_count(body) == 25
    assert body == open_engines(client, names[1]).body("faiss", QUERY, size=5)
    nearest = [hit["_id"] for hit in client.search(index=names[1], body=body)["hits"]["hits"]]
    delete_documents(client, names[1], nearest[:2])
    answer = client.search(index=names[1], body=body)["hits"]
    assert [hit["_id"] for hit in answer["hits"]][:3] == nearest[2:]
    assert answer["total"]["value"] == 23


def test_a_file_of_codes_that_does_not_belong_is_refused(model: Path, texts: list[str], tmp_path: Path) -> None:
    loaded = load_quantized(model, device="cpu")
    file = tmp_path / "codes.faiss"
    with pytest.raises(InputError, match=r"codes\.faiss cannot be read"):
        QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)
    file.write_bytes(b"no index")
    with pytest.raises(InputError, match=r"codes\.faiss cannot be read"):
        QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)
    ids = [str(number) for number in range(len(texts))]
    write_index(file, ids, loaded.encode_documents(texts), random_quantizer(32, 4))
    with pytest.raises(ModelError, match="belong to another quantized model"):
        QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)
    write_index(file, ids, loaded.encode_documents(texts), loaded.quantizer)
    read = QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)
    in_memory = QuantizedRetriever(ids, loaded.encode_documents(texts), loaded.quantizer, loaded.encode_queries)
    assert read.retrieve({"q": QUERY}, 10) == in_memory.retrieve({"q": QUERY}, 10)
    write_index(file, ids, loaded.encode_documents(texts), loaded.quantizer, candidates=6)
    scanned = QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)
    # So few documents are all of them candidates.
    assert scanned.retrieve({"q": QUERY}, 10)["q"] == pytest.approx(in_memory.retrieve({"q": QUERY}, 10)["q"])
    file.with_name("codes.faiss.ids.json").write_text('["0"]')
    with pytest.raises(InputError, match="holds 60 codes for 1 documents"):
        QuantizedRetriever.read(file, loaded.quantizer, loaded.encode_queries)


@pytest.mark.cluster
def test_engines_that_lack_codes_say_what_to_ingest(client, index_name: str, corpus: Path, model: Path) -> None:
    run_job(client, job_of(corpus, index_name, model, pq=None), show_progress=False)
    engines = open_engines(client, index_name)
    for engine in ("cascade", "jpq-rescore", "faiss"):
        with pytest.raises(ModelError, match="holds no quantized vectors"):
            engines.body_of(engine)
        assert not engines.serves(engine)
    with pytest.raises(ModelError) as refused:
        engines.body_of("cascade")
    assert refused.value.remedy == "ingest with --pq MODEL or with --dense MODEL"
    with pytest.raises(ModelError, match="holds no reconstructed vectors"):
        engines.body_of("jpq-hnsw")
    with pytest.raises(ClusterError, match="holds no codes"):
        read_codes(client, index_name, 4)


@pytest.mark.cluster
def test_codes_of_other_lengths_are_not_read_as_if_they_followed_each_other(client, index_name: str) -> None:
    client.indices.create(
        index=index_name, body={"mappings": {"properties": {"pq": {"type": "binary", "doc_values": True}}}}
    )
    for length in (3, 5):
        client.index(index=index_name, body={"pq": b64encode(bytes(length)).decode()}, refresh=True)
    with pytest.raises(ClusterError, match=r"holds codes of 3, 5 bytes, but its model makes codes of 4"):
        read_codes(client, index_name, 4)


@pytest.mark.cluster
def test_a_vector_that_is_not_finite_costs_its_document_alone(
    client, index_name: str, corpus: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opensearch_neural.models.dense import torch_encoder as dense

    encode = dense.TorchDenseEncoder.encode_documents

    def broken(self: dense.TorchDenseEncoder, texts: list[str], **how: Any) -> Any:
        if "\n".join(texts).count("yeast yeast yeast"):
            raise ModelError("model gives a vector that is not finite")
        return encode(self, texts, **how)

    monkeypatch.setattr(dense.TorchDenseEncoder, "encode_documents", broken)
    lines = corpus.read_text() + json.dumps({"_id": "nan", "text": "yeast yeast yeast"}) + "\n"
    other = corpus.with_name("nan.jsonl")
    other.write_text(lines)
    report = run_job(client, job_of(other, index_name, model), show_progress=False)
    assert (report.documents, report.letters) == (60, 1)


def test_a_query_of_zeros_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_quantized(model, device="cpu")
    monkeypatch.setattr(type(loaded), "encode_queries", lambda self, texts: np.zeros((len(texts), 32), np.float32))

    def engines(meta: IndexMeta) -> Engines:
        models = IndexModels("docs", meta).holding(quantized=loaded, dense=cast(Any, loaded))
        return Engines("docs", meta, True, models)

    with pytest.raises(InputError, match="all zeros"):
        engines(IndexMeta(quantized=QuantizedMeta("m", loaded.info.hash, 4))).body("jpq-rescore", QUERY)
    for engine in ("jpq-hnsw", "dense"):
        made = DenseMeta("m", loaded.info.hash, 32, "float", False, reconstructed=engine == "jpq-hnsw")
        with pytest.raises(InputError, match="all zeros"):
            engines(IndexMeta(dense=made)).body(engine, QUERY)


def opened_with(extra: dict[str, Any], **settings: Any) -> Engines:
    """The engines of an index with these entries in its record."""
    meta = IndexMeta(extra=extra)
    return Engines("docs", meta, True, IndexModels("docs", meta), settings)


def test_the_cascade_searches_as_it_was_tuned_unless_told_otherwise() -> None:
    tuned = CascadeSetting(Rare("count", 2), 80, 40, 0.25, "high-idf-first")

    def cascade(stored: dict[str, Any], **settings: Any) -> CascadeSetting:
        return CascadeSetting.of(opened_with({CascadeSetting.key: stored}, **settings))

    stored = {**tuned.record, "keep": 1}
    assert cascade(stored) == tuned
    assert cascade(stored, weight=2.0, dense_window=10) == replace(tuned, weight=2.0, dense_window=10)
    # As it was stored before there was a choice of what comes first.
    older = {name: value for name, value in tuned.record.items() if name != "first"}
    assert (cascade(older).first, cascade(older).weight) == ("high-idf-first", 0.25)
    # What was tuned after one engine says nothing of the cascade after another.
    other = cascade(older, first="bm25-sparse")
    assert (other.first, other.weight, other.window) == ("bm25-sparse", CascadeSetting.weight, CascadeSetting.window)
    after_sum = {**tuned.record, "first": "bm25-sparse"}
    assert (cascade(after_sum).first, cascade(after_sum).weight) == ("bm25-sparse", 0.25)
    other = cascade(after_sum, first="high-idf-first")
    assert (other.first, other.weight, other.window) == ("high-idf-first", RARE_FIRST_WEIGHT, CascadeSetting.window)
    by_default = CascadeSetting.of(opened_with({}, window=9))
    assert (by_default.first, by_default.weight, by_default.window) == ("bm25-sparse", CascadeSetting.weight, 9)
    for broken in ({**tuned.record, "first": "dense"}, {**tuned.record, "first": None}, {"rare": "some", "window": 3}):
        with pytest.raises(ModelError, match="stores a setting of the engine 'cascade' that cannot be read"):
            cascade(broken)
    # Of what goes first, the settings of high-idf-first count for nothing here.
    assert CascadeSetting.of(opened_with({HighIdfFirstSetting.key: {"rare": "most"}})) == CascadeSetting(window=100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": "bm25_sparse"},
        {"first": "dense"},
        *({"weight": value} for value in (0, -1, math.nan, math.inf, 1e39, "much")),
        *({name: value} for name in ("window", "dense_window") for value in (0, -3, 1.5, True, "wide")),
        *({name: value} for name in ("rare", "tokens") for value in (2, "most", "ratio:2")),
        {"exact": "false"},
        {"clauses": 1},
    ],
)
def test_a_setting_that_is_none_is_named_at_once(wrong: dict[str, Any]) -> None:
    """From Python, some had no effect, and others failed at the first query, or gave infinite scores."""
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=re.escape(f"the setting {name}={value!r}: ")):
        opened_with({}, **wrong)
    with pytest.raises(InputError, match=re.escape(f"the setting {name}={value!r}: ")):
        opened_with({}).with_settings(**wrong)


def test_settings_may_be_spelled_as_on_the_command_line() -> None:
    chosen = {"rare": Rare("ratio", 1 / 3), "tokens": Rare("count", 8), "weight": 0.1, "window": 30, "first": None}
    assert opened_with({}, **chosen).settings == chosen, "nothing is lost of what is none of its texts"
    spelled = {"rare": "ratio:0.35", "tokens": "count:8", "weight": "0.1", "window": "30", "faiss": "codes"}
    read = {**chosen, "rare": Rare("ratio", 0.35), "faiss": Path("codes")}
    assert {**opened_with({}, **spelled).settings, "first": None} == read


def test_an_opened_index_resolves_each_setting_once() -> None:
    engines = opened_with({}, window=9, weight=2.0)
    for setting in (Bm25SparseSetting, HighIdfFirstSetting, CascadeSetting):
        assert setting.of(engines) is setting.of(engines)
    of_the_cascade = Bm25SparseSetting.for_cascade(engines)
    assert of_the_cascade is Bm25SparseSetting.for_cascade(engines) and of_the_cascade == Bm25SparseSetting(rare=None)
    other = engines.with_settings(window=8)
    assert [CascadeSetting.of(each).window for each in (other, engines)] == [8, 9]


# ------------------------------------------------------------------------------------------------------------- tuning


@pytest.fixture
def judged(written: Written, tmp_path: Path) -> Path:
    """Queries for which the nearest of the documents that share a word is the relevant one."""
    engines = written.engines()
    random = np.random.default_rng(4)
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    documents = [json.dumps({"_id": id, "text": text}) for id, text in zip(written.ids, written.texts, strict=True)]
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    lines, grades = [], ["query-id\tcorpus-id\tscore"]
    for number in range(24):
        text = " ".join(random.choice(WORDS, size=3, replace=False))
        sharing = written.hits(engines.body("sparse", text, size=60))
        inner = written.inner_products(text)
        lines.append(json.dumps({"_id": f"q{number}", "text": text}))
        grades.append(f"q{number}\t{max(sharing, key=inner.__getitem__)}\t1")
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(grades) + "\n")
    return folder


@pytest.mark.cluster
@pytest.mark.parametrize("first", ["high-idf-first", "bm25-sparse"])
def test_the_cascade_is_tuned_by_judgements_and_searches_so_from_then_on(
    written: Written, judged: Path, cluster_url: str, first: str
) -> None:
    asked = ["--url", cluster_url, "--index", written.index, "--engine", "cascade", "--passes", "1", "--most", "12"]
    after = ["--first", first] if first == "high-idf-first" else []
    tuned = CliRunner().invoke(tune, [*asked, "--data", str(judged), *after], catch_exceptions=False)
    assert tuned.exit_code == 0, tuned.output
    assert "cascade uses it from now on" in tuned.output
    try:
        stored = written.engines()
        record = stored.meta.extra[CascadeSetting.key]
        # What is relevant lies in the codes here, so the largest weights find it.
        assert record["weight"] >= 0.05 and record["first"] == first
        assert ("share of that of all tokens" if after else "share of that of bm25-sparse") in tuned.output
        assert record["kept"] > 1
        assert CascadeSetting.of(stored).weight == record["weight"]
        assert stored.body("cascade", QUERY)["rescore"][-1]["window_size"] == record["dense_window"]
        # High-IDF-first searches as it did.
        assert HighIdfFirstSetting.of(stored) == HighIdfFirstSetting()
    finally:
        write_record(written.client, written.index, replace(stored.meta, extra={}))
    with pytest.raises(InputError, match="--first is a setting of the cascade"):
        CliRunner().invoke(tune, [*asked[:4], "--first", "bm25-sparse"], catch_exceptions=False)
    with pytest.raises(InputError, match="cascade is tuned by judged queries, not by --queries"):
        CliRunner().invoke(tune, [*asked, "--queries", str(judged / "queries.jsonl")], catch_exceptions=False)


@pytest.mark.cluster
@pytest.mark.parametrize("relevant", ["the first of all tokens", "the nearest"])
def test_a_cascade_that_is_worse_on_held_back_queries_is_not_chosen(written: Written, relevant: str) -> None:
    engines = written.engines()
    engines.body_of("sparse")
    random = np.random.default_rng(5)
    texts = {f"q{number}": " ".join(random.choice(WORDS, size=3, replace=False)) for number in range(12)}
    best = {}
    for query, text in texts.items():
        sharing = written.hits(engines.body("sparse", text, size=60))
        inner = written.inner_products(text)
        best[query] = max(
            sharing, key=sharing.__getitem__ if relevant == "the first of all tokens" else inner.__getitem__
        )
    held_back = Questions(texts, {query: {document: 1} for query, document in best.items()})
    heavy = Tried(CascadeSetting(Rare("ratio", 0.0), 60, 60, 5.0, "high-idf-first"), 1.0, 1.0, 1.0)
    tried = [Tried(None, 2.0, 1.0, 1.0), heavy]
    chosen = CascadeTuning(written.client, engines).choose(tried, held_back, 0.99)
    if relevant == "the nearest":
        assert chosen is not None and chosen.setting == heavy.setting and chosen.kept > 1
    else:
        assert chosen is None


@pytest.mark.cluster
def test_engines_of_the_load_benchmark_search_as_osn_search_does(written: Written, cluster_url: str) -> None:
    specs = (
        "jpq-rescore+dense-window=20,jpq-hnsw,faiss,cascade+dense-window=7+first=high-idf-first+rare=count:2+weight=0.1"
    )
    specs += ",cascade+dense-window=7"
    target = LoadTarget(ConnectionSettings(urls=(cluster_url,)))
    workload = prepare(written.client, target, written.index, parse_variants(specs), [QUERY])
    built = {name: build(QUERY) for name, build in body_builders(workload).items()}
    expected = [
        written.engines(dense_window=20).body("jpq-rescore", QUERY),
        written.engines().body("jpq-hnsw", QUERY),
        written.engines().body("faiss", QUERY, track_total_hits=False),
        written.engines(weight=0.1, dense_window=7, rare=Rare("count", 2), first="high-idf-first").body(
            "cascade", QUERY
        ),
        written.engines(dense_window=7).body("cascade", QUERY),
    ]
    assert list(built.values()) == expected
    assert [spec_of(variant) for variant in workload.variants] == specs.split(",")


# -------------------------------------------------------------------------------------------------------- command line


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with an ONNX export, which is the same model."""
    return Path(vectors.exported(str(model), tmp_path_factory.mktemp("exported")))


@pytest.mark.cluster
def test_the_cascade_is_searched_without_torch(written: Written, exported: Path, cluster_url: str) -> None:
    script = (
        "import sys; from opensearch_neural.cli import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'transformers', 'faiss'} & set(sys.modules), 'imported'"
    )
    assert vectors.exported(str(exported), exported.parent) == str(exported)
    assert load_quantized(exported, backend="onnx").info.hash == written.model.info.hash
    asked = ["--url", cluster_url, "--index", written.index, "--engine", "cascade", "--backend", "onnx"]
    command = [sys.executable, "-c", script, "search", *asked, "--pq", str(exported), "--json", QUERY]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = [hit["id"] for hit in json.loads(done.stdout)["hits"]]
    assert shown == list(written.hits(written.engines().body("cascade", QUERY)))
    assert "warning" not in done.stderr


def test_in_8_bits_queries_have_nearly_the_same_vectors(exported: Path, texts: list[str], tmp_path: Path) -> None:
    whole = load_quantized(exported, backend="onnx").encode_queries(texts)
    rounded = load_quantized(exported, backend="onnx-int8").encode_queries(texts)
    cosines = (whole * rounded).sum(1) / np.linalg.norm(whole, axis=1) / np.linalg.norm(rounded, axis=1)
    assert 0.95 < cosines.min() < cosines.max() < 1 - 1e-7
    shutil.copytree(exported, tmp_path / "float")
    for file in (tmp_path / "float").rglob(INT8_FILE):
        file.unlink()
    with pytest.raises(ModelError, match=r"no onnx/model_int8.onnx\n.*int8=True"):
        load_quantized(tmp_path / "float", backend="onnx-int8")


@pytest.mark.cluster
def test_explained_tokens_and_codes_add_up_to_the_score(written: Written) -> None:
    for engine, first, has_tokens in (
        ("cascade", "high-idf-first", True),
        ("cascade", "bm25-sparse", True),
        ("jpq-rescore", None, False),
    ):
        body = written.engines(first=first, window=12, dense_window=5).body(engine, QUERY, size=3)
        hits = written.client.search(index=written.index, body=queries.explained(body))["hits"]["hits"]
        assert len(hits) == 3
        for hit in hits:
            parts = shares(hit["_explanation"])
            assert sum(share.score for share in parts) == pytest.approx(hit["_score"], rel=1e-5)
            assert any(share.source == "codes" and share.score > 0 for share in parts)
            assert (len(parts) > 1) == has_tokens, "what BM25 found counts nothing once the codes have ranked it"
            assert doubts(body, [(parts, hit["_score"])]) == [None]
