"""Encodes a document as several vectors: of several layers (MLR) or of several tokens (ME-BERT, ColBERT-style).

    encoder = load_multi_layer("models/mlr")
    encoder.encode_documents(texts)     MultiVectors: the vectors of each text's layers
    encoder.encode_queries(texts)       (texts, dimension): a query is one vector

sim(q, d) is the largest inner product of q with a vector of d (`multi-layer-representations`, eq. 2): see
`retrievers.exact_multi_vector` and `queries.multi_vector.nearest`. A directory of kind "multi-layer":

    osn.json
    multi_layer.json     which hidden states are a document's vectors
    query/               a sentence-transformers directory that encodes queries (`load_dense`, and ONNX)
    document/            a sentence-transformers directory whose transformer has those hidden states
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import Backend, DenseEncoder, finite, located
from opensearch_neural.models.dense.pooling import Pooling, pooled
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, load_dense
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.vectors import DenseVectors, batches_by_length

if TYPE_CHECKING:
    from torch import Tensor

KIND = "multi-layer"
FILE = "multi_layer.json"
FORMAT = 1
QUERY, DOCUMENT = "query", "document"

VectorSource = Literal["layers", "first-tokens", "tokens"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which hidden states are a document's vectors, in which order.

    With mean pooling, the mean of all tokens comes before the tokens' own vectors, and counts as one of them. Raises
    InputError for layers that the backbone does not have, and if its last layer is missing.
    """

    source: VectorSource
    """Pooled vectors of `layers` (MLR, eq. 1), or the last layer's first `count` (ME-BERT) or all tokens (ColBERT)."""
    pooling: Pooling
    """How the token vectors of a layer become one."""
    depth: int
    """The number of the backbone's layers."""
    layers: tuple[int, ...] = ()
    """Numbers from 1, ascending, with the last layer; empty for other sources."""
    count: int = 0
    """Most vectors of a document with source "first-tokens"."""

    def __post_init__(self) -> None:
        if self.source == "layers":
            if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 1:
                raise InputError(f"layers {list(self.layers)}: expected numbers from 1, ascending, each once")
            if self.layers[-1] > self.depth:
                raise InputError(f"layers {list(self.layers)}: the backbone has {self.depth} layers")
            if self.layers[-1] != self.depth:
                raise InputError(
                    f"layers {list(self.layers)}: the backbone's last, {self.depth}, must be among them",
                    f"layers: {','.join(map(str, (*self.layers, self.depth)))}",
                )
        elif self.source == "first-tokens" and self.count < 1:
            raise InputError(f"first-tokens needs a count of at least 1, not {self.count}")

    @property
    def last(self) -> int:
        """The position of the last layer's pooled vector, which is the vector of a single-vector model."""
        return self.layers.index(self.depth) if self.source == "layers" else 0

    @property
    def size(self) -> int | None:
        """The number of vectors of every document; None if longer documents have more."""
        return len(self.layers) if self.source == "layers" else None

    @property
    def most(self) -> int | None:
        """The largest number of vectors of a document; None if only its length limits it."""
        return self.count if self.source == "first-tokens" else self.size

    def counts(self, lengths: Any) -> Any:
        """How many vectors documents have. lengths: in tokens; both (documents,), of numpy or torch."""
        if self.source == "layers":
            return lengths * 0 + len(self.layers)
        every = lengths + (self.pooling == "mean")
        return every if self.source == "tokens" else every.clip(max=self.count)

    def vectors(self, output: Any, attention_mask: Tensor) -> Tensor:
        """(rows, vectors, dimension), not normalized; vectors of a row beyond its `counts` are padding.

        output: of a transformer, with hidden states
        """
        import torch

        if self.source == "layers":
            states = [output.hidden_states[layer] for layer in self.layers]
            return torch.stack([pooled(state, attention_mask, self.pooling) for state in states], dim=1)
        hidden: Tensor = output.last_hidden_state
        if self.pooling == "mean":
            hidden = torch.cat([pooled(hidden, attention_mask, "mean")[:, None], hidden], dim=1)
        return hidden if self.source == "tokens" else hidden[:, : self.count]


