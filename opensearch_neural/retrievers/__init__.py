"""One small interface for every engine: queries in, a run out.

    retriever.retrieve({"q1": "what causes a rainbow"}, k=100)  →  {"q1": {"d7": 11.2, "d3": 9.8, …}}

A file a way to retrieve:

opensearch.py    a cluster, by any request body, and what it costs in milliseconds
bm25.py          BM25 by bm25s
exact_sparse.py  every document scored by its sparse vector
faiss.py         exact dense search, and search by codes
multi_vector.py  exact search by several vectors a document
generative.py    the URLs that a generative model writes
template.py      a request body of the user's own
ranking.py       the best of a list of scores, ties and all

Mining, teaching and evaluation take any of them. A document that does not match a query at all is left out of its run;
every query asked is in the run, with an empty entry if nothing matches. Ties are broken by document id, as in run files:
score descending, then id ascending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Run = dict[str, dict[str, float]]
"""{query id: {document id: score}}, the best document first."""


class Retriever(Protocol):
    """What an engine is to the rest of the project."""

    @property
    def name(self) -> str:
        """How tables and run files call it."""
        ...

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query ({query id: text}); fewer where fewer match."""
        ...
