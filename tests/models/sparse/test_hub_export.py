"""`osn model export hub`: the folder loads as the model does, and its card says what is recorded and no path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")

from own_code import give_own_code  # noqa: E402
from tiny_splade import write_two_networks  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.evaluation.model_card import card_table  # noqa: E402
from opensearch_neural.models.directory import hash_files, write_osn_json  # noqa: E402
from opensearch_neural.models.sparse.encoder import document_modules, load_sparse  # noqa: E402
from opensearch_neural.models.sparse.hub_export import export_for_hub  # noqa: E402
from opensearch_neural.models.sparse.lexical import build_lexical  # noqa: E402
from opensearch_neural.models.sparse.pruning import Pruning  # noqa: E402

from .test_encoder import TEXTS, masked_lm, router_model  # noqa: E402
from .test_inference_free import siamese  # noqa: E402


@pytest.fixture(scope="module")
def trained(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as a training leaves it."""
    folder = tmp_path_factory.mktemp("trained") / "mine"
    router_model(folder, tokenizer_folder)
    training = {
        "output": "/home/somebody/models/mine",
        "train": [{"path": "/home/somebody/data/squad-mix", "name": None}, {"path": "x", "name": "questions"}],
        "pretraining": {"train": [{"path": "/home/somebody/docs.jsonl.gz"}]},
    }
    write_osn_json(folder, "sparse", training=training, data_hash="abcd1234", measures={"nDCG@10": 0.51234})
    (folder / "training.yaml").write_text("output: /home/somebody/models/mine\n")
    return folder


def test_the_folder_is_the_model_and_its_card(trained: Path, tmp_path: Path) -> None:
    row = {
        "set": "scifact",
        "engine": "sparse",
        "measure": "nDCG@10",
        "value": 0.7,
        "low": 0.65,
        "high": 0.75,
        "n": 300,
    }
    gain = {**row, "low": None, "high": None, "kind": "difference", "baseline": "bm25"}
    p_values = [{**gain, "value": 0.0002, "kind": kind} for kind in ("p-value", "holm")]
    (tmp_path / "summary.json").write_text(json.dumps({"rows": [row, gain, *p_values]}))
    arguments = [str(trained), "--out", str(tmp_path / "upload"), "--licence", "apache-2.0", "--base-model", "a/b"]
    results = ["--results", str(tmp_path / "summary.json")]
    done = CliRunner().invoke(osn, ["model", "export", "hub", *arguments, *results], catch_exceptions=False)
    assert done.exit_code == 0
    upload = tmp_path / "upload"
    assert hash_files(upload) == hash_files(trained)
    ours, theirs = load_sparse(trained), sentence_transformers.SparseEncoder(str(upload), device="cpu")
    assert list(load_sparse(upload).encode_documents(TEXTS).rows()) == list(ours.encode_documents(TEXTS).rows())
    assert theirs.encode_query(["a file"]).to_dense().count_nonzero() == 1, "'a' weighs nothing"
    card = (upload / "README.md").read_text()
    assert card.startswith('---\nlicense: "apache-2.0"\nbase_model: "a/b"\n')
    assert "Data: squad-mix, questions, docs." in card and "`abcd1234`" in card
    assert "| nDCG@10 | 0.5123 |" in card
    assert "| scifact | sparse | nDCG@10 | 0.7000 | 0.6500 to 0.7500 | 300 |" in card
    assert "| scifact | sparse | nDCG@10 - bm25 | 0.7000 |  | 300 |" in card
    assert card.count("| scifact |") == 2, "p-values are left out"
    for file in upload.rglob("*"):
        assert file.is_dir() or b"/home/somebody" not in file.read_bytes(), file


