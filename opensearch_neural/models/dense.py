"""Dense encoders: any sentence-transformers directory or transformers encoder, by torch or by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.errors import MissingExtra, ModelError, NotFinite
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.query_encoder import encodable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

logger = logging.getLogger(__name__)

KIND = "dense"
Backend = Literal["torch", "onnx", "onnx-int8"]
"""What runs the network: torch, ONNX Runtime, or ONNX Runtime with weights and activations rounded to 8 bits."""


T5 = ("t5", "mt5", "umt5")
"""Model types of transformers whose folder may hold a decoder, and whose texts begin with no CLS."""


class DenseEncoder(Protocol):
    """Texts to dense vectors; documents and queries apart, as a model with prompts or two towers needs."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def dimension(self) -> int: ...

    @property
    def vectors(self) -> int:
        """How many vectors of `dimension` numbers a document's row holds, one after the other; a query has one."""

    @property
    def normalized(self) -> bool:
        """Whether every vector has length 1, so that cosine is the inner product."""

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """(texts, vectors · dimension), in order. Raises ModelError where a vector is not finite."""

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """(texts, dimension), in order. Raises ModelError where a vector is not finite."""


def load_dense(
    name_or_path: str | Path,
    *,
    device: str | None = None,
    backend: Backend = "torch",
    max_length: int | None = None,
    threads: int | None = None,
) -> DenseEncoder:
    """A dense encoder from a directory or a hub id, with its own pooling, normalization, prompts and routes.

    A folder without sentence-transformers files is read as a transformers encoder with mean pooling, which is logged.
    device: "cpu", "cuda", … (torch only); None takes a GPU where there is one. backend "onnx" needs a directory that
    `export_onnx` or another exporter wrote into, and no torch; "onnx-int8" one that `export_onnx(…, int8=True)` wrote into.
    max_length: tokens read of a text, at most the model's. threads: of ONNX Runtime; None: one for each core. A short
    query on two threads takes hardly less time than on one, and half as much again of the processor.
    """
    files = directory.ONNX_FILES if backend != "torch" else directory.DOCUMENT_FILES
    folder = directory.locate(name_or_path, files=files)
    info = directory.model_info(folder, name=name_or_path, kind=KIND)
    if not directory.routes(folder):
        directory.refuse_several_vectors(folder)
        logger.warning("%s has no sentence-transformers files: mean pooling, no normalization", info.name)
    if backend != "torch":
        from opensearch_neural.models.dense_onnx import OnnxDenseEncoder

        return OnnxDenseEncoder.load(folder, info, max_length, int8=backend == "onnx-int8", threads=threads)
    return _load_torch(folder, info, device, max_length)


def _load_torch(folder: Path, info: ModelInfo, device: str | None, max_length: int | None) -> TorchDenseEncoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise MissingExtra("encoding with a dense torch model", "encode") from None
    refuse_unsafe(folder)
    with quiet_loading():
        try:
            model = SentenceTransformer(
                str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ModelError(f"{folder} does not load as a dense encoder: {error}") from error
    model.eval()
    if max_length is not None:
        model.max_seq_length = min(max_length, model.max_seq_length or max_length)
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise ModelError(f"{folder}: the model does not say the dimension of its vectors")
    return TorchDenseEncoder(info, model, dimension, ends_normalized(folder))


def ends_normalized(folder: Path) -> bool:
    """Whether every route of a sentence-transformers directory ends in a Normalize module."""
    routes = directory.routes(folder).values()
    return bool(routes) and all(modules and modules[-1].type == "Normalize" for modules in routes)


@dataclass(frozen=True)
class TorchDenseEncoder:
    """A SentenceTransformer behind the interface that ingest, search and evaluation use."""

    info: ModelInfo
    model: SentenceTransformer
    dimension: int
    normalized: bool
    vectors: int = 1

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        # It sorts by length itself, so a batch pads little.
        vectors = self.model.encode_document(
            [encodable(text) for text in texts], batch_size=batch_size, show_progress_bar=False
        )
        return finite(np.asarray(vectors), self.dimension, self.info)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        vectors = self.model.encode_query(
            [encodable(text) for text in texts], batch_size=batch_size, show_progress_bar=False
        )
        return finite(np.asarray(vectors), self.dimension, self.info)


PROBES = ("", "a short text", "words and more words. " * 300)
"""Documents that tell apart encoders of the same weights: by their prompts, their tokens, where they cut a text."""


def documents_alike(one: DenseEncoder, other: DenseEncoder) -> bool:
    """Whether both encode documents alike, so that what one gives need not be asked of the other: by the same weights, to
    the same vectors of PROBES. A model quantized for ranking has the document encoder that it was started from."""
    if not isinstance(one, TorchDenseEncoder) or not isinstance(other, TorchDenseEncoder):
        return False
    weights, others = (_document_weights(encoder.model) for encoder in (one, other))
    if weights.keys() != others.keys():
        return False
    for name, tensor in weights.items():
        if tensor.dtype != others[name].dtype or not tensor.equal(others[name].to(tensor.device)):
            return False
    return np.array_equal(one.encode_documents(PROBES), other.encode_documents(PROBES))


def _document_weights(model: SentenceTransformer) -> dict[str, Tensor]:
    """The tensors of the modules that a document passes, by place in their row and name."""
    stages = stages_of(model, "document")
    return {f"{at}.{name}": tensor for at, stage in enumerate(stages) for name, tensor in stage.state_dict().items()}


def stages_of(model: SentenceTransformer, route: Literal["query", "document"]) -> list[Any]:
    """The modules that a SentenceTransformer runs for queries or documents. Raises ModelError for no such route."""
    from sentence_transformers.base.modules import Router

    stages: list[Any] = list(model)
    if len(stages) == 1 and isinstance(stages[0], Router):
        routes = stages[0].sub_modules
        if route not in routes:
            raise ModelError(f"the model has no route {route!r}, only {', '.join(routes)}")
        stages = list(routes[route].children())
    return stages


def finite(vectors: NDArray[np.floating], dimension: int, info: ModelInfo) -> NDArray[np.float32]:
    """(n, dimension) as float32, or NotFinite, which names the first row with a NaN or an infinity."""
    rows = np.ascontiguousarray(vectors.reshape(-1, dimension), dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise NotFinite(
            f"{info.name} gives a vector that is not finite for text {bad[0]} of {len(rows)} ({len(bad)} such texts)",
            "its weights may be broken: look for NaN in model.safetensors",
            row=int(bad[0]),
        )
    return rows


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing a progress bar of its own while it reads weights."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
