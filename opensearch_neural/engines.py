"""The engines by name: from a query's text to the request body that runs it on one index.

`osn search`, `osn eval` and the benchmarks all search through these, so they measure what users run. `ENGINES`, at the
end of this file, lists them: for each what it finds, what it needs, and how its body is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural import multi_vector, queries
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.mapping import to_bytes
from opensearch_neural.index.record import IndexMeta, check_same_model, existing_record
from opensearch_neural.look_up_table import spread
from opensearch_neural.models import directory, registry
from opensearch_neural.queries import Body, Filter, Rare

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense_encoder import Backend, DenseEncoder
    from opensearch_neural.models.quantized import QuantizedModel
    from opensearch_neural.query_encoder import QueryEncoder
    from opensearch_neural.retrievers.faiss import QuantizedRetriever
    from opensearch_neural.retrievers.generative import GenerativeRetriever

WINDOW = 30
# Where `osn tune` keeps its choice in an index's `_meta.osn`: {"rare": "ratio:0.5", "window": 30, "exact": true, …}.
TUNED = "high_idf_first"
# Likewise of the cascade: {"rare": …, "window": …, "dense_window": 50, "weight": 0.5}.
TUNED_CASCADE = "cascade"

SAME = "search with the model that wrote the index, or ingest again with this one"

# Hits of each shard that jpq-rescore ranks.
JPQ_WINDOW = 100

BodyOf = Callable[[str, int], Body]
"""(query text, number of hits wanted) → request body. Encoding the query is part of the call."""
Part = Literal["sparse", "dense", "reconstructed", "quantized"]
"""What an index can hold of a document beside its text; the name of its record in `IndexMeta`."""


@dataclass(frozen=True)
class TwoPhases:
    """How high-IDF-first searches. rare: which tokens are searched first; window: hits of each shard that are rescored;
    exact: whether phase two scores with all tokens anew, or adds the common ones (`queries.high_idf_first`); tokens: which
    tokens of a query are searched at all, None for all.
    """

    rare: Rare = field(default_factory=Rare)
    window: int = WINDOW
    exact: bool = True
    tokens: Rare | None = None

    def __str__(self) -> str:
        adds = "" if self.exact else ", common tokens added"
        return f"{self.rare}, window {self.window}{adds}" + (f", of tokens {self.tokens}" if self.tokens else "")

    @property
    def record(self) -> dict[str, Any]:
        """As the index keeps it."""
        return {**asdict(self), "rare": str(self.rare), "tokens": str(self.tokens) if self.tokens else None}

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> TwoPhases:
        """From `record`, perhaps with more or less in it. Raises TypeError or ValueError for what is none."""
        plain = cls()
        tokens = record.get("tokens")
        return cls(
            Rare.parse(record["rare"]) if "rare" in record else plain.rare,
            int(record.get("window", plain.window)),
            bool(record.get("exact", plain.exact)),
            None if tokens is None else Rare.parse(tokens),
        )


@dataclass(frozen=True)
class Cascade:
    """rare: which tokens are searched first. window, dense_window: hits of each shard that are scored with all tokens, and
    those that are scored with their codes. weight: how much a difference of inner products counts that is one standard
    deviation (`spread`) of the query's look-up table, as a share of the query's token weights: so that the same weight
    does for long and short queries, and for models whose inner products are of another size.

    The defaults were best, or near it, with BM25's impacts and unit vectors on training queries of squad-mix.
    """

    rare: Rare = field(default_factory=Rare)
    window: int = 100
    dense_window: int = 50
    weight: float = 0.025

    def __str__(self) -> str:
        return f"weight {self.weight:g}, windows {self.window} and {self.dense_window}, rare {self.rare}"

    def __post_init__(self) -> None:
        if self.window < 1 or self.dense_window < 1 or not self.weight > 0:
            raise ValueError(f"windows are whole numbers from 1 and the weight is above 0, not {self}")

    @property
    def record(self) -> dict[str, Any]:
        """As the index keeps it."""
        return {**asdict(self), "rare": str(self.rare)}

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Cascade:
        """From `record`, perhaps with more in it. Raises KeyError, TypeError or ValueError for what is none."""
        return cls(
            Rare.parse(record["rare"]), int(record["window"]), int(record["dense_window"]), float(record["weight"])
        )


@dataclass(frozen=True)
class Engine:
    """finds: what it does, in a few words. body: of the engines of an index, the query's text and what all functions of
    `queries` take (size, from_, filter, …). needs: what the index must hold. plugin: whether it needs neural-search.
    compared: whether `osn eval` measures it where no engine is named. urls: whether it needs a generative model's URLs.
    """

    finds: str
    body: Callable[[Engines, str, dict[str, Any]], Body]
    needs: Callable[[IndexMeta], tuple[Part, ...]] = lambda meta: ()
    plugin: bool = False
    compared: bool = True
    urls: bool = False


@dataclass
class Engines:
    """What the engines of one index need: its record, whether the cluster has the plugin, and the query encoders.

    Encoders are loaded when an engine first needs them, so BM25 asks for no model and a sparse query for no torch. Settings
    are given when it is made: what follows from them and from the index's record is read once, not with every query.

    weights: of the two parts of hybrid, summing to 1; None: equal. backend: what runs the dense model for queries; "onnx"
        and "onnx-int8" need no torch, and a model directory that was exported; they encode on one thread, as applications
        search by several.
    rare, window: of high-idf-first, and of the cascade; None: what `osn tune` stored in the index, else ratio:0.5 and 30
    exact, tokens: of high-idf-first, likewise (`TwoPhases`)
    dense_window, weight: of the cascade, likewise; the window of jpq-rescore too
    connect: gives a client of the cluster; only the engine faiss, which reads the index's codes, calls it. faiss_index:
        where it reads them instead: what `osn encode --faiss` wrote
    urls: the folder that `osn urls` wrote, for the engine tome; tome_model: its model, where it is not found by its
        hash; beams: how many URLs are looked for side by side and found at most, 10 if None; 1 is greedy
    """

    index: str
    meta: IndexMeta
    plugin: bool
    sparse_model: str | None = None
    dense_model: str | None = None
    rare: Rare | None = None
    window: int | None = None
    exact: bool | None = None
    tokens: Rare | None = None
    weights: tuple[float, float] | None = None
    backend: Backend = "torch"
    pq_model: str | None = None
    dense_window: int | None = None
    weight: float | None = None
    connect: Callable[[], OpenSearch] | None = None
    faiss_index: Path | None = None
    urls: Path | None = None
    tome_model: str | None = None
    beams: int | None = None
    _query_encoder: QueryEncoder | None = None
    _dense_encoder: DenseEncoder | None = None
    _quantized_model: QuantizedModel | None = None
    _quantized_retriever: QuantizedRetriever | None = None
    _url_retriever: GenerativeRetriever | None = None

    @cached_property
    def two_phases(self) -> TwoPhases:
        """How high-idf-first searches. Raises ModelError where the index stores something else than `osn tune` does."""
        try:
            found = TwoPhases.parse(self.meta.extra.get(TUNED, {}))
        except (AttributeError, TypeError, ValueError) as error:
            raise ModelError(
                f"the index {self.index!r} stores a setting of high-idf-first that cannot be read: {error}",
                "`osn tune` stores a new one",
            ) from None
        return replace(found, **self._given("rare", "window", "exact", "tokens"))

    @cached_property
    def cascade(self) -> Cascade:
        """How the cascade searches. Raises ModelError as `two_phases` does."""
        stored = self.meta.extra.get(TUNED_CASCADE)
        try:
            # Which tokens are rare is the same question for both.
            found = Cascade(self.two_phases.rare) if stored is None else Cascade.parse(stored)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the index {self.index!r} stores a setting of the cascade that cannot be read: {error}",
                "`osn tune --engine cascade` stores a new one",
            ) from None
        return replace(found, **self._given("rare", "window", "dense_window", "weight"))

    def _given(self, *names: str) -> dict[str, Any]:
        """Those of the settings that the caller chose."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def query_encoder(self) -> QueryEncoder:
        """The tokenizer and table of the sparse model that wrote the index.

        Raises ModelError when it is not on this machine, or the one named is another.
        """
        if self._query_encoder is None:
            from opensearch_neural.query_encoder import QueryEncoder

            meta = self.meta.sparse
            if meta is None:
                raise ModelError(f"the index {self.index!r} holds no sparse vectors", "ingest with --sparse MODEL")
            place = self.sparse_model or registry.find(meta.hash, meta.name, "sparse")
            encoder = QueryEncoder.load(place)
            check_same_model(
                self.index, "sparse", (meta.name, meta.query_hash), (self.sparse_model or meta.name, encoder.hash), SAME
            )
            self._query_encoder = encoder
        return self._query_encoder

    @property
    def dense_encoder(self) -> DenseEncoder:
        """The dense model that wrote the index. Raises ModelError as `query_encoder` does."""
        if self._dense_encoder is None and self.meta.reconstructed:
            if self.dense_model is not None:
                named = directory.hash_files(directory.locate(self.dense_model))
                wrote = self.meta.reconstructed
                check_same_model(self.index, "dense", (wrote.name, wrote.hash), (str(self.dense_model), named), SAME)
            self._dense_encoder = self.quantized_model.dense
        if self._dense_encoder is None:
            from opensearch_neural.models.multi_layer import load_single_or_several

            meta = self.meta.dense
            if meta is None:
                raise ModelError(f"the index {self.index!r} holds no dense vectors", "ingest with --dense MODEL")
            place: str | Path = self.dense_model or registry.find(meta.hash, meta.name, "dense")
            encoder = load_single_or_several(place, backend=self.backend, threads=1)
            check_same_model(
                self.index, "dense", (meta.name, meta.hash), (self.dense_model or meta.name, encoder.info.hash), SAME
            )
            self._dense_encoder = encoder
        return self._dense_encoder

    @property
    def reconstructed_encoder(self) -> DenseEncoder:
        """What encodes queries for vectors that were made of codes. Raises ModelError as `query_encoder` does."""
        if self.meta.reconstructed is None:
            raise ModelError(
                f"the index {self.index!r} holds no reconstructed vectors", "ingest with --pq MODEL --dense pq"
            )
        return self.dense_encoder

    @property
    def quantized_model(self) -> QuantizedModel:
        """The quantized model that wrote the index. Raises ModelError as `query_encoder` does."""
        if self._quantized_model is None:
            from opensearch_neural.models.quantized import load_quantized

            meta = self.meta.quantized
            if meta is None:
                raise ModelError(f"the index {self.index!r} holds no quantized vectors", "ingest with --pq MODEL")
            place = self.pq_model or registry.find(meta.hash, meta.name, "quantized")
            model = load_quantized(place, backend=self.backend, threads=1)
            check_same_model(
                self.index, "quantized", (meta.name, meta.hash), (self.pq_model or meta.name, model.info.hash), SAME
            )
            self._quantized_model = model
        return self._quantized_model

    def table(self, text: str) -> NDArray[Any]:
        """The query's look-up table (M, 256). Raises InputError where the model gives it a vector of zeros."""
        (vector,) = self.quantized_model.encode_queries([text])
        return self.quantized_model.quantizer.table(vector)

    @property
    def quantized_retriever(self) -> QuantizedRetriever:
        """The index's codes in this process's memory, read from the cluster, or the file, when they are first needed.

        Raises ModelError as `quantized_model` does, ClusterError or InputError where the codes cannot be read.
        """
        if self._quantized_retriever is None and self.faiss_index is not None:
            from opensearch_neural.retrievers.faiss import QuantizedRetriever

            model = self.quantized_model
            self._quantized_retriever = QuantizedRetriever.read(self.faiss_index, model.quantizer, model.encode_queries)
        if self._quantized_retriever is None:
            from opensearch_neural.retrievers.faiss import QuantizedRetriever
            from opensearch_neural.retrievers.opensearch import read_codes

            model = self.quantized_model
            if self.connect is None:
                raise ClusterError(f"no connection to read the codes of the index {self.index!r} by")
            ids, codes = read_codes(self.connect(), self.index, model.quantizer.subvectors)
            self._quantized_retriever = QuantizedRetriever(
                ids, codes, model.quantizer, model.encode_queries, name="faiss"
            )
        return self._quantized_retriever

    @property
    def url_retriever(self) -> GenerativeRetriever:
        """The generative model that writes the URLs of `urls`. Raises ModelError where no URLs are given, or their model is
        not on this machine."""
        if self._url_retriever is None:
            from opensearch_neural.models.generative import load_generative
            from opensearch_neural.models.url_trie import CorpusUrls
            from opensearch_neural.retrievers.generative import BEAMS, GenerativeRetriever

            if self.urls is None:
                raise ModelError(
                    "a generative model searches by the URLs of a corpus",
                    "`osn urls` writes them; name them: --urls DIR",
                )
            urls = CorpusUrls.load(self.urls)
            place = self.tome_model or registry.find(urls.model["hash"], urls.model["name"], "generative")
            self._url_retriever = GenerativeRetriever(load_generative(place), urls, beams=self.beams or BEAMS)
        return self._url_retriever

    def serves(self, engine: str) -> bool:
        """Whether index and cluster have what the engine needs; models are not looked for."""
        needed = ENGINES[engine]
        if (needed.plugin and not self.plugin) or (needed.urls and self.urls is None):
            return False
        return all(getattr(self.meta, part) for part in needed.needs(self.meta))

    def body_of(self, engine: str) -> BodyOf:
        """The function that makes an engine's request bodies. Loads what it needs now, not at the first query.

        Raises InputError for a name that is no engine, ModelError and ClusterError when the index or the cluster
        cannot serve it.
        """
        if engine not in ENGINES:
            raise InputError(f"there is no engine {engine!r}", f"engines: {', '.join(ENGINES)}")
        if ENGINES[engine].plugin and not self.plugin:
            raise ClusterError(
                f"the engine {engine!r} needs the neural-search plugin, which this cluster lacks",
                "`osn doctor` shows what the cluster has",
            )
        for part in ENGINES[engine].needs(self.meta):
            _ = getattr(self, _ENCODERS[part])
        if ENGINES[engine].urls:
            _ = self.url_retriever
        return lambda text, size: self.body(engine, text, size=size)

    def body(self, engine: str, text: str, *, filter: Filter = None, **page: Any) -> Body:
        """One request body; `page` takes what all functions of `queries` take (size, from_, source, highlight, …).

        Of an index of passages each document is found once, by its best passage: `queries.best_passages` reads the answer.
        """
        page["filter"] = filter
        if self.meta.passages:
            page.setdefault("collapse", "parent")
        return ENGINES[engine].body(self, text, page)

    def dense_vector(self, text: str) -> NDArray[Any]:
        """The query's vector as the index's `dense` field compares it: bytes for a byte field, else floats.

        Raises InputError where the model gives it a vector of zeros.
        """
        (vector,) = self.dense_encoder.encode_queries([text])
        if not vector.any():
            raise InputError("the query's vector is all zeros: it would rank nothing")
        meta = self.meta.dense
        if meta is None or meta.type != "byte":
            return vector
        if meta.reconstructed and (largest := float(abs(vector).max())) > 0:
            # The scale fits the documents. A query that is longer would saturate, and its length changes no ranking.
            return to_bytes(vector, min(meta.scale, 127 / largest))
        return to_bytes(vector, meta.scale)


