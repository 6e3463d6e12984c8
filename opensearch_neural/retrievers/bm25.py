"""BM25 without a cluster: the bm25s library, with Lucene's formula (`lucene`).

    BM25Retriever(["d1", "d2"], ["the first text", "the second"]).retrieve({"q": "second texts"}, k=10)
    BM25Retriever(ids, texts, analyzer="german", k1=0.9, b=0.4)      as an index with this analyzer, k1 and b

With an analyzer, terms are those of the index (`analyzers` names what differs), and scores nearly those of a `match` query.
Lucene keeps the length of a document in one byte: from 41 terms on it is rounded down, by up to an eighth, which raises the
scores of longer documents. In an index of SciFact's first 2,000 documents (english, k1 1.2, b 0.75), the scores of hits for
100 questions were 0.9% higher in the median, and up to 4% for 99 of 100; 98.6% of the ten best hits were the same. Documents
without any term count in the IDF and in the mean length here, and not in an index. OpenSearch 2 multiplies every score by
k1 + 1, which changes no rank; these scores are those of OpenSearch 3.

Without an analyzer, tokens are lower-cased runs of two or more word characters (`\\b\\w\\w+\\b`), without bm25s's stop words
for English, stemmed by Snowball's English stemmer. `osn data mine --retriever bm25` finds negatives by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.analyzers import analyzer as analyzer_of
from opensearch_neural.retrievers.ranking import Ranking, require_positive

K1 = 1.2
B = 0.75


class BM25Retriever:
    """An index over `texts` (one for each of `ids`) in memory.

    analyzer: one of `analyzers.ANALYZERS`; None: bm25s's own rules for English. Raises InputError for another one.
    """

    name = "bm25s"

    def __init__(
        self, ids: Sequence[str], texts: Iterable[str], *, analyzer: str | None = None, k1: float = K1, b: float = B
    ) -> None:
        try:
            import bm25s
            import Stemmer
        except ModuleNotFoundError as error:
            raise MissingExtra("BM25 without a cluster", "eval") from error
        self._documents = Ranking(ids)
        self._tokenize = bm25s.tokenize
        self._analyze = None if analyzer is None else analyzer_of(analyzer)
        self._stemmer = Stemmer.Stemmer("english")
        texts = list(texts)
        if len(texts) != len(ids):
            raise InputError(f"BM25 got {len(ids)} ids for {len(texts)} texts")
        tokens = self._tokens(texts)
        if not any(tokens):
            raise InputError("BM25 has nothing to index: no document holds a word other than stop words")
        self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
        # Without bm25s's empty token, which a query without words would match.
        self._index.index(tokens, create_empty_token=False, show_progress=False)

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query; a document without a token of the query is not returned."""
        require_positive(k)
        run: Run = {}
        for query_id, scores in zip(queries, self.scores(list(queries.values())), strict=True):
            matching = scores.nonzero()[0]
            run[query_id] = self._documents.best(matching, scores[matching], k)
        return run

    def scores(self, texts: Sequence[str]) -> Iterator[npt.NDArray[np.float32]]:
        """For each query (documents,): the scores of all documents, 0 for those without a token of the query."""
        for tokens in self._tokens(list(texts)):
            known = self._index.get_tokens_ids(tokens)
            yield self._index.get_scores_from_ids(known) if known else np.zeros(len(self._documents.ids), np.float32)

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        if not texts:
            return []
        if self._analyze is not None:
            return [self._analyze(text) for text in texts]
        tokens: Any = self._tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False, allow_empty=False
        )
        return tokens
