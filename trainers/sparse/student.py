"""The student that `osn train sparse` trains: it turns documents into weighted word pieces; matching weights them by IDF.

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`), sections 3
and 4.1. Beyond the paper, the loss may add BM25 to the scores (`objective.base`), and the network may also encode queries
(`student.queries`): that is SPLADE (Formal et al. 2021, "SPLADE v2"), a teacher of inference-free students.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from opensearch_neural.errors import InputError
from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.models.sparse import encoder as sparse_models
from opensearch_neural.models.sparse import head as sparse_head
from opensearch_neural.models.sparse.inference_free import Activation, write_inference_free
from opensearch_neural.models.tokenizer import special_tokens, vocabulary_of
from opensearch_neural.models.vectors import SparseVectors
from trainers.common import losses
from trainers.common.batches import CachedBatch, Part
from trainers.common.grad_cache import CachedModel, Encoded, gather
from trainers.common.objective import TeacherScores, in_batch_accuracy, objective_terms
from trainers.common.settings import ROLES, EncoderSettings, Role, TrainingSettings
from trainers.common.training_model import Losses, decay_groups
from trainers.data.tokenized import PART_OVERHEAD, text_parts
from trainers.encoders import backbones
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import RegularizationSettings, SparseObjective, StudentSettings
from trainers.sparse.tiled_head import activation, trained_logits

logger = logging.getLogger(__name__)

SILENT = -1e4
"""The output bias of special tokens: keeps their logits below 0 in training and, where the model's files hold a bias, in
every library that loads it."""

TOKENS = 4096
"""Tokens that are encoded together for measures, with padding."""


@dataclass
class SparsePart(Part):
    """Texts that are encoded together."""

    entries: Tensor | None = None
    """(entries,) int64, the vocabulary entries to compute, ascending; None computes all"""


@dataclass
class SparseTargets:
    """The queries of a batch, and the loss's inputs about the documents of all processes, in the order of `gather`."""

    query: Tensor
    """(queries, entries) float32, the IDF of each token of the query before training, 0 for other entries"""
    candidates: Tensor
    """(queries, 1 + negatives) int64, the rows of the query's own documents, the positive first"""
    excluded: Tensor
    """(queries, documents) bool, True for documents that must not count as negatives of a query"""
    present: Tensor
    """(documents, entries) bool, True if the token is in the document's text"""
    entry_counts: Tensor
    """(entries,) float32, the number of vocabulary entries that each entry represents"""
    entries: Tensor | None = None
    """(entries,) int64, the vocabulary entries to compare; None compares all"""
    base: Tensor | None = None
    """(queries, documents) float32, the BM25 scores that are added to the student's; None adds nothing"""
    teacher: TeacherScores | None = None
    """scores of the candidates, or with `all_pairs` of all documents; None without distillation"""


@dataclass
class SparseBatch(CachedBatch):
    """Roles: "document", and "query" if the network encodes queries."""

    parts: dict[str, list[SparsePart]]
    """{role: chunks of its rows}"""
    targets: SparseTargets
    """what the loss compares the scores with"""


