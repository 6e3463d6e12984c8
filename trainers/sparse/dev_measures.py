"""The sparse student on dev: retrieval, sparsity, and what its vocabulary gives without training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from scipy.sparse import csr_matrix

from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from trainers.common.dev_measures import DEPTH, DevSet, dev_measures
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.student import SparseStudent

logger = logging.getLogger(__name__)

BASELINES = ("presence × idf", "word-piece BM25")
"""What dev measures of the student stand beside."""


class DevRetrieval:
    """Retrieval over dev sets with the student as it stands, and how sparse it is.

    With IDF "own" each dev set has the statistics of its own documents, else those of the student's lexicon.
    """

    def __init__(self, student: SparseStudent, sets: Sequence[DevSet]) -> None:
        settings, tokenizer = student.student, student.tokenizers["document"]
        self.own: dict[int, Lexicon] = {}
        if settings.idf == "own":
            for dev in sets:
                self.own[id(dev.documents)] = Lexicon.of([dev.documents], tokenizer, len(student.head.weight), settings)
        self.sets = list(sets)
        self.sparsity: list[dict[str, float]] = []
        self.baselines: dict[str, float] = {}

    def measures(self, student: SparseStudent) -> dict[str, float]:
        """nDCG@10 and so on of the student, its sparsity, and nDCG@10 of what needs no training."""
        if not self.baselines:
            for name in BASELINES:
                measures = dev_measures(self.sets, partial(self._lexical, name, student))
                self.baselines |= {f"{name} {key}": value for key, value in measures.items() if "nDCG@10" in key}
            shown = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
            logger.info("dev, without training: %s", shown)
        self.sparsity = []
        measures = dev_measures(self.sets, lambda queries, texts: self._retrieve(student, queries, texts))
        means = {name: float(np.mean([sparsity[name] for sparsity in self.sparsity])) for name in self.sparsity[0]}
        return measures | means | self.baselines

    def _retrieve(self, student: SparseStudent, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        lexicon = self.own.get(id(texts)) or student.lexicon
        impacts = lexicon.impacts(list(texts.values()))
        vectors = student.vectors(list(texts.values()))
        learned = csr_matrix((vectors.weights, vectors.token_ids, vectors.indptr), shape=impacts.shape)
        documents = learned + impacts if student.student.residual else learned
        encoded = [lexicon.encoder.query.encode(text) for text in queries.values()]
        outside = (learned > 0).astype(np.int32) - (learned > 0).multiply(impacts > 0).astype(np.int32)
        self.sparsity.append(
            {
                "active terms": (documents > 0).sum() / len(texts),
                "expansion terms": outside.sum() / len(texts),
                "FLOPS": measured_flops(encoded, documents, student.vocabulary),
            }
        )
        return self._rank(lexicon, documents, student.vocabulary, queries, texts)

    def _lexical(self, name: str, student: SparseStudent, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        lexicon = self.own.get(id(texts)) or student.lexicon
        impacts = lexicon.impacts(list(texts.values()))
        documents = impacts if name == "word-piece BM25" else (impacts > 0).astype(np.float32)
        return self._rank(lexicon, documents, lexicon.encoder.vocabulary, queries, texts)

    @staticmethod
    def _rank(
        lexicon: Lexicon,
        documents: csr_matrix,
        vocabulary: list[str],
        queries: Mapping[str, str],
        texts: Mapping[str, str],
    ) -> Run:
        rows = csr_matrix(documents[:, : len(vocabulary)])
        vectors = SparseVectors(rows.indptr, rows.indices, rows.data, vocabulary)
        return ExactSparseRetriever(list(texts), vectors, lexicon.encoder.query.encode).retrieve(queries, DEPTH)


def measured_flops(queries: Sequence[Mapping[str, float]], documents: csr_matrix, vocabulary: Sequence[str]) -> float:
    """Σ_t P(t in a query) · P(t in a document): multiplications for a query and a document (SPLADE v2, section 4)."""
    ids = {token: at for at, token in enumerate(vocabulary)}
    asked = np.zeros(documents.shape[1])
    for query in queries:
        asked[[ids[token] for token in query if token in ids]] += 1
    held = np.asarray((documents > 0).sum(axis=0)).ravel()
    return float(asked @ held / (max(1, len(queries)) * max(1, documents.shape[0])))
