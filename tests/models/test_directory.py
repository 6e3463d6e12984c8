"""Finding a model by name, its identity, and what a directory may not do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.safety import refuse_unsafe


def test_a_folder_is_found_by_its_path_and_named_by_its_last_part(tmp_path: Path) -> None:
    model = tmp_path / "mine"
    model.mkdir()
    assert directory.locate(model) == model
    assert directory.model_info(model, name=f"{model}/", kind="sparse").name == "mine"


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "a/b/c", "~/absent", ""])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelError, match="no model directory at"):
        directory.locate(name)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file"):
        directory.locate(file)


def test_a_hub_id_that_cannot_be_had_ends_in_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The hub is switched off as its users do it; nothing in its place answers.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="as a hub id") as raised:
        directory.locate("opensearch-project/a-model-that-is-not-cached")
    assert raised.value.remedy == "give the folder of a model, or another id; `osn model list` shows sparse models"


def test_the_hash_covers_names_and_contents_and_nothing_that_leaves_vectors_alone(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    first = directory.hash_files(tmp_path)
    assert len(first) == 16
    for name in ("osn.json", "README.md", ".gitattributes", "1_Pooling/.cache", "model.onnx"):
        (tmp_path / name).write_text("changed")
    assert directory.hash_files(tmp_path) == first
    (tmp_path / "1_Pooling" / "config.json").write_text("{ }")
    changed = directory.hash_files(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").rename(tmp_path / "1_Pooling" / "other.json")
    assert len({first, changed, directory.hash_files(tmp_path)}) == 3


def test_the_hash_covers_code_only_of_a_model_that_runs_it(tmp_path: Path) -> None:
    """Before, vectors of other code went into the index of a model with code of its own."""
    config, code = tmp_path / "0_Transformer" / "config.json", tmp_path / "0_Transformer" / "modeling.py"
    config.parent.mkdir()
    config.write_text('{"model_type": "bert"}')
    without = directory.hash_files(tmp_path)
    code.write_text("one")
    assert directory.hash_files(tmp_path) == without == "da44de7fef13e5b6"
    config.write_text('{"model_type": "own", "auto_map": {"AutoModel": "modeling.Own"}}')
    first = directory.hash_files(tmp_path)
    code.write_text("two")
    assert directory.hash_files(tmp_path) != first


def test_osn_json_reads_back_and_is_absent_from_models_of_others(tmp_path: Path) -> None:
    assert directory.read_osn_json(tmp_path) is None
    directory.write_osn_json(tmp_path, "sparse", training={"seed": 3}, data_hash="ab", measures={"nDCG@10": 0.5})
    assert directory.read_osn_json(tmp_path) == {
        "format": 1,
        "kind": "sparse",
        "training": {"seed": 3},
        "data_hash": "ab",
        "measures": {"nDCG@10": 0.5},
    }
    (tmp_path / "osn.json").write_text('{"format": "1"}')
    with pytest.raises(ModelError, match="'format'"):
        directory.read_osn_json(tmp_path)


# The files of opensearch-neural-sparse-encoding-doc-v3-distill and those that other models on the hub come with.
ON_THE_HUB = [
    "README.md",
    "config.json",
    "idf.json",
    "model.safetensors",
    "modules.json",
    "router_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "document_1_SpladePooling/config.json",
    "query_0_SparseStaticEmbedding/config.json",
    "query_0_SparseStaticEmbedding/model.safetensors",
    "query_0_SparseStaticEmbedding/tokenizer.json",
    "query_0_SparseStaticEmbedding/tokenizer_config.json",
    "pytorch_model.bin",
    "onnx/model.onnx",
    "onnx/model_O4.onnx",
    "openvino/openvino_model.bin",
    "tf_model.h5",
]


def fetched(patterns: tuple[str, ...]) -> set[str]:
    from huggingface_hub.utils import filter_repo_objects

    return set(filter_repo_objects(ON_THE_HUB, allow_patterns=list(patterns)))


def test_a_query_side_download_leaves_the_encoder_on_the_hub() -> None:
    from opensearch_neural.models.sparse.table_encoder import QUERY_FILES

    files = fetched(QUERY_FILES)
    assert "model.safetensors" not in files
    assert {name for name in ON_THE_HUB if name.startswith("query_0")} <= files
    assert {"modules.json", "router_config.json", "idf.json", "tokenizer.json"} <= files


def test_a_document_side_download_takes_safetensors_and_no_other_weights() -> None:
    documents = fetched(directory.DOCUMENT_FILES)
    assert {"model.safetensors", "document_1_SpladePooling/config.json", "vocab.txt"} <= documents
    assert not {name for name in documents if name.endswith((".bin", ".onnx", ".h5"))}
    assert fetched(directory.ONNX_FILES) - documents == {"onnx/model.onnx"}


def write_router(folder: Path, **changes: object) -> None:
    (folder / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "a.b.Router"}]')
    router = {
        "types": {"query_0_Static": "x.y.SparseStaticEmbedding", "": "x.MLMTransformer"},
        "structure": {"query": ["query_0_Static"], "document": [""]},
    }
    (folder / "router_config.json").write_text(json.dumps({**router, **changes}))


def test_routes_are_class_names_and_folders(tmp_path: Path) -> None:
    assert directory.routes(tmp_path) == {}
    write_router(tmp_path)
    assert directory.routes(tmp_path) == {
        "query": [directory.Module("SparseStaticEmbedding", tmp_path / "query_0_Static")],
        "document": [directory.Module("MLMTransformer", tmp_path)],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"structure": {"query": ["../../etc"]}, "types": {"../../etc": "x.Y"}}, "leaves the model directory"),
        ({"structure": {"query": ["/etc"]}, "types": {"/etc": "x.Y"}}, "leaves the model directory"),
        ({"structure": {"query": ["missing"]}}, "router_config.json: expected the objects"),
        ({"types": []}, "router_config.json: expected the objects"),
    ],
)
def test_a_broken_or_hostile_router_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_router(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        directory.routes(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '[{"type": "x"}]', "null", "[" * 100_000])
def test_a_broken_modules_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    if content == "{}":
        assert directory.routes(tmp_path) == {"": []}
        return
    with pytest.raises(ModelError, match=r"modules\.json"):
        directory.routes(tmp_path)


def cached_model(cache: Path, files: list[str]) -> Path:
    """A model in the hub's cache of which these files were fetched; its listing names all of ON_THE_HUB."""
    commit = "0" * 40
    folder = cache / "models--someone--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    for name in files:
        file = folder / "snapshots" / commit / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    listing = {name: {"size": 2, "blob_id": "a"} for name in ON_THE_HUB}
    (folder / "trees").mkdir()
    (folder / "trees" / f"{commit}.json").write_text(json.dumps({"format_version": 1, "files": listing}))
    return folder / "snapshots" / commit


