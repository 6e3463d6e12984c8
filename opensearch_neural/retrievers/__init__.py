"""One small interface for every engine: queries in, a run out.

    retriever.retrieve({"q1": "what causes a rainbow"}, k=100)  →  {"q1": {"d7": 11.2, "d3": 9.8, …}}

One file per way to retrieve:

opensearch.py          a cluster, with any request body; also measures latency
bm25.py                BM25 with bm25s
analyzers.py           the terms of OpenSearch's analyzers, for bm25.py
exact_sparse.py        scores every document by its sparse vector
faiss.py               exact dense search, and search by codes
exact_multi_vector.py  exact search over several vectors per document
generative.py          the URLs that a generative model writes
template.py            the user's own request body
ranking.py             the k best of an array of scores, with ties broken

Mining, teaching and evaluation accept any of them. A run has an entry for every query, which is empty if nothing matches; a
document that does not match the query is not in it. Ties are broken by document id, as in run files: score descending, then
id ascending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Run = dict[str, dict[str, float]]
"""{query id: {document id: score}}, the best document first."""


class Retriever(Protocol):
    """The interface of an engine for the rest of the project."""

    @property
    def name(self) -> str:
        """Its name in tables and run files."""
        ...

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query ({query id: text}); fewer if fewer match."""
        ...
