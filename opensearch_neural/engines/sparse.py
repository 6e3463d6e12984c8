"""Engines that search words and tokens: BM25, a sparse model, and both together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from opensearch_neural import queries
from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.cluster.errors import allowed, translate_errors
from opensearch_neural.engines.engine import (
    CLAUSES,
    RARE,
    TOKENS,
    Engine,
    Missing,
    Option,
    Page,
    positive,
    whole_number,
)
from opensearch_neural.engines.settings import (
    RARE_WORDS,
    Bm25SparseSetting,
    HighIdfFirstSetting,
    PrunedSparseSetting,
    Setting,
)
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.hidden_index import LARGEST, read_largest
from opensearch_neural.index.mapping import searched_word_by_word
from opensearch_neural.index.models import IndexPart
from opensearch_neural.index.sparse_scale import SCALE, measure_sparse_scale
from opensearch_neural.queries import Body, Rare
from opensearch_neural.queries.body_parts import filter_clauses

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


EXACT = Option("exact", bool, "score all documents with the whole score, without a window.", is_flag=True)


class Bm25(Engine):
    name = "bm25"
    finds = "title and text together"

    def body(self, text: str, page: Page) -> Body:
        return queries.bm25(text, **page)


class Sparse(Engine):
    name = "sparse"
    finds = "all tokens of the sparse model"
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "window",
            whole_number,
            "hits of each shard that get their whole score, in an index with pruned postings.",
            "as tuned, else 50 to 400 by the pruning rule, more beyond 100,000 documents in a shard",
        ),
        TOKENS,
        EXACT,
    )

    def needs(self) -> tuple[IndexPart, ...]:
        return ("sparse",)

    def tokens(self, text: str, kept: Rare | None = None) -> dict[str, float]:
        """The query's tokens to search with: those that `kept` (None: the setting `tokens`) keeps. With the setting `exact`,
        all."""
        encoded = self.opened.models.query_encoder.encode(text)
        kept = kept or self.opened.settings.get("tokens")
        return encoded if kept is None or self.opened.settings.get("exact") else queries.rare_tokens(encoded, kept)

    def one_phase(self, text: str, page: Page) -> Body:
        """A body without a second phase, for hybrid queries, which OpenSearch cannot rescore. With pruned postings its
        scores are too low."""
        return queries.neural_sparse(self.tokens(text), plugin=self.opened.plugin, **page)

    def body(self, text: str, page: Page) -> Body:
        return self.within(text, page, None if self.opened.settings.get("exact") else self.window())

    def within(self, text: str, page: Page, window: int | None) -> Body:
        """The body with this window; None: a search of all documents."""
        return self.all_tokens(self.tokens(text), page, window)

    def all_tokens(self, tokens: Mapping[str, float], page: Page, window: int | None) -> Body:
        """The body that searches all of these tokens. window: as in `within`; only pruned postings need one."""
        if self.opened.has_pruned_postings():
            return queries.pruned_sparse(tokens, window=window, plugin=self.opened.plugin, **page)
        return queries.neural_sparse(tokens, plugin=self.opened.plugin, **page)

    def how(self) -> Setting | None:
        return PrunedSparseSetting.of(self.opened) if self.opened.has_pruned_postings() else None

    def window(self) -> int | None:
        """Hits of each shard that get their whole score; None if all do."""
        how = self.how()
        return None if how is None else how.window

    def load(self) -> None:
        super().load()
        self.opened.check_clauses()
        self.window()  # may need a request to the cluster

    def search(self, client: OpenSearch, body: Body, text: str) -> Mapping[str, Any]:
        """The answer to a body. If pruned postings leave the page short, a second request fills it."""
        answer, from_ = super().search(client, body, text), body.get("from", 0)
        hits = answer["hits"]["hits"]
        if not self.opened.has_pruned_postings() or len(hits) >= body.get("size", 10) or queries.partial_answer(answer):
            return answer
        rest = queries.unsearched(body, from_ + len(hits))
        if rest is None:
            return answer
        if from_ and not hits:
            params = {"preference": queries.preference(text)}
            count = client.count(index=self.opened.index, body={"query": body["query"]}, params=params)
            rest = queries.unsearched(body, count["count"])
            if rest is None or queries.partial_answer(count):
                return {**answer, "_shards": count["_shards"]}  # a missing shard means missing hits
        return queries.filled(answer, super().search(client, rest, text))

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        if not self.opened.settings.get("exact") or not queries.partial_answer(answer):
            return Missing()
        return Missing(("the hits may not be the best of all documents",), {"exact": False})


class Windowed(Sparse):
    """Engines of two phases. `certified` tells whether their page is certainly the page that a search of all documents
    returns."""

    def how(self) -> Bm25SparseSetting | HighIdfFirstSetting:
        raise NotImplementedError

    def window(self) -> int:
        return self.how().window

    def certified(
        self,
        client: OpenSearch,
        text: str,
        page: Page,
        remembered: dict[str, float] | None = None,
        *,
        window: int | None = None,
    ) -> bool:
        """Whether the page is certainly the page that a search of all documents returns. With the setting `exact` it is,
        unless the answer is partial. If the setting `tokens` removes tokens, it never is. Raises ClusterError.

        remembered: {token: its largest weight}, the caller's memory from one query to the next. Weights that neither it nor
        the index's stored weights have are requested from the cluster and added to it, so it is valid until documents are
        added. None: nothing is remembered. window: None takes the engine's own.
        """
        remembered = {} if remembered is None else remembered
        page = {**page, "filter": filter_clauses(page.get("filter"))}  # for several bodies
        exact = self.opened.settings.get("exact")
        if not exact and self.tokens(text, self.how().tokens) != self.opened.models.query_encoder.encode(text):
            return False
        whole = self.within(text, page, None)
        searched = whole if exact else self.within(text, page, window or self.window())
        if searched == whole:  # also if the query has one phase
            (answer,) = answers(client, self.opened.index, text, (searched,))
            return not queries.partial_answer(answer)
        body = self.provable(text, page, window or self.window())
        if "rescore" not in body:
            return False
        answer, end = answers(client, self.opened.index, text, (body, queries.window_end(body)))
        if not queries.certified(body, answer, end, self._largest(client, text, body, answer, remembered)):
            return False
        if searched == body:
            return True
        (shown,) = answers(client, self.opened.index, text, (searched,))
        return not queries.partial_answer(shown) and _same_hits(shown, answer)

    def provable(self, text: str, page: Page, window: int) -> Body:
        """The body with this window whose page `queries.certified` can prove."""
        return self.within(text, page, window)

    def _largest(
        self, client: OpenSearch, text: str, body: Body, answer: Mapping[str, Any], remembered: dict[str, float]
    ) -> Mapping[str, float]:
        """{token: its largest weight in the index}: those that ingest keeps, else `remembered`, to which missing ones are
        added.

        Call it after the answer arrived, so that the weights cover every document in the answer.
        """
        id, loaded = self.opened.meta.extra.get(LARGEST), self.opened.loaded
        stored = loaded[LARGEST] = read_largest(client, id, loaded.get(LARGEST))
        # An alias may point to another index by now.
        if (
            stored is not None
            and (hits := answer["hits"]["hits"])
            and all(hit["_index"] == stored.index for hit in hits)
        ):
            return stored.weights
        if self.opened.has_pruned_postings():  # a request would read the rows of all documents
            return dict.fromkeys(queries.heaviest(body), math.inf)
        tops = {token: top for token, top in queries.heaviest(body).items() if token not in remembered}
        largest = queries.largest_weights(
            dict(zip(tops, answers(client, self.opened.index, text, tops.values()), strict=True))
        )
        remembered |= {token: weight for token, weight in largest.items() if math.isfinite(weight)}
        return {**largest, **remembered}


WORD_BY_WORD = "word_by_word"
"""The key under which `Bm25Sparse.load_word_by_word` keeps its result."""


class Bm25Sparse(Windowed):
    name = "bm25-sparse"
    finds = "the best of bm25, with what the sparse model adds"
    options = (
        Option(
            "window",
            whole_number,
            "hits of BM25 in each shard that get the model's score.",
            "as tuned, else 30, more beyond 100,000 documents in a shard",
        ),
        Option("weight", positive, "weight of the model's score, with BM25's as 1.", "as tuned, else 0.8"),
        Option(
            "rare",
            Rare.parse,
            "which words of a query decide in BM25's phase: ratio:R, share:S or count:N; ratio:0 is all words.",
            f"all words, beyond 100,000 documents in a shard {RARE_WORDS}",
        ),
        TOKENS,
        CLAUSES,
        EXACT,
    )

    def load_scale(self) -> float:
        """The scale of the index's sparse scores relative to BM25's: measured at ingest, else measured now."""
        stored = self.opened.meta.extra.get(SCALE)
        return float(stored) if stored else self.opened.once(SCALE, self._measured)

    def _measured(self) -> float:
        if self.opened.connect is None:
            raise ClusterError(f"measuring the scale of the sparse scores of {self.opened.index!r} needs a connection")
        client, opened = self.opened.connect(), self.opened
        with translate_errors():
            encoder = opened.models.query_encoder
            return measure_sparse_scale(client, opened.index, encoder, pruned=opened.has_pruned_postings()) or 1.0

    def load_word_by_word(self) -> bool:
        """Whether the index's queries are `searched_word_by_word`; False if that is unknown. Asks the cluster once."""
        stored = self.opened.meta.extra.get(WORD_BY_WORD)
        return self.opened.once(WORD_BY_WORD, self._asked_word_by_word) if stored is None else bool(stored)

    def _asked_word_by_word(self) -> bool:
        if self.opened.connect is None:
            return False
        client, index = self.opened.connect(), self.opened.index
        with translate_errors():
            answers = allowed(lambda: client.indices.get(index=index, params={"flat_settings": "true"}))
        (answer,) = answers.values() if answers else [None]
        return bool(answer and searched_word_by_word(answer["mappings"], answer["settings"], self.opened.meta))

    def load(self) -> None:
        super().load()
        self.load_scale()
        if self.how().rare is not None:
            self.load_word_by_word()

    def how(self) -> Bm25SparseSetting:
        return Bm25SparseSetting.of(self.opened)

    def rare_first(self, text: str, page: Page, window: int | None, how: Bm25SparseSetting) -> tuple[str, str] | None:
        """(the rare words of the text, the others) if the rare words decide in phase one, else None.

        They do if there is a window, no `collapse`, no fields and no query of one's own, and if a word finds the same alone
        as in the text (`searched_word_by_word`).
        """
        if how.rare is None or window is None or any(map(page.get, ("collapse", "base", "fields"))):
            return None
        if not self.load_word_by_word():
            return None
        return queries.rare_words(text, self.opened.models.query_encoder.heaviest, how.rare)

    def provable(self, text: str, page: Page, window: int) -> Body:
        """The body with all words in phase one: its last hit tells what BM25 gives any other document at most."""
        return self.within(text, page, window, replace(self.how(), rare=None))

    def within(self, text: str, page: Page, window: int | None, how: Bm25SparseSetting | None = None) -> Body:
        """The body with this window (None: a search of all documents). how: the other settings; None: the engine's."""
        how = how or self.how()
        return queries.bm25_sparse(
            text,
            self.tokens(text, how.tokens),
            weight=how.weight / self.load_scale(),
            window=window,
            plugin=self.opened.plugin,
            forward=self.opened.forward,
            pruned=self.opened.has_pruned_postings(),
            rare_first=self.rare_first(text, page, window, how),
            **page,
        )


