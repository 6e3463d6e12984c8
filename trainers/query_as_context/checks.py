"""Checks of a schedule before it begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.dense.torch_encoder import KIND as DENSE_KIND
from trainers.common.run_folder import check_output
from trainers.data.sets import check_set_names, refuse_same_names
from trainers.encoders import backbones
from trainers.query_as_context.model import build, masked_lm_head
from trainers.query_as_context.passages import generation_for
from trainers.query_as_context.pretrain import KIND
from trainers.query_as_context.settings import QueryAsContextConfig


def refuse_early(config: QueryAsContextConfig) -> None:
    """Raises early the errors that later steps would raise after hours.

    InputError for occupied folders, missing data and sets of the same name, ModelError for an unsuitable backbone or
    generator.
    """
    check_output(config.output, KIND)
    sets = [*config.unseen, *config.dev, *config.test]
    refuse_same_names("dev", config.dev)
    refuse_same_names("test", config.test)
    if config.retriever is not None:
        check_set_names(config.retriever.train, config.retriever.dev, config.retriever.selection)
        check_output(config.retriever.output, DENSE_KIND)
        sets += [*config.retriever.train, *config.retriever.dev, *config.retriever.unseen]
    files = [corpus.queries for corpus in config.corpora if config.uses_queries and corpus.queries is not None]
    for path in [corpus.path for corpus in config.corpora] + files + [settings.path for settings in sets]:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    if config.uses_queries:
        generators = {generation_for(config, corpus).model for corpus in config.corpora if corpus.queries is None}
        for generator in generators:
            assert generator is not None
            if not backbones.is_sequence_to_sequence(generator):
                raise ModelError(
                    f"{generator} is not a sequence-to-sequence model", "train a generator with osn train doc2query"
                )
    model = build(config)
    if model.tokenizer.mask_token_id is None:
        raise InputError(f"the tokenizer of {config.backbone} has no mask token")
    masked_lm_head(model.model)
    try:
        with torch.no_grad():
            hidden = torch.zeros(1, 2, int(model.model.config.hidden_size))
            passed: Any = model.through(hidden, torch.ones(1, 2, dtype=torch.long))
        if not isinstance(passed, Tensor):
            raise TypeError(f"they return a {type(passed).__name__}")
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the layers of {type(model.model).__name__} cannot be called like BERT's ({error})",
            "start from a BERT-like backbone",
        ) from None
