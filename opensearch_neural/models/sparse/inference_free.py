"""Write a sparse model in sentence-transformers' layout: a Router with a table for queries and a network for documents.

`SparseEncoder(folder)`, `load_sparse(folder)` and `osn model export ml-commons` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from opensearch_neural.errors import MissingExtra
from opensearch_neural.files import write_text
from opensearch_neural.models.sparse.idf import UNLISTED, save_idf
from opensearch_neural.models.tokenizer import load_tokenizer, vocabulary_of

Activation = Literal["relu", "log1p_relu"]
"""SpladePooling's name: "relu" is log(1 + relu(x)); "log1p_relu" takes log(1 + …) of that again."""


def write_inference_free(
    masked_lm: Path,
    folder: Path,
    table: Mapping[str, float],
    *,
    strategy: Literal["max", "sum"] = "max",
    activation: Activation = "relu",
    max_active: int | None = None,
    max_length: int | None = None,
    document_prompt: str = "",
    trust_remote_code: bool = False,
) -> None:
    """Write the Router directory `folder`, and `idf.json` in it.

    masked_lm: a folder with the network and its tokenizer, whose weights encode documents
    table: {token: weight in a query}; a token that is not listed weighs 1.0
    max_active: how many of the heaviest terms of a document are kept; None: all
    max_length: tokens read of a document; None: as many as the network has positions
    document_prompt: text that is put before every document
    trust_remote_code: whether the network's own code may run; it is then copied too

    Raises MissingExtra if sentence-transformers is not installed.
    """
    try:
        import torch
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Router, Transformer
        from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
    except ModuleNotFoundError:
        raise MissingExtra("writing a sparse model", "encode") from None
    from opensearch_neural.models.pretrained import cut_to_tokens, most_positions, quiet_loading

    vocabulary = vocabulary_of(load_tokenizer(masked_lm))
    weights = {token: table.get(token, UNLISTED) for token in vocabulary}
    with quiet_loading():
        trust = {"trust_remote_code": trust_remote_code}
        document = Transformer(
            str(masked_lm),
            transformer_task="fill-mask",
            max_seq_length=max_length,
            model_kwargs=trust,
            config_kwargs=trust,
            processor_kwargs=trust,
        )
        if (most := most_positions(document.auto_model)) is not None:
            document.max_seq_length = min(most, document.max_seq_length or most)
        size = len(document.tokenizer)
        # sentence-transformers multiplies a query's weights by a document's: both need one for each token.
        cut_to_tokens(document.auto_model, size)
        weight = torch.from_numpy(np.array([weights[token] for token in vocabulary[:size]], dtype=np.float32))
        router = Router.for_query_document(
            [SparseStaticEmbedding(tokenizer=document.tokenizer, weight=weight, frozen=True)],
            [document, SpladePooling(strategy, activation_function=activation)],
        )
        model = SparseEncoder(
            modules=[router],
            similarity_fn_name="dot",
            device="cpu",
            max_active_dims=max_active,
            prompts={"document": document_prompt} if document_prompt else None,
        )
        model.save_pretrained(str(folder), create_model_card=False)
    for config in folder.rglob("tokenizer_config.json"):
        # Whether this machine was offline does not belong to the model, but would change its hash.
        text = config.read_text(encoding="utf-8")
        write_text(config, text.replace('"local_files_only": true', '"local_files_only": false'))
    save_idf(folder / "idf.json", weights)
