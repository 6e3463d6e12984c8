"""The query encoder that learns: the start's own, or its first layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, stages_of
from opensearch_neural.models.tokenizer import encodable
from trainers.common.batches import Part
from trainers.encoders import backbones
from trainers.jpq.settings import JpqConfig


class QueryTower(nn.Module):
    """The modules of a sentence-transformers route, trainable: token ids in, (rows, D) out."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        max_length: int | None,
        prompt: str,
        dropout: float | None,
        layers: int | None = None,
    ):
        super().__init__()
        self.stages = nn.ModuleList(copy.deepcopy(list(modules)))
        transformer: Any = self.stages[0]
        if layers is not None:
            backbones.keep_layers(transformer.auto_model, layers)
        if layers == 0:
            # Without layers the first token and the last are the same for every query.
            for at, stage in enumerate(self.stages):
                if isinstance(stage, Pooling):
                    self.stages[at] = Pooling(stage.embedding_dimension, "mean", include_prompt=stage.include_prompt)
        self.tokenizer, self.prompt = transformer.tokenizer, prompt
        own = transformer.max_seq_length
        if max_length is not None and own is not None and max_length > own:
            raise InputError(f"query_length is {max_length}, but the start reads {own} tokens at most")
        self.max_length: int = max_length or own or 512
        transformer.max_seq_length = self.max_length
        for name, parameter in self.named_parameters():
            # A pooler that nothing reads has no gradient.
            if "pooler." in name:
                parameter.requires_grad_(False)
        if dropout is not None:
            backbones.set_dropout(self, dropout)
        self.noisy = backbones.largest_dropout(self) > 0

    def forward(self, part: Part) -> Tensor:
        features: dict[str, Any] = {"input_ids": part.input_ids, "attention_mask": part.attention_mask}
        for stage in self.stages:
            features = stage(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors as searches have them, (texts, D)."""
        encoder = SentenceTransformer(modules=list(self.stages), device=str(next(self.parameters()).device))
        vectors = encoder.encode(
            [encodable(self.prompt + text) for text in texts], convert_to_tensor=True, show_progress_bar=False
        )
        return vectors.float()

    @torch.no_grad()
    def without_dropout(self, vectors: Tensor, parts: Sequence[Part]) -> Tensor:
        """The vectors of `parts` as searches will have them; `vectors` if there is no dropout in them: (queries, D)."""
        if not (self.noisy and self.training):
            return vectors.detach()
        self.eval()
        try:
            return self.in_order(parts)
        finally:
            self.train()

    def in_order(self, parts: Sequence[Part]) -> Tensor:
        """The vectors of all parts, in the order of the queries: (queries, D)."""
        vectors = torch.cat([self(part) for part in parts]).float()
        return vectors[torch.argsort(torch.cat([part.position for part in parts]))]


def query_tower(start: TorchDenseEncoder, config: JpqConfig) -> QueryTower:
    """The start's query encoder, as `config` has it. Raises InputError if it cannot be had so."""
    query = stages_of(start.model, "query")
    if not isinstance(query[0], Transformer):
        raise ModelError(f"the start's first module is a {type(query[0]).__name__}; expected a Transformer")
    return QueryTower(
        query,
        max_length=config.query_length,
        prompt=directory.prompt(start.info.path, "query"),
        dropout=config.dropout,
        layers=config.query_layers,
    )
