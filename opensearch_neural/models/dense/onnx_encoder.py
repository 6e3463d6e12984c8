"""Dense encoding with only ONNX Runtime and `tokenizers`, for applications that encode queries without torch.

`export_onnx` (which needs torch) writes `onnx/model.onnx` beside each transformer of a model directory. It takes token ids
and gives last hidden states, as models from the Hugging Face hub's exporters do. Pooling, projection and normalization are
done in numpy, as the directory's sentence-transformers files say.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import MissingExtra, ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import ends_normalized, finite
from opensearch_neural.models.dense.pooling import pooling_modes
from opensearch_neural.models.dense.static_table import MODULE as STATIC
from opensearch_neural.models.dense.static_table import StaticTable
from opensearch_neural.models.directory import ModelInfo, Module
from opensearch_neural.models.pretrained import T5, most_tokens, quiet_loading
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.tokenizer import (
    cut_as_configured,
    network_tokenizer,
    refuse_more_tokens,
    tokens_of_texts,
)
from opensearch_neural.models.vectors import batches_by_length

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from transformers import PreTrainedModel

Array = NDArray[np.float32]

FILE, INT8_FILE = "model.onnx", "model_int8.onnx"
MIX = "WeightedLayerPooling"
"""The module that mixes layers. ONNX does not support it: the exported graph gives only the last layer."""
AFTER_PADDING = ("camembert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
"""Model types of transformers that count positions from after the padding's id."""
LEAST_COSINE = 0.9
"""Least mean cosine between a token's last hidden states in int8 and float32. MiniLM's pooled vectors reach 0.99."""


@dataclass(frozen=True)
class Tower:
    """One route: tokenizer, transformer, and the stages that turn its token vectors into one vector."""

    tokenizer: Tokenizer
    """Cuts texts at the model's length; it does not pad."""
    session: InferenceSession
    """Runs the transformer: ids and mask, (batch, length) → token vectors."""
    stages: list[Callable[[Array, Array], Array]]
    """Each takes (batch, …) and the mask (batch, length), and gives (batch, …)."""
    pad_id: int
    """The id that fills shorter texts of a batch."""
    prompt: str
    """Text that is put before every text."""

    def encode(self, texts: Sequence[str], batch_size: int) -> Array:
        """(texts, dimension), in order."""
        encodings = self.tokenizer.encode_batch_fast([encodable(self.prompt + text) for text in texts])
        order, rows = [], list[Array]()
        input_names = {field.name for field in self.session.get_inputs()}
        for batch, ids, mask in batches_by_length([encoding.ids for encoding in encodings], batch_size, self.pad_id):
            order.append(batch)
            inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(ids)}
            vectors: Array = self.session.run(None, {key: inputs[key] for key in inputs if key in input_names})[0]
            for stage in self.stages:
                vectors = stage(vectors, mask.astype(np.float32))
            rows.append(vectors)
        if not rows:
            return np.zeros((0, 0), dtype=np.float32)
        return np.concatenate(rows)[np.argsort(np.concatenate(order))]


@dataclass(frozen=True)
class OnnxDenseEncoder:
    """A DenseEncoder without torch; routes that look up a table do not need ONNX Runtime either."""

    info: ModelInfo
    """Name and hash, which an index records."""
    dimension: int
    """Components of one vector."""
    normalized: bool
    """Whether every vector has length 1."""
    query: Tower | StaticTable
    """The route of queries."""
    load_document: Callable[[], Tower | StaticTable] = field(repr=False)
    """Called at the first document, since applications only encode queries. Raises ModelError if it needs torch."""
    vectors: int = 1
    """Vectors of a document."""

    @cached_property
    def document(self) -> Tower | StaticTable:
        return self.load_document()

    @classmethod
    def load(
        cls, folder: Path, info: ModelInfo, max_length: int | None, *, int8: bool = False, threads: int | None = None
    ) -> OnnxDenseEncoder:
        modules = directory.routes(folder) or {"": [Module("Transformer", folder), Module("Pooling", folder)]}

        def load(route: str) -> Tower | StaticTable:
            of_route = modules.get(route) or modules.get("", [])
            if of_route and of_route[0].type == STATIC:
                return StaticTable.load(folder, of_route, route, max_length)
            return _load_tower(folder, of_route, route, max_length, int8, threads)

        query = load("query")
        dimension = query.encode(["dimension"], 1).shape[1]
        return cls(info, dimension, ends_normalized(folder), query, lambda: load("document"))

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> Array:
        return finite(self.document.encode(texts, batch_size), self.dimension, self.info)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> Array:
        return finite(self.query.encode(texts, batch_size), self.dimension, self.info)


