"""The model of multi-layer representations: its document tower has several vectors, its loss compares or pools them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from opensearch_neural.models.dense import multi_layer
from opensearch_neural.models.dense.multi_layer import MultiVectors, Selection, mixed, write_selection
from opensearch_neural.models.dense.pooling import Pooling
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_multi_vector import MultiVectorRetriever
from trainers.common import losses
from trainers.common.batches import Part
from trainers.common.grad_cache import Encoded, gather
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import Losses, decay_groups
from trainers.data.dev_sets import DEPTH
from trainers.data.retrieval_batches import RetrievalTargets
from trainers.encoders.bi_encoder import BiEncoder
from trainers.encoders.tower import Encoder, write_sentence_transformer
from trainers.multi_layer.settings import SEVERAL, PoolingStrategy

MIX_LEARNING_RATE = 1e-2
"""The least learning rate of the logits of scalar mix."""


class MultiVectorEncoder(Encoder):
    """The documents' tower: `several` returns all vectors of a document, a call only the vectors that are searched."""

    def __init__(self, encoder: Encoder, selection: Selection, strategy: PoolingStrategy) -> None:
        super().__init__(encoder.backbone, pooling=encoder.pooling, normalize=encoder.normalize)
        self.selection, self.strategy = selection, strategy
        count = len(selection.layers) if selection.source == "layers" else selection.count
        self.mix = nn.Parameter(torch.zeros(count)) if strategy == "scalar-mix" else None

    def several(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(rows, vectors, dimension), scaled. With token vectors, shorter rows end in padding, which is to be ignored."""
        return self.scaled(self._unscaled(input_ids, attention_mask))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(rows, dimension), or (rows, vectors, dimension) if a document keeps several vectors."""
        if self.strategy == "self-contrastive":
            return super().forward(input_ids, attention_mask)
        if self.strategy == "multi-vector":
            return self.several(input_ids, attention_mask)
        vectors = self._unscaled(input_ids, attention_mask)
        known = known_vectors(self.selection.counts(attention_mask.sum(dim=1)), vectors.shape[1])
        weights = vectors.new_ones(vectors.shape[1]) if self.mix is None else self.mix.softmax(dim=0)
        return self.scaled(mixed(vectors, known, weights))

    def _unscaled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        deep = self.selection.source == "layers"
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=deep)
        return self.selection.vectors(output, attention_mask)

    @property
    def weights(self) -> list[float] | None:
        """The weights of the vectors in the weighted sum that is searched; None if the strategy does not sum vectors."""
        if self.strategy in SEVERAL:
            return None
        if self.mix is not None:
            return [float(weight) for weight in self.mix.detach().float().softmax(dim=0)]
        return [1.0] * max(1, len(self.selection.layers), self.selection.count)

    @property
    def is_dense(self) -> bool:
        """Whether sentence-transformers has modules for these vectors; it lacks one for the mean of the first tokens."""
        if self.strategy == "multi-vector":
            return False
        return self.strategy == "self-contrastive" or self.selection.source != "first-tokens"

    def sentence_transformers_modules(
        self,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        *,
        max_length: int,
        layers: Mapping[int, float] | None = None,
        pooling: Pooling | None = None,
    ) -> list[Any]:
        """The modules of the model directory. If it is not dense: the transformer, with pooling of the last layer."""
        if self.is_dense and self.weights is not None:
            if self.selection.source == "layers":
                layers = dict(zip(self.selection.layers, self.weights, strict=True))
            else:
                pooling = "mean"  # the average over all tokens
        return super().sentence_transformers_modules(
            tokenizer, folder, max_length=max_length, layers=layers, pooling=pooling
        )


def known_vectors(counts: Tensor, width: int) -> Tensor:
    """(rows, width), True for the first `counts` (rows,) of each row."""
    return torch.arange(width, device=counts.device) < counts[:, None]


