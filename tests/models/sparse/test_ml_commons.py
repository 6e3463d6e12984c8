"""The zip files for ml-commons hold what it reads, and the traced encoder gives the model's own vectors."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_splade import write_splade, write_two_networks

from opensearch_neural.cli import osn
from opensearch_neural.errors import ModelError
from opensearch_neural.models.directory import write_osn_json
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.sparse.ml_commons import SMALLEST_WEIGHT, Exported, export
from opensearch_neural.models.sparse.pruning import Pruning

from .test_encoder import QUERIES, TEXTS, masked_lm, router_model
from .test_inference_free import siamese

torch = pytest.importorskip("torch", reason="needs the extra [encode]")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def encoded(exported: Exported, texts: list[str]) -> np.ndarray:
    """As ml-commons does it: the zip's own tokenizer, one text, its padded length, the two named inputs."""
    from tokenizers import Tokenizer

    files = members(exported.zip)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    (script,) = (content for name, content in files.items() if name.endswith(".pt"))
    traced = torch.jit.load(io.BytesIO(script))
    rows = []
    for encoding in map(tokenizer.encode, texts):
        batch = {"input_ids": torch.tensor([encoding.ids]), "attention_mask": torch.tensor([encoding.attention_mask])}
        rows.append(traced(batch)["output"][0].numpy())
    return np.stack(rows)


