"""Product quantization: codes, look-up tables, reconstruction and scores agree with each other and with faiss."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.dense.quantized import KIND, QUANTIZER_FILE, Quantizer, load_quantized
from opensearch_neural.models.directory import write_osn_json
from opensearch_neural.retrievers.faiss import QuantizedRetriever, quantized_index

D, M = 24, 4


def random_quantizer(seed: int = 0, *, d: int = D, m: int = M) -> Quantizer:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    assigning = rng.normal(size=(m, 256, d // m))
    scoring = assigning + 0.3 * rng.normal(size=assigning.shape)
    return Quantizer(*(tensor.astype(np.float32) for tensor in (rotation, assigning, scoring)))


@pytest.fixture(scope="module")
def quantizer() -> Quantizer:
    return random_quantizer()


def vectors(n: int, *, seed: int = 1, d: int = D) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def test_a_vector_worked_out_by_hand() -> None:
    # Two parts of one coordinate each; the rotation swaps the coordinates. Centroid j of each part is j / 10 for
    # assigning and −j for scoring.
    centroids = np.tile(np.arange(256, dtype=np.float32)[None, :, None], (2, 1, 1))
    swapped = Quantizer(np.array([[0, 1], [1, 0]], np.float32), centroids / 10, -centroids)
    # (0.31, 1.24) rotated is (1.24, 0.31): nearest are 1.2 and 0.3.
    codes = swapped.encode(np.array([[0.31, 1.24]], np.float32))
    assert codes.tolist() == [[12, 3]]
    # Reconstructed in rotated coordinates (−12, −3), rotated back (−3, −12).
    assert swapped.reconstruct(codes).tolist() == [[-3, -12]]
    query = np.array([2, 1], np.float32)
    assert swapped.table(query)[:, 5].tolist() == [-5, -10]
    assert swapped.table(query)[np.arange(2), codes[0]].tolist() == [1 * -12, 2 * -3]


def test_scores_are_sums_of_the_table_and_inner_products_with_the_reconstruction(quantizer: Quantizer) -> None:
    documents, queries = vectors(300), vectors(3, seed=2)
    codes = quantizer.encode(documents)
    assert codes.dtype == np.uint8
    assert codes.shape == (300, M)
    for query, row in zip(queries, queries @ quantizer.reconstruct(codes).T, strict=True):
        table = quantizer.table(query)
        assert table.shape == (M, 256)
        np.testing.assert_allclose(row, table[np.arange(M), codes].sum(axis=1), atol=1e-4)


def test_codes_are_of_the_nearest_assigning_centroids_whatever_the_scoring_ones_are(quantizer: Quantizer) -> None:
    documents = vectors(50)
    parts = (documents @ quantizer.rotation.T).reshape(50, M, 1, -1)
    nearest = np.square(parts - quantizer.assigning[None]).sum(axis=3).argmin(axis=2)
    codes = quantizer.encode(documents)
    assert (codes == nearest).all()
    other = Quantizer(quantizer.rotation, quantizer.assigning, -quantizer.scoring)
    assert (other.encode(documents) == codes).all()


def test_blocks_give_what_one_pass_gives(quantizer: Quantizer, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = vectors(50)
    codes, rebuilt = quantizer.encode(documents), quantizer.reconstruct(quantizer.encode(documents))
    monkeypatch.setattr("opensearch_neural.models.dense.quantized._NUMBERS_AT_ONCE", 7 * M * 256)
    assert (quantizer.encode(documents) == codes).all()
    monkeypatch.setattr("opensearch_neural.models.dense.quantized._NUMBERS_AT_ONCE", 7 * D)
    np.testing.assert_allclose(quantizer.reconstruct(codes), rebuilt, atol=1e-6)
    assert quantizer.encode(documents[:0]).shape == (0, M)
    assert quantizer.reconstruct(codes[:0]).shape == (0, D)


@pytest.mark.parametrize(("d", "m"), [(24, 1), (24, 3), (24, 24), (20, 4)])
def test_faiss_gives_the_same_codes_and_with_its_centroids_replaced_the_same_scores(d: int, m: int) -> None:
    faiss = pytest.importorskip("faiss", reason="needs the extra [eval]")
    documents, queries = vectors(400, d=d), vectors(5, seed=3, d=d)
    quantizer = random_quantizer(d=d, m=m)
    index: Any = faiss.index_factory(d, f"OPQ{m},PQ{m}x8", faiss.METRIC_INNER_PRODUCT)
    opq, inner = faiss.downcast_VectorTransform(index.chain.at(0)), faiss.downcast_index(index.index)
    faiss.copy_array_to_vector(quantizer.rotation.ravel(), opq.A)
    faiss.copy_array_to_vector(quantizer.assigning.ravel(), inner.pq.centroids)
    opq.is_trained = inner.is_trained = index.is_trained = True
    index.add(documents)
    codes = faiss.vector_to_array(inner.codes).reshape(-1, m)
    other = np.nonzero(quantizer.encode(documents) != codes)
    # Where two centroids are equally near, rounding decides.
    assert len(other[0]) < 0.02 * codes.size
    parts = (documents @ quantizer.rotation.T).reshape(-1, m, d // m)[other]
    ours, theirs = (quantizer.assigning[other[1], chosen[other]] for chosen in (quantizer.encode(documents), codes))
    np.testing.assert_allclose(np.square(parts - ours).sum(1), np.square(parts - theirs).sum(1), atol=1e-6)

    faiss.copy_array_to_vector(quantizer.scoring.ravel(), inner.pq.centroids)
    scores, positions = index.search(queries, len(documents))
    expected = np.take_along_axis(queries @ quantizer.reconstruct(codes).T, positions, axis=1)
    np.testing.assert_allclose(scores, expected, atol=1e-4)

    written = quantized_index(quantizer, codes)
    np.testing.assert_allclose(written.search(queries, len(documents))[0], scores, atol=1e-5)


def test_the_retriever_ranks_by_the_quantizers_scores(quantizer: Quantizer) -> None:
    pytest.importorskip("faiss", reason="needs the extra [eval]")
    codes, queries = quantizer.encode(vectors(40)), vectors(2, seed=5)
    ids = [f"d{at}" for at in range(40)]
    retriever = QuantizedRetriever(ids, codes, quantizer, lambda texts: queries[[int(text) for text in texts]])
    run = retriever.retrieve({"a": "0", "b": "1"}, k=100)
    scores = queries @ quantizer.reconstruct(codes).T
    for row, query in enumerate("ab"):
        assert run[query] == pytest.approx(dict(zip(ids, scores[row].tolist(), strict=True)), abs=1e-4)
        best = [ids[at] for at in np.lexsort((ids, -scores[row]))]
        assert list(run[query]) == best
    nothing = QuantizedRetriever(ids, codes, quantizer, lambda texts: np.zeros((1, D), np.float32))
    with pytest.raises(InputError, match="query vector at position 0 is all zeros"):
        nothing.retrieve({"q": "any"}, k=3)
    with pytest.raises(InputError, match="39 documents but 40 codes"):
        QuantizedRetriever(ids[1:], codes, quantizer, lambda texts: queries)


@pytest.mark.parametrize("m", [6, 24])
def test_a_scan_finds_the_candidates_that_are_then_scored_exactly(m: int, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="needs the extra [eval]")
    documents, queries = vectors(3000, d=24), vectors(20, seed=3, d=24)
    quantizer = random_quantizer(d=24, m=m)
    codes = quantizer.encode(documents)
    index = quantized_index(quantizer, codes, candidates=10)
    scores, positions = index.search(queries, 20)
    exact = queries @ quantizer.reconstruct(codes).T
    np.testing.assert_allclose(scores, np.take_along_axis(exact, positions, axis=1), atol=1e-4)
    # Documents of equal codes are as good as each other: what counts is the score that is reached.
    reached = scores[:, -1] >= np.sort(exact, axis=1)[:, -20] - 1e-4
    assert reached.mean() > 0.8
    few = quantized_index(quantizer, codes, candidates=1).search(queries, 20)[0]
    assert few.sum() < scores.sum()
    # Written and read it is the same, and more documents than there are may be asked for.
    faiss.write_index(index, str(tmp_path / "scan.faiss"))
    read = faiss.read_index(str(tmp_path / "scan.faiss"))
    np.testing.assert_array_equal(read.search(queries, 20)[1], positions)
    small = quantized_index(quantizer, codes[:7], candidates=3).search(queries[:1], 100)[1]
    assert set(small.ravel().tolist()) == {-1, *range(7)}
    with pytest.raises(InputError, match="candidates must be at least 1, not 0"):
        quantized_index(quantizer, codes, candidates=0)
    with pytest.raises(InputError, match="codes of at least 2 bytes"):
        quantized_index(random_quantizer(d=24, m=1), codes[:, :1], candidates=5)


def test_saved_and_loaded_it_is_the_same(quantizer: Quantizer, tmp_path: Path) -> None:
    quantizer.save(tmp_path / "q.safetensors")
    loaded = Quantizer.load(tmp_path / "q.safetensors")
    for name in ("rotation", "assigning", "scoring"):
        assert (getattr(loaded, name) == getattr(quantizer, name)).all()
    assert (loaded.dimension, loaded.subvectors) == (D, M)


def test_vectors_and_codes_that_do_not_fit_are_refused(quantizer: Quantizer) -> None:
    broken = vectors(3)
    broken[1, 2] = np.nan
    with pytest.raises(InputError, match="vector 1 of 3 holds a value that is not a finite number"):
        quantizer.encode(broken)
    with pytest.raises(InputError, match="expected query vectors of 24 dimensions"):
        quantizer.table(np.ones(7, np.float32))
    with pytest.raises(InputError, match="the query's vector is all zeros"):
        quantizer.table(np.zeros(D, np.float32))
    with pytest.raises(InputError, match="expected codes of 4 bytes"):
        quantizer.reconstruct(np.zeros((2, 5), np.uint8))
    with pytest.raises(InputError, match=r"expected codes of 4 bytes \(uint8\), got int64"):
        quantizer.reconstruct(np.zeros((2, 4), np.int64))


def test_a_corrupt_quantizer_is_refused_with_its_file_and_tensor(quantizer: Quantizer, tmp_path: Path) -> None:
    good = {"rotation": quantizer.rotation, "assigning": quantizer.assigning, "scoring": quantizer.scoring}
    file = tmp_path / "q.safetensors"
    nan = quantizer.scoring.copy()
    nan[0, 0, 0] = np.nan
    cases = [
        ({"scoring": nan}, "scoring holds values that are not finite"),
        ({"rotation": 2 * quantizer.rotation}, "rotation is not orthogonal"),
        ({"rotation": quantizer.rotation[:-1]}, r"rotation has the shape \(23, 24\)"),
        ({"assigning": quantizer.assigning[:, :255]}, r"assigning centroids have the shape \(4, 255, 6\)"),
        ({"scoring": quantizer.scoring.reshape(8, 256, 3)}, "differ in M"),
    ]
    for changed, message in cases:
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in (good | changed).items()}, file)
        with pytest.raises(ModelError, match=message) as caught:
            Quantizer.load(file)
        assert str(file) in caught.value.message
    save_file({"rotation": quantizer.rotation}, file)
    with pytest.raises(ModelError, match="the tensor 'assigning' is missing"):
        Quantizer.load(file)
    file.write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="cannot be read"):
        Quantizer.load(file)
    with pytest.raises(ModelError, match="does not exist"):
        Quantizer.load(tmp_path / "none.safetensors")


def two_towers(folder: Path, tokenizer_folder: Path, d: int = 32) -> Path:
    """A Router directory of kind "quantized" with two small random encoders."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")
    from sentence_transformers.base.modules import Router

    from .test_torch_encoder import modules_of, small_bert

    router = Router.for_query_document(
        modules_of(small_bert(folder / "q", tokenizer_folder, seed=1)),
        modules_of(small_bert(folder / "d", tokenizer_folder, seed=2)),
    )
    sentence_transformers.SentenceTransformer(modules=[router]).save_pretrained(str(folder / "model"))
    random_quantizer(d=d).save(folder / "model" / QUANTIZER_FILE)
    write_osn_json(folder / "model", KIND)
    return folder / "model"


