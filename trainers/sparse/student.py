"""The student that `osn train sparse` trains: documents become weighted word pieces, scored with IDF inside the match.

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`), sections 3
and 4.1, and the residual student beyond it, whose weights are added to BM25 impacts.
"""

from __future__ import annotations

import copy
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.files import write_json
from opensearch_neural.idf import load_idf, save_idf
from opensearch_neural.models import sparse as sparse_models
from opensearch_neural.models import sparse_head
from opensearch_neural.models.directory import locate, routes
from opensearch_neural.models.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.query_encoder import QueryEncoder, special_tokens, vocabulary_of
from trainers.common import losses
from trainers.common.grad_cache import CachedModel, Encoded, Part, gather
from trainers.common.training_model import Losses
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.dense import PART_OVERHEAD, padding_id
from trainers.encoders import backbones
from trainers.encoders.tower import ROLES, EncoderSettings, Role
from trainers.sparse.settings import RegularizationSettings, SparseConfig, SparseObjective, StudentSettings
from trainers.sparse.tiled_head import activation, largest_logits

logger = logging.getLogger(__name__)

KIND = "sparse"
SILENT = -1e4
"""The output bias of special tokens: no logit reaches 0, in training and in every library that loads the model."""


class Lexicon:
    """What word pieces say without a model: the IDF of a corpus, and the BM25 impacts of texts.

    idf: (vocabulary,), 0 for special tokens and ids that no token has. Raises InputError for a corpus without text.
    """

    def __init__(self, encoder: LexicalEncoder, size: int) -> None:
        self.encoder = encoder
        self.idf = np.zeros(size, dtype=np.float32)
        weights = list(encoder.query.weights.values())
        self.idf[: len(weights)] = weights

    @classmethod
    def of(
        cls,
        stores: Sequence[Mapping[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        settings: StudentSettings,
    ) -> Lexicon:
        """The statistics of some texts by id; the weights of queries are what `settings.idf` says of them."""
        texts = (text for store in stores for text in store.values())
        # A copy: truncation, which batches set, is a tokenizer's state, and statistics are of whole texts.
        whole = copy.deepcopy(tokenizer.backend_tokenizer)
        whole.no_truncation()
        whole.no_padding()
        encoder = build_lexical(texts, tokenizer=whole, k1=settings.k1, b=settings.b)
        if settings.idf in ("train", "own"):
            return cls(encoder, size)
        words = encoder.query.tokenizer
        special = special_tokens(words)
        listed = dict.fromkeys(vocabulary_of(words), 1.0) if settings.idf == "none" else load_idf(settings.idf)
        table = {**listed, **dict.fromkeys(special, 0.0)}
        return cls(replace(encoder, query=QueryEncoder(words, table, name=encoder.name)), size)

    def impacts(self, texts: Sequence[str]) -> csr_matrix:
        """(texts, vocabulary)."""
        vectors = self.encoder.encode_documents(texts)
        shape = (len(texts), len(self.idf))
        return csr_matrix((vectors.weights, vectors.token_ids, vectors.indptr), shape=shape)


class SparseStudent(CachedModel):
    """Documents under a sum of distillation and contrastive terms and the FLOPS regularizer; queries are not encoded.

    model: a masked language model, whose last layer becomes `head`. to_impacts: the loss is the regression of a warm-up.
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
        to_impacts: bool = False,
    ) -> None:
        super().__init__()
        self.head, self.head_names = sparse_models.take_out_last_layer(model.eval(), name)
        self.model = model
        if self.head.bias is None:
            self.head.bias = nn.Parameter(torch.zeros(len(self.head.weight)))
        self.student, self.objective, self.regularization = settings, objective, regularization
        self.settings = EncoderSettings(query_length=settings.query_length, document_length=document_length)
        self.tokenizers: dict[Role, PreTrainedTokenizerBase] = dict.fromkeys(ROLES, tokenizer)
        self.lexicon, self.to_impacts = lexicon, to_impacts
        self.vocabulary = vocabulary_of(tokenizer.backend_tokenizer)
        real = np.zeros(len(self.head.weight), dtype=bool)
        special = special_tokens(tokenizer.backend_tokenizer)
        real[: len(self.vocabulary)] = [token not in special for token in self.vocabulary]
        self.columns: npt.NDArray[np.int64] = np.flatnonzero(real)
        self._silent = torch.from_numpy(np.flatnonzero(~real))
        self.silence()
        for parameter_name, parameter in model.named_parameters():
            if ".pooler." in parameter_name:
                parameter.requires_grad_(False)
        for module in _frozen(model, settings.frozen_layers):
            module.requires_grad_(False)

    def silence(self) -> None:
        """Special tokens, and ids that no token has, get no weight."""
        with torch.no_grad():
            self.head.bias[self._silent.to(self.head.bias.device)] = SILENT

    def weights(self, input_ids: Tensor, attention_mask: Tensor, columns: Tensor | None = None) -> Tensor:
        """The learned weights of documents: (documents, columns)."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        logits = largest_logits(
            hidden, attention_mask, self.head.weight, self.head.bias, columns, revive=self.student.revive
        )
        return activation(logits, double_log=self.student.double_log)

    def encode(self, role: str, part: Part) -> Encoded:
        return Encoded(self.weights(part["input_ids"], part["attention_mask"], part.get("columns")))

    def losses(self, vectors: dict[str, Tensor], targets: dict[str, Tensor]) -> Losses:
        """vectors: "document" (documents, columns), the learned weights of this process's documents.

        targets: "query" (queries, columns), each token's IDF; "candidates" (queries, 1 + negatives), columns among the
        gathered documents, the positive first; "excluded" (queries, gathered documents); "teacher" and "known", like
        candidates or like excluded; "shares" (columns,); "impacts", "present" (gathered documents, columns): BM25's, and
        whether the document holds the token.
        """
        learned = gather(vectors["document"])
        present, shares = targets["present"], targets["shares"]
        if self.to_impacts:
            error = torch.where(present, learned - targets["impacts"], 0.0).square().sum() / present.sum()
            return Losses({"impacts": error}, self._sparsity(learned, present, shares))
        documents = learned + targets["impacts"] if self.student.residual else learned
        scores, candidates, objective = targets["query"] @ documents.T, targets["candidates"], self.objective
        own = scores.gather(1, candidates)
        compared = scores if objective.all_pairs else own
        terms: dict[str, Tensor] = {}
        if objective.info_nce:
            temperature = objective.temperature or 1.0
            first = torch.zeros(len(own), dtype=torch.long, device=own.device)
            terms["info_nce"] = objective.info_nce * (
                losses.info_nce(scores, candidates[:, 0], temperature=temperature, excluded=targets["excluded"])
                if objective.in_batch
                else losses.info_nce(own, first, temperature=temperature)
            )
        if objective.kl:
            terms["kl"] = objective.kl * losses.kl_distillation(
                compared, targets["teacher"], temperature=objective.kl_temperature, known=targets["known"]
            )
        if objective.margin_mse:
            terms["margin_mse"] = objective.margin_mse * losses.margin_mse(
                own, targets["teacher"], known=targets["known"]
            )
        factor = self.regularization.at(self.progress.step, self.progress.steps)
        flops = self._flops(learned, candidates, shares)
        # With a factor of 0, too: every parameter then has a gradient in every step, as several processes need.
        terms["flops"] = factor * flops
        best = scores.masked_fill(targets["excluded"], -torch.inf).argmax(dim=1)
        measures = {
            "in_batch_accuracy": (best == candidates[:, 0]).float().mean(),
            "flops_unweighted": flops.detach(),
            "lambda": torch.tensor(factor, device=flops.device),
        }
        return Losses(terms, measures | self._sparsity(learned, present, shares))

    def _flops(self, learned: Tensor, candidates: Tensor, shares: Tensor) -> Tensor:
        if self.regularization.flops == "batch":
            return losses.flops(learned, shares)
        return losses.flops_per_slot(learned[gather(candidates)], shares)

    def _sparsity(self, learned: Tensor, present: Tensor, shares: Tensor) -> dict[str, Tensor]:
        """Active terms a document, and of them those that what was read of it does not hold; estimates where columns were
        sampled."""
        with torch.no_grad():
            active = learned > 0
            expansions = ((active & ~present).float() * shares).sum(dim=1).mean()
            return {"active": (active.float() * shares).sum(dim=1).mean(), "expansions": expansions}

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], *, tokens: int = 4096) -> SparseVectors:
        """The learned weights of `texts` as the model stands; tokens: of one batch, padding included."""
        device = self.head.weight.device
        tokenizer, length = self.tokenizers["document"], self.student.document_length
        rows = TokenCache(tokenizer, texts.__getitem__, max_length=length).rows(range(len(texts)))
        longest = max((len(ids) for ids in rows), default=1)
        overhead = PART_OVERHEAD[device.type if device.type in PART_OVERHEAD else "cpu"]
        parts = padded_parts(rows, padding=padding_id(tokenizer), overhead=overhead, largest=max(1, tokens // longest))
        found: list[SparseVectors] = []
        weight, bias = self.head.weight, self.head.bias
        screen = sparse_head.best_screen(weight)
        for part in parts:
            mask = part["attention_mask"].to(device)
            hidden = self.model(input_ids=part["input_ids"].to(device), attention_mask=mask).logits.float()
            logits = sparse_head.largest_logits(hidden, mask, weight, bias, screen)
            weights = sparse_head.activated(logits, double_log=self.student.double_log)
            weights[:, len(self.vocabulary) :] = 0
            at, ids = weights.nonzero(as_tuple=True)
            counts = torch.bincount(at, minlength=len(weights)).cumsum(0).cpu().numpy()
            indptr = np.concatenate([[0], counts]).astype(np.int64)
            ids32 = ids.cpu().numpy().astype(np.int32)
            found.append(SparseVectors(indptr, ids32, weights[at, ids].cpu().numpy(), self.vocabulary))
        order = np.concatenate([part["position"].numpy() for part in parts])
        return SparseVectors.concat(found, self.vocabulary).take(np.argsort(order))

    def export(self, folder: Path) -> None:
        self.silence()
        write_model(self, folder)


def _frozen(model: Any, layers: int) -> list[nn.Module]:
    """The embeddings and first layers of a model. Raises InputError where it has fewer."""
    if not layers:
        return []
    body = model.base_model
    stacks = [one for one in body.modules() if isinstance(one, nn.ModuleList)]
    stack = max(stacks, key=len, default=nn.ModuleList())
    if layers > len(stack):
        raise InputError(f"student.frozen_layers is {layers}, the backbone has {len(stack)} layers")
    embeddings = getattr(body, "embeddings", model.get_input_embeddings())
    return [embeddings, *stack[:layers]]


def write_model(student: SparseStudent, folder: Path) -> None:
    """Write what `load_sparse` reads: a Router that `SparseEncoder(folder)` loads too, or, of a residual student, whose
    impacts sentence-transformers does not know, `residual.json` beside `document/`."""
    query, tokenizer = student.lexicon.encoder.query, student.tokenizers["document"]
    settings = student.student
    sparse_models.put_last_layer(student.model, student.head_names, student.head)
    temporary = folder / ".document"
    try:
        target = folder / "document" if settings.residual else temporary
        backbones.save(student.model, tokenizer, target)
    finally:
        sparse_models.put_last_layer(student.model, student.head_names, nn.Identity())
    activation: Literal["relu", "log1p_relu"] = "log1p_relu" if settings.double_log else "relu"
    if settings.residual:
        write_json(target / "sentence_bert_config.json", {"max_seq_length": settings.document_length})
        tokenizer.save_pretrained(folder)
        statistics = student.lexicon.encoder.statistics
        write_json(folder / sparse_models.RESIDUAL, {**statistics, "activation_function": activation})
    else:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Router, Transformer
        from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

        with quiet_loading():
            document = Transformer(
                str(temporary), transformer_task="fill-mask", max_seq_length=settings.document_length
            )
            weight = torch.from_numpy(student.lexicon.idf[: len(tokenizer)])
            router = Router.for_query_document(
                [SparseStaticEmbedding(tokenizer=tokenizer, weight=weight, frozen=True)],  # type: ignore[arg-type]
                [document, SpladePooling("max", activation_function=activation)],
            )
            model = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu")
            model.save_pretrained(str(folder), create_model_card=False)
        shutil.rmtree(temporary)
    save_idf(folder / "idf.json", query.weights)


def load_start(name_or_path: str | Path, student: StudentSettings) -> tuple[Any, PreTrainedTokenizerBase, bool]:
    """(masked language model, tokenizer, whether its head is fresh): also of a sparse model, whose document side it is."""
    folder = locate(name_or_path)
    if (folder / sparse_models.RESIDUAL).exists():
        folder = folder / "document"
    elif modules := routes(folder).get("document"):
        folder = modules[0].path
    model, tokenizer, fresh = backbones.masked_language_model(folder)
    if fresh:
        backbones.identity_head(model)
    if student.dropout is not None:
        backbones.set_dropout(model, student.dropout)
    check_length(model, "student.document_length", student.document_length)
    return model, tokenizer, fresh


def check_length(model: Any, name: str, length: int) -> None:
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"{name} is {length}, the backbone has {longest} positions")


def build(config: SparseConfig, stores: Sequence[Mapping[str, str]], *, to_impacts: bool = False) -> SparseStudent:
    """The untrained student; its table and impacts are of the texts in `stores`.

    Raises InputError for documents longer than the backbone's positions."""
    set_seed(config.training.seed)
    model, tokenizer, _ = load_start(config.start, config.student)
    check_length(model, "document_length", config.document_length)
    size = len(model.get_output_embeddings().weight)
    return SparseStudent(
        model,
        tokenizer,
        config.student,
        config.objective,
        config.regularization,
        document_length=config.document_length,
        lexicon=Lexicon.of(stores, tokenizer, size, config.student),
        name=locate(config.start),
        to_impacts=to_impacts,
    )


@torch.no_grad()
def calibrate(student: SparseStudent, texts: Sequence[str], *, expansions: float, weight: float | None) -> None:
    """Set the head's bias so that documents have so many active terms that they do not hold, on average; and its scale
    so that the largest of them weighs `weight`, on average. Both are written into the head's own parameters."""
    tokenizer, device = student.tokenizers["document"], student.head.weight.device
    rows = TokenCache(tokenizer, texts.__getitem__, max_length=student.settings.document_length).rows(range(len(texts)))
    high = 1e3  # Above every logit's size, so that none is cut off at 0.
    outside: list[Tensor] = []
    for part in padded_parts(rows, padding=padding_id(tokenizer), overhead=0, largest=8):
        hidden = student.model(
            input_ids=part["input_ids"].to(device), attention_mask=part["attention_mask"].to(device)
        ).logits
        mask = part["attention_mask"].to(device)
        logits = largest_logits(hidden, mask, student.head.weight, student.head.bias.clamp(min=-high / 2) + high) - high
        logits.scatter_(1, part["input_ids"].to(device), -torch.inf)
        outside.append(logits[:, torch.from_numpy(student.columns).to(device)].cpu())
    logits = torch.cat(outside)
    if logits.isnan().any():
        raise InputError("the start gives outputs that are not numbers", "its weights are damaged: start from another")
    held = torch.isfinite(logits).sum(dim=1).float().mean()
    kept = logits[torch.isfinite(logits)]
    threshold = float(np.quantile(kept.numpy(), 1 - min(0.5, expansions / float(held))))
    columns = torch.from_numpy(student.columns).to(device)
    student.head.bias[columns] -= threshold
    factor = 1.0
    if weight is not None:
        largest = (logits.amax(dim=1) - threshold).clamp(min=1e-6)
        # log(1 + factor · logit) = weight, for the mean document.
        factor = math.expm1(math.expm1(weight) if student.student.double_log else weight) / float(largest.mean())
        student.head.bias[columns] *= factor
        scaled = backbones.last_normalization(student.model)
        for parameter in (scaled.weight, scaled.bias):
            parameter.mul_(factor)
    logger.info("head: logits lowered by %.3g, scaled by %.3g: %g expansions a document", threshold, factor, expansions)
