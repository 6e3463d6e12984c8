"""Chooses the models that encode: the named models, else those of the index.

A new index gets only the named models.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.corpus import Records, as_passages, ignore
from ingest.counted_idf import ChosenSparse, CorpusTable, last_rejected, while_writing, with_corpus_table
from ingest.model_request import ModelRequest
from ingest.settings import Models
from ingest.vectorizers import Encoders
from opensearch_neural.corpus.passages import words
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.models import IndexModels, ModelKind
from opensearch_neural.index.record import (
    IndexMeta,
    PassageMeta,
    QuantizedMeta,
    SparseMeta,
    another_index,
    documents_of,
)
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse.corpus_statistics import has_query_table
from opensearch_neural.models.sparse.pruning import Pruning

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from opensearch_neural.models.dense.dense_encoder import DenseEncoder
    from opensearch_neural.models.dense.quantized import QuantizedModel
    from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder

log = logging.getLogger(__name__)

LEXICAL = "lexical"
"""The name of the lexical model for `--sparse`: it is built from the corpus."""


@dataclass(frozen=True)
class ChosenModels:
    """The models that encode, and the records to encode."""

    encoders: Encoders
    """The loaded models."""
    passages: PassageMeta | None
    """How documents are split; None: they are whole."""
    records: Records
    """Documents, or passages if documents are split."""
    total: int | None
    """The number of records; None if unknown."""
    table: CorpusTable | None = None
    """The IDF table of the sparse model, if it is counted while the records are written."""


def choose(request: ModelRequest) -> ChosenModels:
    """Load or build the models for a corpus and an index.

    Raises ModelError if a model is missing, or if passages are requested but the index has whole documents (or vice versa).
    """
    models, records = request.models, request.records
    passages = _passages(request)
    quantized = source.quantized if (source := _source(request, "quantized", models.pq)) else None
    reconstructed = _reconstructed(request, quantized)
    dense = source.dense if not reconstructed and (source := _source(request, "dense", models.dense)) else None
    sparse = _sparse(request, passages)
    encoder, total = sparse.encoder, sparse.documents
    prune = _pruning(request, encoder)
    if models.tokenizer is not None:
        _check_tokenizer(models.tokenizer, encoder, passages is not None and not (encoder or dense or quantized))
    for model in (encoder, dense, quantized):
        if model is not None:
            registry.remember(model.info.hash, model.info.path)
    if passages is not None:
        records = as_passages(records, splitting_tokenizer(encoder, dense or quantized, models.tokenizer), passages)
    encoders = Encoders(encoder, dense, models.encode_batch, quantized, reconstructed, prune)
    if total is None and encoders.pads:
        # A first reading takes little time beside encoding; with the total, the time left can be shown.
        total = sum(1 for _ in records(ignore))
    return ChosenModels(encoders, passages, records, total, sparse.table)


def _passages(request: ModelRequest) -> PassageMeta | None:
    """The requested passages, else those of the index. Raises ModelError if the index splits documents differently."""
    requested, meta = request.models.passages, request.meta
    if meta is None:
        return requested
    if requested not in (None, meta.passages):
        raise ModelError(
            f"the index {request.index!r} holds {documents_of(meta)}",
            f"leave out --passages, or give {another_index(meta)}",
        )
    return meta.passages


def _source(request: ModelRequest, kind: ModelKind, name: str | None) -> IndexModels | None:
    """The models among which the model of a kind is: the named one, else that of the index; None for no model."""
    recorded = None if request.meta is None else getattr(request.meta, kind)
    if name == "none" or (name is None and recorded is None):
        return None
    models = request.models
    options: dict[str, Any] = {"device": models.device, "dtype": models.dtype, kind: name}
    # Opening the index checks later whether a named model wrote it.
    meta = request.meta if name is None else None
    return IndexModels(request.index, meta, **options, trust_remote_code=models.trust_remote_code)


def _reconstructed(request: ModelRequest, quantized: QuantizedModel | None) -> bool:
    """Whether dense vectors are reconstructed from codes. Raises InputError if no codes are written."""
    models, meta = request.models, request.meta
    of_index = meta is not None and meta.reconstructed is not None
    reconstructed = models.reconstruct or (models.dense is None and of_index)
    if reconstructed and quantized is None:
        raise InputError("reconstructed vectors need the codes of a quantized model", "give --pq MODEL")
    return reconstructed


def _sparse(request: ModelRequest, passages: PassageMeta | None) -> ChosenSparse:
    """The sparse model: made of the corpus, the named one, or that of the index.

    Raises ModelError for --sparse lexical if the index has no lexical model.
    """
    lexical, meta = request.models.sparse == LEXICAL, request.meta
    without = f"leave out --sparse, or give {another_index(meta or IndexMeta())}"
    if lexical and meta is not None and meta.sparse is None:
        raise ModelError(f"the index {request.index!r} holds no sparse vectors", without)
    sparse = _made_of_corpus(request, passages)
    if sparse is None:
        source = _source(request, "sparse", None if lexical else request.models.sparse)
        sparse = ChosenSparse(None if source is None else source.sparse)
    if lexical and meta is not None and sparse.encoder is not None and sparse.encoder.info.kind != LEXICAL:
        raise ModelError(
            f"the index {request.index!r} was written with the sparse model {sparse.encoder.info.name}, which is not a "
            "lexical one",
            without,
        )
    return sparse


def _pruning(request: ModelRequest, sparse: SparseDocumentEncoder | None) -> Pruning | None:
    """The requested pruning, else that of the index. Raises InputError if no sparse vectors are written."""
    recorded = None if request.meta is None else request.meta.prune
    prune = request.models.prune or (Pruning.parse(recorded) if recorded else None)
    if prune is not None and sparse is None:
        raise InputError(
            f"--prune {prune} needs sparse vectors, and this ingest writes none", "give --sparse MODEL too"
        )
    return prune


def _made_of_corpus(request: ModelRequest, passages: PassageMeta | None) -> ChosenSparse | None:
    """The sparse model, if it is lexical or a SPLADE without a query table."""
    models, meta, splade = request.models, request.meta, None
    if models.sparse is None and meta and meta.sparse and meta.counting:
        splade = registry.find(meta.sparse.hash, meta.sparse.name, "sparse")
    elif models.sparse not in (None, LEXICAL, "none"):
        splade = directory.locate(str(models.sparse), code=models.trust_remote_code)
    if splade is not None:
        if has_query_table(splade):
            return None
        if request.counts_while_writing and (meta is None or meta.counting):
            return while_writing(splade, request, passages)
        return with_corpus_table(splade, request, passages)
    if models.sparse != "none" and _lexical_is_to_be_built(models, meta):
        tokenizer = lexical_tokenizer(models.tokenizer, request.records)
        sparse, total = _built_lexical(as_passages(request.records, tokenizer, passages), tokenizer, request.corpus)
        if meta and meta.sparse and sparse.info.hash != meta.sparse.hash:
            registry.find(meta.sparse.hash, meta.sparse.name, "sparse")  # raises
        return ChosenSparse(sparse, total)
    return None


def _check_tokenizer(tokenizer: str, sparse: SparseDocumentEncoder | None, measures_passages: bool) -> None:
    """Raise InputError if the named tokenizer is not used, or if the index's lexical model has another tokenizer."""
    from opensearch_neural.models.tokenizer import load_tokenizer

    if sparse is None or sparse.info.kind != LEXICAL:
        if not measures_passages:
            raise InputError(
                "--tokenizer applies to --sparse lexical and to --passages without a model; this ingest has neither",
                "leave the option out",
            )
    elif load_tokenizer(tokenizer).get_vocab() != sparse.query.tokenizer.get_vocab():
        raise InputError(
            f"the sparse model {sparse.info.name} has another tokenizer than --tokenizer {tokenizer}",
            "leave the option out, or write another index",
        )