def test_a_model_whose_needed_files_were_fetched_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    from opensearch_neural.models.registry import find
    from opensearch_neural.models.sparse.table_encoder import QUERY_FILES

    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "whole"))
    snapshot = cached_model(tmp_path / "whole", sorted(fetched(directory.DOCUMENT_FILES)))
    assert directory.installed_or_cached("someone/model") == snapshot
    assert find("0123", "someone/model", "sparse", files=QUERY_FILES) == snapshot
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "queries"))
    snapshot = cached_model(tmp_path / "queries", sorted(fetched(QUERY_FILES)))
    assert find("0123", "someone/model", "sparse", files=QUERY_FILES) == snapshot


def test_a_proxy_that_fails_ends_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class ProxyError(Exception):
        """As the client of huggingface_hub 1 and 2 has it: no OSError."""

    def refused(*_: object, **__: object) -> None:
        raise ProxyError("407 Proxy Authentication Required")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    with pytest.raises(ModelError, match="the Hugging Face hub failed: 407 Proxy Authentication Required"):
        directory.locate("someone/model")


def test_the_home_of_a_user_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="~nosuchuser/model: there is no home folder of that user"):
        directory.locate("~nosuchuser/model")


def test_a_complete_clone_of_a_model_is_safe_to_load(tmp_path: Path) -> None:
    for name in ON_THE_HUB:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    refuse_unsafe(tmp_path)
    (tmp_path / "openvino" / "pytorch_model.bin").write_text("")
    with pytest.raises(ModelError, match="pickled weights are not read"):
        refuse_unsafe(tmp_path)


def test_the_hash_takes_names_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    assert len(directory.hash_files(tmp_path)) == 16
