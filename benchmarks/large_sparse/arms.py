"""The ideas as request bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.engines.sparse import Bm25Sparse
from opensearch_neural.queries import REPLACED, Body, Rare, neural_sparse, rare_tokens
from opensearch_neural.queries.clauses import match_clause, rescoring_clause

if TYPE_CHECKING:
    from opensearch_neural.engines import Engines


@cache
def _frequencies(file: Path) -> dict[str, int]:
    counts: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return counts


def cut_tokens(tokens: Mapping[str, float], frequencies: Mapping[str, int], share: float) -> dict[str, float]:
    """Those of a query's tokens that are worth most for what they cost, until they hold `share` of its postings.

    A token costs the documents that hold it, and is worth its weight squared: a token that weighs twice as much parts
    documents twice as far, and is twice as rarely in the way. One token at least is kept; those that no document holds are
    not.
    """

    def cost(token: str) -> int:
        return frequencies.get(token, 0)

    budget, spent = share * sum(map(cost, tokens)), 0
    chosen: set[str] = set()
    held = filter(cost, tokens)
    for token in sorted(held, key=lambda token: tokens[token] ** 2 / cost(token), reverse=True):
        if not chosen or spent + cost(token) <= budget:
            chosen.add(token)
            spent += cost(token)
    return {token: weight for token, weight in tokens.items() if token in chosen}


@dataclass(frozen=True)
class FieldSearch:
    """Searches a field, of the whole query or of a part of it, and rescores the best hits with all tokens by their rows."""

    field: str = "sparse"
    window: int | None = None
    """Hits of each shard that are rescored; None: no second phase."""
    cut: float = 1.0
    """Share of the query's postings that phase one searches (`cut_tokens`)."""
    frequencies: Path | None = None
    """Where the documents of each token are counted; needed for a cut."""

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        encoder = engines.models.query_encoder
        counts = {} if self.frequencies is None else _frequencies(self.frequencies)

        def body(text: str) -> Body:
            tokens = encoder.encode(text)
            first = tokens if self.cut >= 1 else cut_tokens(tokens, counts, self.cut)
            made = neural_sparse(first, field=self.field, plugin=engines.plugin, **page)
            if self.window is not None and tokens:
                second = rescoring_clause(tokens, "sparse", plugin=engines.plugin, forward=engines.forward)
                weights = {"query_weight": REPLACED, "rescore_query_weight": 1.0}
                made["rescore"] = {"window_size": self.window, "query": {"rescore_query": second, **weights}}
            return made

        return body


def rare_words(text: str, encode: Callable[[str], Mapping[str, float]], share: float) -> tuple[list[str], list[str]]:
    """(rare, common): the words of a query that hold `share` of its weight, the heaviest first, and the others.

    A word weighs as much as the heaviest of its tokens: a guess at the IDF of the term that the index makes of it.
    """
    weights = {word: max(encode(word).values(), default=0.0) for word in dict.fromkeys(re.findall(r"\w+", text))}
    chosen = rare_tokens(weights, Rare("share", share))
    return list(chosen), [word for word in weights if word not in chosen]


@dataclass(frozen=True)
class RareWordsFirst:
    """The sum with BM25, of which the rare words of the query search; the best hits get BM25 of all words and what the model
    adds. Common words fill up a page that rare ones leave short."""

    share: float
    """Of the query's weight that the rare words hold."""
    window: int
    """Hits of each shard that get the sum."""

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        sum_ = Bm25Sparse(engines.with_settings(window=self.window))
        encode = engines.models.query_encoder.encode

        def body(text: str) -> Body:
            made = sum_.body(text, dict(page))
            rare, common = rare_words(text, encode, self.share)
            if not common or "rescore" not in made:
                return made
            stage = made["rescore"]["query"]
            added = {**stage["rescore_query"]["script_score"], "boost": stage["rescore_query_weight"]}
            both = {"bool": {"should": [made["query"], {"script_score": added}]}}
            searched, filling = (match_clause(" ".join(words), ["contents"]) for words in (rare, common))
            first = {"bool": {"should": [searched, {"constant_score": {"filter": filling, "boost": REPLACED}}]}}
            second = {"rescore_query": both, "query_weight": REPLACED, "rescore_query_weight": 1.0}
            return {**made, "query": first, "rescore": {"window_size": self.window, "query": second}}

        return body


def _of_blocks(engines: Engines, text: str, blocks: list[int], page: Mapping[str, Any]) -> Body:
    """All tokens, over the documents of these blocks alone."""
    tokens = engines.models.query_encoder.encode(text)
    return neural_sparse(tokens, plugin=engines.plugin, filter={"terms": {"block": blocks}}, **page)


@dataclass(frozen=True)
class BestBlocks:
    """The first of two requests: the blocks with the highest sums of their largest weights."""

    count: int

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        encoder = engines.models.query_encoder
        of_blocks = {**page, "size": self.count, "source": False}
        return lambda text: neural_sparse(encoder.encode(text), plugin=engines.plugin, **of_blocks)


@dataclass(frozen=True)
class DocumentsOfBlocks:
    """The second of two requests: all tokens, over the documents of the blocks that the first one found."""

    index: str

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Body]:
        def body(text: str, answer: Mapping[str, Any]) -> Body:
            return _of_blocks(engines, text, [int(hit["_id"]) for hit in answer["hits"]["hits"]], page)

        return body


class BlockTable:
    """The blocks' largest weights by token, in this process's memory."""

    def __init__(self, file: Path) -> None:
        with np.load(file, allow_pickle=False) as held:
            self._token = {token: at for at, token in enumerate(held["vocabulary"].tolist())}
            self._starts, self._blocks, self._weights = held["indptr"], held["blocks"], held["weights"]
        self._count = int(self._blocks.max()) + 1 if len(self._blocks) else 0

    def best(self, tokens: Mapping[str, float], count: int) -> list[int]:
        """The blocks with the highest sums of weight · largest weight, in no order; those without any token left out."""
        sums = np.zeros(self._count, np.float32)
        for token, weight in tokens.items():
            at = self._token.get(token)
            if at is not None:
                part = slice(self._starts[at], self._starts[at + 1])
                sums[self._blocks[part]] += np.float32(weight) * self._weights[part]  # a block once in each part
        best = np.argpartition(-sums, count - 1)[:count] if count < self._count else np.arange(self._count)
        chosen: list[int] = best[sums[best] > 0].tolist()
        return chosen


@cache
def _table(file: Path) -> BlockTable:
    return BlockTable(file)


@dataclass(frozen=True)
class ClientBlocks:
    """One request: the client chooses the blocks from a table that it holds."""

    count: int
    table: Path

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        table, encoder = _table(self.table), engines.models.query_encoder
        return lambda text: _of_blocks(engines, text, table.best(encoder.encode(text), self.count), page)