class SparseStudent(CachedModel):
    """A document encoder with distillation terms, a contrastive term and the FLOPS regularizer. If `student.queries` is
    "network", it encodes queries in the same way; else queries are not encoded.

    model: a masked language model; its last layer becomes `head`. trust_remote_code: whether its own code may run; it is
    written with the model. prompts: text that is put before every query and document that the network reads.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        settings: StudentSettings,
        objective: SparseObjective,
        regularization: RegularizationSettings,
        *,
        document_length: int,
        lexicon: Lexicon,
        name: Path,
        prompts: Mapping[Role, str],
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        self.trust_remote_code = trust_remote_code
        self.head, self.head_names = sparse_models.take_out_last_layer(model.eval(), name)
        self.model = model
        self.has_bias = self.head.bias is not None
        if self.head.bias is None:
            # The model's files have no place for it: it only silences special tokens, and is not trained.
            logger.warning(
                "%s has no output bias, which would silence special tokens: `osn` leaves them out, and other libraries "
                "give [CLS] and the like weights%s",
                name,
                ", of queries too, which add to every score" if settings.queries == "network" else "",
            )
            self.head.bias = nn.Parameter(torch.zeros(len(self.head.weight)), requires_grad=False)
        self.settings, self.objective, self.regularization = settings, objective, regularization
        self.encoder_settings = EncoderSettings(
            query_length=settings.query_length,
            document_length=document_length,
            query_prompt=prompts["query"],
            document_prompt=prompts["document"],
        )
        self.tokenizers: dict[Role, PreTrainedTokenizerBase] = dict.fromkeys(ROLES, tokenizer)
        self.first_lexicon = lexicon
        """the statistics before training"""
        self.log_idf_factors: nn.Parameter | None = None
        if settings.idf_rate:
            # Each weight of the table is multiplied by a factor, 1 at first: so no weight falls below 0, special tokens stay
            # at 0, and a token that no question asks keeps its weight exactly.
            self.log_idf_factors = nn.Parameter(torch.zeros(len(lexicon.idf)))
        self.vocabulary = vocabulary_of(tokenizer.backend_tokenizer)
        real = np.zeros(len(self.head.weight), dtype=bool)
        special = special_tokens(tokenizer.backend_tokenizer)
        real[: len(self.vocabulary)] = [token not in special for token in self.vocabulary]
        self.ordinary_entries: npt.NDArray[np.int64] = np.flatnonzero(real)  # all tokens except special tokens
        self._silent = torch.from_numpy(np.flatnonzero(~real))
        self.silence()
        backbones.freeze_pooler(model)
        for module in frozen_modules(model, settings.frozen_layers):
            module.requires_grad_(False)
        if settings.frozen_layers:  # Most often its weights are those of the embeddings, but not in every model.
            self.head.weight.requires_grad_(False)

    @property
    def encodes_queries(self) -> bool:
        """Whether the network encodes queries."""
        return self.settings.queries == "network"

    @property
    def lexicon(self) -> Lexicon:
        """The statistics to use the student with; a trained table in its present state."""
        if self.log_idf_factors is None:
            return self.first_lexicon
        return self.first_lexicon.weighing(self.first_lexicon.idf * self.log_idf_factors.detach().exp().cpu().numpy())

    def parameter_groups(self, training: TrainingSettings) -> list[dict[str, Any]] | None:
        if self.log_idf_factors is None or self.settings.idf_rate is None:
            return super().parameter_groups(training)
        rate = self.settings.idf_rate * training.learning_rate
        return [
            *decay_groups(parameter for parameter in self.parameters() if parameter is not self.log_idf_factors),
            {"params": [self.log_idf_factors], "lr": rate, "weight_decay": 0.0},
        ]

    def silence(self) -> None:
        """Removes the weight of special tokens and unused ids."""
        with torch.no_grad():
            self.head.bias[self._silent.to(self.head.bias.device)] = SILENT

    def weights(self, input_ids: Tensor, attention_mask: Tensor, entries: Tensor | None = None) -> Tensor:
        """The learned weights of texts: (texts, entries)."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        logits = trained_logits(
            hidden, attention_mask, self.head.weight, self.head.bias, entries, revive=self.settings.revive
        )
        return activation(logits, double_log=self.settings.double_log)

    def encode(self, role: str, part: SparsePart) -> Encoded:
        weights = self.weights(part.input_ids, part.attention_mask, part.entries)
        return Encoded(weights if part.entries is not None else self._kept(weights, role))

    def _kept(self, weights: Tensor, role: str) -> Tensor:
        """`weights`, (texts, vocabulary), with 0 for what a text does not keep: all but its `max_active` largest, and of a
        document what its pruning leaves out."""
        most, pruning = self.settings.max_active, self.settings.pruning
        if most is not None and most < weights.shape[1]:
            least = weights.topk(most, dim=1).values[:, -1:]
            weights = torch.where(weights >= least, weights, 0.0)
        return weights if pruning is None or role != "document" else pruning.dense(weights)

    def loss_terms(self, vectors: dict[str, Tensor], targets: SparseTargets) -> Losses:
        """vectors: the learned weights of this process's texts: "document" (documents, entries), and "query"
        (queries, entries) if the network encodes queries."""
        document_weights, objective = gather(vectors["document"]), self.objective
        query_weights = vectors["query"] if self.encodes_queries else self._query_weights(targets)
        sparse_scores = query_weights @ document_weights.T
        scores = sparse_scores if targets.base is None else targets.base + objective.sparse_weight * sparse_scores
        terms = self._objective_terms(scores, targets)
        if objective.base_share < 1:
            alone, share = self._objective_terms(sparse_scores, targets), objective.base_share
            terms = {name: share * term + (1 - share) * alone[name] for name, term in terms.items()}
        factor = self.regularization.at(self.progress.step, self.progress.steps)
        document_flops = self._document_flops(document_weights, targets.candidates, targets.entry_counts)
        # Added even if the factor is 0: with several processes every parameter needs a gradient in every step.
        terms["flops"] = factor * document_flops
        measures = {
            "in_batch_accuracy": in_batch_accuracy(scores, targets),
            "flops_unweighted": document_flops.detach(),
            "lambda": torch.tensor(factor, device=document_flops.device),
        }
        if self.encodes_queries:
            all_queries = gather(query_weights)
            query_flops = losses.flops(all_queries)
            query_factor = self.regularization.at(self.progress.step, self.progress.steps, "query")
            terms["query_flops"] = query_factor * query_flops
            measures["query_flops_unweighted"] = query_flops.detach()
            measures["query_active"] = (all_queries.detach() > 0).float().sum(dim=1).mean()
        return Losses(terms, measures | self._sparsity(document_weights, targets.present, targets.entry_counts))

    def _objective_terms(self, scores: Tensor, targets: SparseTargets) -> dict[str, Tensor]:
        """The objective's terms for scores of (queries, documents)."""
        temperature, all_pairs = self.objective.temperature or 1.0, self.objective.all_pairs
        return objective_terms(self.objective, scores, targets, temperature=temperature, all_pairs=all_pairs)

    def _query_weights(self, targets: SparseTargets) -> Tensor:
        """(queries, entries), each token's IDF by the table's present state."""
        if (factors := self.log_idf_factors) is None:
            return targets.query
        return targets.query * (factors if targets.entries is None else factors[targets.entries]).exp()

    def _document_flops(self, document_weights: Tensor, candidates: Tensor, entry_counts: Tensor) -> Tensor:
        least_terms = self.regularization.least_terms
        if self.regularization.flops == "batch":
            return losses.flops(document_weights, entry_counts, least_terms=least_terms)
        # Slot 0 of a query holds its positive, the others its hard negatives. This is at least slots times, and at most
        # slots² times, the FLOPS of the same documents together, so the two need different λ.
        slots = document_weights[gather(candidates)]  # (queries, slots, entries)
        return losses.flops(slots, entry_counts, least_terms=least_terms)

    def _sparsity(self, document_weights: Tensor, present: Tensor, entry_counts: Tensor) -> dict[str, Tensor]:
        """The mean number of a document's active terms, and of its expansions: active terms that are not in the text read.
        Both are estimates if the vocabulary was sampled."""
        with torch.no_grad():
            active = document_weights > 0
            expansions = ((active & ~present).float() * entry_counts).sum(dim=1).mean()
            return {"active": (active.float() * entry_counts).sum(dim=1).mean(), "expansions": expansions}

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], *, role: Role = "document") -> SparseVectors:
        """The learned weights of `texts` by the model in its present state."""
        device = self.head.weight.device
        length = self.settings.document_length or self.encoder_settings.document_length
        overhead = PART_OVERHEAD[device.type if device.type in PART_OVERHEAD else "cpu"]
        parts = text_parts(
            self.tokenizers["document"],
            texts,
            max_length=length,
            tokens=TOKENS,
            prompt=self.encoder_settings.prompt(role),
            overhead=overhead,
        )
        vectors: list[SparseVectors] = []
        weight, bias = self.head.weight, self.head.bias
        screen = sparse_head.best_screen(weight)
        for part in parts:
            mask = part.attention_mask.to(device)
            hidden = self.model(input_ids=part.input_ids.to(device), attention_mask=mask).logits.float()
            logits = sparse_head.largest_logits(hidden, mask, weight, bias, screen)
            weights = sparse_head.activated(logits, double_log=self.settings.double_log)
            weights[:, len(self.vocabulary) :] = 0
            weights = self._kept(weights, role)
            # On the device: a GPU would copy the whole matrix otherwise.
            at, ids = weights.nonzero(as_tuple=True)
            counts = torch.bincount(at, minlength=len(weights)).cumsum(0).cpu().numpy()
            indptr = np.concatenate([[0], counts]).astype(np.int64)
            token_ids = ids.cpu().numpy().astype(np.int32)
            vectors.append(SparseVectors(indptr, token_ids, weights[at, ids].cpu().numpy(), self.vocabulary))
        order = np.concatenate([part.position.numpy() for part in parts])
        return SparseVectors.concat(vectors, self.vocabulary).take(np.argsort(order))

    def save_network(self, folder: Path) -> None:
        """Write the network as a masked language model: the last layer, which is `head`, is put back meanwhile."""
        bias = self.head.bias
        if not self.has_bias:
            self.head.bias = None
        sparse_models.put_last_layer(self.model, self.head_names, self.head)
        try:
            backbones.save(self.model, self.tokenizers["document"], folder)
        finally:
            sparse_models.put_last_layer(self.model, self.head_names, nn.Identity())
            self.head.bias = bias

    def export(self, folder: Path) -> None:
        """Write a model for `SparseEncoder(folder)`: a Router, which `load_sparse` reads too; for a SPLADE, one network."""
        self.silence()
        settings, network = self.settings, folder / ".document"
        self.save_network(network)
        activation: Activation = "log1p_relu" if settings.double_log else "relu"
        if self.encodes_queries:
            prompts: dict[str, str] = {role: self.encoder_settings.prompt(role) for role in ROLES}
            _write_siamese(network, folder, activation, settings, prompts, trust_remote_code=self.trust_remote_code)
        else:
            write_inference_free(
                network,
                folder,
                self.lexicon.encoder.query.weights,
                activation=activation,
                max_active=settings.max_active,
                max_length=settings.document_length,
                document_prompt=self.encoder_settings.prompt("document"),
                trust_remote_code=self.trust_remote_code,
            )
        shutil.rmtree(network)
        if settings.pruning is not None:
            settings.pruning.save(folder)


