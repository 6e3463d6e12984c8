"""Every engine: one class each, with all that commands need to know of it. `ENGINES`, at the end, lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from opensearch_neural import multi_vector, queries
from opensearch_neural.engines.engine import Engine, Missing, Option, Page
from opensearch_neural.engines.settings import Cascade, TwoPhases
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.mapping import to_bytes
from opensearch_neural.index.models import Part
from opensearch_neural.look_up_table import spread
from opensearch_neural.models import registry
from opensearch_neural.queries import Body, Rare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.index.models import IndexModels
    from opensearch_neural.retrievers.faiss import QuantizedRetriever
    from opensearch_neural.retrievers.generative import GenerativeRetriever

JPQ_WINDOW = 100
"""Hits of each shard that jpq-rescore ranks."""
HELD = "urls"
"""The aggregation that counts which of the written URLs the index holds."""


def whole_number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} is not a whole number from 1")
    return number


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError(f"{text} is not above 0")
    return number


RARE = Option("rare", Rare.parse, "which tokens are rare: ratio:R, share:S or count:N.", "as tuned, else ratio:0.5")


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


class Dense(Engine):
    name = "dense"
    finds = "nearest neighbours of the dense model's vector"

    def needs(self) -> tuple[Part, ...]:
        return ("dense",)

    def body(self, text: str, page: Page) -> Body:
        vector, stored = dense_vector(self.opened.models, text), self.opened.models.dense_record
        return multi_vector.nearest(vector, **page) if stored.vectors > 1 else queries.knn(vector, **page)


class JpqHnsw(Dense):
    name = "jpq-hnsw"
    finds = "nearest neighbours among reconstructed vectors"

    def needs(self) -> tuple[Part, ...]:
        return ("reconstructed",)


class JpqRescore(Engine):
    name = "jpq-rescore"
    finds = "the best of bm25, ranked by their codes alone"
    options = (Option("dense_window", whole_number, "hits of each shard rescored with their codes.", "100"),)

    def needs(self) -> tuple[Part, ...]:
        return ("quantized",)

    def body(self, text: str, page: Page) -> Body:
        window = self.opened.settings.get("dense_window") or JPQ_WINDOW
        return queries.quantized_rescore(
            queries.bm25(text, **page), look_up_table(self.opened.models, text), window=window
        )


class Faiss(Engine):
    name = "faiss"
    finds = "every code compared, in this process"
    compared = False
    options = (Option("faiss", Path, "the file of codes that `osn encode --faiss` wrote.", "the codes of the index"),)

    def needs(self) -> tuple[Part, ...]:
        return ("quantized",)

    @property
    def retriever(self) -> QuantizedRetriever:
        """The codes in this process's memory. Raises ClusterError or InputError where they cannot be read."""
        return self.opened.once(("faiss", self.opened.settings.get("faiss")), self._read)

    def _read(self) -> QuantizedRetriever:
        from opensearch_neural.retrievers.faiss import QuantizedRetriever
        from opensearch_neural.retrievers.opensearch import read_codes

        model = self.opened.models.quantized
        if (file := self.opened.settings.get("faiss")) is not None:
            return QuantizedRetriever.read(file, model.quantizer, model.encode_queries)
        if self.opened.connect is None:
            raise ClusterError(f"no connection to read the codes of the index {self.opened.index!r} by")
        ids, codes = read_codes(self.opened.connect(), self.opened.index, model.quantizer.subvectors)
        return QuantizedRetriever(ids, codes, model.quantizer, model.encode_queries, name="faiss")

    def body(self, text: str, page: Page) -> Body:
        wanted = page.get("from_", 0) + page.get("size", 10)
        if wanted > queries.MOST_LISTED:
            raise InputError(
                f"the engine faiss fetches at most {queries.MOST_LISTED:,} hits by their ids, not {wanted:,}",
                "page less deep, or use jpq-hnsw",
            )
        # More than the page shows: some may have been deleted since the codes were read, be other passages of a document
        # that is there already, or not pass the filter.
        spare = queries.MOST_LISTED if page.get("filter") else wanted * queries.COLLAPSED_PASSAGES
        # All are counted, so that it is seen when some are not there any more.
        page.setdefault("track_total_hits", True)
        run = self.retriever.retrieve({"": text}, min(spare, queries.MOST_LISTED))
        return queries.listed(run[""], **page)

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        return Missing() if filtered else _gone(body, answer, "nearest documents", self.opened.index)


