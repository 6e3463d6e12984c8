"""Encodes a text as the mean of its tokens' vectors, as sentence-transformers' StaticEmbedding does.

It needs only `tokenizers` and numpy, neither torch nor ONNX Runtime. A query encoder without layers (`osn train jpq --set
query_layers=0`) is such a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.directory import Module
from opensearch_neural.models.tokenizer import refuse_more_tokens, vocabulary_of

MODULE = "StaticEmbedding"
WEIGHTS, TENSOR = "model.safetensors", "embedding.weight"


def truncate(tokenizer: Tokenizer, length: int) -> None:
    """Limit the tokens that it reads of a text to `length`; no special tokens are added here."""
    own = tokenizer.truncation
    if own is None or length < own["max_length"]:
        tokenizer.enable_truncation(length, direction=own["direction"] if own else "right")


@dataclass(frozen=True)
class StaticTable:
    """A route: the tokenizer and a vector for each of its tokens."""

    tokenizer: Tokenizer
    """Its ids are rows of `vectors`."""
    vectors: NDArray[np.float32]
    """(tokens, D)"""
    normalized: bool
    """Whether the mean is scaled to length 1."""
    prompt: str
    """Text that is put before every text."""

    @classmethod
    def load(cls, folder: Path, modules: Sequence[Module], route: str, max_length: int | None) -> StaticTable:
        """The route of a sentence-transformers directory. Raises ModelError if it cannot be read or has other modules."""
        more = [module.type for module in modules[1:]]
        if more not in ([], ["Normalize"]):
            raise ModelError(f"{folder}: a {MODULE} is followed by {', '.join(more)}", "use the torch backend")
        path = modules[0].path
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            tokenizer.no_padding()
            vectors = np.ascontiguousarray(load_file(path / WEIGHTS)[TENSOR], dtype=np.float32)
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise ModelError(f"{path / WEIGHTS} cannot be read: {error}", "use the torch backend") from None
        except Exception as error:  # `tokenizers` raises plain Exception
            raise ModelError(f"{path / 'tokenizer.json'}: not a tokenizer ({error})") from None
        if vectors.ndim != 2:
            raise ModelError(f"{path}: vectors of shape {vectors.shape}; expected (tokens, D)")
        refuse_more_tokens(len(vocabulary_of(tokenizer)), len(vectors), path)
        if max_length is not None:
            truncate(tokenizer, max_length)
        return cls(tokenizer, vectors, bool(more), directory.prompt(folder, route))

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        """(texts, D), in order; zeros for a text without tokens."""
        encoded = self.tokenizer.encode_batch_fast(
            [encodable(self.prompt + text) for text in texts], add_special_tokens=False
        )
        rows = np.zeros((len(texts), self.vectors.shape[1]), np.float32)
        for row, encoding in zip(rows, encoded, strict=True):
            if encoding.ids:
                row[:] = self.vectors[encoding.ids].mean(axis=0)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) if self.normalized else rows
