"""Dense encoders: any sentence-transformers directory or transformers encoder, run by torch or ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import MissingExtra, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import Backend, DenseEncoder, ends_normalized, finite, located
from opensearch_neural.models.dense.onnx_encoder import OnnxDenseEncoder
from opensearch_neural.models.dense.static_table import truncate
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.pretrained import check_tokenizers, loads_as, most_positions, quiet_loading
from opensearch_neural.models.safety import refuse_unsafe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

logger = logging.getLogger(__name__)

KIND = "dense"


def load_dense(
    name_or_path: str | Path,
    *,
    device: str | None = None,
    backend: Backend = "torch",
    max_length: int | None = None,
    threads: int | None = None,
    trust_remote_code: bool = False,
) -> DenseEncoder:
    """A dense encoder from a directory or a hub id, with its own pooling, normalization, prompts and routes.

    A folder without sentence-transformers files is read as a transformers encoder with mean pooling, which is logged.

    device: "cpu", "cuda", … (torch only); None takes a GPU if there is one
    backend: "onnx" needs no torch, but a file that `export_onnx` or another exporter wrote; "onnx-int8" needs a file of
        `export_onnx(…, int8=True)`. A query encoder that is a table of tokens' vectors needs no file and no ONNX Runtime.
    max_length: tokens read of a text, at most the model's own limit
    threads: of ONNX Runtime; None: one per core. With two threads, a short query is hardly faster than with one, and uses
        half as much CPU time again.
    trust_remote_code: whether the model's own code may run (torch only)

    Raises ModelError if the model is unsafe or does not load.
    """
    folder = directory.locate(name_or_path, code=True) if trust_remote_code else located(name_or_path, backend)
    info = directory.model_info(folder, name=name_or_path, kind=KIND)
    if not directory.routes(folder):
        directory.refuse_several_vectors(folder)
        logger.warning("%s has no sentence-transformers files: mean pooling, no normalization", info.name)
    if backend != "torch":
        return OnnxDenseEncoder.load(folder, info, max_length, int8=backend == "onnx-int8", threads=threads)
    return _load_torch(folder, info, device, max_length, trust_remote_code=trust_remote_code)


def _load_torch(
    folder: Path, info: ModelInfo, device: str | None, max_length: int | None, *, trust_remote_code: bool = False
) -> TorchDenseEncoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise MissingExtra("encoding with a dense torch model", "encode") from None
    refuse_unsafe(folder)
    try:
        with quiet_loading(), loads_as("a dense encoder", folder):
            model = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=not trust_remote_code,  # Code may be in another repository of the hub.
                trust_remote_code=trust_remote_code,
                model_kwargs={"use_safetensors": True},
            )
    except ValueError:  # It asks for trust.
        raise ModelError(
            f"{folder} has code of its own, which is not run",
            "name another model; only of a teacher does a dense model's code run: read it, then give "
            "osn data teach --trust-remote-code",
        ) from None
    check_tokenizers(model, folder)
    model.eval()
    _shorten(model, max_length)
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise ModelError(f"{folder}: the model does not say the dimension of its vectors")
    return TorchDenseEncoder(info, model, dimension, ends_normalized(folder))


def _shorten(model: SentenceTransformer, length: int | None) -> None:
    """Limit the tokens that every route reads of a text to `length`, and to the positions that its network has learned."""
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    first: Any = model[0]
    routes: list[Any] = [*first.sub_modules.values()] if isinstance(first, Router) else [model]
    for module in (route[0] for route in routes):
        if isinstance(module, StaticEmbedding):
            if length is not None:
                truncate(module.tokenizer, length)
        elif limits := [limit for limit in (length, most_positions(module)) if limit is not None]:
            module.max_seq_length = min(*limits, module.max_seq_length or limits[0])


@dataclass(frozen=True)
class TorchDenseEncoder:
    """A SentenceTransformer with the interface that ingest, search and evaluation use."""

    info: ModelInfo
    """Name and hash, which an index records."""
    model: SentenceTransformer
    """With its prompts and, if queries have their own, both routes."""
    dimension: int
    """Components of one vector."""
    normalized: bool
    """Whether every vector has length 1."""
    vectors: int = 1
    """Vectors of a document."""

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        # It sorts texts by length itself, so batches need little padding.
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
"""Documents that reveal whether encoders with equal weights differ in prompts, tokens or where they cut a text."""


def documents_alike(first: DenseEncoder, second: DenseEncoder) -> bool:
    """Whether both encode documents alike: with equal weights, and with equal vectors of PROBES.

    If so, vectors of one can be reused for the other: a quantized model keeps the document encoder of the dense model from
    which it was trained.
    """
    if not isinstance(first, TorchDenseEncoder) or not isinstance(second, TorchDenseEncoder):
        return False
    weights, second_weights = (_document_weights(encoder.model) for encoder in (first, second))
    if weights.keys() != second_weights.keys():
        return False
    for name, tensor in weights.items():
        if tensor.dtype != second_weights[name].dtype or not tensor.equal(second_weights[name].to(tensor.device)):
            return False
    return np.array_equal(first.encode_documents(PROBES), second.encode_documents(PROBES))


def _document_weights(model: SentenceTransformer) -> dict[str, Tensor]:
    """{position of the module and name: tensor} of the modules that encode a document."""
    stages = stages_of(model, "document")
    return {f"{at}.{name}": tensor for at, stage in enumerate(stages) for name, tensor in stage.state_dict().items()}


def stages_of(model: SentenceTransformer, route: Literal["query", "document"]) -> list[Any]:
    """The modules that a SentenceTransformer runs for queries or documents. Raises ModelError if there is no such route."""
    from sentence_transformers.base.modules import Router

    stages: list[Any] = list(model)
    if len(stages) == 1 and isinstance(stages[0], Router):
        routes = stages[0].sub_modules
        if route not in routes:
            raise ModelError(f"the model has no route {route!r}, only {', '.join(routes)}")
        stages = list(routes[route].children())
    return stages
