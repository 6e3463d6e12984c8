"""A route that is a table of tokens' vectors, by numpy, beside sentence-transformers' own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding  # noqa: E402

from opensearch_neural.errors import ModelError  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import load_dense  # noqa: E402
from opensearch_neural.models.sparse.word_pieces import train_word_pieces  # noqa: E402

TEXTS = ["cats purr", "dogs bark at night at night", "", "𝓾nknown ☃", "cats " * 40]


def tokenizer_of(**truncation: int) -> Tokenizer:
    tokenizer = train_word_pieces(["cats purr softly", "dogs bark at night"] * 3, 90)
    if truncation:
        tokenizer.enable_truncation(**truncation)
    return tokenizer


def static_model(folder: Path, *, normalized: bool = True, more: list[object] | None = None, **truncation: int) -> Path:
    tokenizer = tokenizer_of(**truncation)
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8)).astype(np.float32)
    modules = [StaticEmbedding(tokenizer, vectors), *(more or []), *([Normalize()] if normalized else [])]
    SentenceTransformer(modules=modules, prompts={"query": "find "}, device="cpu").save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("normalized", [True, False])
def test_numpy_gives_what_sentence_transformers_gives(tmp_path: Path, normalized: bool) -> None:
    folder = static_model(tmp_path / "model", normalized=normalized, max_length=16)
    own, other = load_dense(folder, backend="onnx"), load_dense(folder, device="cpu")
    assert (own.dimension, own.normalized) == (other.dimension, other.normalized) == (8, normalized)
    np.testing.assert_allclose(own.encode_queries(TEXTS), other.encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(own.encode_documents(TEXTS), other.encode_documents(TEXTS), atol=1e-6)
    assert not np.allclose(own.encode_queries(TEXTS), own.encode_documents(TEXTS)), "a query has a prompt"
    assert not own.encode_documents([""]).any()
    assert own.encode_queries([]).shape == (0, 8)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("own", [{}, {"max_length": 16}])
def test_no_more_tokens_are_read_than_are_asked_for(tmp_path: Path, backend: Any, own: dict[str, int]) -> None:
    folder = static_model(tmp_path / "model", **own)
    short = load_dense(folder, backend=backend, device="cpu", max_length=2)
    np.testing.assert_allclose(short.encode_documents(["cats purr dogs"]), short.encode_documents(["cats purr"]))
    assert not np.allclose(short.encode_documents(["cats purr"]), short.encode_documents(["cats"]))


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    whole = static_model(tmp_path / "whole")
    with pytest.raises(ModelError, match="a StaticEmbedding is followed by Dense, Normalize"):
        load_dense(static_model(tmp_path / "dense", more=[Dense(8, 4)]), backend="onnx")
    table = next(whole.rglob("model.safetensors"))
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    (broken / table.relative_to(whole)).write_bytes(b"no tensors")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_dense(broken, backend="onnx")
    shutil.copy(table, broken / table.relative_to(whole))
    tokens = broken / table.relative_to(whole).parent / "tokenizer.json"
    tokens.write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        load_dense(broken, backend="onnx")
    tokenizer = Tokenizer.from_file(str(table.parent / "tokenizer.json"))
    tokenizer.add_tokens(["one-more"])
    tokenizer.enable_padding()
    tokenizer.save(str(tokens))
    backends: tuple[Any, ...] = ("onnx", "torch")
    for backend in backends:
        with pytest.raises(ModelError, match="and the model has vectors for"):
            load_dense(broken, backend=backend)
