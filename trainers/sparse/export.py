"""The files of a sparse model: a Router that `SparseEncoder(folder)` loads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

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
    """Write what `load_sparse` and `SparseEncoder(folder)` read.

    model: the masked language model without its last layer, which is `head` and belongs at `head_names`.
    """
    sparse_models.put_last_layer(model, head_names, head)
    temporary = folder / ".document"
    try:
        backbones.save(model, tokenizer, temporary)
    finally:
        sparse_models.put_last_layer(model, head_names, nn.Identity())
    activation: Activation = "log1p_relu" if settings.double_log else "relu"
    write_inference_free(
        temporary,
        folder,
        lexicon.encoder.query.weights,
        activation=activation,
        max_active=settings.max_active,
        max_length=settings.document_length,
    )
    shutil.rmtree(temporary)
