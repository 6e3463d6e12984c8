"""The bi-encoder: one vector for a query, one for a document; the score is their inner product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opensearch_neural.models.dense.torch_encoder import KIND
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.faiss import FaissRetriever
from trainers.common.batches import Part
from trainers.common.grad_cache import CachedModel, Encoded, gather
from trainers.common.objective import in_batch_accuracy, objective_terms
from trainers.common.settings import EncoderSettings, ObjectiveSettings, Role
from trainers.common.training_model import Losses
from trainers.data.dev_sets import DEPTH
from trainers.data.retrieval_batches import RetrievalTargets
from trainers.data.tokenized import text_parts
from trainers.encoders.tower import Encoder, write_sentence_transformer

COSINE_TEMPERATURE = 0.05
TOKENS = 8192
"""Tokens that are encoded together for measures, with padding."""


class BiEncoder(CachedModel):
    """Two towers, or one for both roles, trained with contrastive and distillation terms."""

    def __init__(
        self,
        encoders: Mapping[Role, Encoder],
        tokenizers: Mapping[Role, PreTrainedTokenizerBase],
        settings: EncoderSettings,
        objective: ObjectiveSettings,
        *,
        onnx: bool = False,
    ) -> None:
        super().__init__()
        self.document, self.query = encoders["document"], encoders["query"]
        self.tokenizers, self.encoder_settings = dict(tokenizers), settings
        self.objective, self.onnx = objective, onnx
        cosine = self.document.normalize
        self.temperature = objective.temperature or (COSINE_TEMPERATURE if cosine else 1.0)
        # Cosines reach a teacher's scores only as InfoNCE sees them; raw inner products may grow.
        self.student_temperature = self.temperature if cosine else 1.0

    @property
    def kind(self) -> str:
        """The kind of the model directory that `export` writes."""
        return KIND

    @property
    def towers(self) -> dict[Role, Encoder]:
        return {"query": self.query, "document": self.document}

    def encode(self, role: str, part: Part) -> Encoded:
        tower = self.query if role == "query" else self.document
        return Encoded(tower(part.input_ids, part.attention_mask))

    def loss_terms(self, vectors: dict[str, Tensor], targets: RetrievalTargets) -> Losses:
        """vectors: "query" (queries, dimension) and "document" (documents, dimension) of this process."""
        queries, documents = vectors["query"], gather(vectors["document"])
        scores = self.scores(queries, documents, targets)
        terms = objective_terms(
            self.objective,
            scores,
            targets,
            temperature=self.temperature,
            student_temperature=self.student_temperature,
        )
        return Losses(terms, {"in_batch_accuracy": in_batch_accuracy(scores, targets)})

    def scores(self, queries: Tensor, documents: Tensor, targets: RetrievalTargets) -> Tensor:
        """The scores for the terms of the loss: (queries, gathered documents)."""
        return queries @ documents.T

    def export(self, folder: Path) -> None:
        write_sentence_transformer(self.towers, self.tokenizers, self.encoder_settings, folder, onnx=self.onnx)

    def vectors(self, role: Role, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The vectors of `texts` by the model in its present state: (texts, dimension)."""
        result = np.empty((len(texts), self.towers[role].dimension), dtype=np.float32)
        for rows, vectors, _ in self.encoded(role, texts):
            result[rows] = vectors
        return result

    @torch.inference_mode()
    def encoded(
        self, role: Role, texts: Sequence[str]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """(rows of `texts`, their vectors (rows, …), their lengths in tokens), batch by batch."""
        tower = self.towers[role]
        device = next(tower.parameters()).device
        tokenizer, settings = self.tokenizers[role], self.encoder_settings
        length, prompt = settings.length(role), settings.prompt(role)
        for start in range(0, len(texts), 4096):
            block = texts[start : start + 4096]
            for part in text_parts(tokenizer, block, max_length=length, tokens=TOKENS, prompt=prompt):
                vectors = tower(part.input_ids.to(device), part.attention_mask.to(device))
                lengths = part.attention_mask.sum(dim=1).numpy()
                yield start + part.position.numpy(), vectors.float().cpu().numpy(), lengths

    def retrieve(self, queries: Mapping[str, str], documents: Mapping[str, str]) -> Run:
        """The best documents of each query by exact search (see `dev_sets.Retrieve`)."""
        vectors = self.vectors("document", list(documents.values()))
        retriever = FaissRetriever(list(documents), vectors, lambda texts: self.vectors("query", texts))
        return retriever.retrieve(queries, DEPTH)