def _load_tower(
    folder: Path, modules: list[Module], route: str, max_length: int | None, int8: bool, threads: int | None
) -> Tower:
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ModuleNotFoundError:
        raise MissingExtra("encoding with ONNX Runtime", "onnx") from None
    if not modules or modules[0].type not in ("Transformer", "MLMTransformer"):
        raise ModelError(f"{folder}: the ONNX backend needs a directory whose first module is a Transformer")
    if any(module.type == MIX for module in modules):
        raise ModelError(
            f"{folder}: the ONNX backend cannot mix layers, which a {route}'s vector needs", "use the torch backend"
        )
    transformer = modules[0].path
    name = INT8_FILE if int8 else FILE
    file = next((f for f in (transformer / "onnx" / name, transformer / name) if f.exists()), None)
    if file is None:
        raise ModelError(
            f"{transformer}: no onnx/{name}",
            'write it with torch: python -c "from opensearch_neural.models.dense.onnx_encoder import export_onnx; '
            f"export_onnx('{folder}'{', int8=True' * int8})\"",
        )
    options = SessionOptions()
    options.intra_op_num_threads = threads or 0
    # Threads that spin between two queries would use as much CPU time as the queries themselves.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise ModelError(f"{file}: ONNX Runtime cannot load it ({error})") from None
    tokenizer = network_tokenizer(transformer, folder)
    config = read_json_object(transformer / "config.json")
    refuse_more_tokens(tokens_of_texts(tokenizer), config.get("vocab_size"), transformer)
    pad_id, prompt = int(config.get("pad_token_id") or 0), directory.prompt(folder, route)
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config.get("model_type") in AFTER_PADDING:
        positions -= pad_id + 1
    cut_as_configured(tokenizer, transformer, positions, route, max_length)
    stages: list[Callable[[Array, Array], Array]] = []
    if len(session.get_outputs()[0].shape) == 3:  # else the exported graph pools already
        stages = [_stage(module) for module in modules[1:]]
    return Tower(tokenizer, session, stages, pad_id, prompt)


def _stage(module: Module) -> Callable[[Array, Array], Array]:
    file = module.path / "config.json"
    if module.type == "Normalize":
        return _normalize
    if module.type == "Dropout":
        return lambda vectors, mask: vectors
    if module.type == "Pooling":
        # A plain transformer has no pooling configuration here, only its own: mean.
        return _POOLING[_pooling_mode(read_json_object(file, missing_ok=True), file)]
    if module.type == "Dense":
        return _projection(module.path)
    raise ModelError(f"{module.path}: the ONNX backend has no module {module.type}", "use the torch backend")


def _pooling_mode(config: dict[str, Any], file: Path) -> str:
    modes = pooling_modes(config) or ["mean"]
    mode = modes[0]
    if len(modes) != 1 or mode not in _POOLING or config.get("include_prompt") is False:
        raise ModelError(f"{file}: the ONNX backend pools by one of {', '.join(_POOLING)}", "use the torch backend")
    return mode


def _mean(vectors: Array, mask: Array) -> Array:
    return np.einsum("bld,bl->bd", vectors, mask) / np.maximum(mask.sum(1, keepdims=True), 1e-9)


def _first(vectors: Array, mask: Array) -> Array:
    return vectors[:, 0]


def _last(vectors: Array, mask: Array) -> Array:
    return vectors[np.arange(len(vectors)), mask.sum(1).astype(int) - 1]


def _maximum(vectors: Array, mask: Array) -> Array:
    return np.where(mask[:, :, None] > 0, vectors, -np.inf).max(axis=1)


_POOLING = {"mean": _mean, "cls": _first, "max": _maximum, "lasttoken": _last}


