"""Any SPLADE becomes an inference-free model: its network encodes documents, a corpus's table weighs queries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")

from own_code import give_own_code  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.errors import ModelError  # noqa: E402
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_network, load_sparse  # noqa: E402
from opensearch_neural.models.sparse.hub_export import export_for_hub  # noqa: E402
from opensearch_neural.models.sparse.idf import load_idf  # noqa: E402
from opensearch_neural.models.sparse.pruning import Pruning  # noqa: E402

from .test_encoder import QUERIES, TEXTS, as_dicts, masked_lm, router_model  # noqa: E402


def siamese(folder: Path, backbone: Path, activation: str = "relu", **options: object) -> Path:
    """A SPLADE as sentence-transformers trains it: one network for queries and documents."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    modules = [
        Transformer(str(backbone), transformer_task="fill-mask"),
        SpladePooling("max", activation_function=activation),
    ]
    sentence_transformers.SparseEncoder(modules=modules, device="cpu", **options).save_pretrained(str(folder))
    return folder


def with_table(model: Path, folder: Path, *options: str) -> Path:
    """`model` with the table of TEXTS, written by the command into `folder`/inference-free."""
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{at}", "text": text}) + "\n" for at, text in enumerate(TEXTS)))
    arguments = ["idf", "--corpus", str(corpus), "--model", str(model), "--out", str(folder / "inference-free")]
    arguments += options
    result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
    if result.exit_code:
        raise ModelError(result.output)
    return folder / "inference-free"


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_documents_of_a_siamese_splade_stay_and_queries_get_the_table(
    tokenizer_folder: Path, tmp_path: Path, activation: str
) -> None:
    backbone = masked_lm(tmp_path / "backbone", tokenizer_folder)
    model = siamese(tmp_path / "model", backbone, activation)
    folder = with_table(model, tmp_path)

    ours = load_sparse(folder, device="cpu")
    theirs = sentence_transformers.SparseEncoder(str(model), device="cpu")
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)
    table = load_idf(folder / "idf.json")
    assert ours.query.encode("what is a file?") == {
        token: pytest.approx(table[token], rel=1e-6) for token in ours.query.encode("what is a file?")
    }
    assert table["file"] > 0 and len(set(table.values())) > 3, "a table of a corpus has spread"


def test_what_is_written_is_a_model_of_sentence_transformers(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = with_table(masked_lm(tmp_path / "model", tokenizer_folder), tmp_path)
    ours = load_sparse(folder, device="cpu")
    theirs = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    for query, reference in zip(QUERIES, as_dicts(theirs.encode_query(QUERIES), ours.vocabulary), strict=True):
        assert ours.query.encode(query) == pytest.approx(reference, rel=1e-5)
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize("layout", ["siamese", "masked language model"])
def test_a_table_beside_a_network_becomes_one_that_sentence_transformers_looks_up(
    tokenizer_folder: Path, tmp_path: Path, layout: str
) -> None:
    """Before, the new table stood beside a copy of the network, by which sentence-transformers encoded queries, if it could
    load the model at all."""
    model = masked_lm(tmp_path / "network", tokenizer_folder)
    if layout == "siamese":
        model = siamese(tmp_path / "model", model)
    (model / "idf.json").write_text('{"file": 4.5}')
    folder = with_table(model, tmp_path)
    ours, theirs = load_sparse(folder, device="cpu"), sentence_transformers.SparseEncoder(str(folder), device="cpu")
    assert ours.query.encode("file")["file"] != 4.5
    for query, reference in zip(QUERIES, as_dicts(theirs.encode_query(QUERIES), ours.vocabulary), strict=True):
        assert ours.query.encode(query) == pytest.approx(reference, rel=1e-5)
    expected = load_network(model, device="cpu").encode_documents(TEXTS).rows()
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)
    assert "inference-free" in export_for_hub(folder, tmp_path / "upload", licence="mit").read_text()