def test_a_directory_encodes_queries_and_documents_by_their_own_towers(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = two_towers(tmp_path, tokenizer_folder)
    model = load_quantized(folder, device="cpu")
    texts = ["open a file", "an item of a list"]
    assert model.info.kind == KIND
    assert model.info.name == "model"
    codes, queries = model.encode_documents(texts), model.encode_queries(texts)
    assert codes.shape == (2, M)
    assert (codes == model.quantizer.encode(model.dense.encode_documents(texts))).all()
    assert np.abs(queries - model.dense.encode_documents(texts)).max() > 1e-3

    random_quantizer().save(folder / QUANTIZER_FILE)
    with pytest.raises(ModelError, match="vectors have 32 dimensions, the quantizer's 24"):
        load_quantized(folder)
    assert load_quantized_hash(folder) != model.info.hash
    (folder / QUANTIZER_FILE).unlink()
    with pytest.raises(ModelError, match=f"{QUANTIZER_FILE} does not exist"):
        load_quantized(folder)
    write_osn_json(folder, "dense")
    with pytest.raises(ModelError, match=r"is no quantized model \(a dense model\)"):
        load_quantized(folder)
    shutil.rmtree(folder)


def load_quantized_hash(folder: Path) -> str:
    from opensearch_neural.models.directory import hash_files

    return hash_files(folder)
