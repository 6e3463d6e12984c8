"""The files of a sparse model: a Router that `SparseEncoder(folder)` loads, or a residual model of our own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from opensearch_neural.files import write_json
from opensearch_neural.idf import save_idf
from opensearch_neural.models import sparse as sparse_models
from opensearch_neural.models.inference_free import Activation, write_inference_free
from trainers.encoders import backbones
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import StudentSettings


def write_model(
    model: Any,
    head: nn.Module,
    head_names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    lexicon: Lexicon,
    settings: StudentSettings,
    folder: Path,
) -> None:
    """Write what `load_sparse` reads: a Router that `SparseEncoder(folder)` loads too, or, of a residual student, whose
    impacts sentence-transformers does not know, `residual.json` beside `document/`.

    model: the masked language model without its last layer, which is `head` and belongs at `head_names`.
    """
    sparse_models.put_last_layer(model, head_names, head)
    temporary = folder / ".document"
    try:
        target = folder / "document" if settings.residual else temporary
        backbones.save(model, tokenizer, target)
    finally:
        sparse_models.put_last_layer(model, head_names, nn.Identity())
    activation: Activation = "log1p_relu" if settings.double_log else "relu"
    if settings.residual:
        write_json(target / "sentence_bert_config.json", {"max_seq_length": settings.document_length})
        tokenizer.save_pretrained(folder)
        statistics = lexicon.encoder.statistics
        write_json(folder / sparse_models.RESIDUAL, {**statistics, "activation_function": activation})
        save_idf(folder / "idf.json", lexicon.encoder.query.weights)
        return
    write_inference_free(
        target,
        folder,
        lexicon.encoder.query.weights,
        activation=activation,
        max_active=settings.max_active,
        max_length=settings.document_length,
    )
    shutil.rmtree(target)
