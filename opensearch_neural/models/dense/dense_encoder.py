"""The interface of dense encoders, whether torch (`torch_encoder`) or ONNX Runtime (`onnx_encoder`) runs the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import NotFinite
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo

Backend = Literal["torch", "onnx", "onnx-int8"]
"""The runtime of the network: torch, ONNX Runtime, or ONNX Runtime with weights and activations rounded to 8 bits."""


def located(name_or_path: str | Path, backend: Backend) -> Path:
    """The folder of a dense model, as `directory.locate` finds it, with the files that the backend reads."""
    files = directory.DOCUMENT_FILES if backend == "torch" else directory.ONNX_FILES
    return directory.locate(name_or_path, files=files)


class DenseEncoder(Protocol):
    """Turns texts into dense vectors; documents and queries have separate methods, for models with prompts or two towers."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def dimension(self) -> int: ...

    @property
    def vectors(self) -> int:
        """How many vectors of `dimension` numbers a document's row holds, one after the other; a query has one."""

    @property
    def normalized(self) -> bool:
        """Whether every vector has length 1, so that the inner product is the cosine."""

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """(texts, vectors · dimension), in order. Raises ModelError if a vector is not finite."""

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """(texts, dimension), in order. Raises ModelError if a vector is not finite."""


def ends_normalized(folder: Path) -> bool:
    """Whether every route of a sentence-transformers directory ends in a Normalize module."""
    routes = directory.routes(folder).values()
    return bool(routes) and all(modules and modules[-1].type == "Normalize" for modules in routes)


def finite(vectors: NDArray[np.floating], dimension: int, info: ModelInfo) -> NDArray[np.float32]:
    """(n, dimension) as float32. Raises NotFinite, naming the first row with a NaN or an infinity."""
    rows = np.ascontiguousarray(vectors.reshape(-1, dimension), dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise NotFinite(
            f"{info.name} gives a vector that is not finite for text {bad[0]} of {len(rows)} ({len(bad)} such texts)",
            "its weights may be broken: look for NaN in model.safetensors",
            row=int(bad[0]),
        )
    return rows
