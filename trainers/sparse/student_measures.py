"""The sparse student on dev: retrieval alone and added to BM25, sparsity, and baselines without training."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from scipy.sparse import csr_matrix

from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.index.sparse_scale import SAMPLE, own_sentence
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.bm25 import BM25Retriever
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from opensearch_neural.retrievers.ranking import Ranking
from trainers.data.dev_sets import DEPTH, DevSet, Retrieve, dev_measured, dev_measures, means_of
from trainers.sparse.lexicon import Lexicon
from trainers.sparse.settings import BM25Settings
from trainers.sparse.student import SparseStudent

logger = logging.getLogger(__name__)

BASELINES = ("presence × idf", "word-piece BM25", "BM25")
"""Baselines in the dev measures; the student's sum adds to the last one."""
SUM, ALONE = "BM25 + sparse", "sparse alone"


class DevRetrieval:
    """Retrieval over dev sets with the student in its present state, alone and added to BM25, and its sparsity.

    bm25: of the baseline, and of the sum. With IDF "own", each dev set uses the statistics of its own documents, else
    those of the student's lexicon.
    """

    def __init__(self, student: SparseStudent, sets: Sequence[DevSet], bm25: BM25Settings) -> None:
        self.student, self.sets = student, list(sets)
        settings, tokenizer, size = student.settings, student.tokenizers["document"], len(student.head.weight)
        # By id(documents): `retrieve` gets a set's documents, and nothing else that names the set.
        self.own: dict[int, Lexicon] = {}
        if settings.idf == "own":
            self.own = {id(dev.documents): Lexicon.of([dev.documents], tokenizer, size, settings) for dev in sets}
        self.bm25 = {
            id(dev.documents): BM25Retriever(list(dev.documents), dev.documents.values(), **asdict(bm25))
            for dev in sets
        }
        self.encoded: dict[int, csr_matrix] = {}
        self.sparsity: list[dict[str, float]] = []
        self.baselines: dict[str, float] = {}
        """{name of a dev measure: its value without training}, from the first measurement on"""
        self.questions: dict[str, dict[str, dict[str, float]]] = {}
        """{set: {name: {question: nDCG@10}}} as last measured, of BM25 and of the sum"""

    def measures(self) -> dict[str, float]:
        """nDCG@10 and other measures of the trained scores, their sparsity, and nDCG@10 of the baselines.

        The trained scores are the student's alone, or with `objective.base` their sum with BM25, and then nDCG@10 of the
        student alone is included; so is that of the sum as `osn search` weights it.
        """
        if not self.baselines:
            for name in BASELINES:
                self.baselines |= self._named(name, partial(self._untrained, name))
            shown = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
            logger.info("dev, without training: %s", shown)
        self.encoded = {}
        for dev in self.sets:
            self.encoded[id(dev.documents)] = self.student.vectors(list(dev.documents.values())).to_scipy()
        self.sparsity = []
        if self.student.objective.base is not None:
            measures = dev_measures(self.sets, self.trained_sum) | self._named(ALONE, self.alone)
        else:
            measures = dev_measures(self.sets, self.alone)
        if not self.student.encodes_queries:  # No search engine here adds a SPLADE to BM25.
            measures |= self._named(SUM, self.searched_sum)
        means = {name: float(np.mean([sparsity[name] for sparsity in self.sparsity])) for name in self.sparsity[0]}
        return measures | means | self.baselines

    def alone(self, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        """Ranks documents by the student's scores, as `measures` last encoded them, and notes their sparsity."""
        student, lexicon, documents = self.student, self._lexicon(texts), self.encoded[id(texts)]
        impacts = lexicon.impacts(list(texts.values()))
        encode = self._query_encoder(lexicon, list(queries.values()))
        query_weights = [encode(text) for text in queries.values()]
        self.sparsity.append(sparsity_of(documents, impacts, query_weights, student.vocabulary))
        if student.encodes_queries:
            self.sparsity[-1]["query terms"] = float(np.mean([len(query) for query in query_weights]))
        return _ranked(encode, documents, student.vocabulary, queries, texts)

    def trained_sum(self, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        """Ranks every document by BM25 + weight · sparse, with the weight of the loss."""
        return self._summed(queries, texts, self.student.objective.sparse_weight)

    def searched_sum(self, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        """The same as `osn search` adds them up: the weight is in units of the model's scores for known items."""
        scale = _scale(self._lexicon(texts), self.encoded[id(texts)], self.bm25[id(texts)], texts)
        return self._summed(queries, texts, Bm25SparseSetting.weight / scale)

    def _summed(self, queries: Mapping[str, str], texts: Mapping[str, str], weight: float) -> Run:
        documents, bm25 = self.encoded[id(texts)], self.bm25[id(texts)]
        encode = self._query_encoder(self._lexicon(texts), list(queries.values()))
        ranking, positions = Ranking(list(texts)), np.arange(len(texts))
        query_vectors = SparseVectors.of_rows(map(encode, queries.values()), self.student.vocabulary).to_scipy()
        run: Run = {}
        for query, vector, scores in zip(queries, query_vectors, bm25.scores(list(queries.values())), strict=True):
            scores = scores + weight * (documents @ vector.toarray()[0])
            run[query] = {id: score for id, score in ranking.best(positions, scores, DEPTH).items() if score > 0}
        return run

    def _untrained(self, name: str, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        if name == "BM25":
            return self.bm25[id(texts)].retrieve(queries, DEPTH)
        # Not the present table: a run that is continued measures these after its table was trained.
        lexicon = self.own.get(id(texts)) or self.student.first_lexicon
        impacts = lexicon.impacts(list(texts.values()))
        documents = impacts if name == "word-piece BM25" else (impacts > 0).astype(np.float32)
        return _ranked(lexicon.encoder.query.encode, documents, lexicon.encoder.vocabulary, queries, texts)

    def _named(self, name: str, retrieve: Retrieve) -> dict[str, float]:
        measured = dev_measured(self.sets, retrieve)
        if name in (BASELINES[-1], SUM):
            for set_name, of_set in measured.items():
                self.questions.setdefault(set_name, {})[name] = of_set.per_query["nDCG@10"]
        return {f"{name} {key}": value for key, value in means_of(measured).items() if "nDCG@10" in key}

    def note_questions(self, file: Path) -> None:
        """Add a line of the state last measured to `file`: nDCG@10 of each question by BM25, and by the sum if it is
        measured."""
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(self.questions) + "\n")

    def _lexicon(self, texts: Mapping[str, str]) -> Lexicon:
        return self.own.get(id(texts)) or self.student.lexicon

    def _query_encoder(self, lexicon: Lexicon, queries: Sequence[str]) -> Callable[[str], Mapping[str, float]]:
        """The encoder of each of `queries`: the table, or the student's network."""
        if not self.student.encodes_queries:
            return lexicon.encoder.query.encode
        return dict(zip(queries, self.student.vectors(queries, role="query").rows(), strict=True)).__getitem__


def _scale(lexicon: Lexicon, documents: csr_matrix, bm25: BM25Retriever, texts: Mapping[str, str]) -> float:
    """The median of sparse score / BM25 score over known items, as in `index.sparse_scale`; 1 if there are none."""
    chosen = random.Random(0)
    rows = chosen.sample(range(len(texts)), min(SAMPLE, len(texts)))
    contents = list(texts.values())
    sentences = [own_sentence(contents[row], chosen) for row in rows]
    encoded = map(lexicon.encoder.query.encode, sentences)
    query_vectors = SparseVectors.of_rows(encoded, lexicon.encoder.vocabulary).to_scipy()
    of_own_sentences = np.asarray(documents[rows].multiply(query_vectors).sum(axis=1)).ravel().tolist()
    ratios: list[float] = []
    for row, sparse, scores in zip(rows, of_own_sentences, bm25.scores(sentences), strict=True):
        if sparse > 0 and scores[row] > 0:
            ratios.append(sparse / float(scores[row]))
    return median(ratios) if ratios else 1.0


def _ranked(
    encode: Callable[[str], Mapping[str, float]],
    documents: csr_matrix,
    vocabulary: list[str],
    queries: Mapping[str, str],
    texts: Mapping[str, str],
) -> Run:
    vectors = SparseVectors(documents.indptr, documents.indices, documents.data, vocabulary)
    return ExactSparseRetriever(list(texts), vectors, encode).retrieve(queries, DEPTH)


def sparsity_of(
    documents: csr_matrix, impacts: csr_matrix, queries: Sequence[Mapping[str, float]], vocabulary: list[str]
) -> dict[str, float]:
    """How sparse documents (n, vocabulary) are. impacts: of the same documents, above 0 for tokens in their text."""
    active = documents > 0
    outside = active.astype(np.int32) - active.multiply(impacts > 0).astype(np.int32)
    return {
        "active terms": float(active.sum() / documents.shape[0]),
        "expansion terms": float(outside.sum() / documents.shape[0]),
        "FLOPS": measured_flops(queries, documents, vocabulary),
    }


def measured_flops(queries: Sequence[Mapping[str, float]], documents: csr_matrix, vocabulary: list[str]) -> float:
    """Σ_t P(t in a query) · P(t in a document): multiplications per query and document (SPLADE v2, section 4)."""
    query_counts = np.bincount(SparseVectors.of_rows(queries, vocabulary).token_ids, minlength=len(vocabulary))
    document_counts = np.asarray((documents > 0).sum(axis=0)).ravel()
    return float(query_counts @ document_counts / (max(1, len(queries)) * max(1, documents.shape[0])))
