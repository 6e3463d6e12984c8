"""Sparse document encoders; one call loads each kind.

`load_sparse` reads a model directory of this package, the lexical model, a sentence-transformers `SparseEncoder` (its
Router with a `SparseStaticEmbedding` for queries and `SpladePooling` for documents), and a plain masked language model
with an `idf.json`; each from a folder or a hub id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import MissingExtra, ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo, Module
from opensearch_neural.models.sparse import head as sparse_head
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import (
    cut_as_configured,
    network_tokenizer,
    refuse_more_tokens,
    special_tokens,
    vocabulary_of,
)
from opensearch_neural.models.vectors import SparseVectors, batches_by_length

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor

Route = Literal["query", "document"]
KIND = "sparse"
_WINDOW = 4096
"""Texts that are tokenized and sorted by length together."""


class SparseDocumentEncoder(Protocol):
    """Turns texts into sparse vectors; has the query encoder to search them with."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def query(self) -> TableEncoder: ...

    @property
    def vocabulary(self) -> list[str]: ...

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> SparseVectors:
        """One row per text, in order; no special tokens, weights finite and above 0."""


def load_sparse(
    name_or_path: str | Path,
    *,
    device: str | None = None,
    max_length: int | None = None,
    dtype: Literal["fp32", "bf16"] = "fp32",
    trust_remote_code: bool = False,
) -> SparseDocumentEncoder:
    """A sparse model from a directory or a hub id; its layout is recognized.

    device: "cpu", "cuda", …; None takes a GPU if there is one. max_length: tokens read of a document, at most the
    model's own limit. dtype "bf16" runs the transformer's layers in bfloat16. The lexical model ignores these three.
    trust_remote_code: whether the model's own code may run.
    Raises ModelError if the directory is incomplete, or encodes documents or queries in another way.
    """
    folder = directory.locate(name_or_path, code=trust_remote_code)
    if directory.is_lexical(folder):
        from opensearch_neural.models.sparse.lexical import LexicalEncoder

        return LexicalEncoder.load(name_or_path)
    directory.refuse_other_kinds(folder)
    transformer, _ = document_modules(folder)
    if not (transformer.path / "config.json").exists():
        raise ModelError(
            f"{transformer.path}: no config.json, so documents cannot be encoded",
            "tokenizer.json and idf.json alone encode only queries; give the whole model directory",
        )
    query = TableEncoder.load(folder)
    network = load_network(
        name_or_path, device=device, max_length=max_length, dtype=dtype, trust_remote_code=trust_remote_code
    )
    return TorchSparseEncoder(**vars(network), query=query)