def _normalize(vectors: Array, mask: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _projection(folder: Path) -> Callable[[Array, Array], Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = read_json_object(folder / "config.json")
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation not in ("Tanh", "Identity") or config.get("use_residual"):
        raise ModelError(
            f"{folder / 'config.json'}: the ONNX backend has no {activation} here", "use the torch backend"
        )
    file = folder / "model.safetensors"
    try:
        tensors = load_file(file)
        weight, bias = tensors["linear.weight"], tensors.get("linear.bias", np.float32(0))
    except (SafetensorError, OSError, KeyError, TypeError) as error:  # the last: numpy has no bfloat16
        raise ModelError(f"{file} cannot be read: {error}", "use the torch backend") from None

    def project(vectors: Array, mask: Array) -> Array:
        projected = vectors @ weight.T + bias
        return np.tanh(projected) if activation == "Tanh" else projected

    return project


def export_onnx(path: str | Path, *, int8: bool = False) -> list[Path]:
    """Write `onnx/model.onnx` beside every transformer of a model directory, and check it against torch within 1e-4.

    A route that mixes layers (as a document route may, beside a plain query route) is left to torch. A table of tokens'
    vectors needs no file.

    int8: also write `onnx/model_int8.onnx`, which multiplies matrices in 8-bit integers and rounds activations dynamically.
    A short query takes less than half of the time; vectors change a little, so measure the loss of quality.

    Returns the files written. Needs torch and the package `onnxscript`. Raises ModelError if the outputs differ, or if
    every route mixes layers.
    """
    try:
        import onnxscript  # noqa: F401
        import torch
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    except ModuleNotFoundError as error:
        raise MissingExtra(f"exporting to ONNX (module {error.name!r})", "train") from None
    folder = directory.locate(path)
    refuse_unsafe(folder)
    modules = directory.routes(folder) or {"": [Module("Transformer", folder)]}
    plain = [route for route in modules.values() if route and all(module.type != MIX for module in route)]
    if not plain:
        raise ModelError(f"{folder}: the ONNX backend cannot mix layers, as every route does", "use the torch backend")
    written = []
    for transformer in dict.fromkeys(route[0].path for route in plain if route[0].type != STATIC):
        with quiet_loading():
            try:
                config = AutoConfig.from_pretrained(transformer, trust_remote_code=False)
                # AutoModel would add a decoder with random weights.
                kind = AutoModelForTextEncoding if config.model_type in T5 else AutoModel
                model = kind.from_pretrained(
                    transformer,
                    use_safetensors=True,
                    trust_remote_code=False,
                    attn_implementation="eager",
                    dtype=torch.float32,
                ).eval()
            except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
                raise ModelError(f"{transformer} does not load as a transformer: {error}") from error
        file = transformer / "onnx" / "model.onnx"
        file.parent.mkdir(exist_ok=True)
        # Checked under another name first, so that a file that encodes wrongly is never found later.
        beside = file.with_name(".model.onnx")
        try:
            _export(model, directory.max_length(transformer, most_tokens(model)), beside)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
        written.append(file)
        if int8:
            written.append(_round_to_int8(file, model.config.vocab_size))
    return written


def _round_to_int8(file: Path, vocabulary: int) -> Path:
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rounded, beside = file.with_name(INT8_FILE), file.with_name(f".{INT8_FILE}")
    logging.getLogger().addFilter(_no_advice)
    try:
        quantize_dynamic(file, beside, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"], per_channel=True)
        ids = np.arange(1, 17, dtype=np.int64)[None] * 97 % vocabulary
        outputs = []
        for each in (file, beside):
            session = InferenceSession(str(each), providers=["CPUExecutionProvider"])
            outputs.append(session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
        lengths = np.linalg.norm(outputs, axis=2).prod(axis=0)
        cosine = float(((outputs[0] * outputs[1]).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())
        if not cosine >= LEAST_COSINE:
            raise ModelError(
                f"{file}: its outputs in 8 bits have a cosine of only {cosine:.2f} with those in float32",
                "use the float32 export",
            )
        beside.replace(rounded)
    finally:
        beside.unlink(missing_ok=True)
        logging.getLogger().removeFilter(_no_advice)
    return rounded


def _no_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


def _export(model: PreTrainedModel, longest: int, file: Path) -> None:
    import torch
    from onnxruntime import InferenceSession

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    wrapped = LastHiddenState().eval()

    def example(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.arange(batch * length).reshape(batch, length) % (model.config.vocab_size - 1) + 1
        mask = torch.ones_like(ids)
        mask[0, (length + 1) // 2 :] = 0
        return ids, mask

    shape = {0: torch.export.Dim("batch", max=1 << 16), 1: torch.export.Dim("length", max=longest)}
    # It warns about operators that no transformer uses.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrapped,
            example(3, min(17, longest)),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            dynamic_shapes=[shape, shape],
            # A protocol buffer holds at most two gigabytes.
            external_data=sum(p.numel() * p.element_size() for p in model.parameters()) > 1_900_000_000,
            verbose=False,
        )
        try:
            session = InferenceSession(str(file), providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            said = f"{model.config.model_type}: ONNX Runtime cannot load the exported model ({error})"
            raise ModelError(said, "use the torch backend") from None
        for batch, length in ((1, 1), (4, min(5, longest)), (2, longest)):
            ids, mask = example(batch, length)
            expected = wrapped(ids, mask).numpy()
            inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
            difference = float(np.abs((session.run(None, inputs)[0] - expected) * mask.numpy()[:, :, None]).max())
            if not difference < 1e-4:
                raise ModelError(
                    f"{model.config.model_type}: the exported model differs from torch by {difference:.2g} "
                    f"(batch {batch}, length {length}); nothing was written",
                    "use the torch backend",
                )
