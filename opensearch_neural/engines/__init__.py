"""The engines by name: from a query's text to the request body that runs it on one index.

    engines = open_engines(client, "docs")
    client.search(index="docs", body=engines.body("bm25-sparse", "what causes a rainbow", size=10))

`osn search`, `osn eval` and the benchmarks all search through these, so they measure what users run. Each family of
engines has a file, and an engine is one class in it.

    engine.py      the base class of all engines, and what the engines of one index share
    sparse.py      BM25, a sparse model, and both together
    dense.py       dense vectors, and codes of a quantized model
    fused.py       two searches of one request, fused by the neural-search plugin
    generative.py  URLs that a generative model writes (TOME)
    settings.py    the settings that `osn tune` chooses and the index's record keeps
    options.py     the settings as command lines take them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opensearch_neural.engines import dense, fused, generative, sparse
from opensearch_neural.engines.engine import Engine, Opened, Page
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import existing_record
from opensearch_neural.queries import Body, Filter

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense.dense_encoder import Backend

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for family in (sparse, dense, fused, generative) for engine in family.ENGINES
}
"""{name: engine}; each family's file lists its own."""

BodyOf = Callable[[str, int], Body]
"""(query text, number of hits wanted) → request body. Encoding the query is part of the call."""


class Engines(Opened):
    """The engines of one index. Models are loaded when an engine first needs them, so BM25 asks for none."""

    def engine(self, name: str) -> Engine:
        """The engine of this name, for this index. Raises InputError for a name that is no engine."""
        if name not in ENGINES:
            raise InputError(f"there is no engine {name!r}", f"engines: {', '.join(ENGINES)}")
        return ENGINES[name](self)

    @property
    def default(self) -> str:
        """The engine that searches where none is named."""
        return "bm25-sparse" if self.meta.sparse else "bm25"

    def serves(self, name: str) -> bool:
        """Whether index and cluster have what the engine needs; models are not looked for."""
        return self.engine(name).serves()

    def body_of(self, name: str) -> BodyOf:
        """The function that makes an engine's request bodies. Loads what it needs now, not at the first query.

        Raises InputError for a name that is no engine, ModelError and ClusterError when the index or the cluster
        cannot serve it.
        """
        engine = self.engine(name)
        if engine.needs_plugin and not self.plugin:
            raise ClusterError(
                f"the engine {name!r} needs the neural-search plugin, which this cluster lacks",
                "`osn doctor` shows what the cluster has",
            )
        engine.load()
        return lambda text, size: self.body(name, text, size=size)

    def body(self, name: str, text: str, *, filter: Filter = None, **page: Any) -> Body:
        """One request body; `page` takes what all functions of `queries` take (size, from_, source, highlight, …), and for
        bm25-sparse `base`: a query clause of your own in the place of BM25.

        Of an index of passages each document is found once, by its best passage: `queries.best_passages` reads the answer.
        """
        return self.engine(name).body(text, self.page(filter=filter, **page))

    def page(self, **page: Any) -> Page:
        """What the engines of this index take of a page: passages are collapsed to their documents."""
        return {"collapse": "parent", **page} if self.meta.passages else page

    def with_settings(self, **settings: Any) -> Engines:
        """The same index and models, searched with these settings instead of those of their names."""
        return replace(self, settings={**self.settings, **settings})


def open_engines(
    client: OpenSearch,
    index: str,
    *,
    sparse: str | None = None,
    dense: str | None = None,
    pq: str | None = None,
    backend: Backend = "torch",
    **settings: Any,
) -> Engines:
    """The engines of an index (or alias) on this cluster.

    sparse, dense, pq: directories of the models that wrote the index, where they are not found by its record
    backend: what runs the dense model for queries; "onnx" and "onnx-int8" need no torch, and a model directory that was
        exported, or a token table; they encode on one thread, as applications search by several
    settings: {option of an engine: value}; `weights` too, of the two parts of hybrid, summing to 1

    Raises InputError for a setting that no engine has, ClusterError when there is no such index, ModelError when `osn` did
    not write it.
    """
    from opensearch_neural.cluster.capabilities import quick_capabilities

    known = {"weights", *(option.name for engine in ENGINES.values() for option in engine.options)}
    if unknown := settings.keys() - known:
        raise InputError(f"no engine has the setting {min(unknown)!r}", f"settings: {', '.join(sorted(known))}")
    record = existing_record(client, index)
    models = IndexModels(
        index, record, sparse=sparse, dense=dense, quantized=pq, backend=backend, threads=1, client=client
    )
    plugin = bool(quick_capabilities(client).neural_sparse)
    return Engines(index, record, plugin, models, settings, connect=lambda: client)


def engine_bodies(client: OpenSearch, index: str, engines: Sequence[str], **how: Any) -> dict[str, BodyOf]:
    """{engine: function from (text, size) to a body}, everything loaded; `how` as `open_engines` takes it."""
    opened = open_engines(client, index, **how)
    return {engine: opened.body_of(engine) for engine in engines}
