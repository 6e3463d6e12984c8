"""Chooses the models that encode: the named models, else those of the index.

A new index gets only the named models.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.corpus import Records, as_passages, ignore
from ingest.counted_idf import CorpusTable, ModelOfCorpus, while_writing, with_corpus_table
from ingest.model_request import ModelRequest
from ingest.settings import Models
from ingest.vectorizers import Encoders
from opensearch_neural.corpus.documents import Rejected
from opensearch_neural.corpus.passages import words
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.models import IndexModels
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
    wanted, wrote, index, records = request.models, request.wrote, request.index, request.records
    passages = _passages(wanted, wrote, index)
    how: dict[str, Any] = {
        "device": wanted.device,
        "dtype": wanted.dtype,
        "trust_remote_code": wanted.trust_remote_code,
    }
    # Opening the index checks later whether the named models wrote it.
    named = IndexModels(index, None, sparse=wanted.sparse, dense=wanted.dense, quantized=wanted.pq, **how)
    of_index = IndexModels(index, wrote, **how)

    def source(model: str | None, recorded: object) -> IndexModels | None:
        """The source of a model; None for no model."""
        if model is not None:
            return None if model == "none" else named
        return None if recorded is None else of_index

    held = wrote or IndexMeta()
    pq = models.quantized if (models := source(wanted.pq, held.quantized)) else None
    reconstructed = wanted.reconstruct or (wanted.dense is None and held.reconstructed is not None)
    if reconstructed and pq is None:
        raise InputError("reconstructed vectors need the codes of a quantized model", "give --pq MODEL")
    dense = models.dense if not reconstructed and (models := source(wanted.dense, held.dense)) else None
    if wanted.sparse == LEXICAL and wrote is not None and wrote.sparse is None:
        raise ModelError(
            f"the index {index!r} holds no sparse vectors", f"leave out --sparse, or give {another_index(held)}"
        )
    sparse: SparseDocumentEncoder | None = None
    total: int | None = None
    table: CorpusTable | None = None
    if made := _made_of_corpus(request, passages):
        sparse, total, table = made.encoder, made.documents, made.table
    elif models := source(None if wanted.sparse == LEXICAL else wanted.sparse, held.sparse):
        sparse = models.sparse
    if wanted.sparse == LEXICAL and sparse is not None and sparse.info.kind != LEXICAL:
        raise ModelError(
            f"the index {index!r} was written with the sparse model {sparse.info.name}, which is not a lexical one",
            f"leave out --sparse, or give {another_index(held)}",
        )
    prune = _pruning(wanted, held, sparse)
    if wanted.tokenizer is not None:
        measures_passages = passages is not None and not (sparse or dense or pq)
        _check_tokenizer(wanted.tokenizer, sparse, measures_passages)
    for encoder in (sparse, dense, pq):
        if encoder is not None:
            registry.remember(encoder.info.hash, encoder.info.path)
    if passages is not None:
        records = as_passages(records, splitting_tokenizer(sparse, dense or pq, wanted.tokenizer), passages)
    encoders = Encoders(sparse, dense, wanted.encode_batch, pq, reconstructed, prune)
    if total is None and encoders.pads:
        # Reading takes little time compared with encoding, and gives the time left.
        total = sum(1 for _ in records(ignore))
    return ChosenModels(encoders, passages, records, total, table)


def _pruning(wanted: Models, held: IndexMeta, sparse: SparseDocumentEncoder | None) -> Pruning | None:
    """The requested pruning, else that of the index. Raises InputError if no sparse vectors are written."""
    prune = wanted.prune or (Pruning.parse(held.prune) if held.prune else None)
    if prune is not None and sparse is None:
        raise InputError(
            f"--prune {prune} needs sparse vectors, and this ingest writes none", "give --sparse MODEL too"
        )
    return prune


def _made_of_corpus(request: ModelRequest, passages: PassageMeta | None) -> ModelOfCorpus | None:
    """The sparse model, if it is lexical or a SPLADE without a query table."""
    wanted, wrote, splade = request.models, request.wrote, None
    if wanted.sparse is None and wrote and wrote.sparse and wrote.counting:
        splade = registry.find(wrote.sparse.hash, wrote.sparse.name, "sparse")
    elif wanted.sparse not in (None, LEXICAL, "none"):
        splade = directory.locate(str(wanted.sparse), code=wanted.trust_remote_code)
    if splade is not None:
        if has_query_table(splade):
            return None
        if request.counts_while_writing and (wrote is None or wrote.counting):
            return while_writing(splade, request, passages)
        return with_corpus_table(splade, request, passages)
    if wanted.sparse != "none" and _lexical_is_to_be_built(wanted, wrote):
        tokenizer = lexical_tokenizer(wanted.tokenizer, request.records)
        sparse, total = _built_lexical(as_passages(request.records, tokenizer, passages), tokenizer, request.corpus)
        if wrote and wrote.sparse and sparse.info.hash != wrote.sparse.hash:
            registry.find(wrote.sparse.hash, wrote.sparse.name, "sparse")  # raises
        return ModelOfCorpus(sparse, total)
    return None


def _check_tokenizer(named: str, sparse: SparseDocumentEncoder | None, measures_passages: bool) -> None:
    """Raise InputError if the named tokenizer is not used, or if the index's lexical model has another tokenizer."""
    from opensearch_neural.models.tokenizer import load_tokenizer

    if sparse is None or sparse.info.kind != LEXICAL:
        if not measures_passages:
            raise InputError(
                "--tokenizer applies to --sparse lexical and to --passages without a model; this ingest has neither",
                "leave the option out",
            )
    elif load_tokenizer(named).get_vocab() != sparse.query.tokenizer.get_vocab():
        raise InputError(
            f"the sparse model {sparse.info.name} has another tokenizer than --tokenizer {named}",
            "leave the option out, or write another index",
        )