def load_network(
    name_or_path: str | Path,
    route: Route = "document",
    *,
    device: str | None = None,
    max_length: int | None = None,
    dtype: Literal["fp32", "bf16"] = "fp32",
    trust_remote_code: bool = False,
) -> SparseNetwork:
    """The network that encodes the documents, or the queries, of a sparse model, which may lack a query table.

    device, max_length, dtype, trust_remote_code: as in `load_sparse`. Raises ModelError if no such network encodes them.
    """
    folder = directory.locate(name_or_path, code=trust_remote_code)
    directory.refuse_other_kinds(folder)
    transformer, pooling = network_modules(folder, route)
    encoder = load_masked_lm(transformer.path, device, trust_remote_code=trust_remote_code)
    tokenizer = network_tokenizer(transformer.path, folder)
    vocabulary = vocabulary_of(tokenizer)
    refuse_more_tokens(len(vocabulary), len(encoder.weight), transformer.path)
    cut_as_configured(tokenizer, transformer.path, encoder.positions, route, max_length)
    special = special_tokens(tokenizer)
    return SparseNetwork(
        info=directory.model_info(folder, name=name_or_path, kind=KIND),
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        model=encoder,
        pooling=pooling,
        special_ids=np.array([i for i, t in enumerate(vocabulary) if t in special or tokenizer.token_to_id(t) is None]),
        prompt=directory.prompt(folder, route),
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class TokenPooling:
    """How logits of all positions become one weight per token, and which weights are kept."""

    strategy: Literal["max", "sum"] = "max"
    """Whether a token's weight is the maximum or the sum over positions."""
    double_log: bool = False
    """Whether the logarithm is taken twice (`head.activated`)."""
    max_active: int | None = None
    """How many of the heaviest weights are kept; None: all."""
    prune: Pruning | None = None
    """Which of these weights are kept; None: all."""


@dataclass(frozen=True, slots=True)
class MaskedLanguageModel:
    """A masked language model without its last layer: it gives hidden states; `weight` and `bias` turn them into logits."""

    body: torch.nn.Module
    """Token ids → hidden states: (batch, length, size)."""
    weight: Tensor
    """(vocabulary, size)"""
    bias: Tensor
    """(vocabulary,)"""
    screen: sparse_head.Screen | None
    """`weight` in fewer bits, if the processor multiplies these faster; None: it does not."""
    device: torch.device
    """Where `body`, `weight` and `bias` are."""
    positions: int | None
    """Most tokens of a text; None: not limited."""
    pad_id: int
    """The id that fills shorter texts of a batch."""


@dataclass(frozen=True, kw_only=True)
class SparseNetwork:
    """Encodes texts with a masked language model and its sparse head."""

    info: ModelInfo
    """Name and hash, which an index records."""
    vocabulary: list[str]
    """Tokens by id."""
    tokenizer: Tokenizer
    """Cuts texts at the model's length."""
    model: MaskedLanguageModel
    """Gives the hidden states and the weights of the last layer."""
    pooling: TokenPooling
    """How logits become one weight for each token of the vocabulary."""
    special_ids: NDArray[np.int64]
    """Ids that get no weight: special tokens and unused ids."""
    prompt: str = ""
    """Text that is put before every text."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """The precision of the transformer's layers."""

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> SparseVectors:
        """SparseVectors of the texts, in order. Raises ModelError, naming the text, if a weight is not finite."""
        windows = [
            self._encode_window(texts[start : start + _WINDOW], start, batch_size)
            for start in range(0, len(texts), _WINDOW)
        ]
        return SparseVectors.concat(windows, self.vocabulary)

    def _encode_window(self, texts: Sequence[str], first: int, batch_size: int) -> SparseVectors:
        encodings = self.tokenizer.encode_batch_fast([encodable(self.prompt + text) for text in texts])
        ids = [encoding.ids for encoding in encodings]
        order, parts = [], []
        for batch, padded, mask in batches_by_length(ids, batch_size, self.model.pad_id):
            order.append(batch)
            parts.append(self._encode_batch(padded, mask, first + batch))
        return SparseVectors.concat(parts, self.vocabulary).take(np.argsort(np.concatenate(order)))

    def _encode_batch(self, ids: NDArray[np.int64], mask: NDArray[np.bool_], texts: NDArray[np.int64]) -> SparseVectors:
        """ids, mask: (batch, length); texts: which text each row is, for messages."""
        import torch

        model = self.model
        with torch.inference_mode():
            tokens = torch.from_numpy(ids).to(model.device)
            valid = torch.from_numpy(mask).to(model.device)
            with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=self.dtype == "bf16"):
                hidden = model.body(input_ids=tokens, attention_mask=valid.long()).logits
            hidden = hidden.to(model.weight.dtype)
            if not bool(torch.isfinite(hidden).all()):
                finite = torch.isfinite(hidden).all(dim=2).all(dim=1).cpu().numpy()
                raise ModelError(
                    f"{self.info.name} gives values that are not finite for text {texts[~finite].min()}",
                    "its weights may be broken: look for NaN in model.safetensors",
                )
            weights = self._pool(hidden, valid)
            weights[:, len(self.vocabulary) :] = 0
            weights[:, torch.from_numpy(self.special_ids).to(model.device)] = 0
            if self.pooling.max_active is not None and self.pooling.max_active < weights.shape[1]:
                smallest_kept = weights.topk(self.pooling.max_active, dim=1).values[:, -1:]
                weights = torch.where(weights >= smallest_kept, weights, 0)
            # OpenSearch accepts only normal floats; smaller weights add nothing to a score.
            rows, columns = torch.nonzero(weights >= torch.finfo(torch.float32).tiny, as_tuple=True)
            values = weights[rows, columns].float().cpu().numpy()
        indptr = np.searchsorted(rows.cpu().numpy(), np.arange(len(ids) + 1)).astype(np.int64)
        vectors = SparseVectors(indptr, columns.cpu().numpy().astype(np.int32), values, self.vocabulary)
        return vectors if self.pooling.prune is None else self.pooling.prune(vectors)

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        model, double_log = self.model, self.pooling.double_log
        if self.pooling.strategy == "sum":
            return sparse_head.summed_activations(hidden, mask, model.weight, model.bias, double_log=double_log)
        logits = sparse_head.largest_logits(hidden, mask, model.weight, model.bias, model.screen)
        return sparse_head.activated(logits, double_log=double_log)


