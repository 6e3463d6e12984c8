"""The files of a sparse model, which `SparseEncoder(folder)` loads: a Router, or for a SPLADE one network."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.models.sparse import encoder as sparse_models
from opensearch_neural.models.sparse.inference_free import Activation, write_inference_free
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
    """Write a model for `SparseEncoder(folder)`; `load_sparse` reads it too if queries have a table.

    model: the masked language model without its last layer; that is `head`, to be put back at `head_names`.
    """
    sparse_models.put_last_layer(model, head_names, head)
    temporary = folder / ".document"
    try:
        backbones.save(model, tokenizer, temporary)
    finally:
        sparse_models.put_last_layer(model, head_names, nn.Identity())
    activation: Activation = "log1p_relu" if settings.double_log else "relu"
    if settings.queries == "network":
        _write_siamese(temporary, folder, activation, settings)
    else:
        write_inference_free(
            temporary,
            folder,
            lexicon.encoder.query.weights,
            activation=activation,
            max_active=settings.max_active,
            max_length=settings.document_length,
        )
    shutil.rmtree(temporary)
    if settings.pruning is not None:
        settings.pruning.save(folder)


def _write_siamese(masked_lm: Path, folder: Path, activation: Activation, settings: StudentSettings) -> None:
    """Write a SPLADE, whose network encodes both queries and documents."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    with quiet_loading():
        network = Transformer(str(masked_lm), transformer_task="fill-mask", max_seq_length=settings.document_length)
        model = SparseEncoder(
            modules=[network, SpladePooling("max", activation_function=activation)],
            similarity_fn_name="dot",
            device="cpu",
            max_active_dims=settings.max_active,
        )
        model.save_pretrained(str(folder), create_model_card=False)
