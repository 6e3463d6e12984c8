"""Model directories that are damaged or not whole are refused, and not trained or encoded with as they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tiny import tiny_backbone
from transformers import AutoModel, CanineConfig, CanineModel, CanineTokenizer

from opensearch_neural.errors import ModelError
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.pretrained import load_model, load_tokenizer
from trainers.common.settings import EncoderSettings
from trainers.data.teacher_models import cross_encoder, sparse_sides
from trainers.encoders.tower import load_towers, read_start


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_backbone(tmp_path / "tiny")


def towers(folder: Path) -> Any:
    return load_towers(read_start(folder), EncoderSettings(query_length=8, document_length=8))


def splade(folder: Path) -> Any:
    return sparse_sides(folder, folder, "cpu", 8, None)


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: load_model(AutoModel, folder),
        load_dense,
        splade,
        lambda folder: cross_encoder(folder, "cpu", 8, 8),
    ],
)
def test_weights_that_are_cut_off_are_refused_in_one_line(model: Path, load: Callable[[Path], Any]) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"tiny does not load as .*incomplete") as caught:
        load(model)
    assert "\n" not in caught.value.message and "each whole" in str(caught.value)


@pytest.mark.parametrize("load", [towers, load_dense, splade, lambda folder: cross_encoder(folder, "cpu", 8, 8)])
def test_a_tokenizer_of_more_tokens_than_the_model_has_is_refused_before_such_a_token_comes(
    model: Path, load: Callable[[Path], Any]
) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.add_tokens(["unheard"])
    tokenizer.save_pretrained(model)
    said = r"tiny: the tokenizer has \d+ tokens, and the model has vectors for \d+ of them\n  resize the model's embeddings"
    with pytest.raises(ModelError) as caught:
        load(model)
    assert re.search(said, str(caught.value))


def test_a_model_of_characters_which_has_no_vocabulary_is_a_start(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = CanineConfig(**sizes, max_position_embeddings=64, num_hash_buckets=50, local_transformer_stride=8)
    CanineModel(config).save_pretrained(tmp_path / "canine")
    CanineTokenizer().save_pretrained(tmp_path / "canine")
    encoders, _, _ = towers(tmp_path / "canine")
    assert encoders["query"].dimension == 32


@pytest.mark.parametrize("load", [load_tokenizer, load_dense, towers, splade])
def test_a_folder_without_a_tokenizer_is_refused(model: Path, tmp_path: Path, load: Callable[[Path], Any]) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model / name, alone)
    with pytest.raises(ModelError, match="alone: the tokenizer knows no words"):
        load(alone)