def mixed(vectors: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """h_D = Σ_l w_l·h_l over a document's vectors, with weights scaled to a sum of 1 (MLR, eq. 8 and the text above it).

    vectors: (documents, vectors, dimension); known: (documents, vectors), False for padding; weights: at least (vectors,),
    the first are used. Returns (documents, dimension).
    """
    shares = weights[: vectors.shape[1]] * known
    return ((shares / shares.sum(dim=1, keepdim=True))[:, :, None] * vectors).sum(dim=1)


@dataclass(frozen=True, eq=False)
class MultiVectors:
    """The vectors of documents, one document after the other: document i has values[offsets[i]:offsets[i + 1]]."""

    values: DenseVectors
    """(vectors, dimension)"""
    offsets: NDArray[np.int64]
    """(documents + 1,)"""

    @classmethod
    def of(cls, stacked: DenseVectors) -> MultiVectors:
        """From (documents, vectors, dimension): every document has the same number of vectors."""
        documents, count, dimension = stacked.shape
        values = np.ascontiguousarray(stacked, dtype=np.float32).reshape(-1, dimension)
        return cls(values, np.arange(documents + 1, dtype=np.int64) * count)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, document: int) -> DenseVectors:
        """(vectors, dimension)"""
        return self.values[self.offsets[document] : self.offsets[document + 1]]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many vectors each document has."""
        return np.diff(self.offsets)

    def stacked(self) -> DenseVectors:
        """(documents, vectors, dimension). Raises InputError if documents have different numbers of vectors."""
        counts = np.unique(self.counts)
        if len(counts) > 1:
            raise InputError(f"documents have from {counts[0]} to {counts[-1]} vectors: they do not stack")
        return self.values.reshape(len(self), -1, self.values.shape[1])

    def filled(self, count: int) -> DenseVectors:
        """(documents, count, dimension): a document with fewer vectors repeats its first, which changes no maximum.

        Raises InputError if a document has more than `count` vectors, or none.
        """
        counts = self.counts
        if len(counts) and not 1 <= counts.min() <= counts.max() <= count:
            raise InputError(f"documents have from {counts.min()} to {counts.max()} vectors, not from 1 to {count}")
        place = np.arange(count)
        return self.values[self.offsets[:-1, None] + np.where(place < counts[:, None], place, 0)]


@dataclass(frozen=True)
class MultiLayerEncoder:
    """A model that encodes a document as several vectors and a query as one.

    The document tower is loaded when a document is first encoded, so that encoding queries with ONNX needs no torch.
    """

    info: ModelInfo
    """Name and hash, which an index records."""
    selection: Selection
    """Which layers or tokens give the vectors of a document."""
    mix: tuple[float, ...] | None
    """The weights that mix a document's vectors into one; None: they stay separate."""
    query: DenseEncoder
    """Encodes queries, as one vector each."""
    device: str | None = None
    """Where documents are encoded; None: a GPU if there is one."""

    @property
    def dimension(self) -> int:
        return self.query.dimension

    @property
    def normalized(self) -> bool:
        """Whether every vector has length 1."""
        return self.query.normalized

    @cached_property
    def document(self) -> TorchDenseEncoder:
        """The document tower. Raises ModelError if its number of layers is not the selection's."""
        loaded = load_dense(self.info.path / DOCUMENT, device=self.device)
        assert isinstance(loaded, TorchDenseEncoder)
        depth = int(loaded.model[0].auto_model.config.num_hidden_layers)  # type: ignore[union-attr,arg-type]
        if depth != self.selection.depth:
            raise ModelError(
                f"{self.info.path / FILE} expects {self.selection.depth} layers, but {DOCUMENT}/ has {depth}"
            )
        return loaded

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> DenseVectors:
        """(texts, dimension), in order. Raises ModelError if a vector is not finite."""
        return self.query.encode_queries(texts, batch_size=batch_size)

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> MultiVectors:
        """The vectors of each text, in order. Raises ModelError if a vector is not finite."""
        import torch
        import torch.nn.functional as F

        if not texts:
            return MultiVectors(np.empty((0, self.dimension), np.float32), np.zeros(1, np.int64))
        transformer: Any = self.document.model[0]
        before = directory.prompt(self.document.info.path, "document")
        texts_ids = transformer.tokenizer(
            [before + encodable(text) for text in texts], truncation=True, max_length=transformer.max_seq_length
        )["input_ids"]
        lengths = np.array([len(ids) for ids in texts_ids], dtype=np.int64)
        counts = np.ones_like(lengths) if self.mix is not None else self.selection.counts(lengths)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        values = np.empty((int(offsets[-1]), self.dimension), dtype=np.float32)
        deep = self.selection.source == "layers"
        with torch.inference_mode():
            for rows, ids, valid in batches_by_length(texts_ids, batch_size, transformer.tokenizer.pad_token_id):
                mask = torch.from_numpy(valid).to(self.document.model.device).long()
                tokens = torch.from_numpy(ids).to(mask.device)
                output = transformer.auto_model(input_ids=tokens, attention_mask=mask, output_hidden_states=deep)
                states = self.selection.vectors(output, mask)
                own = torch.arange(states.shape[1], device=states.device) < self.selection.counts(
                    mask.sum(dim=1, keepdim=True)
                )
                if self.mix is not None:
                    states = mixed(states, own, states.new_tensor(self.mix))[:, None]
                    own = own[:, :1]
                states = F.normalize(states, dim=-1) if self.normalized else states
                for row, vectors, kept in zip(rows, states.float().cpu().numpy(), own.cpu().numpy(), strict=True):
                    values[offsets[row] : offsets[row + 1]] = vectors[kept]
        return MultiVectors(finite(values, self.dimension, self.info), offsets)