class CascadeEngine(Sparse):
    name = "cascade"
    finds = "high-idf-first, the best of these rescored with their codes too"
    options = (
        RARE,
        Option("window", whole_number, "hits of each shard rescored with all tokens.", "as tuned, else 100"),
        Option("dense_window", whole_number, "hits of each shard rescored with their codes.", "as tuned, else 50"),
        Option("weight", positive, "of the codes' scores, a share of the tokens' weights.", "as tuned, else 0.025"),
    )

    def needs(self) -> tuple[Part, ...]:
        return ("sparse", "quantized")

    def body(self, text: str, page: Page) -> Body:
        how = Cascade.of(self.opened)
        tokens, table = self.tokens(text), look_up_table(self.opened.models, text)
        return queries.cascade(
            tokens,
            table,
            rare=how.rare,
            window=how.window,
            dense_window=how.dense_window,
            weight=how.weight * (sum(tokens.values()) or 1.0) / (spread(table) or 1.0),
            plugin=self.opened.plugin,
            **page,
        )


class Hybrid(Engine):
    name = "hybrid"
    finds = "bm25 and dense (sparse where the index has no dense vectors), normalized and averaged"
    needs_plugin = True
    fused = True
    method: ClassVar[Literal["min_max", "rrf"]] = "min_max"

    def needs(self) -> tuple[Part, ...]:
        return ("dense",) if self.opened.meta.dense else ("sparse",)

    def body(self, text: str, page: Page) -> Body:
        second: Engine = Dense(self.opened) if self.opened.meta.dense else Sparse(self.opened)
        bodies = [part.body(text, _part_of(page)) for part in (Bm25(self.opened), second)]
        # Each part is asked for the same number of candidates, and each segment may add that many.
        for neighbours in queries.nearest_clauses(bodies[1]["query"]):
            neighbours["k"] = max(page.get("from_", 0) + neighbours["k"], 100)
        return queries.hybrid(*bodies, method=self.method, weights=self.opened.settings.get("weights"), **page)


class HybridRrf(Hybrid):
    name = "hybrid-rrf"
    finds = "bm25 and dense (sparse where the index has no dense vectors), ranks fused"
    compared = False
    method = "rrf"


class Tome(Engine):
    name = "tome"
    finds = "documents whose URLs a generative model writes"
    options = (
        Option("urls", Path, "the folder that `osn urls` wrote for the corpus."),
        Option("tome", str, "generative model, where it is not found by the record of --urls."),
        Option("beams", whole_number, "URLs looked for side by side, and found at most; 1 is greedy.", "10"),
    )

    def serves(self) -> bool:
        return super().serves() and self.opened.settings.get("urls") is not None

    def load(self) -> None:
        super().load()
        _ = self.retriever

    @property
    def retriever(self) -> GenerativeRetriever:
        """The model that writes the URLs. Raises ModelError where no URLs are named, or their model is not here."""
        settings = self.opened.settings
        key = ("tome", settings.get("urls"), settings.get("tome"), settings.get("beams"))
        return self.opened.once(key, self._load)

    def _load(self) -> GenerativeRetriever:
        from opensearch_neural.models.generative import load_generative
        from opensearch_neural.models.url_trie import CorpusUrls
        from opensearch_neural.retrievers.generative import BEAMS, GenerativeRetriever

        settings = self.opened.settings
        if settings.get("urls") is None:
            raise ModelError(
                "a generative model searches by the URLs of a corpus",
                "`osn urls` writes them; name them: --urls DIR",
            )
        urls = CorpusUrls.load(settings["urls"])
        place = settings.get("tome") or registry.find(urls.model["hash"], urls.model["name"], "generative")
        return GenerativeRetriever(load_generative(place), urls, beams=settings.get("beams") or BEAMS)

    def body(self, text: str, page: Page) -> Body:
        # All that were written, however few are shown: some may have been deleted since.
        written = self.retriever.find_urls(text, queries.MOST_LISTED)
        if self.retriever.urls.numbered:
            page.setdefault("track_total_hits", True)
            return queries.listed(written, field="parent" if self.opened.meta.passages else "_id", **page)
        return queries.listed(written, field="url", **page)

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        beams, from_ = self.retriever.beams, body.get("from", 0)
        deep = (f"{beams} URLs are written at most (--beams)",) if from_ + body["size"] > beams else ()
        lacks = Missing()
        if not filtered and self.retriever.urls.numbered:
            lacks = _gone(body, answer, "documents whose URLs were written", self.opened.index)
        elif not filtered and not from_ and queries.listed_urls(body):
            urls = [hit["_source"].get("url") for hit in answer["hits"]["hits"]]
            lacks = _unfound(body, queries.unfound_urls(body, urls), self.opened.index)
        return Missing(deep + lacks.warnings, lacks.facts)