def test_rows_of_the_results_are_chosen(trained: Path, tmp_path: Path) -> None:
    row = {"set": "scifact", "measure": "nDCG@10", "value": 0.7, "low": None, "high": None, "n": 300}
    rows = [
        {**row, "engine": engine, "variant": variant, "measure": measure}
        for engine in ("bm25-sparse", "sparse")
        for variant in ("as published", "trained")
        for measure in ("nDCG@10", "R@100")
    ]
    (tmp_path / "summary.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "large.json").write_text(json.dumps({"rows": [{**rows[0], "set": f"s{each}"} for each in range(201)]}))
    command = ["model", "export", "hub", str(trained), "--licence", "mit", "--results", str(tmp_path / "summary.json")]
    chosen = ["--variant", "trained", "--engine", "sparse", "--measure", "nDCG@10"]
    done = CliRunner().invoke(osn, [*command, "--output", str(tmp_path / "upload"), *chosen], catch_exceptions=False)
    assert done.exit_code == 0
    lines = [line for line in (tmp_path / "upload" / "README.md").read_text().splitlines() if "scifact" in line]
    assert lines == ["| scifact | sparse, trained | nDCG@10 | 0.7000 |  | 300 |"]
    with pytest.raises(InputError, match="no row of the results has the variant 'none'") as caught:
        card_table([tmp_path / "summary.json"], {"variant": ["none"]})
    assert caught.value.remedy == "known are 'as published', 'trained'"
    with pytest.raises(InputError, match="the results have 201 rows, more than the 200"):
        card_table([tmp_path / "large.json"])


def test_code_of_a_model_is_refused_and_its_pruning_is_told(tokenizer_folder: Path, tmp_path: Path) -> None:
    for name in ("own", "pruned"):
        router_model(tmp_path / name, tokenizer_folder)
    give_own_code(document_modules(tmp_path / "own")[0].path)
    with pytest.raises(ModelError, match="has code of its own"):
        export_for_hub(tmp_path / "own", tmp_path / "upload", licence="mit")
    Pruning.parse("top_k:5").save(tmp_path / "pruned")
    card = export_for_hub(tmp_path / "pruned", tmp_path / "upload", licence="mit").read_text()
    assert "prunes documents by `top_k:5` (`pruning.json`); sentence-transformers keeps all terms" in card


def test_the_card_of_a_siamese_splade_says_that_a_network_encodes_queries(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Before, such a model was refused, as one without a table."""
    networks = [masked_lm(tmp_path / f"network-{seed}", tokenizer_folder, seed=seed) for seed in (0, 1)]
    siamese(tmp_path / "siamese", networks[0])
    write_two_networks(tmp_path / "two", documents=networks[0], queries=networks[1])
    router_model(tmp_path / "table", tokenizer_folder)
    siamese(tmp_path / "with-idf", networks[0])
    (tmp_path / "with-idf" / "idf.json").write_text('{"file": 4.5}')
    for name in ("siamese", "two", "with-idf", "table"):
        card = export_for_hub(tmp_path / name, tmp_path / f"upload-{name}", licence="mit").read_text()
        assert hash_files(tmp_path / f"upload-{name}") == hash_files(tmp_path / name)
        free = name == "table"
        assert ("tags: [sparse-encoder, sparse, splade, inference-free, opensearch]" in card) == free
        assert ("without inference for queries" in card) == free
        assert ("a network encodes documents and queries into weights of" in card) != free
        assert ("inference" in card) == free
    ours, theirs = (
        sentence_transformers.SparseEncoder(str(tmp_path / name), device="cpu").encode_query(["a file"]).to_dense()
        for name in ("two", "upload-two")
    )
    assert ours.count_nonzero() > 2 and torch.equal(ours, theirs)


def test_what_is_not_recorded_is_said(tokenizer_folder: Path, tmp_path: Path) -> None:
    router_model(tmp_path / "model", tokenizer_folder)
    card = export_for_hub(tmp_path / "model", tmp_path / "upload", licence="mit", name="My model").read_text()
    assert "# My model" in card
    assert "The training data are not recorded." in card and "Nothing is recorded." in card


def test_what_the_hubs_users_could_not_load_is_refused(trained: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    build_lexical(TEXTS).save(tmp_path / "lexical")
    bare = masked_lm(tmp_path / "bare", tokenizer_folder)
    refused = {tmp_path / "lexical": "is the lexical model", bare: "not in the layout of sentence-transformers"}
    for model, message in refused.items():
        with pytest.raises(ModelError, match=message):
            export_for_hub(model, tmp_path / "upload", licence="mit")
    write_osn_json(bare, "dense")
    with pytest.raises(ModelError, match=r"(?s)not a sparse model, and the card .*upload that folder"):
        export_for_hub(bare, tmp_path / "upload", licence="mit")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists already"):
        export_for_hub(trained, tmp_path / "there", licence="mit")
    (tmp_path / "no.json").write_text('{"rows": [{"set": "x"}]}')
    with pytest.raises(InputError, match=r"no\.json is no result file"):
        card_table([tmp_path / "no.json"])
    assert not (tmp_path / "upload").exists()
