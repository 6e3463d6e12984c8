"""Model-based retrieval as an engine: a model writes a passage for the query, and the passage's URL (TOME).

    retriever = GenerativeRetriever(load_generative("models/tome"), CorpusUrls.load("urls/tldr"))
    retriever.retrieve({"q1": "list files by size"}, k=10)

There is no index to search: what is found is what was learned by heart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import require_positive

if TYPE_CHECKING:
    from opensearch_neural.models.generative.model import GenerativeModel
    from opensearch_neural.models.generative.url_trie import CorpusUrls

BEAMS = 10


class GenerativeRetriever:
    """`model` over the documents of `urls`, which must have been made for it.

    decoding: "constrained", to the corpus's URLs, of which `beams` are found at most (one: greedily); or "free", the
    paper's: one URL is written greedily, and is a hit if it is a document's exactly (of one longer than the model's
    `url_length`, the beginning that was learned). Scores are natural logarithms of
    probabilities (not those of `find_urls`); of a free hit, 0. Raises ModelError for the URLs of another model.
    """

    def __init__(
        self,
        model: GenerativeModel,
        urls: CorpusUrls,
        *,
        decoding: Literal["constrained", "free"] = "constrained",
        beams: int = BEAMS,
        batch_size: int = 32,
    ) -> None:
        if decoding not in ("constrained", "free"):
            raise InputError(f"decoding must be constrained or free, not {decoding!r}")
        if beams < 1:
            raise InputError(f"beams must be at least 1, not {beams}")
        model.check_urls(urls)
        self.name = f"tome {model.info.name} {model.info.hash} {urls.corpus} {decoding}" + (
            f" {beams}" if decoding == "constrained" else ""
        )
        self.model, self.urls, self.beams = model, urls, beams
        self._decoding, self._batch_size = decoding, batch_size
        self._rows = {text: row for row, text in enumerate(model.written(urls))} if decoding == "free" else {}

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The documents whose URLs are written for each query, at most `k` and at most as many as there are beams."""
        require_positive(k)
        decoded = self.decode(self.model.stage_two_inputs(list(queries.values()), batch_size=self._batch_size))
        return {
            query: {self.urls.ids[row]: score for row, score in hits[:k]}
            for query, hits in zip(queries, decoded, strict=True)
        }

    def find_urls(self, query: str, k: int) -> dict[str, float]:
        """{URL: score} of one query, as an index that holds the documents by their URLs is asked for them; by their ids
        where URLs were numbered (`CorpusUrls.numbered`). An index's scores are positive: these are 1 / (1 − log p), as
        OpenSearch makes scores of distances, above 0 and at most 1."""
        require_positive(k)
        (hits,) = self.decode(self.model.stage_two_inputs([query]))
        names = self.urls.ids if self.urls.numbered else self.urls.urls
        return {names[row]: 1 / (1 - score) for row, score in hits[:k]}

    def decode(self, texts: Sequence[str]) -> list[list[tuple[int, float]]]:
        """(document's number, score) for each text that the last stage reads, best first."""
        if self._decoding == "free":
            written = self.model.find_urls(texts, length=self.urls.trie.depth, batch_size=self._batch_size)
            return [[(self._rows[url], 0.0)] if url in self._rows else [] for url in written]
        return self.model.find_documents(texts, self.urls, beams=self.beams, batch_size=self._batch_size)