def test_a_table_in_a_file_of_its_own_is_replaced_for_sentence_transformers_too(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Before, it read the old table at its old place."""
    router_model(tmp_path / "model", tokenizer_folder)
    route = tmp_path / "model" / "query_0_SparseStaticEmbedding"
    (route / "model.safetensors").unlink()
    old = tmp_path / "built" / "table.json"
    old.parent.mkdir()
    for file in (old, route / old.name):
        file.write_text('{"file": 4.5, "a": 0}')
    (route / "config.json").write_text(json.dumps({"frozen": True, "path": str(old)}))
    folder = with_table(tmp_path / "model", tmp_path)
    ours, theirs = (
        load_sparse(folder, device="cpu").query,
        sentence_transformers.SparseEncoder(str(folder), device="cpu"),
    )
    assert ours.encode("file")["file"] != 4.5
    for query, reference in zip(QUERIES, as_dicts(theirs.encode_query(QUERIES), ours.vocabulary), strict=True):
        assert ours.encode(query) == pytest.approx(reference, rel=1e-5)


def test_the_number_of_terms_that_a_model_keeps_stays(tokenizer_folder: Path, tmp_path: Path) -> None:
    model = siamese(tmp_path / "model", masked_lm(tmp_path / "backbone", tokenizer_folder), max_active_dims=5)
    encoded = load_sparse(with_table(model, tmp_path), device="cpu").encode_documents(TEXTS).rows()
    assert max(len(weights) for weights in encoded) == 5
    Pruning("top_k", 3).save(model)
    shutil.rmtree(tmp_path / "inference-free")
    encoded = load_sparse(with_table(model, tmp_path), device="cpu").encode_documents(TEXTS).rows()
    assert max(len(weights) for weights in encoded) == 3


def test_the_length_to_which_a_model_reads_stays(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Before version 6, sentence-transformers kept it in a file of its own, beside the tokenizer's longer one. Before, the
    written model read 512 tokens."""
    model = siamese(tmp_path / "model", masked_lm(tmp_path / "backbone", tokenizer_folder))
    file = model / "sentence_bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_seq_length": 7}))
    theirs = sentence_transformers.SparseEncoder(str(model), device="cpu")
    ours = load_sparse(with_table(model, tmp_path), device="cpu")
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sentence_bert_config.json", {"document_length": 7, "query_length": 3, "max_seq_length": 9}),
        ("sentence_bert_config.json", {"processor_kwargs": {"model_max_length": 7}, "max_seq_length": 9}),
        ("sentence_bert_config.json", {"tokenizer_args": {"model_max_length": 7}, "model_args": {"dtype": "float32"}}),
        ("sentence_roberta_config.json", {"max_seq_length": 7}),
        ("tokenizer_config.json", {"truncation_side": "left", "model_max_length": 7}),
    ],
)
def test_documents_are_cut_as_the_models_files_say(
    tokenizer_folder: Path, tmp_path: Path, name: str, settings: dict[str, object]
) -> None:
    """Before, all of these were ignored without a word."""
    model = siamese(tmp_path / "model", masked_lm(tmp_path / "backbone", tokenizer_folder))
    if name.startswith("sentence"):
        (model / "sentence_bert_config.json").rename(model / name)
    (model / name).write_text(json.dumps({**json.loads((model / name).read_text()), **settings}))
    theirs = sentence_transformers.SparseEncoder(str(model), device="cpu")
    ours = [load_network(model, device="cpu"), load_sparse(with_table(model, tmp_path), device="cpu")]
    expected = as_dicts(theirs.encode_document(TEXTS), ours[0].vocabulary)
    for network in ours:
        for weights, reference in zip(network.encode_documents(TEXTS).rows(), expected, strict=True):
            assert weights == pytest.approx(reference, rel=1e-4)


