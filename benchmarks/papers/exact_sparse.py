"""Exact search by sparse models alone, and by what needs no learning over the same word pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bm25_sparse.measures import MEASURES, judged_queries
from benchmarks.experiment import JudgedSet
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from trainers.data.embedding_cache import sparse_vectors
from trainers.data.loading import load_training

PRESENCE, PIECES = "presence × idf", "BM25 over word pieces"
DEPTH = 100


class Saturation(NamedTuple):
    """BM25's k1 and b."""

    k1: float
    """How slowly repeated words saturate, from 0."""
    b: float
    """How much long documents are discounted, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class SparseTest(JudgedSet):
    """A test split with the statistics of its corpus. Judgements are graded."""

    folder: Path
    """The folder of kept vectors."""

    @property
    def contents(self) -> list[str]:
        return list(self.data.documents.values())

    def lexical(self, pieces: Any, saturation: Saturation | None = None) -> LexicalEncoder:
        """IDF and BM25 of this corpus over the word pieces of `pieces`, a tokenizer."""
        encoder = build_lexical(self.contents, tokenizer=pieces)
        return encoder if saturation is None else replace(encoder, **saturation._asdict())

    def search(self, vectors: SparseVectors, encode: Callable[[str], Mapping[str, float]]) -> Run:
        """Exact search. vectors: of the documents; encode: query text → weights of tokens"""
        return ExactSparseRetriever(self.data.documents.ids, vectors, encode).retrieve(self.texts, DEPTH)

    def documents(self, encoder: SparseDocumentEncoder) -> SparseVectors:
        """The model's vectors of the documents, kept on disk."""
        info = encoder.info
        path = self.folder / f"{info.name}-{info.hash}"
        encode, vocabulary = encoder.encode_documents, encoder.vocabulary
        return sparse_vectors(encode, self.data.documents, path, model=info, vocabulary=vocabulary)


def sparse_test(data: Path, name: str, work: Path) -> SparseTest:
    """The set's test split, with the questions that `osn bench bm25-sparse` uses."""
    judged = judged_queries(data / name)
    test = load_training(data / name, split="test", name=name)
    test = test.take(at for at, example in enumerate(test.examples) if example.query_id in judged.qrels)
    # Training data has relevant documents without grades.
    return SparseTest(test, judged.qrels, folder=work / "vectors" / name)


def untrained(test: SparseTest, lexical: LexicalEncoder) -> dict[str, Measured]:
    """{engine: measures} of search over the student's vocabulary without learning; a student should be better than these."""
    impacts = lexical.encode_documents(test.contents)
    presence = replace(impacts, weights=np.ones_like(impacts.weights))
    return {
        name: test.measure(test.search(vectors, lexical.query.encode), MEASURES)
        for name, vectors in ((PRESENCE, presence), (PIECES, impacts))
    }
