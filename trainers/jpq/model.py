"""Query encoder and scoring centroids over a corpus of codes: scores, exact search, the loss of a step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor, nn

from opensearch_neural.models import directory
from opensearch_neural.models.dense import TorchDenseEncoder, stages_of
from opensearch_neural.models.dense_encoder import ends_normalized
from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.models.quantized import CENTROIDS, QUANTIZER_FILE, Codes, Quantizer
from trainers.common import losses
from trainers.common.batches import Part
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import Losses, TrainingModel, decay_groups
from trainers.jpq.quantizer import centroid_learning_rate
from trainers.jpq.query_tower import query_tower
from trainers.jpq.questions import JpqBatch, Rows
from trainers.jpq.settings import Documents, JpqConfig

NORMALIZED_SCALE = 20.0

_NUMBERS_AT_ONCE = 1 << 24
"""Scores held at a time: 64 MiB."""


class Corpus(nn.Module):
    """The documents that are searched: codes (n, M), and where something asks for them whole vectors (n, D)."""

    codes: Tensor
    vectors: Tensor

    def __init__(self, ids: Sequence[str], codes: Codes, vectors: npt.NDArray[Any] | None) -> None:
        super().__init__()
        self.ids = ids
        # No part of a checkpoint: they are made of the start model.
        self.register_buffer("codes", torch.from_numpy(codes), persistent=False)
        whole = np.zeros((0, 0), np.float32) if vectors is None else np.array(vectors, dtype=np.float32)
        self.register_buffer("vectors", torch.from_numpy(whole), persistent=False)

    def __len__(self) -> int:
        return len(self.codes)


class JpqModel(TrainingModel):
    """Query encoder and scoring centroids over a corpus of codes."""

    rotation: Tensor

    def __init__(self, start: TorchDenseEncoder, quantizer: Quantizer, corpus: Corpus, config: JpqConfig) -> None:
        super().__init__()
        # Not named `config`: the Trainer would take that for a transformer's.
        self.start, self.quantizer, self.settings = start, quantizer, config
        self.query, self.documents_stages = query_tower(start, config), stages_of(start.model, "document")
        self.corpus = corpus
        learns = config.quantizer.train_centroids and config.objective.documents == "quantized"
        self.scoring = nn.Parameter(torch.from_numpy(quantizer.scoring.copy()), learns)
        self.register_buffer("rotation", torch.from_numpy(quantizer.rotation), persistent=False)
        normalized = ends_normalized(start.info.path)
        self.scale = config.objective.scale or (NORMALIZED_SCALE if normalized else 1.0)
        self.cutoff = config.objective.cutoff or config.negatives.depth

    # ------------------------------------------------ scores

    def tables(self, queries: Tensor) -> Tensor:
        """⟨q_i, c_ij⟩ of queries (q, D): (q, M, 256) (eq. 11), with gradient for both."""
        parts = (queries @ self.rotation.T).unflatten(1, (self.scoring.shape[0], -1))
        return torch.einsum("qmd,mkd->qmk", parts, self.scoring)

    def scores(self, queries: Tensor, rows: Tensor, documents: Documents) -> Tensor:
        """⟨q, d⟩ of queries (q, D) with their own candidates `rows` (q, candidates), each query's others unseen."""
        if documents == "uncompressed":
            return torch.einsum("qd,qcd->qc", queries, self.corpus.vectors[rows])
        codes = self.corpus.codes[rows].long().transpose(1, 2)  # (q, M, candidates)
        return self.tables(queries).gather(2, codes).sum(dim=1)

    @torch.no_grad()
    def search(
        self, queries: Tensor, k: int, corpus: Corpus, documents: Documents, excluded: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(scores, rows) of the k best documents of each query, (q, k), best first, by exact search.

        excluded: (2, pairs), (query, row) that are not found. Where there are fewer than k, rows are -1, scores -inf.
        """
        width = len(queries)
        best = queries.new_full((width, k), -torch.inf)
        rows = torch.full((width, k), -1, dtype=torch.long, device=queries.device)
        table = self._summands(queries) if documents == "quantized" else None
        block = max(k, _NUMBERS_AT_ONCE // max(1, width))
        for start in range(0, len(corpus), block):
            if table is None:
                found = queries @ corpus.vectors[start : start + block].T
            else:
                found = self._sums(table, corpus.codes[start : start + block])
            if excluded is not None:
                here = (excluded[1] >= start) & (excluded[1] < start + found.shape[1])
                found[excluded[0, here], excluded[1, here] - start] = -torch.inf
            top, at = found.topk(min(k, found.shape[1]), dim=1)
            at = (at + start).masked_fill(top == -torch.inf, -1)
            best, order = torch.cat([best, top], dim=1).topk(k, dim=1)
            rows = torch.cat([rows, at], dim=1).gather(1, order)
        return best, rows

    def _summands(self, queries: Tensor) -> Tensor:
        """The look-up tables as rows of numbers, one for each query: (M · 256, q)."""
        return self.tables(queries).flatten(1).T.contiguous()

    @staticmethod
    def _sums(table: Tensor, codes: Tensor) -> Tensor:
        """Σ_i of the table at each code, (q, n) (eq. 12): codes (n, M)."""
        offsets = torch.arange(codes.shape[1], device=codes.device, dtype=torch.int32) * CENTROIDS
        return nn.functional.embedding_bag(codes.int() + offsets, table, mode="sum").T

    # ------------------------------------------------ a step

    def forward(self, batch: JpqBatch) -> Losses:
        vectors = self.query.in_order(batch.parts)
        with torch.autocast(vectors.device.type, enabled=False):
            positives, relevant = batch.positives, batch.relevant
            settings = self.settings.negatives
            searched = self._searched(vectors, batch.parts)
            if settings.source == "live":
                found, rows = self.search(searched, settings.depth, self.corpus, settings.search, relevant)
            else:
                assert batch.static is not None
                found, rows = self._ranked(searched, batch.static, relevant)
            known = rows >= 0
            own = self.scores(searched, positives[:, None], settings.search).detach()
            # Of equal scores the positive's counts as the lower one: what was not told apart was not ranked right.
            positive_ranks = 1 + (found >= own).sum(dim=1)
            negative_ranks = torch.arange(1, 1 + rows.shape[1], device=rows.device) + (own > found).long()
            candidates = torch.cat([positives[:, None], rows.clamp(min=0)], dim=1)
            scores = self.scale * self.scores(vectors, candidates, self.settings.objective.documents)
            loss = losses.lambda_rank(
                scores[:, 0],
                scores[:, 1:],
                positive_ranks,
                negative_ranks,
                cutoff=self.cutoff,
                known=known,
                preferences=None if batch.teacher is None else self._preferences(batch.teacher, candidates),
            )
            reciprocal = torch.where(positive_ranks <= settings.depth, 1 / positive_ranks, 0.0)
            found_losses = {"lambda_rank": loss}
            if batch.aligned is not None:
                away = 1 - nn.functional.cosine_similarity(vectors, batch.aligned, dim=1)
                found_losses["alignment"] = self.settings.alignment * away.mean()
            return Losses(found_losses, {"reciprocal_rank": reciprocal.mean()})

    @torch.no_grad()
    def _preferences(self, teacher: Tensor, candidates: Tensor) -> Tensor:
        """σ(t⁺ − t⁻) of the uncompressed model's scores t of the first of each query's candidates and of the others."""
        taught = self.scale * self.scores(teacher, candidates, "uncompressed")
        return torch.sigmoid(taught[:, :1] - taught[:, 1:])

    @torch.no_grad()
    def _searched(self, vectors: Tensor, parts: Sequence[Part]) -> Tensor:
        """The vectors that the step searches with: as the model will be used, without dropout."""
        if not (self.query.noisy and self.query.training):
            return vectors.detach()
        self.query.eval()
        try:
            return self.query.in_order(parts)
        finally:
            self.query.train()

    @torch.no_grad()
    def _ranked(self, queries: Tensor, rows: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor]:
        """(scores, rows) of negatives (q, depth) as the model stands, best first; relevant ones become -1."""
        keys = relevant[0] * len(self.corpus) + relevant[1]
        own = torch.arange(len(rows), device=rows.device)[:, None] * len(self.corpus) + rows
        rows = rows.masked_fill(torch.isin(own, keys), -1)
        scores = self.scores(queries, rows.clamp(min=0), self.settings.negatives.search)
        found, order = scores.masked_fill(rows < 0, -torch.inf).sort(dim=1, descending=True)
        return found, rows.gather(1, order)

    # ------------------------------------------------ use

    def retrieve_rows(self, queries: Tensor, k: int, corpus: Corpus, documents: Documents) -> tuple[Rows, Any]:
        """(rows, scores) of the k best documents of each of the vectors (n, D), (n, k), as in `search`."""
        parts = [self.search(block, k, corpus, documents) for block in queries.split(256)]
        rows, scores = torch.cat([rows for _, rows in parts]), torch.cat([found for found, _ in parts])
        return rows.cpu().numpy(), scores.cpu().numpy()

    def parameter_groups(self, settings: TrainingSettings) -> list[dict[str, Any]]:
        groups = decay_groups(self.query.parameters())
        if self.scoring.requires_grad:
            rate = centroid_learning_rate(self.settings.quantizer, self.quantizer.dimension)
            groups.append({"params": [self.scoring], "lr": rate, "weight_decay": 0.0})
        return groups

    def export(self, folder: Path) -> None:
        query: list[Any] = copy.deepcopy(list(self.query.stages))
        router = Router.for_query_document(query, self.documents_stages)
        start = self.start.info.path
        prompts = {route: text for route in ("query", "document") if (text := directory.prompt(start, route))}
        with quiet_loading():
            model = SentenceTransformer(
                modules=[router],
                prompts=prompts or None,
                similarity_fn_name=self.start.model.similarity_fn_name,
                device="cpu",
            )
            model.save_pretrained(str(folder), create_model_card=False)
        scoring = self.scoring.detach().float().cpu().numpy()
        Quantizer(self.quantizer.rotation, self.quantizer.assigning, scoring).save(folder / QUANTIZER_FILE)
        if self.settings.onnx:
            from opensearch_neural.models.dense_onnx import export_onnx

            export_onnx(folder)
