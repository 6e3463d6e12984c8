"""Engines by words and tokens: BM25, a sparse model, and both together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opensearch_neural import queries
from opensearch_neural.engines.engine import Engine, Page, Searched
from opensearch_neural.engines.options import RARE, Option, positive, whole_number
from opensearch_neural.engines.settings import TwoPhases, WeightedSum
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.models import Part
from opensearch_neural.index.sparse_scale import SCALE, measure_sparse_scale
from opensearch_neural.queries import Body, Rare

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


WIDENED_BY = 4
"""By which bm25-sparse widens its window where it is not certain that the hits are those of all documents."""
WIDEST = 1_000
"""Beyond this window all documents are searched: the sum of both costs less than the rescoring."""


class Bm25(Engine):
    name = "bm25"
    finds = "title and text together"

    def body(self, text: str, page: Page) -> Body:
        return queries.bm25(text, **page)


class Sparse(Engine):
    name = "sparse"
    finds = "all tokens of the sparse model"

    def needs(self) -> tuple[Part, ...]:
        return ("sparse",)

    def tokens(self, text: str, kept: Rare | None = None) -> dict[str, float]:
        """The query's tokens; kept: which of them are searched at all, None: as the setting `tokens` says."""
        encoded = self.opened.models.query_encoder.encode(text)
        kept = kept or self.opened.settings.get("tokens")
        return encoded if kept is None else queries.rare_tokens(encoded, kept)

    def body(self, text: str, page: Page) -> Body:
        return queries.neural_sparse(self.tokens(text), plugin=self.opened.plugin, **page)


class Bm25Sparse(Sparse):
    name = "bm25-sparse"
    finds = "the best of bm25, with what the sparse model adds"
    options = (
        Option(
            "window", whole_number, "hits of BM25, of each shard, that get what the model adds.", "as tuned, else 50"
        ),
        Option(
            "weight", positive, "what the model adds to a document's own words, beside BM25's 1.", "as tuned, else 0.45"
        ),
        Option("exact", bool, "widen the window until the hits are those of all documents.", is_flag=True),
    )

    @property
    def scale(self) -> float:
        """Of the index's sparse scores beside BM25's: as it was measured at ingest, else measured now."""
        stored = self.opened.meta.extra.get(SCALE)
        return float(stored) if stored else self.opened.once(SCALE, self._measured)

    def _measured(self) -> float:
        if self.opened.connect is None:
            raise ClusterError(f"no connection to measure the scale of the sparse scores of {self.opened.index!r} by")
        client, opened = self.opened.connect(), self.opened
        return measure_sparse_scale(client, opened.index, opened.models.query_encoder) or 1.0

    def load(self) -> None:
        super().load()
        _ = self.scale

    def body(self, text: str, page: Page) -> Body:
        return self._sum(text, page, None if self.opened.settings.get("exact") else WeightedSum.of(self.opened).window)

    def _sum(self, text: str, page: Page, window: int | None) -> Body:
        tokens, weight = self.tokens(text), WeightedSum.of(self.opened).weight / self.scale
        return queries.bm25_sparse(text, tokens, weight=weight, window=window, plugin=self.opened.plugin, **page)

    def search(self, client: OpenSearch, body: Body, text: str, page: Page) -> Searched:
        """With the setting `exact`: by a window first, which is widened until its page is certainly the exact one."""
        window = WeightedSum.of(self.opened).window
        windowed = self._sum(text, page, window)
        # What is collapsed has no window.
        if not self.opened.settings.get("exact") or "rescore" not in windowed:
            return super().search(client, body, text, page)
        tops = queries.heaviest(windowed)
        heaviest = [answer["hits"]["hits"] for answer in self._ask(client, tops.values())]
        largest = {token: hits[0]["_score"] for token, hits in zip(tops, heaviest, strict=True) if hits}
        while window <= WIDEST:
            stage = {**windowed["rescore"], "window_size": window}
            windowed = {**windowed, "rescore": stage, "explain": body.get("explain", False)}
            answer, end = self._ask(client, (windowed, queries.window_end(windowed)))
            if queries.certified(windowed, answer, end, largest):
                return Searched(windowed, answer, {"window": window})
            window *= WIDENED_BY
        return replace(super().search(client, body, text, page), facts={"window": None})

    def _ask(self, client: OpenSearch, bodies: Iterable[Body]) -> list[Any]:
        """The answers to several bodies, in one request. Raises ClusterError where one is refused."""
        lines = [line for body in bodies for line in ({}, body)]
        answers: list[Any] = client.msearch(index=self.opened.index, body=lines)["responses"] if lines else []
        for answer in answers:
            if "error" in answer:
                raise ClusterError(f"a search was refused: {answer['error'].get('reason')}")
        return answers


class HighIdfFirst(Sparse):
    name = "high-idf-first"
    finds = "rare tokens first, the best of these rescored with all"
    options = (
        RARE,
        Option("window", whole_number, "hits of each shard rescored with all tokens.", "as tuned, else 30"),
    )

    def body(self, text: str, page: Page) -> Body:
        how = TwoPhases.of(self.opened)
        return queries.high_idf_first(
            self.tokens(text, how.tokens),
            rare=how.rare,
            window=how.window,
            exact=how.exact,
            plugin=self.opened.plugin,
            **page,
        )


ENGINES: tuple[type[Engine], ...] = (Bm25, Bm25Sparse, Sparse, HighIdfFirst)