def test_a_roberta_without_a_length_gets_that_of_its_positions(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Before, sentence-transformers could not encode a long document by the written model: IndexError."""
    model = masked_lm(tmp_path / "model", tokenizer_folder, "Roberta")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 10**30}))
    folder = with_table(model, tmp_path)
    theirs = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    ours = load_sparse(folder, device="cpu")
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)


def test_texts_are_lower_cased_as_the_models_file_says(tokenizer_folder: Path, tmp_path: Path) -> None:
    model = siamese(tmp_path / "model", masked_lm(tmp_path / "backbone", tokenizer_folder))
    for name, lower in (("tokenizer_config.json", False), ("sentence_bert_config.json", True)):
        (model / name).write_text(json.dumps({**json.loads((model / name).read_text()), "do_lower_case": lower}))
    ours = load_network(model, device="cpu")
    assert ours.tokenizer.encode("Open").ids == ours.tokenizer.encode("open").ids
    theirs = sentence_transformers.SparseEncoder(str(model), device="cpu")
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)
    with pytest.raises(ModelError, match="do_lower_case lower-cases texts for a tokenizer that does not"):
        with_table(model, tmp_path)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"processing_kwargs": {"text": {"max_length": 6}}}, "processing_kwargs has text"),
        ({"tokenizer_args": {"padding_side": "left"}}, "processor_kwargs has padding_side"),
        ({"tokenizer_name_or_path": "other/model"}, "tokenizer_name_or_path has other/model"),
    ],
)
def test_a_setting_that_only_sentence_transformers_knows_is_refused(
    tokenizer_folder: Path, tmp_path: Path, settings: dict[str, object], named: str
) -> None:
    model = masked_lm(tmp_path / "model", tokenizer_folder)
    (model / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=rf"sentence_bert_config\.json: {named}"):
        load_network(model)


@pytest.mark.parametrize("architecture", ["Bert", "DistilBert"])
def test_a_network_of_more_rows_than_tokens_is_cut_to_them(
    tokenizer_folder: Path, tmp_path: Path, architecture: str
) -> None:
    """Before, sentence-transformers could not multiply queries by documents: they had different dimensions."""
    from transformers import AutoModelForMaskedLM

    model = masked_lm(tmp_path / "model", tokenizer_folder, architecture)
    network = AutoModelForMaskedLM.from_pretrained(model)
    network.resize_token_embeddings(network.config.vocab_size + 7)
    network.save_pretrained(model)
    folder = with_table(model, tmp_path)
    theirs = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    assert theirs.similarity(theirs.encode_query(["a file"]), theirs.encode_document(TEXTS)).shape == (1, len(TEXTS))
    expected = load_network(model, device="cpu").encode_documents(TEXTS).rows()
    written = load_sparse(folder, device="cpu").encode_documents(TEXTS).rows()
    for weights, reference in zip(written, expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)


def test_a_tokenizer_with_unused_ids_is_refused_before_anything_is_counted(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    model = masked_lm(tmp_path / "model", tokenizer_folder)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    del vocabulary[next(token for token, at in vocabulary.items() if at == 100)]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=r"the tokenizer has \d+ tokens, but ids up to \d+"):
        tokenizer_of(model)


def test_a_model_without_a_table_says_how_to_get_one(tokenizer_folder: Path, tmp_path: Path) -> None:
    backbone = masked_lm(tmp_path / "backbone", tokenizer_folder)
    for model in (backbone, siamese(tmp_path / "model", backbone)):
        with pytest.raises(ModelError) as refused:
            load_sparse(model)
        assert "osn model idf --corpus" in str(refused.value)


def test_a_network_without_its_head_is_refused_before_anything_is_written(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel

    folder = masked_lm(tmp_path / "model", tokenizer_folder)
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(ModelError, match="no masked language model"):
        with_table(folder, tmp_path)
    assert not (tmp_path / "inference-free").exists()


def test_a_splades_prompt_before_documents_stays_and_that_before_queries_has_no_place_in_a_table(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    backbone = masked_lm(tmp_path / "backbone", tokenizer_folder)
    model = siamese(tmp_path / "model", backbone, prompts={"query": "return the ", "document": "items in a "})
    ours = load_sparse(with_table(model, tmp_path), device="cpu")
    theirs = sentence_transformers.SparseEncoder(str(model), device="cpu")
    expected = as_dicts(theirs.encode_document(TEXTS), ours.vocabulary)
    for weights, reference in zip(ours.encode_documents(TEXTS).rows(), expected, strict=True):
        assert weights == pytest.approx(reference, rel=1e-4)
    assert list(ours.query.encode("file")) == ["file"]


def test_a_splade_that_needs_its_own_code_keeps_it_where_it_is_trusted(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    known = siamese(tmp_path / "known", masked_lm(tmp_path / "backbone", tokenizer_folder))
    model = give_own_code(Path(shutil.copytree(known, tmp_path / "model")))
    with pytest.raises(ModelError, match="has code of its own, which is not run"):
        with_table(model, tmp_path)
    assert not (model / ".ran").exists() and not (tmp_path / "inference-free").exists()
    ours = load_sparse(with_table(model, tmp_path, "--trust-remote-code"), device="cpu", trust_remote_code=True)
    assert (model / ".ran").exists()
    (tmp_path / "of-known").mkdir()
    reference = load_sparse(with_table(known, tmp_path / "of-known"), device="cpu")
    assert list(ours.encode_documents(TEXTS).rows()) == list(reference.encode_documents(TEXTS).rows())