_ENCODERS: dict[Part, str] = {
    "sparse": "query_encoder",
    "dense": "dense_encoder",
    "reconstructed": "reconstructed_encoder",
    "quantized": "quantized_model",
}


def _bm25(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.bm25(text, **page)


def _sparse(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.neural_sparse(engines.query_encoder.encode(text), plugin=engines.plugin, **page)


def _high_idf_first(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    how = engines.two_phases
    tokens = engines.query_encoder.encode(text)
    if how.tokens is not None:
        tokens = queries.rare_tokens(tokens, how.tokens)
    return queries.high_idf_first(
        tokens, rare=how.rare, window=how.window, exact=how.exact, plugin=engines.plugin, **page
    )


def _dense(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    vector, meta = engines.dense_vector(text), engines.meta.dense
    if meta is not None and meta.vectors > 1:
        return multi_vector.nearest(vector, **page)
    return queries.knn(vector, **page)


def _jpq_rescore(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.quantized_rescore(
        queries.bm25(text, **page), engines.table(text), window=engines.dense_window or JPQ_WINDOW
    )


def _cascade(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    how = engines.cascade
    tokens, table = engines.query_encoder.encode(text), engines.table(text)
    return queries.cascade(
        tokens,
        table,
        rare=how.rare,
        window=how.window,
        dense_window=how.dense_window,
        weight=how.weight * (sum(tokens.values()) or 1.0) / (spread(table) or 1.0),
        plugin=engines.plugin,
        **page,
    )


def _faiss(engines: Engines, text: str, page: dict[str, Any]) -> Body:
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
    run = engines.quantized_retriever.retrieve({"": text}, min(spare, queries.MOST_LISTED))
    return queries.listed(run[""], **page)


def _tome(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    # All that were written, however few are shown: some may have been deleted since.
    found = engines.url_retriever.find_urls(text, queries.MOST_LISTED)
    if engines.url_retriever.urls.numbered:
        page.setdefault("track_total_hits", True)
        return queries.listed(found, field="parent" if engines.meta.passages else "_id", **page)
    return queries.listed(found, field="url", **page)


def _tome_rrf(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    part = {"size": page.get("size", 10), "collapse": page.get("collapse")}
    bodies = (engines.body("sparse", text, **part), engines.body("tome", text, **part))
    return queries.hybrid(*bodies, method="rrf", **page)


def _hybrid(method: Literal["min_max", "rrf"]) -> Callable[[Engines, str, dict[str, Any]], Body]:
    def body(engines: Engines, text: str, page: dict[str, Any]) -> Body:
        part = {"size": page.get("size", 10), "collapse": page.get("collapse")}
        second = "dense" if engines.meta.dense else "sparse"
        bodies = (engines.body("bm25", text, **part), engines.body(second, text, **part))
        if second == "dense":
            # Each part is asked for the same number of candidates, and each segment may add that many.
            for neighbours in queries.nearest_clauses(bodies[1]["query"]):
                neighbours["k"] = max(page.get("from_", 0) + neighbours["k"], 100)
        return queries.hybrid(*bodies, method=method, weights=engines.weights, **page)

    return body


def _needs_sparse(meta: IndexMeta) -> tuple[Part, ...]:
    return ("sparse",)


def _needs_dense(meta: IndexMeta) -> tuple[Part, ...]:
    return ("dense",)


def _needs_reconstructed(meta: IndexMeta) -> tuple[Part, ...]:
    return ("reconstructed",)


def _needs_quantized(meta: IndexMeta) -> tuple[Part, ...]:
    return ("quantized",)


def _needs_both(meta: IndexMeta) -> tuple[Part, ...]:
    return ("sparse", "quantized")


def _needs_second(meta: IndexMeta) -> tuple[Part, ...]:
    return ("dense",) if meta.dense else ("sparse",)


_HYBRID = "bm25 and dense (sparse where the index has no dense vectors)"

ENGINES: dict[str, Engine] = {
    "bm25": Engine("title and text together", _bm25),
    "sparse": Engine("all tokens of the sparse model", _sparse, _needs_sparse),
    "high-idf-first": Engine("rare tokens first, the best of these rescored with all", _high_idf_first, _needs_sparse),
    "dense": Engine("nearest neighbours of the dense model's vector", _dense, _needs_dense),
    "jpq-hnsw": Engine("nearest neighbours among reconstructed vectors", _dense, _needs_reconstructed),
    "jpq-rescore": Engine("the best of bm25, ranked by their codes alone", _jpq_rescore, _needs_quantized),
    "faiss": Engine("every code compared, in this process", _faiss, _needs_quantized, compared=False),
    "cascade": Engine("high-idf-first, the best of these rescored with their codes too", _cascade, _needs_both),
    "hybrid": Engine(f"{_HYBRID}, normalized and averaged", _hybrid("min_max"), _needs_second, plugin=True),
    "hybrid-rrf": Engine(f"{_HYBRID}, ranks fused", _hybrid("rrf"), _needs_second, plugin=True, compared=False),
    "tome": Engine("documents whose URLs a generative model writes", _tome, urls=True),
    "tome-rrf": Engine("sparse and tome, ranks fused", _tome_rrf, _needs_sparse, plugin=True, urls=True),
}


def open_engines(client: OpenSearch, index: str, **settings: Any) -> Engines:
    """The engines of an index (or alias) on this cluster; `settings` are the fields of `Engines`.

    Raises ClusterError when there is no such index, ModelError when `osn` did not write it.
    """
    from opensearch_neural.cluster.capabilities import quick_capabilities

    meta = existing_record(client, index)
    return Engines(index, meta, bool(quick_capabilities(client).neural_sparse), connect=lambda: client, **settings)


def engine_bodies(client: OpenSearch, index: str, engines: Sequence[str], **settings: Any) -> dict[str, BodyOf]:
    """{engine: function from (text, size) to a body}, everything loaded; `settings` as for `open_engines`."""
    opened = open_engines(client, index, **settings)
    return {engine: opened.body_of(engine) for engine in engines}
