"""`osn encode --pq`: codes in files, of documents added later too, and faiss's index of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from corpora import parts_of, records, write_jsonl

pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")

from quantized_models import quantized_model

from ingest.corpus import CorpusSource
from ingest.index_content import SAMPLE, Content, content_of_files
from ingest.settings import Models, NewIndex
from ingest.vectorizers import Encoders
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.vectors.stored_vectors import Manifest, StoredVectors, find_manifest
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.models.dense.dense_encoder import DenseEncoder
from opensearch_neural.models.dense.quantized import QUANTIZER_FILE, QuantizedModel, Quantizer, load_quantized
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, load_dense


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [record["text"] for record in records(40) if isinstance(record, dict)]
    return quantized_model(tmp_path_factory.mktemp("model"), texts)


def encoding(corpus: Path, out: Path, model: Path, **settings: Any) -> EncodeJob:
    return EncodeJob(
        CorpusSource(str(corpus)), out, shard_records=16, **parts_of({"sparse": "none", "pq": str(model), **settings})
    )


def documents_of(corpus: Path) -> list[Document]:
    return list(CorpusSource(str(corpus)).reader(str(corpus))(print))


def test_codes_in_files_are_those_of_the_model_also_of_documents_added_later(tmp_path: Path, model: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(40))
    run_encode(encoding(corpus, tmp_path / "v", model), show_progress=False)
    loaded = load_quantized(model, device="cpu")
    stored = StoredVectors(*find_manifest(tmp_path / "v"))
    assert stored.manifest.quantized and stored.manifest.quantized.hash == loaded.info.hash
    documents = documents_of(corpus)
    expected = loaded.encode_documents([document.contents for document in documents])
    codes = stored.vectors(documents).codes
    assert codes is not None and (codes == expected).all()

    write_jsonl(corpus, [*records(40), *records(10, seed=3)])
    grown = run_encode(encoding(corpus, tmp_path / "v", model), show_progress=False)
    assert grown.reused == 2
    ids, codes = StoredVectors(*find_manifest(tmp_path / "v")).codes()
    documents = documents_of(corpus)
    assert ids == [document.id for document in documents]
    assert (codes == loaded.encode_documents([document.contents for document in documents])).all()


@pytest.mark.parametrize("more", [[], ["--faiss-candidates", "2"]])
def test_faiss_reads_the_index_and_scores_as_the_model_does(tmp_path: Path, model: Path, more: list[str]) -> None:
    faiss = pytest.importorskip("faiss", reason="needs the extra [eval]")
    from ingest.commands.encode import encode

    corpus = write_jsonl(tmp_path / "d.jsonl", records(40))
    file = tmp_path / "made" / "jpq.faiss"
    arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "v"), "--sparse", "none", "--pq", str(model)]
    done = CliRunner().invoke(encode, [*arguments, "--faiss", str(file), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    index, ids = faiss.read_index(str(file)), json.loads((tmp_path / "made" / "jpq.faiss.ids.json").read_text())
    documents = documents_of(corpus)
    assert ids == [document.id for document in documents]
    loaded = load_quantized(model, device="cpu")
    query = loaded.encode_queries([documents[7].contents])
    scores, rows = index.search(query, 40)
    expected = (
        query @ loaded.quantizer.reconstruct(loaded.encode_documents([document.contents for document in documents])).T
    )
    np.testing.assert_allclose(scores[0], expected[0][rows[0]], rtol=1e-4, atol=1e-4)


def test_documents_are_encoded_once_where_codes_and_vectors_are_of_one_encoder(tmp_path: Path, model: Path) -> None:
    documents = documents_of(write_jsonl(tmp_path / "d.jsonl", records(20)))
    loaded = load_quantized(model, device="cpu")
    expected = loaded.encode_documents([document.contents for document in documents])

    def encoded(dense: DenseEncoder) -> tuple[bool, int]:
        """Whether the codes are those of the model alone, and how often its own encoder was asked for them."""
        encoders, asked = Encoders(dense=dense, quantized=loaded), []
        assert isinstance(encoders.alike, bool)  # Asks for its probes before what is counted.
        with pytest.MonkeyPatch.context() as patch:
            plain = QuantizedModel.encode_documents
            patch.setattr(QuantizedModel, "encode_documents", lambda *a, **k: asked.append(1) or plain(*a, **k))
            codes = encoders.vectors(documents).codes
        return codes is not None and (codes == expected).all(), len(asked)

    assert encoded(load_dense(model, device="cpu")) == (True, 0)
    assert encoded(load_dense(model, device="cpu", max_length=8)) == (True, 1)
    other = load_dense(model, device="cpu")
    assert isinstance(other, TorchDenseEncoder)
    next(other.model.parameters()).data[0, 0] += 1e-3
    assert encoded(other) == (True, 1)


def test_codes_are_made_of_vectors_in_files_where_the_model_would_make_the_same(tmp_path: Path, model: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    source = CorpusSource(str(corpus))
    run_encode(EncodeJob(source, tmp_path / "v", Models(sparse="none", dense=str(model))), show_progress=False)
    documents = documents_of(corpus)
    contents = [document.contents for document in documents]

    def planned(pq: Path) -> Content:
        stored = StoredVectors(*find_manifest(tmp_path / "v"))
        return content_of_files(Models(pq=str(pq)), NewIndex(), stored, source.reader(str(corpus)))

    # Of the same documents' encoder, with another quantizer and other centroids.
    other = shutil.copytree(model, tmp_path / "other")
    quantizer = Quantizer.load(model / QUANTIZER_FILE)
    moved = quantizer.assigning[:, ::-1].copy()
    Quantizer(quantizer.rotation, moved, moved).save(other / QUANTIZER_FILE)
    hashes = set()
    for pq in (model, other):
        plan, loaded = planned(pq), load_quantized(pq, device="cpu")
        vectors = plan.vectorizer.vectors(documents)
        assert vectors.dense is not None and vectors.codes is not None
        assert (vectors.codes == loaded.encode_documents(contents)).all()
        assert plan.meta.quantized is not None and plan.meta.quantized.hash == loaded.info.hash
        assert plan.meta.dense is not None and plan.meta.dense.hash == load_dense(model).info.hash
        hashes.add(plan.meta.quantized.hash)
    assert len(hashes) == 2
    # Codes that are there serve where they are the model's; another model's take their place.
    run_encode(
        EncodeJob(source, tmp_path / "w", Models(sparse="none", dense=str(model), pq=str(model))), show_progress=False
    )
    with_codes = StoredVectors(*find_manifest(tmp_path / "w"))
    for pq in (model, other):
        plan = content_of_files(Models(pq=str(pq)), NewIndex(), with_codes, source.reader(str(corpus)))
        loaded = load_quantized(pq, device="cpu")
        assert (plan.vectorizer is with_codes) == (pq == model)
        vectors = plan.vectorizer.vectors(documents)
        assert vectors.codes is not None and (vectors.codes == loaded.encode_documents(contents)).all()
        assert plan.meta.quantized is not None and plan.meta.quantized.hash == loaded.info.hash
    stranger = quantized_model(tmp_path / "stranger", contents, seed=5)
    with pytest.raises(InputError, match="encodes documents differently") as caught:
        planned(stranger)
    assert caught.value.remedy is not None and f"`osn encode --pq {stranger}`" in caught.value.remedy


def test_the_scale_of_bytes_needs_the_first_codes_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All codes of a large corpus, and their ids, would not fit into memory."""
    corpus = write_jsonl(tmp_path / "d.jsonl", records(SAMPLE + 50))
    run_encode(encoding(corpus, tmp_path / "v", model), show_progress=False)
    stored = StoredVectors(*find_manifest(tmp_path / "v"))
    monkeypatch.setattr(stored, "codes", None)
    wanted = Models(pq=str(model), reconstruct=True)
    content = content_of_files(
        wanted, NewIndex(dense_type="byte"), stored, CorpusSource(str(corpus)).reader(str(corpus))
    )
    loaded = load_quantized(model, device="cpu")
    first = loaded.encode_documents([document.contents for document in documents_of(corpus)[:SAMPLE]])
    vectors = loaded.quantizer.reconstruct(first)
    assert content.meta.dense is not None and content.meta.dense.scale == pytest.approx(127 / abs(vectors).max())


