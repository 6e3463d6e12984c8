"""Exact search with sparse vectors, without a cluster: test sets with the statistics of their corpora, and measures of
students and of engines without learning."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import cluster_bm25
from benchmarks.bm25_sparse.measures import judged_queries
from benchmarks.cluster_bm25 import best_settings, kept_scores, tuning_questions
from benchmarks.experiment import JudgedSet
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from trainers.data.embedding_cache import sparse_vectors
from trainers.data.loading import load_training

if TYPE_CHECKING:
    from trainers.sparse.lexicon import Lexicon

MEASURES = ("nDCG@10", "R@100")
PRESENCE, PIECES = "presence × idf", "BM25 over word pieces"
DEPTH = 100


class Saturation(NamedTuple):
    """BM25's k1 and b."""

    k1: float
    b: float


@dataclass(frozen=True, kw_only=True)
class SparseTest(JudgedSet):
    """A test split with the statistics of its corpus. Judgements are graded."""

    folder: Path
    """The folder of kept vectors."""

    def lexicon(self, pieces: Any, saturation: Saturation | None = None) -> Lexicon:
        """IDF and BM25 impacts of this corpus over the word pieces of `pieces`, a tokenizer."""
        encoder = build_lexical(self.data.documents.values(), tokenizer=pieces)
        return with_saturation(encoder, saturation or Saturation(encoder.k1, encoder.b))

    def search(self, matrix: Any, vocabulary: list[str], encode: Any) -> Run:
        """Exact search. matrix: (documents, vocabulary); encode: query text → weights of tokens"""
        from scipy.sparse import csr_matrix

        rows = csr_matrix(matrix)
        vectors = SparseVectors(rows.indptr, rows.indices, rows.data, vocabulary)
        return ExactSparseRetriever(self.data.documents.ids, vectors, encode).retrieve(self.texts, DEPTH)

    def documents(self, encoder: Any) -> Any:
        """(documents, vocabulary): the model's vectors of the documents, kept on disk."""
        info = encoder.info
        path = self.folder / f"{info.name}-{info.hash}"
        encode, vocabulary = encoder.encode_documents, encoder.vocabulary
        return sparse_vectors(encode, self.data.documents, path, model=info, vocabulary=vocabulary).to_scipy()


def sparse_test(data: Path, name: str, work: Path) -> SparseTest:
    """The set's test split, with the questions that `osn bench bm25-sparse` uses."""
    judged = judged_queries(data / name)
    test = load_training(data / name, split="test", name=name)
    test = test.take(at for at, example in enumerate(test.examples) if example.query_id in judged.qrels)
    # Training data has relevant documents without grades.
    return SparseTest(name, test, judged.qrels, folder=work / "vectors" / name)


def with_saturation(encoder: LexicalEncoder, saturation: Saturation) -> Lexicon:
    from trainers.sparse.lexicon import Lexicon

    return Lexicon(replace(encoder, k1=saturation.k1, b=saturation.b), len(encoder.vocabulary))


def on_target(encoder: Any, lexicon: Lexicon) -> Any:
    """The sparse model with the IDF of another corpus for queries; its documents' weights stay the same."""
    query = TableEncoder(
        encoder.query.tokenizer, lexicon.encoder.query.weights, encoder.query.max_length, name=encoder.query.name
    )
    return replace(encoder, query=query)


def student_run(encoder: Any, test: SparseTest) -> tuple[Run, dict[str, float]]:
    """(the student's run, {measure: the sparsity of its documents})"""
    from trainers.sparse.dev_measures import sparsity_of

    matrix = test.documents(encoder)
    queries = [encoder.query.encode(text) for text in test.texts.values()]
    present = test.lexicon(encoder.query.tokenizer).impacts(list(test.data.documents.values()))
    sparsity = sparsity_of(matrix, present, queries, encoder.vocabulary)
    return test.search(matrix, encoder.vocabulary, encoder.query.encode), sparsity


def untrained(test: SparseTest, lexicon: Lexicon) -> dict[str, Measured]:
    """{engine: measures} of search over the student's vocabulary without learning; a student should be better than these."""
    impacts, encoder = lexicon.impacts(list(test.data.documents.values())), lexicon.encoder
    presence = (impacts > 0).astype("float32")
    return {
        name: test.measure(test.search(matrix, encoder.vocabulary, encoder.query.encode), MEASURES)
        for name, matrix in ((PRESENCE, presence), (PIECES, impacts))
    }


def tuned_pieces(data: Path, names: Iterable[str], work: Path, pieces: Any) -> dict[str, Saturation]:
    """k1 and b of BM25 over word pieces, chosen on train as those of OpenSearch's BM25 are; see `best_settings`."""

    def scores(name: str) -> dict[Saturation, float]:
        questions = tuning_questions(data / name)
        encoder = build_lexical(questions.documents.values(), tokenizer=pieces)
        test, of_settings = SparseTest(name, questions, questions.qrels(), folder=work), {}
        for tried in itertools.starmap(Saturation, itertools.product(*cluster_bm25.GRID)):
            impacts = with_saturation(encoder, tried).impacts(list(questions.documents.values()))
            run = test.search(impacts, encoder.vocabulary, encoder.query.encode)
            of_settings[tried] = test.measure(run, ["nDCG@10"]).mean["nDCG@10"]
        return of_settings

    folder = work / "word-pieces"
    return best_settings({name: kept_scores(folder, name, Saturation, partial(scores, name)) for name in names})
