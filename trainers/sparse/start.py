"""From a start to an untrained student.

A start is a backbone, a masked language model, or a sparse model in any format: a Router, a siamese SPLADE (the same
network for queries and documents), or a masked language model with `idf.json`. The activation, the limit of terms, the
pruning, the prompts and the table of a sparse model are read with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import locate, max_active, prompt, routes
from opensearch_neural.models.sparse import encoder as sparse_models
from opensearch_neural.models.sparse.corpus_statistics import has_query_table
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from trainers.common.settings import ROLES, Role
from trainers.encoders import backbones
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import LogActivation, SparseConfig, StudentSettings
from trainers.sparse.student import SparseStudent, frozen_modules

logger = logging.getLogger(__name__)


def load_start(
    name_or_path: str | Path, student: StudentSettings, *, trust_remote_code: bool = False
) -> tuple[Any, PreTrainedTokenizerBase, bool]:
    """(masked language model, tokenizer, whether its head is new) of a start. A sparse model's are those that
    encode documents.

    trust_remote_code: whether the start's own code may run.
    Raises ModelError if the directory is no such model, if its head lacks weights, if a sparse model has no head, or if its
    code is needed and may not run; InputError if `document_length` exceeds its positions.
    """
    folder, activation = _document_side(locate(name_or_path, code=trust_remote_code))
    model, tokenizer, fresh = backbones.masked_language_model(
        folder, trust_remote_code=trust_remote_code, needs_head=activation is not None
    )
    if fresh:
        backbones.identity_head(model)
    if student.dropout is not None:
        backbones.set_dropout(model, student.dropout)
    backbones.check_length(model, "student.document_length", student.document_length)
    return model, tokenizer, fresh


def check_start(config: SparseConfig, *, trust_remote_code: bool = False) -> None:
    """Load the start once before the data are read, and forget it. Raises what `build` would raise after minutes, but for
    what only the data tell: a table of another corpus, a new head without weights to begin with."""
    model, _, _ = load_start(config.start, config.student, trust_remote_code=trust_remote_code)
    for stage in config.stages:
        backbones.check_length(model, "document_length", stage.document_length or config.document_length)
    frozen_modules(model, config.student.frozen_layers)
    sparse_models.take_out_last_layer(model.eval(), locate(config.start))


def with_settings_of_start(config: SparseConfig) -> SparseConfig:
    """`config` with the activation, the limit of terms and the pruning of its start, unless it names its own.

    Raises ModelError for a sparse model that does not pool weights by their maximum, as the student does.
    """
    start, student = locate(config.start), config.student
    _, own = _document_side(start)
    most = max_active(start) if student.max_active is None else student.max_active
    pruning = student.pruning or Pruning.of_model(start)
    student = replace(
        student,
        activation=student.activation or own or "log",
        max_active=most,
        prune=None if pruning is None else str(pruning),
    )
    return replace(config, student=student)


def prompts_of_start(name_or_path: str | Path, student: StudentSettings) -> dict[Role, str]:
    """What the student reads before each query and document: the prompts of a sparse start.

    The query prompt is left out if the student's queries are a table's, which would look up its words, or the start's were.
    """
    start = locate(name_or_path)
    _, own = _document_side(start)
    if own is None:
        return dict.fromkeys(ROLES, "")
    by_network = student.queries == "network" and not has_query_table(start)
    return {"query": prompt(start, "query") if by_network else "", "document": prompt(start, "document")}


def _document_side(folder: Path) -> tuple[Path, LogActivation | None]:
    """(folder of the documents' transformer, its activation or None if the start is not a sparse model)."""
    modules = routes(folder).get("document") or routes(folder).get("") or []
    if any(module.type == "SpladePooling" for module in modules):
        transformer, pooling = sparse_models.document_modules(folder)
        if pooling.strategy != "max":
            raise ModelError(
                f"{folder} adds the weights of all positions ({pooling.strategy})",
                "start from a model with max pooling",
            )
        return transformer.path, "double-log" if pooling.double_log else "log"
    if modules:
        return modules[0].path, None
    # A masked language model with a table has the plain activation, as in `load_sparse`.
    return folder, "log" if (folder / "idf.json").exists() else None


def warn_of_what_is_left(name_or_path: str | Path, student: StudentSettings) -> None:
    """Log a warning of each thing that a sparse start has and the student does not: its activation, a prompt, its limit of
    terms, its pruning, its table."""
    start = locate(name_or_path)
    _, own = _document_side(start)
    if own is not None and student.activation not in (None, own):
        logger.warning(
            "%s was trained with the activation %s: %s changes all its weights", start, own, student.activation
        )
    prompts = prompts_of_start(start, student)
    for texts in ROLES:
        if (text := prompt(start, texts)) != prompts[texts]:
            logger.warning("%s encodes each %s after the prompt %r: the student has none", start, texts, text)
    limit, most = max_active(start), student.max_active
    if limit is not None and most is not None and most != limit:
        logger.warning(
            "%s keeps the %s heaviest terms of a text, the student %s (student.max_active)", start, limit, most
        )
    pruned = Pruning.of_model(start)
    if pruned is not None and student.pruning not in (None, pruned):
        logger.warning("%s prunes documents by %s, the student by %s (student.prune)", start, pruned, student.pruning)
    if student.idf == "train" and has_query_table(start):
        logger.warning("%s has a table of its own; the student's is counted in the train sets (student.idf)", start)


def start_table(name_or_path: str | Path) -> Mapping[str, float]:
    """The weights of a start's query tokens. Raises InputError if it has none."""
    try:
        return TableEncoder.load(locate(name_or_path)).weights
    except ModelError as error:
        raise InputError(
            f"student.idf is start, but the start has no table of weights: {error.message}",
            "student.idf=train counts a table over the documents of the train sets",
        ) from None


def build(
    config: SparseConfig, stores: Sequence[Mapping[str, str]], *, trust_remote_code: bool = False
) -> SparseStudent:
    """The untrained student; its statistics, and by default its table, come from the texts in `stores`.

    trust_remote_code and errors: as in `load_start`; errors of `start_table`, too."""
    set_seed(config.training.seed)
    config = with_settings_of_start(config.with_lengths())
    model, tokenizer, _ = load_start(config.start, config.student, trust_remote_code=trust_remote_code)
    backbones.check_length(model, "document_length", config.document_length)
    size = len(model.get_output_embeddings().weight)
    table = start_table(config.start) if config.student.idf == "start" else None
    return SparseStudent(
        model,
        tokenizer,
        config.student,
        config.objective,
        config.regularization,
        document_length=config.document_length,
        lexicon=Lexicon.of(stores, tokenizer, size, config.student, table=table),
        name=locate(config.start),
        prompts=prompts_of_start(config.start, config.student),
        trust_remote_code=trust_remote_code,
    )
