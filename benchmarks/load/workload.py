"""What is asked: queries and engines, as data that worker processes are given and make requests of themselves.

Encoding a query is part of what a user waits for, so each worker loads the encoders and does it inside the measured
time, as an application does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import orjson

from benchmarks.load.target import Target
from benchmarks.load.variants import Variant, body_builder, parameters
from opensearch_neural.cluster.connect import connect
from opensearch_neural.engines import Engines
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.queries import Body, Rare

if TYPE_CHECKING:
    from opensearch_neural.models.dense_encoder import Backend

OPAQUE_ID = "osn-bench/"

Encode = Callable[[int], bytes]
"""Position of a query → its request body. Encoding the query is part of the call."""


@dataclass(frozen=True)
class IndexFacts:
    """What building requests needs to know of an index, once it was asked."""

    index: str
    meta: IndexMeta
    plugin: bool


@dataclass(frozen=True)
class ModelChoice:
    """Models named by the user, where the index's record does not lead to them; and how high-IDF-first searches."""

    sparse: str | None = None
    dense: str | None = None
    backend: Backend = "torch"
    rare: Rare | None = None
    window: int | None = None
    pq: str | None = None


@dataclass(frozen=True)
class Workload:
    """Everything a worker process needs; it is pickled to each.

    texts: the queries, asked in random order, all of them before any is asked again
    pipelines: {variant: name of the search pipeline that was stored for it}
    fixed_bodies: requests made beforehand, {variant: bodies in the order of `texts`}, where encoding is not to be
        measured (as in other harnesses)
    """

    target: Target
    texts: tuple[str, ...]
    variants: tuple[Variant, ...]
    indexes: dict[str, IndexFacts]
    index: str
    models: ModelChoice = field(default_factory=ModelChoice)
    pipelines: dict[str, str] = field(default_factory=dict)
    fixed_bodies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)

    def index_of(self, variant: Variant) -> str:
        return variant.index or self.index

    def engines_of(self, variant: Variant) -> Engines:
        facts = self.indexes[self.index_of(variant)]
        return Engines(
            facts.index,
            facts.meta,
            facts.plugin,
            IndexModels(
                facts.index,
                facts.meta,
                sparse=self.models.sparse,
                dense=self.models.dense,
                quantized=self.models.pq,
                backend=self.models.backend,
                threads=1,
            ),
            {"rare": self.models.rare, "window": self.models.window},
            connect=lambda: connect(settings=self.target.settings),
        )

    def path_of(self, variant: Variant) -> str:
        """Path and parameters of the variant's requests."""
        asked = parameters(variant, self.pipelines.get(variant.name))
        return f"/{quote(self.index_of(variant), safe=',*-_')}/_search?{urlencode(asked, safe=',._*')}"

    def at(self, target: Target) -> Workload:
        """The same workload, sent elsewhere."""
        return replace(self, target=target)


def body_builders(workload: Workload, variants: Iterable[Variant] | None = None) -> dict[str, Callable[[str], Body]]:
    """{variant: query text → body} of all variants or of those named, every model loaded once and shared.

    Raises what `body_builder` raises.
    """
    opened: dict[str, Engines] = {}
    builders = {}
    for variant in workload.variants if variants is None else variants:
        index = workload.index_of(variant)
        if index not in opened:
            opened[index] = workload.engines_of(variant)
        builders[variant.name] = body_builder(variant, opened[index])
    return builders


def encoders(workload: Workload) -> dict[str, Encode]:
    """{variant: position of a query → request body as bytes}."""
    made: dict[str, Encode] = {name: bodies.__getitem__ for name, bodies in workload.fixed_bodies.items()}
    encoded = [variant for variant in workload.variants if variant.name not in made]
    return made | {name: _encode(build, workload.texts) for name, build in body_builders(workload, encoded).items()}


def _encode(build: Callable[[str], Body], texts: tuple[str, ...]) -> Encode:
    return lambda position: orjson.dumps(build(texts[position]))


def request_heads(workload: Workload, variant: Variant) -> dict[str, bytes]:
    """{authority: request line and headers up to the value of Content-Length}; the body's length and body follow."""
    heads = {}
    for address in workload.target.addresses:
        lines = [
            f"POST {address.prefix}{workload.path_of(variant)} HTTP/1.1",
            f"host: {address.authority}",
            "content-type: application/json",
            # What OpenSearch's slow log and task list show of a request: whoever runs the cluster sees whence it comes.
            f"x-opaque-id: {OPAQUE_ID}{variant.name}",
            *(f"{name}: {value}" for name, value in workload.target.headers.items()),
            "content-length: ",
        ]
        heads[address.authority] = "\r\n".join(lines).encode("latin-1")
    return heads
