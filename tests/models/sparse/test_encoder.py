"""Sparse models of every layout are loaded with one call, and encode as sentence-transformers does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from own_code import give_own_code

from opensearch_neural.errors import ModelError
from opensearch_neural.models.directory import write_osn_json
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.sparse.word_pieces import train_word_pieces
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.query_encoder import QueryEncoder

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")

TEXTS = [
    "Open a file for reading.",
    "",
    "Return the number of items in a container, or raise an error where it has no length at all. " * 30,
    "naïve café 東京 \U0001f642",
    "word",
    "the literal [SEP] and [MASK] in a text",
]
QUERIES = ["what is a file?", "a file, a file", "", "literal [SEP] token", "word " * 600 + "container"]
VOCABULARY = 900


def masked_lm(
    folder: Path, tokenizer_folder: Path, architecture: str = "Bert", *, bias: float = -0.2, seed: int = 0
) -> Path:
    """A small masked language model with random weights; some tenth of its weights are above 0."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(seed)
    sizes: dict[str, object] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "pad_token_id": 0,
        "initializer_range": 0.1,
    }
    if architecture == "DistilBert":
        sizes |= {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}
    if architecture in ("Electra", "Albert"):
        sizes |= {"embedding_size": 16}
    config = getattr(transformers, f"{architecture}Config")(**sizes)
    model = getattr(transformers, f"{architecture}ForMaskedLM")(config)
    if (last := model.get_output_embeddings()) is not None and last.bias is not None:
        last.bias.data.fill_(bias)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def router_model(
    folder: Path,
    tokenizer_folder: Path,
    *,
    activation: str = "log1p_relu",
    pooling: str = "max",
    legacy: bool = False,
    **options: object,
) -> sentence_transformers.SparseEncoder:
    """The layout of opensearch-neural-sparse-encoding-doc-v3-distill, written by sentence-transformers itself."""
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SparseStaticEmbedding, SpladePooling
    from transformers import AutoTokenizer

    backbone = str(masked_lm(folder.with_name(folder.name + "-backbone"), tokenizer_folder))
    document = MLMTransformer(backbone) if legacy else Transformer(backbone, transformer_task="fill-mask")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    weights = torch.rand(len(tokenizer), generator=torch.Generator().manual_seed(1)) * 5
    weights[tokenizer.convert_tokens_to_ids("a")] = 0
    router = Router.for_query_document(
        [SparseStaticEmbedding(tokenizer=tokenizer, weight=weights, frozen=True)],
        [document, SpladePooling(pooling, activation_function=activation)],
    )
    model = sentence_transformers.SparseEncoder(modules=[router], similarity_fn_name="dot", **options)
    model.save_pretrained(str(folder))
    return model


def as_dicts(matrix: torch.Tensor, vocabulary: list[str]) -> list[dict[str, float]]:
    """Rows as {token: weight}, without special tokens, which sentence-transformers keeps and this package drops."""
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    return [
        {vocabulary[i]: row[i].item() for i in row.nonzero().flatten().tolist() if vocabulary[i] not in special}
        for row in matrix.to_dense()
    ]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_router_encodes_documents_and_queries_as_sentence_transformers_does(
    tokenizer_folder: Path, tmp_path: Path, legacy: bool, pooling: str, activation: str
) -> None:
    folder = tmp_path / "model"
    theirs = router_model(folder, tokenizer_folder, activation=activation, pooling=pooling, legacy=legacy)
    ours = load_sparse(folder)
    assert ours.info.kind == "sparse"
    assert ours.info.name == "model"
    vectors = ours.encode_documents(TEXTS, batch_size=2)
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    assert any(expected)
    for row, wanted in zip(vectors.rows(), expected, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)
    queries = as_dicts(theirs.encode_query(QUERIES), ours.vocabulary)
    assert [ours.query.encode(text) for text in QUERIES] == [pytest.approx(query) for query in queries]
    assert "a" not in queries[0]