def frozen_modules(model: Any, layers: int) -> list[nn.Module]:
    """The embeddings and the first `layers` layers of a model. Raises InputError if it has fewer."""
    if not layers:
        return []
    body = model.base_model
    stacks = [module for module in body.modules() if isinstance(module, nn.ModuleList)]
    stack = max(stacks, key=len, default=nn.ModuleList())
    if layers > len(stack):
        raise InputError(f"student.frozen_layers is {layers}, the backbone has {len(stack)} layers")
    embeddings = getattr(body, "embeddings", model.get_input_embeddings())
    return [embeddings, *stack[:layers]]


def _write_siamese(
    masked_lm: Path,
    folder: Path,
    activation: Activation,
    settings: StudentSettings,
    prompts: dict[str, str],
    *,
    trust_remote_code: bool,
) -> None:
    """Write a SPLADE, whose network encodes both queries and documents."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    with quiet_loading():
        trust = {"trust_remote_code": trust_remote_code}
        network = Transformer(
            str(masked_lm),
            transformer_task="fill-mask",
            max_seq_length=settings.document_length,
            model_kwargs=trust,
            config_kwargs=trust,
            processor_kwargs=trust,
        )
        model = SparseEncoder(
            modules=[network, SpladePooling("max", activation_function=activation)],
            similarity_fn_name="dot",
            device="cpu",
            max_active_dims=settings.max_active,
            prompts=prompts,
        )
        model.save_pretrained(str(folder), create_model_card=False)
