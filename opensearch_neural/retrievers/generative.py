"""Model-based retrieval as an engine: a model writes a passage for the query, then the passage's URL (TOME).

    retriever = GenerativeRetriever(load_generative("models/tome"), CorpusUrls.load("urls/tldr"))
    retriever.retrieve({"q1": "list files by size"}, k=10)

There is no index to search: the model has learned the documents by heart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import require_positive

if TYPE_CHECKING:
    from opensearch_neural.models.generative.generative_model import GenerativeModel
    from opensearch_neural.models.generative.url_trie import CorpusUrls

BEAMS = 10


class GenerativeRetriever:
    """Finds documents of `urls`, which must have been made for `model`.

    decoding: "constrained" writes only URLs of the corpus, at most `beams` (with one beam, greedily). "free", as in the
    paper, writes one URL greedily, which is a hit if it equals a document's URL (or, if that is longer than the model's
    `url_length`, its learned beginning). Scores are natural logarithms of probabilities, 0 for a free hit; `find_urls` has
    other scores. Raises ModelError for URLs that were made for another model.
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
        """{URL: score} for one query, to look the documents up in an index; {id: score} if URLs were numbered
        (`CorpusUrls.numbered`).

        An index's scores must be positive, so they are 1 / (1 − log p), above 0 and at most 1, as OpenSearch turns
        distances into scores.
        """
        require_positive(k)
        (hits,) = self.decode(self.model.stage_two_inputs([query]))
        names = self.urls.ids if self.urls.numbered else self.urls.urls
        return {names[row]: 1 / (1 - score) for row, score in hits[:k]}

    def decode(self, texts: Sequence[str]) -> list[list[tuple[int, float]]]:
        """For each input text of the last stage, (document's number, score), best first."""
        if self._decoding == "free":
            written = self.model.find_urls(texts, length=self.urls.trie.depth, batch_size=self._batch_size)
            return [[(self._rows[url], 0.0)] if url in self._rows else [] for url in written]
        return self.model.find_documents(texts, self.urls, beams=self.beams, batch_size=self._batch_size)