class TomeRrf(Tome):
    name = "tome-rrf"
    finds = "sparse and tome, ranks fused"
    needs_plugin = True
    fused = True

    def needs(self) -> tuple[Part, ...]:
        return ("sparse",)

    def body(self, text: str, page: Page) -> Body:
        parts = (Sparse(self.opened), Tome(self.opened))
        return queries.hybrid(*(part.body(text, _part_of(page)) for part in parts), method="rrf", **page)

    def counted(self, body: Body) -> Body:
        # Which of the URLs there are does not show in the hits, where those of the other engine are, too.
        if not (asked := queries.listed_urls(body)):
            return body
        return {**body, "aggs": {HELD: {"terms": {"field": "url", "include": asked, "size": len(asked)}}}}

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        if HELD not in answer.get("aggregations", {}):
            return Missing()
        held = {bucket["key"] for bucket in answer["aggregations"][HELD]["buckets"]}
        return _unfound(body, [url for url in queries.listed_urls(body) if url not in held], self.opened.index)


def dense_vector(models: IndexModels, text: str) -> NDArray[Any]:
    """The query's vector as the index's `dense` field compares it: bytes for a byte field, else floats.

    Raises InputError where the model gives it a vector of zeros.
    """
    (vector,) = models.dense.encode_queries([text])
    if not vector.any():
        raise InputError("the query's vector is all zeros: it would rank nothing")
    stored = models.dense_record
    if stored.type != "byte":
        return vector
    if stored.reconstructed and (largest := float(abs(vector).max())) > 0:
        # The scale fits the documents. A query that is longer would saturate, and its length changes no ranking.
        return to_bytes(vector, min(stored.scale, 127 / largest))
    return to_bytes(vector, stored.scale)


def look_up_table(models: IndexModels, text: str) -> NDArray[Any]:
    """The query's look-up table (M, 256). Raises InputError where the model gives it a vector of zeros."""
    (vector,) = models.quantized.encode_queries([text])
    return models.quantized.quantizer.table(vector)


def _part_of(page: Page) -> Page:
    """What of a page goes into each of the bodies that are fused."""
    return {"size": page.get("size", 10), "collapse": page.get("collapse")}


def _gone(body: Body, answer: Mapping[str, Any], what: str, index: str) -> Missing:
    gone = queries.listed_count(body) - answer["hits"]["total"]["value"]
    return Missing((f"{gone} of the {what} are not in {index!r} any more",)) if gone > 0 else Missing()


def _unfound(body: Body, unfound: list[str], index: str) -> Missing:
    asked, facts = queries.listed_urls(body), {"unfound_urls": unfound}
    if not unfound:
        return Missing(facts=facts)
    told = (
        f"{len(unfound)} of the URLs that were written are in no document of {index!r} any more: {unfound[0]}"
        if len(unfound) < len(asked)
        else f"no document of {index!r} has one of the {len(unfound)} URLs that were written: {unfound[0]}"
    )
    return Missing((told + ", …" * (len(unfound) > 1),), facts)


ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        Bm25,
        Sparse,
        HighIdfFirst,
        Dense,
        JpqHnsw,
        JpqRescore,
        Faiss,
        CascadeEngine,
        Hybrid,
        HybridRrf,
        Tome,
        TomeRrf,
    )
}