def test_codes_are_made_of_passages_in_files(tmp_path: Path, model: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    source = CorpusSource(str(corpus))
    passages = PassageMeta(6, 3)
    run_encode(
        EncodeJob(source, tmp_path / "v", Models(sparse="lexical", dense=str(model), passages=passages)),
        show_progress=False,
    )
    stored = StoredVectors(*find_manifest(tmp_path / "v"))
    plan = content_of_files(Models(pq=str(model)), NewIndex(), stored, source.reader(str(corpus)))
    documents = [record for record in plan.records(print) if isinstance(record, Document)]
    assert len(documents) > 20
    codes = plan.vectorizer.vectors(documents).codes
    expected = load_quantized(model, device="cpu").encode_documents([document.contents for document in documents])
    assert codes is not None and (codes == expected).all()


def test_what_cannot_be_encoded_so_is_named(tmp_path: Path, model: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(5))
    with pytest.raises(InputError, match="--faiss needs codes") as caught:
        run_encode(
            EncodeJob(CorpusSource(str(corpus)), tmp_path / "v", Models(), faiss=tmp_path / "f"), show_progress=False
        )
    assert caught.value.remedy == "give --pq MODEL"
    with pytest.raises(InputError, match="has no effect without a faiss index"):
        run_encode(encoding(corpus, tmp_path / "v", model, faiss_candidates=5), show_progress=False)
    with pytest.raises(InputError, match="reconstructed vectors are not written"):
        run_encode(encoding(corpus, tmp_path / "v", model, reconstruct=True), show_progress=False)
    twice = write_jsonl(tmp_path / "e.jsonl", [*records(3), *records(3)])
    with pytest.raises(InputError, match="occurs more than once"):
        run_encode(encoding(twice, tmp_path / "w", model, faiss=tmp_path / "f"), show_progress=False)
    assert not (tmp_path / "f").exists()
    run_encode(EncodeJob(CorpusSource(str(corpus)), tmp_path / "x", Models(sparse="lexical")), show_progress=False)
    with pytest.raises(InputError, match="holds no codes"):
        StoredVectors(*find_manifest(tmp_path / "x")).codes()


def test_an_encoding_without_codes_has_the_hash_that_it_had_before_there_were_any() -> None:
    # Computed by the version before: its folders must be found again.
    assert Manifest(CorpusSource("hf:some/set"), None, None).hash == "32520f137707b7de"