def _passages(wanted: Models, wrote: IndexMeta | None, index: str) -> PassageMeta | None:
    if wrote is None:
        return wanted.passages
    if wanted.passages not in (None, wrote.passages):
        raise ModelError(
            f"the index {index!r} holds {documents_of(wrote)}", f"leave out --passages, or give {another_index(wrote)}"
        )
    return wrote.passages


def _lexical_is_to_be_built(wanted: Models, wrote: IndexMeta | None) -> bool:
    """Whether to build a lexical model: for a new index with --sparse lexical, or if the index's lexical model is missing on
    this machine. The same corpus gives the same model."""
    if wrote is None:
        return wanted.sparse == LEXICAL
    lexical = wrote.sparse is not None and wrote.sparse.name.startswith("lexical")
    return wrote.sparse is not None and lexical and not registry.link_of(wrote.sparse.hash).is_dir()


def lexical_tokenizer(named: str | None, records: Records) -> Tokenizer:
    """The tokenizer of a corpus's lexical model: the named one, else BERT's if installed, else trained on the corpus."""
    from opensearch_neural.models.sparse.lexical import TRAINING_SAMPLE
    from opensearch_neural.models.sparse.word_pieces import train_word_pieces
    from opensearch_neural.models.tokenizer import load_tokenizer

    if named is not None:
        return load_tokenizer(named)
    if packaged := directory.minilm_directory():
        return load_tokenizer(packaged)
    return train_word_pieces(document.contents for document in islice(records(ignore), TRAINING_SAMPLE))


def _built_lexical(records: Records, tokenizer: Tokenizer, corpus_name: str) -> tuple[SparseDocumentEncoder, int]:
    """(the lexical model of the records, saved under `home()`; the number of records).

    Raises InputError if no record has a token.
    """
    from opensearch_neural.models.sparse.lexical import LexicalEncoder, NoTokens, build_lexical

    log.info("reading the corpus once for the lexical model's term statistics")
    rejected: deque[Rejected] = deque(maxlen=1)
    try:
        built = build_lexical((document.contents for document in records(rejected.append)), tokenizer=tokenizer)
    except InputError as error:
        last = f"; the last rejected one: {rejected[0]}" if rejected else ""
        remedy = error.remedy
        if isinstance(error, NoTokens) and error.documents:
            remedy = f"{remedy}, or --sparse none: only BM25 finds such documents"
        raise InputError(f"no lexical model can be built from {corpus_name}: {error.message}{last}", remedy) from None
    folder = registry.models_folder() / f"lexical-{built.info.hash}"
    built.save(folder)
    return replace(LexicalEncoder.load(folder), name=LEXICAL), built.documents


def splitting_tokenizer(
    sparse: SparseDocumentEncoder | None, dense: DenseEncoder | QuantizedModel | None, named: str | None
) -> Tokenizer:
    """The tokenizer that measures passages: the encoding model's, else the named one, else words."""
    from opensearch_neural.models.tokenizer import load_tokenizer

    if sparse is not None:
        return sparse.query.tokenizer
    if dense is not None:
        return load_tokenizer(_tokenizer_folder(dense.info.path))
    return words() if named is None else load_tokenizer(named)


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