class HighIdfFirst(Windowed):
    name = "high-idf-first"
    finds = "rare tokens first, the best hits rescored with all tokens"
    options = (
        RARE,
        Option("window", whole_number, "hits of each shard rescored with all tokens.", "as tuned, else 30 or more"),
        TOKENS,
        CLAUSES,
        EXACT,
    )

    def how(self) -> HighIdfFirstSetting:
        return HighIdfFirstSetting.of(self.opened)

    def within(self, text: str, page: Page, window: int | None, how: HighIdfFirstSetting | None = None) -> Body:
        """The body with this window (None: a search of all documents). how: the other settings; None: the engine's."""
        how = how or self.how()
        tokens = self.tokens(text, how.tokens)
        if window is None:
            return self.all_tokens(tokens, page, None)
        return queries.high_idf_first(
            tokens,
            rare=how.rare,
            window=window,
            exact=how.exact,
            plugin=self.opened.plugin,
            forward=self.opened.forward,
            pruned=self.opened.has_pruned_postings(),
            **page,
        )

    def warnings(self) -> tuple[str, ...]:
        if self.opened.once("spread", self._spread):
            return ()
        alike = "all tokens of the sparse model weigh the same in a query: high-idf-first searches them in one phase"
        return (f"{alike} (`osn model idf` makes a model with the table of a corpus)",)

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        missing = super().missing(body, answer, filtered=filtered)
        return replace(missing, warnings=(*missing.warnings, *self.warnings()))

    def _spread(self) -> bool:
        """Whether query tokens differ in weight."""
        return len(set(self.opened.models.query_encoder.weights.values()) - {0.0}) > 1


def answers(client: OpenSearch, index: str, text: str, bodies: Iterable[Body]) -> list[Any]:
    """The answers to several bodies for one query text, in one request. Raises ClusterError if one is refused."""
    lines = [line for body in bodies for line in ({"preference": queries.preference(text)}, body)]
    received: list[Any] = client.msearch(index=index, body=lines)["responses"] if lines else []
    for answer in received:
        if "error" in answer:
            raise ClusterError(f"a search was refused: {reasons_on_one_line(answer['error'])}")
    return received


def _same_hits(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two answers have the same documents in the same order, with the same scores but for rounding."""
    hits, others = one["hits"]["hits"], other["hits"]["hits"]
    return len(hits) == len(others) and all(
        hit["_id"] == same["_id"] and math.isclose(float(hit["_score"]), float(same["_score"]), rel_tol=1e-5)
        for hit, same in zip(hits, others, strict=True)
    )


ENGINES: tuple[type[Engine], ...] = (Bm25, Bm25Sparse, Sparse, HighIdfFirst)
