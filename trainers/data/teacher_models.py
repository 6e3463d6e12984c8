"""Teacher models as functions of texts: detects their kind by their files, loads and calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import MissingExtra, ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models import directory
from opensearch_neural.models.pretrained import check_tokenizers, code_refused, loads_as, quiet_loading
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.sparse.corpus_statistics import has_query_table
from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder, load_sparse
from opensearch_neural.models.vectors import SparseVectors
from trainers.data.teacher_scores import LEXICAL, Scores, TeacherKind

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder


def detect(folder: Path) -> TeacherKind:
    """The kind of teacher in a model directory, by its files."""
    config_file = folder / "config.json"
    config = read_json_object(config_file, missing_ok=True)
    if any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or []):
        return "cross-encoder"
    written = directory.read_osn_json(folder) or {}
    modules = {module.type for route in directory.routes(folder).values() for module in route}
    # A masked language model without pooling modules is read as SPLADE.
    bare = not modules and any(str(name).endswith("ForMaskedLM") for name in config.get("architectures") or [])
    sparse = (
        bare
        or config.get("kind") == LEXICAL
        or written.get("kind") == "sparse"
        or (folder / "idf.json").exists()
        or bool(modules & {"SpladePooling", "SparseStaticEmbedding"})
    )
    return "sparse" if sparse else "dense"


@dataclass
class SparseSides:
    """A sparse model's two encoders, with a common vocabulary."""

    documents: Callable[[Sequence[str]], SparseVectors]
    """encodes texts as documents"""
    queries: Callable[[Sequence[str]], SparseVectors]
    """encodes texts as queries"""
    vocabulary: list[str]
    """tokens by id"""


def sparse_sides(
    model: str | Path,
    folder: Path,
    device: str | None,
    batch_size: int,
    max_length: int | None,
    *,
    trust_remote_code: bool = False,
) -> SparseSides:
    """The encoders of a sparse model: inference-free queries, or networks on both sides (SPLADE, a Router with two).

    trust_remote_code: whether the model's own code may run. Raises ModelError if it is needed and may not."""
    if not has_query_table(folder):
        return _networks(folder, device, batch_size, max_length, trust_remote_code=trust_remote_code)
    encoder = load_sparse(model, device=device, max_length=max_length, trust_remote_code=trust_remote_code)
    return table_sides(encoder, batch_size)


def table_sides(encoder: SparseDocumentEncoder, batch_size: int) -> SparseSides:
    """The sides of an inference-free model: its queries are looked up in a table."""
    return SparseSides(
        lambda texts: encoder.encode_documents(texts, batch_size=batch_size),
        lambda texts: SparseVectors.of_rows(map(encoder.query.encode, texts), encoder.vocabulary),
        encoder.vocabulary,
    )


def _networks(
    folder: Path, device: str | None, batch_size: int, max_length: int | None, *, trust_remote_code: bool
) -> SparseSides:
    try:
        from sentence_transformers import SparseEncoder
    except ModuleNotFoundError:
        raise MissingExtra("a sparse teacher that encodes queries too", "encode") from None
    refuse_unsafe(folder)
    with quiet_loading(), code_refused(folder), loads_as("a sparse encoder", folder):
        model = SparseEncoder(
            str(folder),
            device=device,
            local_files_only=not trust_remote_code,
            trust_remote_code=trust_remote_code,
            model_kwargs={"use_safetensors": True},
        ).eval()
    check_tokenizers(model, folder)
    readers = _readers(model)
    if any(each.tokenizer.get_vocab() != model.tokenizer.get_vocab() for each in readers):
        raise ModelError(
            f"{folder}: its networks for queries and documents have different tokens, so their weights have no product"
        )
    if max_length is not None:
        for each in readers:  # each has a limit of its own, which the Router's would replace
            each.max_seq_length = min(max_length, each.max_seq_length or max_length)
    # The width is read from vectors: the model may report its hidden size instead.
    width = max(
        int(encode(["text"], show_progress_bar=False).shape[1])
        for encode in (model.encode_query, model.encode_document)
    )
    tokens = model.tokenizer.convert_ids_to_tokens(list(range(min(width, len(model.tokenizer)))))
    vocabulary = [*tokens, *(f"[extra {number}]" for number in range(len(tokens), width))]

    def rows(vectors: Any) -> SparseVectors:
        matrix = vectors.coalesce()
        counts = np.bincount(matrix.indices()[0].cpu().numpy(), minlength=matrix.shape[0])
        return SparseVectors(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            matrix.indices()[1].cpu().numpy().astype(np.int32),
            matrix.values().float().cpu().numpy(),
            vocabulary,
        )

    options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False, "save_to_cpu": True}
    return SparseSides(
        lambda texts: rows(model.encode_document([encodable(text) for text in texts], **options)),
        lambda texts: rows(model.encode_query([encodable(text) for text in texts], **options)),
        vocabulary,
    )


def _readers(model: SparseEncoder) -> list[Any]:
    """The modules that read texts: one, or one for each route of a Router."""
    routes = getattr(model[0], "sub_modules", None)
    return [model[0]] if routes is None else [modules[0] for modules in routes.values()]


ScoresOfPairs = Callable[[list[tuple[str, str]]], Scores]
"""Pairs of texts to scores: (pairs,)."""


def cross_encoder(
    folder: Path, device: str | None, batch_size: int, max_length: int | None, *, trust_remote_code: bool = False
) -> ScoresOfPairs:
    """The scores of a cross-encoder, before any activation.

    trust_remote_code: whether the model's own code may run. Raises ModelError if it is needed and may not."""
    try:
        from sentence_transformers import CrossEncoder
        from torch import nn
    except ModuleNotFoundError:
        raise MissingExtra("a cross-encoder teacher", "encode") from None
    refuse_unsafe(folder)
    labels = read_json_object(folder / "config.json").get("id2label")
    if isinstance(labels, Mapping) and len(labels) != 1:
        raise ModelError(
            f"{folder} is a classifier with {len(labels)} outputs, not a cross-encoder with one score",
            "expected a model with one label, such as cross-encoder/ms-marco-MiniLM-L-6-v2",
        )
    with quiet_loading(), code_refused(folder), loads_as("a cross-encoder", folder):
        model = CrossEncoder(
            str(folder),
            device=device,
            local_files_only=not trust_remote_code,
            trust_remote_code=trust_remote_code,
            max_length=max_length,
            model_kwargs={"use_safetensors": True},
        )
    check_tokenizers(model, folder)
    model.eval()

    def predict(pairs: list[tuple[str, str]]) -> Scores:
        read = [(encodable(query), encodable(document)) for query, document in pairs]
        scores = model.predict(read, batch_size=batch_size, show_progress_bar=False, activation_fn=nn.Identity())
        return np.asarray(scores, dtype=np.float32).reshape(-1)

    return predict