@dataclass(frozen=True)
class StackedEncoder:
    """A multi-layer model with the interface of `DenseEncoder`: a document's row holds its vectors, one after the other."""

    encoder: MultiLayerEncoder
    """The model, whose documents may have fewer vectors."""
    vectors: int
    """How many vectors every row has. A document with fewer vectors repeats its first."""

    @property
    def info(self) -> ModelInfo:
        return self.encoder.info

    @property
    def dimension(self) -> int:
        return self.encoder.dimension

    @property
    def normalized(self) -> bool:
        return self.encoder.normalized

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> DenseVectors:
        """(texts, vectors · dimension)"""
        several = self.encoder.encode_documents(texts, batch_size=batch_size)
        return several.filled(self.vectors).reshape(len(texts), self.vectors * self.dimension)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> DenseVectors:
        """(texts, dimension)"""
        return self.encoder.encode_queries(texts, batch_size=batch_size)


def load_single_or_several(
    name_or_path: str | Path, *, device: str | None = None, backend: Backend = "torch", threads: int | None = None
) -> DenseEncoder:
    """A dense model as `load_dense` reads it, or a multi-layer model with a limit on a document's vectors.

    Raises ModelError for a model without such a limit, since an index records one number of vectors for all documents.
    """
    folder = located(name_or_path, backend)
    if not (folder / FILE).exists():
        return load_dense(name_or_path, device=device, backend=backend, threads=threads)
    encoder = load_multi_layer(name_or_path, device=device, backend=backend, threads=threads)
    vectors = encoder.selection.most if encoder.mix is None else 1
    if vectors is None:
        raise ModelError(
            f"{encoder.info.name} gives longer documents more vectors, but `osn ingest` needs the same number for each",
            "train with representation.source=layers, or search it exactly, in faiss: `osn data mine --retriever "
            f"multi-layer:{name_or_path}`, retrievers.exact_multi_vector.MultiVectorRetriever",
        )
    return StackedEncoder(encoder, vectors)


def write_selection(folder: Path, selection: Selection, mix: Sequence[float] | None) -> None:
    """Write `multi_layer.json` into the model directory `folder`."""
    content = {"format": FORMAT, **asdict(selection), "mix": None if mix is None else list(mix)}
    write_json(folder / FILE, content)


def read_selection(folder: Path) -> tuple[Selection, tuple[float, ...] | None]:
    """(selection, mix) that `write_selection` wrote. Raises ModelError if the file is missing or invalid."""
    file = folder / FILE
    if not file.exists():
        raise ModelError(f"{folder} has no {FILE}: it is no multi-layer model", "`osn train mlr` writes one")
    content = read_json_object(file)
    if content.pop("format", None) != FORMAT:
        raise ModelError(f"{file}: expected the format {FORMAT}")
    try:
        mix = content.pop("mix")
        layers = tuple(int(layer) for layer in content.pop("layers"))
        selection = Selection(layers=layers, **content)
        if selection.source not in ("layers", "first-tokens", "tokens") or selection.pooling not in ("cls", "mean"):
            raise ValueError(f"source {selection.source!r}, pooling {selection.pooling!r}")
        weights = None if mix is None else tuple(float(weight) for weight in mix)
        # The source "tokens" has no mix: a mean of all tokens is an ordinary dense model.
        expected = selection.size or selection.count
        if weights is not None and (len(weights) != expected or min(weights) < 0 or not 0 < sum(weights) < math.inf):
            raise ValueError(f"mix {list(weights)}: expected {expected} weights of at least 0 with a sum above 0")
        return selection, weights
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{file} is not what `osn train mlr` writes: {error}") from None
    except InputError as error:
        raise ModelError(f"{file}: {error.message}") from None


def load_multi_layer(
    name_or_path: str | Path, *, device: str | None = None, backend: Backend = "torch", threads: int | None = None
) -> MultiLayerEncoder:
    """The multi-vector model of a directory that `osn train mlr` wrote. backend, threads: how queries are encoded, as in
    `load_dense`; documents are encoded by torch. Raises ModelError if the directory holds another kind of model.
    """
    folder = located(name_or_path, backend)
    selection, mix = read_selection(folder)
    query = load_dense(folder / QUERY, device=device, backend=backend, threads=threads)
    info = directory.model_info(folder, name=name_or_path, kind=KIND)
    return MultiLayerEncoder(info, selection, mix, query, device)
