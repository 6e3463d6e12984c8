"""The content that an ingest writes: records, vectors and the index's record, from models or from files of `osn encode`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ingest.chosen_models import choose, quantized_meta, sparse_meta
from ingest.corpus import Records, as_passages, ignore
from ingest.counted_idf import CorpusTable, splade_of
from ingest.model_request import ModelRequest
from ingest.settings import Models, NewIndex
from ingest.vectorizers import Changed, Vectorizer, coded, pruned, reconstructed
from ingest.vectors.stored_vectors import DenseInfo, Manifest, StoredVectors
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import byte_scale
from opensearch_neural.index.record import DenseMeta, DenseType, IndexMeta, QuantizedMeta
from opensearch_neural.models import registry
from opensearch_neural.models.dense.quantized import QUANTIZER_FILE, Quantizer
from opensearch_neural.models.directory import locate, model_info
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from opensearch_neural.models.dense.quantized import QuantizedModel

log = logging.getLogger(__name__)

WITHOUT_SPARSE = (
    "no sparse vectors are written; with --sparse MODEL, searches rank BM25's hits better, by related words that the model "
    "adds to documents (for example opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill; "
    "`osn model list` shows more)"
)


@dataclass(frozen=True)
class Content:
    """The content of an index, and the source of its vectors."""

    meta: IndexMeta
    """The record that the index has, or will have."""
    records: Records
    """The documents, or passages, in the order of the corpus."""
    vectorizer: Vectorizer
    """Makes their vectors, or reads stored ones."""
    total: int | None
    """The number of records; None if unknown."""
    query: TableEncoder | None = None
    """The query encoder of the sparse vectors; None until its table is counted."""
    pads: bool = False
    """Whether the vectorizer is faster with several batches at once."""
    table: CorpusTable | None = None
    """The IDF table of the sparse model, if it is counted while the records are written."""
    splade: str | None = None
    """The hash of the SPLADE that encodes documents, if it uses a corpus's table; known before the table is counted."""


def content_by_models(request: ModelRequest, new_index: NewIndex) -> Content:
    """The content with vectors of the named models, or of the models that wrote the index.

    If postings are pruned, the IDF table is counted first, since it decides which tokens they hold.
    """
    begun = request.meta is not None and request.meta.counting
    if new_index.prune_postings is not None and not begun:
        request = replace(request, counts_while_writing=False)
    chosen = choose(request)
    encoders, dense = chosen.encoders, None
    quantized = quantized_meta(encoders.quantized) if encoders.quantized else None

    def sample() -> list[str]:
        return [document.contents for document in islice(chosen.records(ignore), SAMPLE)]

    if (encoder := encoders.dense) is not None:
        dense = dense_meta(DenseInfo.of(encoder), new_index.dense_type, lambda: encoder.encode_documents(sample()))
    elif (coder := encoders.quantized) is not None and quantized is not None and encoders.reconstructed:
        dense = reconstructed_meta(
            quantized, coder.quantizer, new_index.dense_type, lambda: coder.encode_documents(sample())
        )
    if request.meta is None and request.models.sparse is None:
        log.info(WITHOUT_SPARSE)
    sparse = sparse_meta(encoders.sparse) if encoders.sparse else None
    query = encoders.sparse.query if encoders.sparse else None
    if chosen.table is not None:
        sparse, query = chosen.table.uncounted, None
    analyzer = new_index.analyzer or ANALYZER
    meta = IndexMeta(sparse, dense, chosen.passages, quantized, prune=_named(encoders.prune), analyzer=analyzer)
    splade = splade_of(encoders.sparse.info.path) if encoders.sparse else None
    return Content(meta, chosen.records, encoders, chosen.total, query, encoders.pads, chosen.table, splade)


def content_of_files(
    models: Models, new_index: NewIndex, stored: StoredVectors, records: Records, index_meta: IndexMeta | None = None
) -> Content:
    """The content with vectors from files of `osn encode`, for a new index or the index with the record `index_meta`.

    This machine remembers the query encoder for searches.
    """
    manifest = stored.manifest
    model = stored.folder / "model"
    if manifest.sparse is not None and not registry.link_of(manifest.sparse.hash).is_dir():
        registry.remember(manifest.sparse.hash, model)
    dense = None
    if manifest.dense is not None:
        first = stored.sample(SAMPLE)
        dense = dense_meta(manifest.dense, new_index.dense_type, lambda: first)
    if manifest.passages is not None:
        tokenizer = load_tokenizer(model) if manifest.sparse else load_tokenizer(stored.folder / "tokenizer.json")
        records = as_passages(records, tokenizer, manifest.passages)
    codes, vectorizer, place = _codes_of_files(models, stored, records)
    if models.reconstruct:
        assert codes is not None and place is not None
        quantizer = Quantizer.load(place / QUANTIZER_FILE)
        dense = reconstructed_meta(codes, quantizer, new_index.dense_type, lambda: stored.sample_of_codes(SAMPLE))
        vectorizer = Changed(stored, partial(reconstructed, quantizer=quantizer))
    rule = manifest.prune or (index_meta.prune if index_meta is not None else None)
    prune = models.prune or (Pruning.parse(rule) if rule else None)
    if prune is not None and manifest.sparse is None:
        raise InputError(f"--prune {prune} needs sparse vectors, and {stored.folder} has none", "leave it out")
    if manifest.prune not in (None, _named(prune)):
        raise InputError(
            f"the sparse vectors in {stored.folder} are pruned by {manifest.prune}, not by {prune}",
            "leave out --prune, or encode again",
        )
    if prune is not None and manifest.prune is None:
        vectorizer = Changed(vectorizer, partial(pruned, prune=prune))
    meta = IndexMeta(
        manifest.sparse, dense, manifest.passages, codes, prune=_named(prune), analyzer=new_index.analyzer or ANALYZER
    )
    query = TableEncoder.load(model) if manifest.sparse else None
    return Content(meta, records, vectorizer, manifest.records, query)