def _lexical_is_to_be_built(models: Models, meta: IndexMeta | None) -> bool:
    """Whether to build a lexical model: for a new index with --sparse lexical, or if the index's lexical model is missing on
    this machine. The same corpus gives the same model."""
    if meta is None or meta.sparse is None:
        return meta is None and models.sparse == LEXICAL
    return meta.sparse.name.startswith("lexical") and not registry.link_of(meta.sparse.hash).is_dir()


def lexical_tokenizer(tokenizer: str | None, records: Records) -> Tokenizer:
    """The tokenizer of a corpus's lexical model: the named one, else BERT's if installed, else trained on the corpus."""
    from opensearch_neural.models.sparse.lexical import TRAINING_SAMPLE
    from opensearch_neural.models.sparse.word_pieces import train_word_pieces
    from opensearch_neural.models.tokenizer import load_tokenizer

    if tokenizer is not None:
        return load_tokenizer(tokenizer)
    if packaged := directory.minilm_directory():
        return load_tokenizer(packaged)
    return train_word_pieces(document.contents for document in islice(records(ignore), TRAINING_SAMPLE))


def _built_lexical(records: Records, tokenizer: Tokenizer, corpus_name: str) -> tuple[SparseDocumentEncoder, int]:
    """(the lexical model of the records, saved under `home()`; the number of records).

    Raises InputError if no record has a token.
    """
    from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical

    log.info("reading the corpus once for the lexical model's term statistics")
    only_bm25 = ", or --sparse none: only BM25 finds such documents"
    with last_rejected(f"no lexical model can be built from {corpus_name}", only_bm25) as on_reject:
        built = build_lexical((document.contents for document in records(on_reject)), tokenizer=tokenizer)
    folder = registry.models_folder() / f"lexical-{built.info.hash}"
    built.save(folder)
    return replace(LexicalEncoder.load(folder), name=LEXICAL), built.documents


def splitting_tokenizer(
    sparse: SparseDocumentEncoder | None, dense: DenseEncoder | QuantizedModel | None, tokenizer: str | None
) -> Tokenizer:
    """The tokenizer that measures passages: the encoding model's, else the named one, else words."""
    from opensearch_neural.models.tokenizer import load_tokenizer

    if sparse is not None:
        return sparse.query.tokenizer
    if dense is not None:
        return load_tokenizer(_tokenizer_folder(dense.info.path))
    return words() if tokenizer is None else load_tokenizer(tokenizer)


def _tokenizer_folder(model: Path) -> Path:
    """The folder of the document tokenizer; a model with two towers has it in the document tower."""
    routes = directory.routes(model)
    modules = routes.get("document") or routes.get("") or []
    places = [model, *(module.path for module in modules[:1]), model / "document"]
    return next((place for place in places if (place / "tokenizer.json").exists()), model)


def sparse_meta(encoder: SparseDocumentEncoder) -> SparseMeta:
    return SparseMeta(encoder.info.name, encoder.info.hash, encoder.query.hash)


def quantized_meta(model: QuantizedModel) -> QuantizedMeta:
    return QuantizedMeta(model.info.name, model.info.hash, model.quantizer.subvectors)
