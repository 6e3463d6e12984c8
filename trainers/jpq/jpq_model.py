"""Query encoder and scoring centroids for a corpus of codes: scores, exact search, the loss of a step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.base.modules import Router
from torch import Tensor, nn

from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import ends_normalized
from opensearch_neural.models.dense.onnx_encoder import export_onnx
from opensearch_neural.models.dense.quantized import CENTROIDS, QUANTIZER_FILE, Codes, Quantizer
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, stages_of
from trainers.common import losses
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import Losses, TrainingModel, decay_groups
from trainers.encoders.tower import save_modules
from trainers.jpq.query_tower import query_tower
from trainers.jpq.questions import JpqBatch, Rows
from trainers.jpq.settings import DocumentForm, JpqConfig

NORMALIZED_SCALE = 20.0
"""The default scale of inner products of vectors of length 1."""

_NUMBERS_AT_ONCE = 1 << 24
"""Scores in memory at a time: 64 MiB."""


class CodedDocuments(nn.Module):
    """The codes of documents, and their vectors if needed."""

    codes: Tensor
    """(documents, M) uint8"""
    vectors: Tensor
    """(documents, D) float32 if the settings need uncompressed vectors; else empty"""

    def __init__(self, ids: Sequence[str], codes: Codes, vectors: npt.NDArray[Any] | None) -> None:
        super().__init__()
        self.ids = ids
        whole = np.zeros((0, 0), np.float32) if vectors is None else np.array(vectors, dtype=np.float32)
        # Not part of a checkpoint: the start model makes them again.
        self.register_buffer("codes", torch.from_numpy(codes), persistent=False)
        self.register_buffer("vectors", torch.from_numpy(whole), persistent=False)

    def __len__(self) -> int:
        return len(self.codes)


class JpqModel(TrainingModel):
    """Query encoder and scoring centroids for coded documents."""

    rotation: Tensor
    left_out: Tensor | None
    """(documents,) bool, True for documents that the search of a training step does not find; None finds all"""

    def __init__(
        self, start: TorchDenseEncoder, quantizer: Quantizer, documents: CodedDocuments, config: JpqConfig
    ) -> None:
        super().__init__()
        # Not named `config`: the Trainer would take it for a transformer's configuration.
        self.start, self.quantizer, self.documents, self.settings = start, quantizer, documents, config
        self.query = query_tower(start, config, config.query_layers)
        ranks = config.lambda_rank > 0
        learns = ranks and config.quantizer.train_centroids and config.objective.documents == "quantized"
        self.scoring = nn.Parameter(torch.from_numpy(quantizer.scoring.copy()), learns)
        self.register_buffer("rotation", torch.from_numpy(quantizer.rotation), persistent=False)
        self.register_buffer("left_out", None, persistent=False)
        normalized = ends_normalized(start.info.path)
        self.scale = config.objective.scale or (NORMALIZED_SCALE if normalized else 1.0)

    def leave_out(self, rows: Rows) -> None:
        """These documents are no negatives: the search of a training step does not find them. On dev all are found."""
        self.left_out = self.mask(rows)

    def mask(self, rows: Rows) -> Tensor | None:
        """(documents,) bool, True at `rows`; None without rows."""
        if not len(rows):
            return None
        mask = torch.zeros(len(self.documents), dtype=torch.bool)
        mask[torch.from_numpy(rows)] = True
        return mask.to(self.scoring.device)

    # ------------------------------------------------ scores

    def tables(self, queries: Tensor) -> Tensor:
        """⟨q_i, c_ij⟩ of queries (q, D): (q, M, 256) (eq. 11), with gradient for both."""
        parts = (queries @ self.rotation.T).unflatten(1, (self.scoring.shape[0], -1))
        return torch.einsum("qmd,mkd->qmk", parts, self.scoring)

    def scores(self, queries: Tensor, rows: Tensor, by: DocumentForm) -> Tensor:
        """⟨q, d⟩ of queries (q, D) with their own candidates, document `rows` (q, candidates): (q, candidates)."""
        if by == "uncompressed":
            return torch.einsum("qd,qcd->qc", queries, self.documents.vectors[rows])
        codes = self.documents.codes[rows].long().transpose(1, 2)  # (q, M, candidates)
        return self.tables(queries).gather(2, codes).sum(dim=1)

    @torch.no_grad()
    def search(
        self,
        queries: Tensor,
        k: int,
        documents: CodedDocuments,
        by: DocumentForm,
        excluded: Tensor | None = None,
        left_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(scores, rows) of the k best documents of each query (q, D) by exact search: both (q, k), best first.

        excluded: (2, pairs), the (query, row) pairs to leave out. left_out: (documents,) bool, True for documents to leave
        out for every query. Beyond the last document, rows are -1 and scores -inf.
        """
        best = queries.new_full((len(queries), k), -torch.inf)
        rows = torch.full((len(queries), k), -1, dtype=torch.long, device=queries.device)
        # Look-up tables with one column per query.
        table = self.tables(queries).flatten(1).T.contiguous() if by == "quantized" else None  # (M * 256, q)
        block = max(k, _NUMBERS_AT_ONCE // max(1, len(queries)))
        for start in range(0, len(documents), block):
            if table is None:
                scores = queries @ documents.vectors[start : start + block].T
            else:
                scores = _summed(table, documents.codes[start : start + block])
            if excluded is not None:
                here = (excluded[1] >= start) & (excluded[1] < start + scores.shape[1])
                scores[excluded[0, here], excluded[1, here] - start] = -torch.inf
            if left_out is not None:
                scores = scores.masked_fill(left_out[start : start + scores.shape[1]], -torch.inf)
            top, at = scores.topk(min(k, scores.shape[1]), dim=1)
            at = (at + start).masked_fill(top == -torch.inf, -1)
            best, order = torch.cat([best, top], dim=1).topk(k, dim=1)
            rows = torch.cat([rows, at], dim=1).gather(1, order)
        return best, rows

    def search_all(
        self,
        queries: Tensor,
        k: int,
        documents: CodedDocuments,
        by: DocumentForm,
        left_out: Tensor | None = None,
    ) -> tuple[Rows, Any]:
        """(rows, scores) of `search` for any number of queries (n, D): both (n, k), in numpy."""
        parts = [self.search(block, k, documents, by, left_out=left_out) for block in queries.split(256)]
        rows, scores = torch.cat([rows for _, rows in parts]), torch.cat([scores for scores, _ in parts])
        return rows.cpu().numpy(), scores.cpu().numpy()

    # ------------------------------------------------ a step

    def forward(self, batch: JpqBatch) -> Losses:
        vectors = self.query.in_order(batch.parts)  # (q, D)
        # In bfloat16, rounding would hide small differences between scores.
        with torch.autocast(vectors.device.type, enabled=False):
            terms, shown = self._ranked(vectors, batch) if self.settings.lambda_rank else ({}, {})
            if batch.aligned is not None:
                away = 1 - nn.functional.cosine_similarity(vectors, batch.aligned, dim=1)
                terms["alignment"] = self.settings.alignment * away.mean()
            return Losses(terms, shown)

    def _ranked(self, vectors: Tensor, batch: JpqBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The LambdaRank loss over end-to-end negatives (section 3.4), and the positives' mean reciprocal rank.

        vectors: of the questions, (q, D).
        """
        positives, relevant, negatives = batch.positives, batch.relevant, self.settings.negatives
        searched = self.query.without_dropout(vectors, batch.parts)
        ranked, rows = self.search(
            searched, negatives.depth, self.documents, negatives.search, relevant, self.left_out
        )  # (q, depth)
        own = self.scores(searched, positives[:, None], negatives.search).detach()  # (q, 1)
        # If scores are equal, the positive counts as lower: the model has not separated the two.
        positive_ranks = 1 + (ranked >= own).sum(dim=1)
        negative_ranks = torch.arange(1, 1 + rows.shape[1], device=rows.device) + (own > ranked).long()

        candidates = torch.cat([positives[:, None], rows.clamp(min=0)], dim=1)  # (q, 1 + depth)
        scores = self.scale * self.scores(vectors, candidates, self.settings.objective.documents)
        loss = losses.lambda_rank(
            scores[:, 0],
            scores[:, 1:],
            positive_ranks,
            negative_ranks,
            cutoff=negatives.depth,
            known=rows >= 0,
            preferences=None if batch.teacher is None else self._preferences(batch.teacher, candidates),
        )
        reciprocal = torch.where(positive_ranks <= negatives.depth, 1 / positive_ranks, 0.0)
        return {"lambda_rank": self.settings.lambda_rank * loss}, {"reciprocal_rank": reciprocal.mean()}

    @torch.no_grad()
    def _preferences(self, teacher: Tensor, candidates: Tensor) -> Tensor:
        """σ(t⁺ − t⁻): uncompressed scores t of each query's first candidate and of the others, (q, depth)."""
        taught = self.scale * self.scores(teacher, candidates, "uncompressed")
        return torch.sigmoid(taught[:, :1] - taught[:, 1:])

    def parameter_groups(self, training: TrainingSettings) -> list[dict[str, Any]]:
        groups = decay_groups(self.query.parameters())
        if self.scoring.requires_grad:
            rate = self.settings.quantizer.centroid_learning_rate(self.quantizer.dimension)
            groups.append({"params": [self.scoring], "lr": rate, "weight_decay": 0.0})
        return groups

    # ------------------------------------------------ the model directory

    def export(self, folder: Path) -> None:
        scoring = self.scoring.detach().float().cpu().numpy()
        quantizer = Quantizer(self.quantizer.rotation, self.quantizer.assigning, scoring)
        export_quantized(folder, self.start, self.query.stages, quantizer)
        if self.settings.onnx:
            export_onnx(folder)


def export_quantized(folder: Path, start: TorchDenseEncoder, query: Iterable[Any], quantizer: Quantizer) -> None:
    """Write a quantized model: `query`, the modules that encode queries, and the start's that encode documents."""
    router = Router.for_query_document(copy.deepcopy(list(query)), stages_of(start.model, "document"))
    prompts = {route: text for route in ("query", "document") if (text := directory.prompt(start.info.path, route))}
    save_modules([router], folder, prompts=prompts, similarity=start.model.similarity_fn_name)
    quantizer.save(folder / QUANTIZER_FILE)


def _summed(table: Tensor, codes: Tensor) -> Tensor:
    """The sum over each document's codes (n, M) of their entries in the table (M * 256, q) (eq. 12): (q, n)."""
    offsets = torch.arange(codes.shape[1], device=codes.device, dtype=torch.int32) * CENTROIDS
    return nn.functional.embedding_bag(codes.int() + offsets, table, mode="sum").T
