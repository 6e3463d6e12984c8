"""BM25 without a cluster: the bm25s library, with Lucene's formula (`lucene`, k1 = 1.2, b = 0.75).

Tokens are lower-cased runs of two or more word characters (`\\b\\w\\w+\\b`), without bm25s's English stop words, stemmed by
Snowball's English stemmer (PyStemmer). This is close to OpenSearch's english analyzer, which however keeps single
characters and stems with Porter's first algorithm.

    BM25Retriever(["d1", "d2"], ["the first text", "the second"]).retrieve({"q": "second texts"}, k=10)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import Ranking, require_positive

K1 = 1.2
B = 0.75


class BM25Retriever:
    """An index over `texts` (one for each of `ids`) in memory."""

    name = "bm25s"

    def __init__(self, ids: Sequence[str], texts: Iterable[str]) -> None:
        try:
            import bm25s
            import Stemmer
        except ModuleNotFoundError as error:
            raise MissingExtra("BM25 without a cluster", "eval") from error
        self._documents = Ranking(ids)
        self._tokenize = bm25s.tokenize
        self._stemmer = Stemmer.Stemmer("english")
        texts = list(texts)
        if len(texts) != len(ids):
            raise InputError(f"BM25 got {len(ids)} ids for {len(texts)} texts")
        tokens = self._tokens(texts)
        if not any(tokens):
            raise InputError("BM25 has nothing to index: no document holds a word other than stop words")
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
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
        tokens: Any = self._tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False, allow_empty=False
        )
        return tokens