def assert_encodes(exported: Exported, texts: list[str], expected: torch.Tensor) -> None:
    """The exported encoder gives the weights of sentence-transformers, but for special tokens, which it leaves out.

    With a limit of terms, sentence-transformers counts special tokens among them, so other terms may be there beside."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(members(exported.zip)["tokenizer.json"].decode())
    special = [id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    wanted = expected.to_dense().numpy()
    wanted[:, special] = 0
    found = encoded(exported, texts)
    assert (wanted > 0).sum() > len(texts)
    np.testing.assert_allclose(np.where(wanted > 0, found, 0), wanted, atol=1e-4)
    assert ((found > 0).sum(axis=1) - (wanted > 0).sum(axis=1) <= len(special)).all()


@pytest.mark.parametrize(
    ("activation", "pooling", "options", "prune"),
    [
        ("relu", "max", {}, None),
        ("log1p_relu", "max", {"max_active_dims": 20}, None),
        ("relu", "sum", {}, None),
        *(("relu", "max", {}, prune) for prune in ("top_k:9", "max_ratio:0.8", "alpha_mass:0.4", "abs_value:0.3")),
    ],
)
def test_the_traced_encoder_gives_the_same_vectors(
    tmp_path: Path,
    tokenizer_folder: Path,
    activation: str,
    pooling: str,
    options: dict[str, int],
    prune: str | None,
) -> None:
    from tokenizers import Tokenizer

    folder = tmp_path / "model"
    router_model(folder, tokenizer_folder, activation=activation, pooling=pooling, **options)
    whole = load_sparse(folder).encode_documents(TEXTS)
    if prune is not None:
        Pruning.parse(prune).save(folder)
    encoder, _ = export(folder, tmp_path / "out")
    assert encoder.largest_difference is not None and encoder.largest_difference <= 1e-4
    files = members(encoder.zip)
    assert sorted(files) == ["model-doc.pt", "tokenizer.json"]
    # As ml-commons does it: the zip's own tokenizer, one text, its padded length, the two named inputs.
    tokenizer, traced = (
        Tokenizer.from_str(files["tokenizer.json"].decode()),
        torch.jit.load(io.BytesIO(files["model-doc.pt"])),
    )
    model = load_sparse(folder)
    vectors = model.encode_documents(TEXTS)
    assert (0 < len(vectors.weights) < len(whole.weights)) == (prune is not None)
    expected = vectors.to_scipy().toarray()
    for text, row in zip(TEXTS, expected, strict=True):
        encoding = tokenizer.encode(text)
        batch = {"input_ids": torch.tensor([encoding.ids]), "attention_mask": torch.tensor([encoding.attention_mask])}
        found = traced(batch)["output"][0].numpy()
        np.testing.assert_allclose(found, row, atol=1e-4)
        names = [tokenizer.decode([at], skip_special_tokens=True) for at in np.flatnonzero(found)]
        assert names == [model.vocabulary[at] for at in np.flatnonzero(found)]


def test_a_model_of_nan_is_not_written(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    router_model(folder, tokenizer_folder)
    trace = torch.jit.trace

    def broken(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(torch.nan)
        return trace(module, *arguments, **options)

    monkeypatch.setattr(torch.jit, "trace", broken)
    with pytest.raises(ModelError, match="differs from the model by nan"):
        export(folder, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_the_tokenizer_and_both_configurations(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "model"
    router_model(folder, tokenizer_folder)
    first, again = (export(folder, tmp_path / out, name="books", version="2.0.0") for out in ("one", "two"))
    assert [each.zip.read_bytes() for each in first[1:]] == [each.zip.read_bytes() for each in again[1:]]
    query = load_sparse(folder).query
    files = members(first[1].zip)
    table = json.loads(files["idf.json"])
    assert table["a"] == SMALLEST_WEIGHT and query.weights["a"] == 0
    assert {token for token in table if table[token] != query.weights[token]} <= {
        t for t, w in query.weights.items() if w == 0
    }
    assert json.loads(files["tokenizer.json"])["truncation"] is None
    for exported, function in zip(first, ("SPARSE_ENCODING", "SPARSE_TOKENIZE"), strict=True):
        config = json.loads(exported.config.read_text())
        assert config["function_name"] == function and config["model_format"] == "TORCH_SCRIPT"
        assert config["version"] == "2.0.0" and config["name"].startswith("books-")
        content = exported.zip.read_bytes()
        assert config["model_content_size_in_bytes"] == len(content)
        assert config["model_content_hash_value"] == hashlib.sha256(content).hexdigest()


def test_the_query_side_alone_is_that_of_both(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "model"
    router_model(folder, tokenizer_folder)
    _, of_both = export(folder, tmp_path / "both")
    result = CliRunner().invoke(
        osn,
        ["model", "export", "ml-commons", str(folder), "--output", str(tmp_path / "alone"), "--queries-only"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0 and "largest difference" not in result.output, result.output
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == [of_both.config.name, of_both.zip.name]
    for file in (of_both.config, of_both.zip):
        assert (tmp_path / "alone" / file.name).read_bytes() == file.read_bytes()
    router_model(tmp_path / "asking", tokenizer_folder, prompts={"query": "return ", "document": "items "})
    with pytest.raises(ModelError, match="queries are encoded after the prompt 'return '"):
        export(tmp_path / "asking", tmp_path / "out", queries_only=True)
    assert not (tmp_path / "out").exists()


def test_the_folder_that_one_is_in_has_a_name(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the files were named "-tokenizer", and so was the model in OpenSearch."""
    router_model(tmp_path / "mine", tokenizer_folder)
    monkeypatch.chdir(tmp_path / "mine")
    (exported,) = export(".", tmp_path / "out", queries_only=True)
    assert exported.zip.name == "mine-tokenizer.zip"
    assert json.loads(exported.config.read_text())["name"] == "mine-tokenizer"


