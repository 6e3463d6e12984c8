"""Multi-layer representations: several layers' vectors represent a document, the last layer's vector a query.

    osn train mlr --layers last:2 --pooling self-contrastive --set 'train=[{path: squad-mix}]' --output models/mlr
    osn train mlr --layers 2,4,6 --pooling multi-vector --set 'train=[{path: squad-mix}]' --output models/several
    osn train mlr --config multi-layer-representations --output models/mlr      the paper's recipe

"Investigating Multi-layer Representations for Dense Passage Retrieval": similarity is the largest inner product (eq. 2),
and pooling reduces several vectors to one, by self-contrast (eq. 5 to 7), average or scalar mix (eq. 8). Data, negatives,
stages and the loop are those of `trainers.dense`. The paper's baselines, ME-BERT's first token vectors and ColBERT-style
token vectors, use the same poolings.

The model directory is an ordinary dense one, with the last layer only (self-contrastive) or a mix of layers (average,
scalar mix). If documents keep several vectors, its kind is "multi-layer" (`opensearch_neural.models.dense.multi_layer`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from opensearch_neural.errors import InputError
from opensearch_neural.models.dense import multi_layer
from opensearch_neural.models.dense.multi_layer import MultiVectors, Selection, VectorSource, mixed, write_selection
from opensearch_neural.models.dense.pooling import Pooling
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.multi_vector import MultiVectorRetriever
from trainers.common import losses
from trainers.common.batches import Part
from trainers.common.config import backbone_option, config_options
from trainers.common.grad_cache import Encoded, gather
from trainers.common.run_folder import tell
from trainers.common.settings import EncoderSettings, TrainingSettings
from trainers.common.training_model import Losses, decay_groups
from trainers.data.dev_measures import DEPTH
from trainers.data.retrieval_batches import RetrievalTargets
from trainers.dense import DenseConfig, rehearse, towers, train_dense
from trainers.encoders.backbones import read_config
from trainers.encoders.bi_encoder import BiEncoder
from trainers.encoders.tower import Encoder, read_start, write_sentence_transformer

PoolingStrategy = Literal["multi-vector", "self-contrastive", "average", "scalar-mix"]
SEVERAL: tuple[PoolingStrategy, ...] = ("multi-vector", "self-contrastive")
"""Pooling strategies that compare several vectors of a document in training."""
CHOICES = ("last", "first", "uniform")
DEFAULT_LAYERS = "last:2"


# ------------------------------------------------ configuration


@dataclass(slots=True)
class RepresentationSettings:
    """Which vectors a document has, and how they are pooled."""

    source: VectorSource = "layers"
    """ "layers": one vector from each of `layers`; "first-tokens": of the last layer's first `count` tokens (ME-BERT);
    "tokens": of all its tokens (ColBERT-style)"""
    layers: list[int] | str = DEFAULT_LAYERS
    """layer numbers from 1, which must include the last; or last:M, first:M, uniform:M (M layers) or all"""
    count: int = 8
    """number of tokens, for source first-tokens"""
    pooling: PoolingStrategy = "self-contrastive"
    """ "multi-vector" keeps and searches all vectors; "self-contrastive" keeps the last layer's vector; "average" and
    "scalar-mix" pool all into one"""
    regularization: float = 0.1
    """λ of L_con + λ·L_reg, for self-contrastive pooling"""

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):
            if re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", self.layers):
                self.layers = [int(number) for number in self.layers.split(",")]
            else:
                _parsed(self.layers)
        if self.source != "layers" and self.layers != DEFAULT_LAYERS:
            raise ValueError(
                f"layers {self.layers}: source {self.source} uses the last layer's tokens only; omit layers"
            )
        if self.count < 1 or not 0 <= self.regularization < math.inf:
            raise ValueError(
                f"count {self.count} must be at least 1, regularization {self.regularization} finite and at least 0"
            )
        if self.source == "tokens" and self.pooling == "scalar-mix":
            raise ValueError("scalar-mix learns one weight for each vector; with source tokens their number varies")


@dataclass(slots=True)
class MlrConfig(DenseConfig):
    """The settings of `osn train mlr`: the settings of `osn train dense`, and the vectors of documents."""

    encoder: EncoderSettings = field(default_factory=lambda: EncoderSettings(tied=False))
    representation: RepresentationSettings = field(default_factory=RepresentationSettings)


def _parsed(layers: str) -> tuple[str, int]:
    """("last", 2) of "last:2"; ("last", 0) of "all", where 0 stands for every layer."""
    if layers == "all":
        return "last", 0
    match = re.fullmatch(rf"({'|'.join(CHOICES)}):([1-9]\d*)", layers)
    if not match:
        raise ValueError(f"layers {layers!r}: expected numbers, all, or {':M, '.join(CHOICES)}:M, M from 1")
    return match[1], int(match[2])


def chosen_layers(layers: Sequence[int] | str, depth: int) -> tuple[int, ...]:
    """The numbers of the layers, ascending; they include the last layer, `depth`.

    Of 12 layers, "last:4" is 9 to 12, "first:4" is 1, 2, 3 and 12, "uniform:4" is 3, 6, 9, 12 (MLR, table 1). Raises
    InputError for more layers than the backbone has, or if the last layer is missing.
    """
    if not isinstance(layers, str):
        return Selection("layers", "cls", depth, tuple(sorted(layers))).layers
    choice, number = _parsed(layers)
    number = number or depth
    if number > depth:
        raise InputError(f"representation.layers is {layers}, but the backbone has {depth} layers")
    if choice == "last":
        return tuple(range(depth - number + 1, depth + 1))
    if choice == "first":
        return (*range(1, number), depth)
    return tuple(round(depth * at / number) for at in range(1, number + 1))


# ------------------------------------------------ the model


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


def build(config: MlrConfig) -> MultiLayerModel:
    """The untrained model. Raises as `dense.towers` does, and InputError for layers that the backbone lacks."""
    encoders, tokenizers, settings = towers(config)
    chosen, document = config.representation, encoders["document"]
    selection = selected(chosen, document.pooling, int(document.backbone.config.num_hidden_layers))
    encoders["document"] = MultiVectorEncoder(encoders["document"], selection, chosen.pooling)
    return MultiLayerModel(
        encoders, tokenizers, settings, config.objective, onnx=config.onnx, regularization=chosen.regularization
    )


def selected(chosen: RepresentationSettings, pooling: Pooling, depth: int) -> Selection:
    """The selection of vectors for a backbone with this number of layers. Raises InputError for layers that it lacks."""
    if chosen.source == "layers":
        return Selection(chosen.source, pooling, depth, layers=chosen_layers(chosen.layers, depth))
    return Selection(chosen.source, pooling, depth, count=chosen.count if chosen.source == "first-tokens" else 0)


def check_layers(config: MlrConfig) -> None:
    """Raises InputError for layers that the backbone lacks, before anything is loaded, mined or trained; ModelError if it
    is not a transformer."""
    folder = read_start(config.start).folders["document"]
    selected(config.representation, "mean", int(read_config(folder).num_hidden_layers))


@click.command("mlr")
@config_options(
    MlrConfig,
    shortcuts={
        **backbone_option("start"),
        "layers": ("representation.layers", "Numbers (4,6), all, or last:M, first:M, uniform:M.  [default: last:2]"),
        "pooling": (
            "representation.pooling",
            "multi-vector, self-contrastive, average or scalar-mix.  [default: self-contrastive]",
        ),
    },
)
def mlr(config: MlrConfig, dry_run: bool) -> None:
    """Train multi-layer representations: several layers' vectors of a document, pooled into one vector or all kept.

    \b
    osn train mlr --layers last:2 --pooling self-contrastive --set 'train=[{path: squad-mix}]' \\
        --set selection.hold_back=0.02 --output models/mlr
    osn train mlr --config multi-layer-representations --dry-run --output models/mlr

    A self-contrastive model is an ordinary dense model: load_dense, SentenceTransformer and `osn ingest --dense` take it.
    It prints the dev measures before and after. If it is stopped, run the same command again to continue.
    """
    check_layers(config)
    tell(config.output, rehearse(config, build) if dry_run else train_dense(config, build), dry_run)