class MultiLayerModel(BiEncoder):
    """A bi-encoder whose documents have several vectors, only in training (self-contrastive) or always (multi-vector)."""

    document: MultiVectorEncoder

    def __init__(self, *arguments: Any, regularization: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.regularization = regularization

    @property
    def kind(self) -> str:
        return super().kind if self.document.is_dense else multi_layer.KIND

    def encode(self, role: str, part: Part) -> Encoded:
        if role == "query" or self.document.strategy not in SEVERAL:
            return super().encode(role, part)
        vectors = self.document.several(part.input_ids, part.attention_mask)
        # Text lengths differ between parts and processes: padding lets their rows share one tensor.
        return Encoded(nn.functional.pad(vectors, (0, 0, 0, self._width - vectors.shape[1])))

    def parameter_groups(self, training: TrainingSettings) -> list[dict[str, Any]] | None:
        mix = self.document.mix
        if mix is None:
            return super().parameter_groups(training)
        return [
            *decay_groups(parameter for parameter in self.parameters() if parameter is not mix),
            # At a backbone's learning rate these few logits would hardly move.
            {"params": [mix], "lr": max(training.learning_rate, MIX_LEARNING_RATE), "weight_decay": 0.0},
        ]

    @property
    def _width(self) -> int:
        """The largest number of vectors that a document can have."""
        return int(self.document.selection.counts(torch.tensor([self.encoder_settings.document_length])))

    def _known(self, targets: RetrievalTargets) -> Tensor | None:
        """(gathered documents, vectors), True for a document's own vectors; None if every document has all vectors."""
        selection = self.document.selection
        if selection.size is not None:
            return None
        return known_vectors(gather(selection.counts(targets.lengths)), self._width)

    def scores(self, queries: Tensor, documents: Tensor, targets: RetrievalTargets) -> Tensor:
        strategy = self.document.strategy
        if strategy not in SEVERAL:
            return super().scores(queries, documents, targets)
        known = self._known(targets)
        if strategy == "multi-vector":
            return losses.largest_similarity(queries, documents, known=known)
        positives, last = targets.candidates[:, 0], self.document.selection.last
        return losses.self_contrastive_scores(queries, documents, positives, last=last, known=known)

    def loss_terms(self, vectors: dict[str, Tensor], targets: RetrievalTargets) -> Losses:
        """`BiEncoder.loss_terms`, and L_reg; "document" is (documents, vectors, dimension) under the strategies of
        SEVERAL."""
        result = super().loss_terms(vectors, targets)
        if self.document.mix is not None:
            weights = self.document.mix.detach().softmax(dim=0)
            result.measures |= {f"weight_{at}": weight for at, weight in enumerate(weights, start=1)}
        if self.document.strategy not in SEVERAL:
            return result
        positives, last = targets.candidates[:, 0], self.document.selection.last
        documents, known = gather(vectors["document"])[positives], self._known(targets)
        known = None if known is None else known[positives]
        if self.document.strategy == "self-contrastive" and self.regularization:
            result.terms["regularization"] = self.regularization * losses.self_contrastive_regularization(
                vectors["query"], documents, last=last, temperature=self.temperature, known=known
            )
        similarities = torch.einsum("qd,qvd->qv", vectors["query"], documents)
        if known is not None:
            similarities = similarities.masked_fill(~known, -torch.inf)
        result.measures["last_layer_wins"] = (similarities.argmax(dim=1) == last).float().mean()
        return result

    def document_vectors(self, texts: Sequence[str]) -> MultiVectors:
        """The vectors of each text, by the model in its present state."""
        parts: list[np.ndarray] = [np.empty(0)] * len(texts)
        for rows, several, lengths in self.encoded("document", texts):
            for row, vectors, count in zip(rows, several, self.document.selection.counts(lengths), strict=True):
                parts[row] = vectors[:count]
        offsets = np.cumsum([0, *(len(part) for part in parts)])
        return MultiVectors(np.concatenate(parts), offsets)

    def retrieve(self, queries: Mapping[str, str], documents: Mapping[str, str]) -> Run:
        if self.document.strategy != "multi-vector":
            return super().retrieve(queries, documents)
        vectors = self.document_vectors(list(documents.values()))
        retriever = MultiVectorRetriever(list(documents), vectors, lambda texts: self.vectors("query", texts))
        return retriever.retrieve(queries, DEPTH)

    def export(self, folder: Path) -> None:
        document = self.document
        if document.is_dense:
            # A shared transformer needs two routes if documents and queries are pooled differently.
            same = document.strategy == "self-contrastive"
            exported = replace(self.encoder_settings, tied=self.encoder_settings.tied and same)
            write_sentence_transformer(self.towers, self.tokenizers, exported, folder, onnx=self.onnx)
            return
        for role, tower in self.towers.items():
            (folder / role).mkdir()
            alone = replace(self.encoder_settings, tied=True, document_length=self.encoder_settings.length(role))
            onnx = self.onnx and role == multi_layer.QUERY
            write_sentence_transformer(
                {"document": tower}, {"document": self.tokenizers[role]}, alone, folder / role, onnx=onnx
            )
        write_selection(folder, document.selection, document.weights)