def test_a_limit_of_tokens_is_told(tmp_path: Path, tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for limit in (None, 6):
        folder = tmp_path / f"model-{limit}"
        router_model(folder, tokenizer_folder, max_active_dims=limit)
        export(folder, tmp_path / "out", queries_only=True)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "queries keep their 6 heaviest tokens here; ml-commons searches with all" in told


def test_of_a_siamese_splade_the_document_encoder_alone_is_written_and_queries_use_it(
    tmp_path: Path, tokenizer_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, `SparseEncoder` models whose queries a network encodes were refused."""
    from sentence_transformers import SparseEncoder

    network = masked_lm(tmp_path / "network", tokenizer_folder)
    theirs = SparseEncoder(str(siamese(tmp_path / "model", network, max_active_dims=30)), device="cpu")
    (encoder,) = export(tmp_path / "model", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model-doc.json", "model-doc.zip"}
    config = json.loads(encoder.config.read_text())
    assert config["function_name"] == "SPARSE_ENCODING" and "documents and queries of model" in config["description"]
    assert_encodes(encoder, TEXTS, theirs.encode_document(TEXTS))
    assert_encodes(encoder, QUERIES, theirs.encode_query(QUERIES))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "no table of query weights: ml-commons runs a network for each query, that of model-doc" in told
    (bare,) = export(network, tmp_path / "bare")
    siamese(tmp_path / "same", network)
    (same,) = export(tmp_path / "same", tmp_path / "bare")
    assert members(bare.zip)["tokenizer.json"] == members(same.zip)["tokenizer.json"]


def test_of_two_networks_both_are_written(tmp_path: Path, tokenizer_folder: Path) -> None:
    networks = [masked_lm(tmp_path / f"network-{seed}", tokenizer_folder, seed=seed) for seed in (0, 1)]
    theirs = write_two_networks(tmp_path / "model", documents=networks[0], queries=networks[1])
    documents, queries = export(tmp_path / "model", tmp_path / "out")
    assert [each.zip.name for each in (documents, queries)] == ["model-doc.zip", "model-query.zip"]
    assert_encodes(documents, TEXTS, theirs.encode_document(TEXTS))
    assert_encodes(queries, QUERIES, theirs.encode_query(QUERIES))


def test_two_networks_with_different_tokens_are_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    documents, queries = masked_lm(tmp_path / "documents", tokenizer_folder), write_splade(tmp_path / "queries")
    write_two_networks(tmp_path / "model", documents=documents, queries=queries)
    with pytest.raises(ModelError, match="networks for queries and documents have different tokens"):
        export(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pruning_of_documents_leaves_queries_of_a_siamese_splade_whole(tmp_path: Path, tokenizer_folder: Path) -> None:
    siamese(tmp_path / "model", masked_lm(tmp_path / "network", tokenizer_folder))
    Pruning.parse("top_k:9").save(tmp_path / "model")
    documents, queries = (encoded(each, TEXTS) for each in export(tmp_path / "model", tmp_path / "out"))
    assert max((documents > 0).sum(axis=1)) == 9 < max((queries > 0).sum(axis=1))


def test_a_prompt_of_either_side_of_a_siamese_splade_is_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    network = masked_lm(tmp_path / "network", tokenizer_folder)
    for route, texts in (("query", "queries"), ("document", "documents")):
        siamese(tmp_path / route, network, prompts={route: "return "})
        with pytest.raises(ModelError, match=f"{texts} are encoded after the prompt 'return '"):
            export(tmp_path / route, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_query_side_alone_of_a_model_without_a_table_is_refused_with_a_command_that_works(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """It named the model by the last part of its path, and sent dense models the same way."""
    folder, corpus = masked_lm(tmp_path / "model", tokenizer_folder), tmp_path / "docs.jsonl"
    corpus.write_text(json.dumps({"_id": "1", "text": TEXTS[0]}))
    siamese(tmp_path / "siamese", folder)
    for each in (folder, tmp_path / "siamese"):
        with pytest.raises(ModelError, match=r"encoded by a network, .*no query side to export alone") as refused:
            export(each, tmp_path / "out", queries_only=True)
        assert "without --queries-only its encoder is exported" in str(refused.value.remedy)
    command = str(refused.value.remedy).split("`")[1].replace("CORPUS", str(corpus))
    arguments = command.replace("FOLDER", str(tmp_path / "with-table")).split()[1:]
    result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len(export(tmp_path / "with-table", tmp_path / "out")) == 2
    write_osn_json(folder, "dense")
    for queries_only in (False, True):
        with pytest.raises(ModelError, match=r"(?s)kind 'dense'; expected a sparse one.*osn ingest --dense"):
            export(folder, tmp_path / "out", queries_only=queries_only)
    (folder / "osn.json").unlink()
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"(?s)expected a sparse model.*osn ingest --dense"):
        export(folder, tmp_path / "out", queries_only=True)


def test_what_cannot_be_exported_is_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    build_lexical(TEXTS).save(tmp_path / "lexical")
    with pytest.raises(ModelError, match="BM25 impacts"):
        export(tmp_path / "lexical", tmp_path / "out")
    router_model(tmp_path / "asking", tokenizer_folder, prompts={"document": "items "})
    with pytest.raises(ModelError, match="documents are encoded after the prompt 'items '"):
        export(tmp_path / "asking", tmp_path / "out")
    assert not (tmp_path / "out").exists()