def dense_meta(model: DenseInfo, type: DenseType, sample: Callable[[], NDArray[np.float32] | None]) -> DenseMeta:
    """sample: gives vectors of the model, (n, …), or None; they decide the scale of bytes if they are not normalized."""
    scale = 1.0
    if type == "byte":
        vectors = None if model.normalized else sample()
        if vectors is None:
            vectors = np.zeros((1, model.dimension), np.float32)
        scale = byte_scale(vectors.reshape(-1, model.dimension), normalized=model.normalized)
    return DenseMeta(model.name, model.hash, model.dimension, type, model.normalized, scale, vectors=model.vectors)


def reconstructed_meta(
    model: QuantizedMeta, quantizer: Quantizer, type: DenseType, sample: Callable[[], NDArray[np.uint8] | None]
) -> DenseMeta:
    """sample: gives codes of the model, (n, M), or None.

    Reconstructed vectors are not normalized, even if the model's are.
    """
    info = DenseInfo(model.name, model.hash, quantizer.dimension, normalized=False)

    def vectors() -> NDArray[np.float32] | None:
        codes = sample()
        return None if codes is None else quantizer.reconstruct(codes)

    return replace(dense_meta(info, type, vectors), reconstructed=True)


def _codes_of_files(
    models: Models, stored: StoredVectors, records: Records
) -> tuple[QuantizedMeta | None, Vectorizer, Path | None]:
    """(record of the codes, their vectorizer, folder of their model), for codes in the files or made from their vectors."""
    codes, dense = stored.manifest.quantized, stored.manifest.dense
    if models.reconstruct and dense is not None:
        raise InputError(f"{stored.folder} holds dense vectors already", "leave out --dense-from-codes")
    if models.pq is not None and dense is not None and not _holds_codes_of(codes, models.pq):
        coding = coding_model(models, stored.manifest, stored, records)
        codes, place = quantized_meta(coding), coding.info.path
        registry.remember(codes.hash, place)
        return codes, Changed(stored, partial(coded, quantizer=coding.quantizer)), place
    if not models.reconstruct and models.pq is None:
        return codes, stored, None
    if codes is None:
        raise InputError(f"{stored.folder} holds no codes", "`osn encode --pq MODEL` writes them")
    place = registry.find(codes.hash, codes.name, "quantized") if models.pq is None else locate(models.pq)
    if (hash := model_info(place, name=codes.name, kind="quantized").hash) != codes.hash:
        raise InputError(
            f"{stored.folder} holds codes of {codes.name} ({codes.hash}), but --pq {models.pq} is another model ({hash})",
            "name the model that encoded them",
        )
    registry.remember(codes.hash, place)
    return codes, stored, place


ANALYZER = "english"
SAMPLE = 256
"""Documents whose vectors decide the scale of bytes."""
PROBED = 512
"""First documents of the corpus; the model encodes some of them again."""
LARGEST_DIFFERENCE = 0.01
"""Largest relative difference between two vectors of a document by the same weights, perhaps on two devices."""


def _named(prune: Pruning | None) -> str | None:
    return None if prune is None else str(prune)


def _holds_codes_of(codes: QuantizedMeta | None, model: str) -> bool:
    return codes is not None and model_info(locate(model), name=codes.name, kind="quantized").hash == codes.hash


def coding_model(models: Models, manifest: Manifest, stored: StoredVectors, records: Records) -> QuantizedModel:
    """The model `models.pq`, if the stored dense vectors are its own: codes can then be made from them.

    Raises InputError if it encodes some of the first documents (the very first, and the longest) differently.
    """
    from opensearch_neural.models.dense.quantized import load_quantized

    dense, codes = manifest.dense, manifest.quantized
    assert models.pq is not None and dense is not None
    model = load_quantized(models.pq, device=models.device)
    alike = dense.vectors == 1 and dense.dimension == model.quantizer.dimension
    if alike:
        first = [document for document in islice(records(ignore), PROBED) if not stored.unfit(document)]
        some = first[:8] + sorted(first[8:], key=lambda document: len(document.contents))[-8:]
        there = stored.vectors(some).dense if some else None
        if there is not None:
            again = model.dense.encode_documents([document.contents for document in some])
            away = np.linalg.norm(again - there, axis=1) / np.maximum(np.linalg.norm(there, axis=1), 1e-12)
            alike = bool((away < LARGEST_DIFFERENCE).all())
    if not alike:
        and_codes = f", and codes of {codes.name} ({codes.hash})" if codes is not None else ""
        raise InputError(
            f"{stored.folder} holds dense vectors of {dense.name} ({dense.hash}){and_codes}; {models.pq} is another model, "
            "and encodes documents differently",
            f"name a model that was trained from {dense.name}, or write its codes: `osn encode --pq {models.pq}`",
        )
    return model
