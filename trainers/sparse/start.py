"""From a start to an untrained student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.models import sparse as sparse_models
from opensearch_neural.models.directory import locate, routes
from trainers.encoders import backbones
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import SparseConfig, StudentSettings
from trainers.sparse.student import SparseStudent


def load_start(name_or_path: str | Path, student: StudentSettings) -> tuple[Any, PreTrainedTokenizerBase, bool]:
    """(masked language model, tokenizer, whether its head is fresh): also of a sparse model, whose document side it is."""
    folder = locate(name_or_path)
    if (folder / sparse_models.RESIDUAL).exists():
        folder = folder / "document"
    elif modules := routes(folder).get("document"):
        folder = modules[0].path
    model, tokenizer, fresh = backbones.masked_language_model(folder)
    if fresh:
        backbones.identity_head(model)
    if student.dropout is not None:
        backbones.set_dropout(model, student.dropout)
    check_length(model, "student.document_length", student.document_length)
    return model, tokenizer, fresh


def check_length(model: Any, name: str, length: int) -> None:
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"{name} is {length}, the backbone has {longest} positions")


def build(config: SparseConfig, stores: Sequence[Mapping[str, str]], *, to_impacts: bool = False) -> SparseStudent:
    """The untrained student; its table and impacts are of the texts in `stores`.

    Raises InputError for documents longer than the backbone's positions."""
    set_seed(config.training.seed)
    model, tokenizer, _ = load_start(config.start, config.student)
    check_length(model, "document_length", config.document_length)
    size = len(model.get_output_embeddings().weight)
    return SparseStudent(
        model,
        tokenizer,
        config.student,
        config.objective,
        config.regularization,
        document_length=config.document_length,
        lexicon=Lexicon.of(stores, tokenizer, size, config.student),
        name=locate(config.start),
        to_impacts=to_impacts,
    )