def test_the_published_layout_with_the_transformer_at_the_root_loads(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    theirs = router_model(folder, tokenizer_folder, legacy=True)
    # doc-v3-distill keeps the files of its masked language model at the top, beside the router's.
    for file in (folder / "document_0_MLMTransformer").iterdir():
        file.rename(folder / file.name)
    router = (folder / "router_config.json").read_text().replace('"document_0_MLMTransformer"', '""')
    (folder / "router_config.json").write_text(router)
    (folder / "document_0_MLMTransformer").rmdir()
    ours = load_sparse(folder)
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    assert list(ours.encode_documents(TEXTS).rows()) == [pytest.approx(row, abs=1e-5) for row in expected]


def test_a_query_route_given_as_a_json_table_is_read(tokenizer_folder: Path, tmp_path: Path) -> None:
    router_model(tmp_path / "model", tokenizer_folder)
    route = tmp_path / "model" / "query_0_SparseStaticEmbedding"
    (route / "model.safetensors").unlink()
    (route / "idf.json").write_text('{"file": 4.5, "a": 0}')
    (route / "config.json").write_text('{"frozen": true, "path": "/where/it/was/built/idf.json"}')
    assert QueryEncoder.load(tmp_path / "model").encode("a file word") == {"file": 4.5, "word": 1.0}
    (route / "idf.json").unlink()
    with pytest.raises(ModelError, match=r"the table '/where/it/was/built/idf\.json' is not in the model directory"):
        QueryEncoder.load(tmp_path / "model")


def test_a_query_table_in_bfloat16_which_numpy_lacks_is_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Before: TypeError, data type 'bfloat16' not understood."""
    router_model(tmp_path / "model", tokenizer_folder).bfloat16().save_pretrained(str(tmp_path / "halved"))
    # In a process of its own: other packages teach numpy the type.
    load = f"from opensearch_neural import QueryEncoder; QueryEncoder.load({str(tmp_path / 'halved')!r})"
    ran = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert re.search(r"ModelError: .*model\.safetensors: numpy cannot read its weights", ran.stderr), ran.stderr
    # The remedy of the message.
    sentence_transformers.SparseEncoder(str(tmp_path / "halved")).float().save_pretrained(str(tmp_path / "whole"))
    read, first = (QueryEncoder.load(tmp_path / name).weights for name in ("whole", "model"))
    assert read == pytest.approx(first, rel=2**-8)


def test_a_model_limited_to_few_weights_a_document_keeps_its_largest(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    router_model(folder, tokenizer_folder, max_active_dims=7)
    unlimited = tmp_path / "unlimited"
    router_model(unlimited, tokenizer_folder)
    for row, whole in zip(
        load_sparse(folder).encode_documents(TEXTS).rows(),
        load_sparse(unlimited).encode_documents(TEXTS).rows(),
        strict=True,
    ):
        assert row == dict(sorted(whole.items(), key=lambda item: -item[1])[:7]) or len(whole) < 7


@pytest.mark.parametrize(
    "architecture",
    ["Bert", "DistilBert", "Roberta", "XLMRoberta", "MPNet", "Electra", "ModernBert", "Albert", "DebertaV2"],
)
def test_the_head_of_every_architecture_is_split_off_exactly(
    tokenizer_folder: Path, tmp_path: Path, architecture: str
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folder = masked_lm(tmp_path / "model", tokenizer_folder, architecture)
    (folder / "idf.json").write_text('{"file": 4.5}')
    encoder = load_sparse(folder)
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS[:1], return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        logits = AutoModelForMaskedLM.from_pretrained(folder).eval()(**tokens).logits
    expected = as_dicts(torch.log1p(torch.relu(logits)).amax(dim=1), encoder.vocabulary)[0]
    assert len(expected) > 10
    assert encoder.encode_documents(TEXTS).row(0) == pytest.approx(expected, abs=1e-5)
    assert encoder.query.encode("file") == {"file": 4.5}


def test_order_and_values_do_not_depend_on_batches(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    (folder / "idf.json").write_text('{"file": 4.5}')
    encoder = load_sparse(folder)
    texts = [text[: 40 * i] for i in range(1, 6) for text in TEXTS]
    whole = list(encoder.encode_documents(texts, batch_size=64).rows())
    single = list(encoder.encode_documents(texts, batch_size=1).rows())
    assert whole == [pytest.approx(row, abs=1e-5) for row in single]
    assert len(encoder.encode_documents([])) == 0
    assert len(encoder.encode_documents(["half a surrogate pair \ud83d"])) == 1
    assert not {"[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"} & {token for row in whole for token in row}


def test_half_precision_stays_near_and_a_shorter_length_is_kept(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    (folder / "idf.json").write_text('{"file": 4.5}')
    full = load_sparse(folder, device="cpu").encode_documents(TEXTS).to_scipy()
    half = load_sparse(folder, device="cpu", dtype="bf16").encode_documents(TEXTS).to_scipy()
    assert 0 < np.abs(full - half).max() < 0.05
    cut = load_sparse(folder, max_length=8).encode_documents(["word " * 6, "word " * 6 + "container"])
    assert cut.row(0) == pytest.approx(cut.row(1))


def test_the_hash_follows_the_weights_and_not_the_measures(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    (folder / "idf.json").write_text('{"file": 4.5}')
    before = load_sparse(folder).info.hash
    write_osn_json(folder, "sparse", measures={"nDCG@10": 0.5})
    (folder / "README.md").write_text("measured")
    assert load_sparse(folder).info.hash == before
    (folder / "idf.json").write_text('{"file": 4.6}')
    assert load_sparse(folder).info.hash != before


def test_the_lexical_model_is_loaded_by_the_same_call(tmp_path: Path) -> None:
    words = train_word_pieces(TEXTS, vocabulary=VOCABULARY)
    build_lexical(TEXTS, tokenizer=words).save(tmp_path)
    assert load_sparse(tmp_path).info.kind == "lexical"


def test_what_is_wrong_with_a_directory_is_named(tokenizer_folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file
    from transformers import BertConfig, BertModel

    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    with pytest.raises(ModelError, match=r"no idf\.json"):
        load_sparse(folder)
    (folder / "idf.json").write_text('{"file": 4.5}')

    query_only = tmp_path / "query"
    query_only.mkdir()
    for name in ("tokenizer.json", "idf.json"):
        shutil.copy(folder / name, query_only)
    with pytest.raises(ModelError, match="documents cannot be encoded"):
        load_sparse(query_only)

    write_osn_json(folder, "dense")
    with pytest.raises(ModelError, match="kind 'dense'; expected a sparse one"):
        load_sparse(folder)
    (folder / "osn.json").write_text(json.dumps({"format": 99, "kind": "sparse"}))
    with pytest.raises(ModelError, match="format 99 is newer"):
        load_sparse(folder)
    (folder / "osn.json").unlink()

    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.transform.dense.bias"][3] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite for text 0"):
        load_sparse(folder).encode_documents(["a file", "word"])
    tensors["bert.embeddings.word_embeddings.weight"][5] = np.inf
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="output layer"):
        load_sparse(folder)

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"the weights lack cls\.predictions"):
        load_sparse(folder)


@pytest.mark.parametrize("layout", ["transformers", "sentence-transformers"])
def test_pickled_weights_can_be_converted_as_their_refusal_says(
    tokenizer_folder: Path, tmp_path: Path, layout: str
) -> None:
    """Before, the conversion dropped the head of a SPLADE, and wrote over the folder that had it."""
    import transformers
    from safetensors.torch import load_file

    whole = masked_lm(tmp_path / "whole", tokenizer_folder)
    if layout == "sentence-transformers":
        sentence_transformers.SparseEncoder(str(whole)).save_pretrained(str(tmp_path / "sparse"))
        whole = tmp_path / "sparse"
    (whole / "idf.json").write_text('{"file": 4.5}')
    pickled = shutil.copytree(whole, tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="pickled weights are not read") as refused:
        load_sparse(pickled)
    calls = str(refused.value.remedy).partition(": ")[2]
    library = transformers if layout == "transformers" else sentence_transformers
    for call in calls.split(" and "):
        loader = re.match(r"\w+", call)[0]  # type: ignore[index]
        eval(call, {loader: getattr(library, loader), "DIR": str(pickled), "NEW": str(tmp_path / "new")})
    shutil.copy(whole / "idf.json", tmp_path / "new")
    converted, expected = (load_sparse(folder).encode_documents(TEXTS) for folder in (tmp_path / "new", whole))
    assert list(converted.rows()) == list(expected.rows()) and any(expected.rows())


def test_a_symmetric_splade_model_says_that_its_queries_need_a_network(tokenizer_folder: Path, tmp_path: Path) -> None:
    backbone = str(masked_lm(tmp_path / "backbone", tokenizer_folder))
    sentence_transformers.SparseEncoder(backbone).save_pretrained(str(tmp_path / "model"))
    with pytest.raises(ModelError, match="the query side of this model is a neural network"):
        load_sparse(tmp_path / "model")


def test_rows_can_be_reordered_and_joined() -> None:
    vectors = SparseVectors(
        np.array([0, 2, 2, 3]), np.array([0, 2, 1], np.int32), np.array([1, 2, 3], np.float32), ["a", "b", "c"]
    )
    rows = [{"a": 1.0, "c": 2.0}, {}, {"b": 3.0}]
    assert list(vectors.rows()) == rows
    assert list(vectors.take(np.array([2, 0, 1])).rows()) == [rows[2], rows[0], rows[1]]
    assert list(SparseVectors.concat([vectors, vectors.take(np.array([1])), vectors]).rows()) == [*rows, {}, *rows]
    assert vectors.to_scipy().toarray().tolist() == [[1, 0, 2], [0, 0, 0], [0, 3, 0]]


def test_code_that_a_model_brings_along_runs_only_where_it_is_trusted(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    folder = give_own_code(masked_lm(tmp_path / "model", tokenizer_folder))
    (folder / "idf.json").write_text('{"file": 2.0}')
    with pytest.raises(ModelError, match="has code of its own, which is not run") as caught:
        load_sparse(folder)
    assert caught.value.remedy is not None and "--trust-remote-code" in caught.value.remedy
    assert not (folder / ".ran").exists()
    known = masked_lm(tmp_path / "known", tokenizer_folder)
    (known / "idf.json").write_text('{"file": 2.0}')
    ours, reference = load_sparse(folder, trust_remote_code=True), load_sparse(known)
    assert (folder / ".ran").exists()
    assert list(ours.encode_documents(TEXTS).rows()) == list(reference.encode_documents(TEXTS).rows())


def test_prompts_and_the_limit_of_terms_apply_to_queries_and_documents(tokenizer_folder: Path, tmp_path: Path) -> None:
    prompts = {"query": "return the number of ", "document": "items in a container "}
    folder = tmp_path / "model"
    theirs = router_model(folder, tokenizer_folder, prompts=prompts, max_active_dims=6)
    ours = load_sparse(folder)
    # sentence-transformers counts special tokens among the six, and this package leaves them out.
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for row, wanted in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert {token: row[token] for token in wanted} == pytest.approx(wanted, abs=1e-5)
        assert len(wanted) <= len(row) <= 6
    asked = [query for query in QUERIES if "[SEP]" not in query]
    queries = as_dicts(theirs.encode_query(asked), ours.vocabulary)
    assert [ours.query.encode(text) for text in asked] == [pytest.approx(query) for query in queries]
    assert ours.query.encode_batch(asked) == [ours.query.encode(text) for text in asked]
    assert all(0 < len(query) <= 6 for query in queries)
    # Wherever the query side goes, they go with it; and an index tells another prompt from its own.
    ours.query.save(tmp_path / "queries")
    for copy in (QueryEncoder.load(tmp_path / "queries"), QueryEncoder.from_bytes(ours.query.to_bytes())):
        assert copy.hash == ours.query.hash and copy.encode(QUERIES[0]) == ours.query.encode(QUERIES[0])
    router_model(tmp_path / "plain", tokenizer_folder, max_active_dims=6)
    assert QueryEncoder.load(tmp_path / "plain").hash != ours.query.hash
    router_model(tmp_path / "unlimited", tokenizer_folder)
    assert QueryEncoder.load(tmp_path / "unlimited").hash == QueryEncoder.load(tmp_path / "plain").hash


@pytest.mark.parametrize("limit", [0, -1, "many", True])
def test_a_limit_of_terms_that_is_none_is_refused(tokenizer_folder: Path, tmp_path: Path, limit: object) -> None:
    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    (folder / "idf.json").write_text('{"file": 4.5}')
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"max_active_dims": limit}))
    with pytest.raises(ModelError, match=r"max_active_dims is .*; expected a whole number from 1"):
        QueryEncoder.load(folder)
