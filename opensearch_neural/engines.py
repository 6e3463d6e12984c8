"""The engines by name: from a query's text to the request body that runs it on one index.

`osn search`, `osn eval` and the benchmarks all search through these, so they measure what users run. `ENGINES`, at the
end of this file, lists them: for each what it finds, what it needs, and how its body is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural import queries
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.models import registry
from opensearch_neural.queries import Body, Filter, Rare
from opensearch_neural.schema import IndexMeta, check_same_model, to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense import DenseEncoder
    from opensearch_neural.tokens import QueryEncoder

WINDOW = 30
# Where `osn tune` keeps its choice in an index's `_meta.osn`: {"rare": "ratio:0.5", "window": 30, …}.
TUNED = "high_idf_first"

BodyOf = Callable[[str, int], Body]
"""(query text, number of hits wanted) → request body. Encoding the query is part of the call."""
Part = Literal["sparse", "dense"]
"""What an index can hold of a document beside its text; the name of its record in `IndexMeta`."""


@dataclass(frozen=True)
class Engine:
    """finds: what it does, in a few words. body: of the engines of an index, the query's text and what all functions of
    `queries` take (size, from_, filter, …). needs: what the index must hold. plugin: whether it needs neural-search.
    compared: whether `osn eval` measures it where no engine is named.
    """

    finds: str
    body: Callable[[Engines, str, dict[str, Any]], Body]
    needs: Callable[[IndexMeta], tuple[Part, ...]] = lambda meta: ()
    plugin: bool = False
    compared: bool = True


@dataclass
class Engines:
    """What the engines of one index need: its record, whether the cluster has the plugin, and the query encoders.

    Encoders are loaded when an engine first needs them, so BM25 asks for no model and a sparse query for no torch.

    weights: of the two parts of hybrid, summing to 1; None: equal. backend: what runs the dense model for queries; "onnx"
        needs no torch, and a model directory that was exported.
    rare, window: of high-idf-first; None: what `osn tune` stored in the index, else ratio:0.5 and 30
    """

    index: str
    meta: IndexMeta
    plugin: bool
    sparse_model: str | None = None
    dense_model: str | None = None
    rare: Rare | None = None
    window: int | None = None
    weights: tuple[float, float] | None = None
    backend: Literal["torch", "onnx"] = "torch"
    _query_encoder: QueryEncoder | None = None
    _dense_encoder: DenseEncoder | None = None

    @property
    def two_phases(self) -> tuple[Rare, int]:
        """(which tokens are rare, hits rescored in each shard) of high-idf-first.

        Raises ModelError where the index stores something else than `osn tune` does.
        """
        stored = self.meta.extra.get(TUNED, {})
        try:
            rare = self.rare or (Rare.parse(stored["rare"]) if "rare" in stored else Rare())
            return rare, self.window or int(stored.get("window", WINDOW))
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"the index {self.index!r} stores a setting of high-idf-first that cannot be read: {error}",
                "`osn tune` stores a new one",
            ) from None

    @property
    def query_encoder(self) -> QueryEncoder:
        """The tokenizer and table of the sparse model that wrote the index.

        Raises ModelError when it is not on this machine, or the one named is another.
        """
        if self._query_encoder is None:
            from opensearch_neural.tokens import QueryEncoder

            meta = self.meta.sparse
            if meta is None:
                raise ModelError(f"the index {self.index!r} holds no sparse vectors", "ingest with --sparse MODEL")
            place = self.sparse_model or registry.find(meta.hash, meta.name, "sparse")
            encoder = QueryEncoder.load(place)
            check_same_model(self.index, meta, "sparse", self.sparse_model or meta.name, encoder.hash)
            self._query_encoder = encoder
        return self._query_encoder

    @property
    def dense_encoder(self) -> DenseEncoder:
        """The dense model that wrote the index. Raises ModelError as `query_encoder` does."""
        if self._dense_encoder is None:
            from opensearch_neural.models.dense import load_dense

            meta = self.meta.dense
            if meta is None:
                raise ModelError(f"the index {self.index!r} holds no dense vectors", "ingest with --dense MODEL")
            place: str | Path = self.dense_model or registry.find(meta.hash, meta.name, "dense")
            encoder = load_dense(place, backend=self.backend)
            check_same_model(self.index, meta, "dense", self.dense_model or meta.name, encoder.info.hash)
            self._dense_encoder = encoder
        return self._dense_encoder

    def serves(self, engine: str) -> bool:
        """Whether index and cluster have what the engine needs; models are not looked for."""
        needed = ENGINES[engine]
        return (self.plugin or not needed.plugin) and all(getattr(self.meta, part) for part in needed.needs(self.meta))

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
        """The query's vector as the index's `dense` field compares it: bytes for a byte field, else floats."""
        (vector,) = self.dense_encoder.encode_queries([text])
        meta = self.meta.dense
        return to_bytes(vector, meta.scale) if meta and meta.type == "byte" else vector


_ENCODERS: dict[Part, str] = {"sparse": "query_encoder", "dense": "dense_encoder"}


def _bm25(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.bm25(text, **page)


def _sparse(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.neural_sparse(engines.query_encoder.encode(text), plugin=engines.plugin, **page)


def _high_idf_first(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    rare, window = engines.two_phases
    tokens = engines.query_encoder.encode(text)
    return queries.high_idf_first(tokens, rare=rare, window=window, plugin=engines.plugin, **page)


def _dense(engines: Engines, text: str, page: dict[str, Any]) -> Body:
    return queries.knn(engines.dense_vector(text), **page)


def _hybrid(method: Literal["min_max", "rrf"]) -> Callable[[Engines, str, dict[str, Any]], Body]:
    def body(engines: Engines, text: str, page: dict[str, Any]) -> Body:
        part = {"size": page.get("size", 10), "collapse": page.get("collapse")}
        second = "dense" if engines.meta.dense else "sparse"
        bodies = (engines.body("bm25", text, **part), engines.body(second, text, **part))
        if second == "dense":
            # Each part is asked for the same number of candidates, and each segment may add that many.
            neighbours = bodies[1]["query"]["knn"]["dense"]
            neighbours["k"] = max(page.get("from_", 0) + neighbours["k"], 100)
        return queries.hybrid(*bodies, method=method, weights=engines.weights, **page)

    return body


def _needs_sparse(meta: IndexMeta) -> tuple[Part, ...]:
    return ("sparse",)


def _needs_dense(meta: IndexMeta) -> tuple[Part, ...]:
    return ("dense",)


def _needs_second(meta: IndexMeta) -> tuple[Part, ...]:
    return ("dense",) if meta.dense else ("sparse",)


_HYBRID = "bm25 and dense (sparse where the index has no dense vectors)"

ENGINES: dict[str, Engine] = {
    "bm25": Engine("title and text together", _bm25),
    "sparse": Engine("all tokens of the sparse model", _sparse, _needs_sparse),
    "high-idf-first": Engine("rare tokens first, the best of these rescored with all", _high_idf_first, _needs_sparse),
    "dense": Engine("nearest neighbours of the dense model's vector", _dense, _needs_dense),
    "hybrid": Engine(f"{_HYBRID}, normalized and averaged", _hybrid("min_max"), _needs_second, plugin=True),
    "hybrid-rrf": Engine(f"{_HYBRID}, ranks fused", _hybrid("rrf"), _needs_second, plugin=True, compared=False),
}


def open_engines(client: OpenSearch, index: str, **settings: Any) -> Engines:
    """The engines of an index (or alias) on this cluster; `settings` are the fields of `Engines`.

    Raises ClusterError when there is no such index, ModelError when `osn` did not write it.
    """
    from opensearchpy.exceptions import NotFoundError

    from opensearch_neural.cluster import quick_capabilities

    try:
        mappings = client.indices.get_mapping(index=index)
    except NotFoundError:
        raise ClusterError(
            f"there is no index {index!r} on this cluster", "write one with `osn ingest --corpus … --index …`"
        ) from None
    if len(mappings) != 1:
        raise ClusterError(
            f"{index!r} names {len(mappings)} indexes: {', '.join(sorted(mappings))}", "name one of them"
        )
    (mapping,) = mappings.values()
    meta = IndexMeta.from_mapping(mapping["mappings"], index)
    return Engines(index, meta, bool(quick_capabilities(client).neural_sparse), **settings)


def engine_bodies(client: OpenSearch, index: str, engines: Sequence[str], **settings: Any) -> dict[str, BodyOf]:
    """{engine: function from (text, size) to a body}, everything loaded; `settings` as for `open_engines`."""
    opened = open_engines(client, index, **settings)
    return {engine: opened.body_of(engine) for engine in engines}