@dataclass(frozen=True, kw_only=True)
class TorchSparseEncoder(SparseNetwork):
    """Encodes documents with a network, queries with a table."""

    query: TableEncoder
    """Encodes queries."""


def document_modules(folder: Path) -> tuple[Module, TokenPooling]:
    """`network_modules` of the documents."""
    return network_modules(folder, "document")


def network_modules(folder: Path, route: Route) -> tuple[Module, TokenPooling]:
    """(the module with the masked language model that encodes the texts of a route, how its logits are pooled).

    The model's own pruning is one of documents. Raises ModelError if the directory encodes the texts in another way.
    """
    prune = Pruning.of_model(folder) if route == "document" else None
    routes = directory.routes(folder)
    modules = routes.get(route, routes.get("", []))
    if not routes:
        return Module("MLMTransformer", folder), TokenPooling(prune=prune)
    types = [module.type for module in modules]
    if types not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise ModelError(
            f"{folder}: {'documents' if route == 'document' else 'queries'} are encoded by "
            f"{' and '.join(types) or 'nothing'}",
            "expected a masked language model and SpladePooling; --dense takes a dense model",
        )
    file = modules[1].path / "config.json"
    config = read_json_object(file)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise ModelError(f"{file}: pooling {strategy!r} with {activation!r}; expected max or sum, relu or log1p_relu")
    return modules[0], TokenPooling(strategy, activation == "log1p_relu", directory.max_active(folder), prune)


def whole_masked_lm(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The masked language model of a folder, as transformers loads it. Raises ModelError if its head is missing."""
    try:
        import torch  # noqa: F401  (transformers may be there without it)
        from transformers import AutoModelForMaskedLM
    except ModuleNotFoundError:
        raise MissingExtra("encoding with a sparse torch model", "encode") from None
    from opensearch_neural.models.pretrained import load_model

    model, missing = load_model(
        AutoModelForMaskedLM, folder, what="a masked language model", trust_remote_code=trust_remote_code
    )
    if missing:
        raise ModelError(
            f"{folder}: the weights lack {', '.join(missing[:3])}, so this is no masked language model (an encoder "
            "without its head?)"
        )
    return model


def load_masked_lm(folder: Path, device: str | None, *, trust_remote_code: bool = False) -> MaskedLanguageModel:
    """The network that encodes documents. Raises ModelError if its head is missing or not finite."""
    model = whole_masked_lm(folder, trust_remote_code=trust_remote_code)
    import torch

    from opensearch_neural.models.pretrained import most_tokens

    model.eval()
    last, _ = take_out_last_layer(model, folder)
    weight = last.weight.detach()
    bias = torch.zeros(len(weight)) if last.bias is None else last.bias.detach()
    if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        raise ModelError(f"{folder}: the output layer holds weights that are not finite")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        model = model.to(where)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used: {error}") from None
    weight, bias = weight.to(where), bias.to(where)
    pad_id = int(model.config.pad_token_id or 0)
    return MaskedLanguageModel(model, weight, bias, sparse_head.best_screen(weight), where, most_tokens(model), pad_id)


def take_out_last_layer(model: Any, folder: Path) -> tuple[Any, list[str]]:
    """Replace the layer that makes logits by the identity; the model's `logits` are then that layer's input.

    This works for any architecture that ends in a linear layer (BERT, DistilBERT, RoBERTa, MPNet, ELECTRA, ModernBERT, …),
    which is checked with an example. Returns the layer and its names in the model.
    """
    import torch

    last = model.get_output_embeddings()
    example = torch.arange(1, 9).remainder(model.config.vocab_size)[None]
    with torch.inference_mode():
        expected = model(input_ids=example).logits
    names = [name for name, module in model.named_modules(remove_duplicate=False) if module is last]
    if last is not None and isinstance(getattr(last, "weight", None), torch.Tensor):
        put_last_layer(model, names, torch.nn.Identity())
        with torch.inference_mode():
            hidden = model(input_ids=example).logits
            if hidden.shape[-1] == last.weight.shape[1] and torch.allclose(
                torch.nn.functional.linear(hidden, last.weight, getattr(last, "bias", None)),
                expected,
                rtol=1e-4,
                atol=1e-4,
                equal_nan=True,
            ):
                return last, names
    raise ModelError(
        f"{folder}: {type(model).__name__} does not end in one linear layer",
        "expected a masked language model such as BERT, DistilBERT, RoBERTa, MPNet, ELECTRA or ModernBERT",
    )


def put_last_layer(model: Any, names: Sequence[str], layer: torch.nn.Module) -> None:
    """Put `layer` into `model` under each of these names."""
    for name in names:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer)
