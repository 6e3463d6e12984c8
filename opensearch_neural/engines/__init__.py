"""The engines by name: from a query's text to the request body that runs it on one index, and to the answer.

    engines = open_engines(client, "docs")
    client.search(index="docs", body=engines.body("bm25-sparse", "what causes a rainbow", size=10))
    engines.search("bm25-sparse", "what causes a rainbow", size=10)

`osn search`, `osn eval` and the benchmarks all take their bodies from these engines. `Engines.search` and `osn search` also
send a `preference`, and a second request if pruned postings leave a page short. What `osn eval`, `osn tune` and the load
generator measure is the body alone. Each family of engines has a file, and each engine is a class in it
(docs/how-to/extend.md adds one).

    engine.py      the base class of all engines, their options, and what the engines of one index share
    sparse.py      BM25, a sparse model, and both together
    dense.py       dense vectors, and codes of a quantized model, also after or fused with another search
    generative.py  URLs that a generative model writes (TOME)
    settings.py    the settings that `osn tune` chooses and the index's record keeps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opensearch_neural.engines import dense, generative, sparse
from opensearch_neural.engines.engine import Engine, OpenedIndex, Option, Page
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import existing_record
from opensearch_neural.queries import Body, Filter, Rare
from opensearch_neural.queries.body_parts import checked_text, filter_clauses

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense.dense_encoder import Backend

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for family in (sparse, dense, generative) for engine in family.ENGINES
}
"""{name: engine}, collected from the families' files."""

DEFAULT, DEFAULT_WITHOUT_SPARSE = sparse.Bm25Sparse.name, sparse.Bm25.name
"""The engine to search with if none is named: of an index with sparse vectors, and of any other."""


def options_by_name() -> dict[str, dict[str, Option]]:
    """{option: {engine that takes it: the option as that engine describes it}}"""
    options: dict[str, dict[str, Option]] = {}
    for engine in ENGINES.values():
        for option in engine.options:
            options.setdefault(option.name, {})[engine.name] = option
    return options


def read_setting(name: str, value: Any) -> Any:
    """The value of a setting, which may be spelled as on the command line ("ratio:0.35"). Raises InputError for an invalid
    one."""
    option = next(iter(options_by_name().get(name, {}).values()), None)
    if option is None or value is None or (option.parse == Rare.parse and isinstance(value, Rare)):
        return value
    try:
        if not option.is_flag:
            return option.parse(str(value))
        if isinstance(value, bool):
            return value
        raise ValueError("it is True or False")
    except ValueError as error:
        raise InputError(f"the setting {name}={value!r}: {error}") from None


BodyOf = Callable[[str, int], Body]
"""(query text, number of hits wanted) → request body. Encoding the query is part of the call."""


@dataclass
class Engines(OpenedIndex):
    """The engines of one index. A model is loaded when an engine first needs it; BM25 needs none.

    Raises InputError for a setting with an invalid value.
    """

    def __post_init__(self) -> None:
        self.settings = {name: read_setting(name, value) for name, value in self.settings.items()}

    def engine(self, name: str) -> Engine:
        """The engine of this name, for this index. Raises InputError for an unknown name."""
        if name not in ENGINES:
            raise InputError(f"there is no engine {name!r}", f"engines: {', '.join(ENGINES)}")
        return ENGINES[name](self)

    @property
    def default(self) -> str:
        """The engine to search with if none is named."""
        return DEFAULT if self.meta.sparse else DEFAULT_WITHOUT_SPARSE

    def serves(self, name: str) -> bool:
        """Whether index and cluster have what the engine needs. Does not check that the models can be loaded."""
        return self.engine(name).serves()

    def load(self, *names: str) -> Engines:
        """Load what the engines of these names need now, not at the first query; returns itself. A service that cannot
        answer then fails when it starts: `engines = open_engines(client, "docs").load("bm25-sparse")`.

        Raises InputError for an unknown name, ModelError or ClusterError if the index or the cluster cannot serve the
        engine.
        """
        for name in names:
            engine = self.engine(name)
            if engine.needs_plugin and not self.plugin:
                raise ClusterError(
                    f"the engine {name!r} needs the neural-search plugin, which this cluster lacks",
                    "`osn doctor` shows what the cluster has",
                )
            engine.load()
        return self

    def body_of(self, name: str) -> BodyOf:
        """The function that makes an engine's request bodies. Loads what the engine needs now, and raises as `load` does."""
        self.load(name)
        return lambda text, size: self.body(name, text, size=size)

    def body(self, name: str, text: str, *, filter: Filter = None, **page: Any) -> Body:
        """One request body. `page` takes the arguments that all functions of `queries` take (size, from_, source,
        highlight, …), and for bm25-sparse `base`, a query clause of your own that replaces BM25.

        In an index of passages each document is found once, by its best passage: `queries.best_passages` reads the answer.

        Raises TypeError for a text, a filter, a base or a highlight that is none, ValueError for a base that is or contains
        a hybrid query, and as `load` does.
        """
        return self.engine(name).body(checked_text(text), self.page(filter=filter, **page))

    def search(self, name: str, text: str, *, filter: Filter = None, **page: Any) -> Mapping[str, Any]:
        """The answer to a query, by the client of `open_engines`: the body of `body`, sent with a `preference`
        (`queries.preference`), and a second request if pruned postings leave the page short. `page`: as in `body`.

        In an index of passages make the body and send it yourself, because `queries.best_passages` reads it. Raises
        opensearch-py's errors, ClusterError if these engines have no client, and as `load` does.
        """
        if self.connect is None:
            raise ClusterError(f"searching {self.index!r} needs a connection")
        engine = self.engine(name)
        return engine.search(self.connect(), self.body(name, text, filter=filter, **page), text)

    def page(self, **page: Any) -> Page:
        """The page arguments for this index: in an index of passages, hits are collapsed to their documents. A filter
        becomes a list, because an engine may need it for several bodies. Raises TypeError for a filter that is none.
        """
        page |= {"filter": filter_clauses(page.get("filter"))}
        return {"collapse": "parent", **page} if self.meta.passages else page

    def with_settings(self, **settings: Any) -> Engines:
        """The same index and models, with these settings replacing settings of the same name. Raises InputError for an
        invalid value."""
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
    """The engines of an index (or alias) on this cluster. Reads the index's record, but loads no model and no query encoder
    until an engine needs it or `load` asks for it.

    sparse, dense, pq: directories of the models that wrote the index, if the index's record does not lead to them
    backend: what runs the dense model for queries. "onnx" and "onnx-int8" need an exported model directory or a token
        table, and no torch; they encode on one thread, because applications search in several threads
    settings: {engine option: value}, which may be spelled as on the command line (rare="ratio:0.35"); also `weights`, the
        weights of the two parts of hybrid, with the sum 1

    Raises InputError for a setting that no engine has, or with an invalid value, ClusterError if there is no such index,
    ModelError if `osn` did not write it.
    """
    from opensearch_neural.cluster.capabilities import quick_capabilities

    known = {"weights", *options_by_name()}
    if unknown := settings.keys() - known:
        raise InputError(f"no engine has the setting {min(unknown)!r}", f"settings: {', '.join(sorted(known))}")
    meta = existing_record(client, index)
    models = IndexModels(
        index, meta, sparse=sparse, dense=dense, quantized=pq, backend=backend, threads=1, client=client
    )
    plugin = bool(quick_capabilities(client).neural_sparse)
    return Engines(index, meta, plugin, models, settings, connect=lambda: client)
