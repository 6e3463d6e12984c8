"""The workload of a load test: queries, engines, nodes and arrival times, as data from which workers make the requests.

Users wait for the encoding of their query too, so each worker loads the encoders and encodes within the measured time, as
an application does.
"""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import orjson

from benchmarks.load.variants import Variant, body_builder, parameters, pipeline_of
from opensearch_neural.cluster.addresses import is_loopback
from opensearch_neural.cluster.authentication import authorization, ssl_context
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.dense import CascadeEngine
from opensearch_neural.engines.sparse import WORD_BY_WORD, Bm25Sparse
from opensearch_neural.errors import InputError
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.index.sparse_scale import SCALE
from opensearch_neural.queries import Body

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.dense.dense_encoder import Backend

log = logging.getLogger(__name__)

OPAQUE_ID = "osn-bench/"

Encode = Callable[[int], bytes]
"""Position of a query → its request body; the call encodes the query."""


class Address(NamedTuple):
    """The address of a node, for sockets and request lines."""

    host: str
    """Name or IP address, without brackets."""
    port: int
    """The URL's; if it names none, 443 for https, else 9200."""
    tls: bool
    """Whether requests are encrypted."""
    prefix: str
    """Stands before every path, for a cluster behind a proxy."""
    authority: str
    """The value of the Host header."""


@dataclass(frozen=True)
class LoadTarget:
    """The nodes that requests go to, in turn; plain data, since it is sent to worker processes."""

    settings: ConnectionSettings = field(repr=False)
    """How to reach the nodes, with credentials."""

    @property
    def timeout(self) -> float:
        """Seconds within which a request must be answered; later, it counts as failed."""
        return self.settings.timeout

    @property
    def addresses(self) -> list[Address]:
        addresses = []
        for url in self.settings.urls:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 9200)
            addresses.append(Address(str(parts.hostname), port, parts.scheme == "https", parts.path, parts.netloc))
        return addresses

    def tls(self) -> ssl.SSLContext | None:
        return ssl_context(self.settings) if any(address.tls for address in self.addresses) else None


def allowed_target(settings: ConnectionSettings, *, owned: bool) -> LoadTarget:
    """The target, if it may be put under load: a cluster on this machine, or one that the user owns (`owned`).

    Raises InputError for another machine without `owned`, and for AWS signing, which the load generator does not do.
    """
    elsewhere = [url for url in settings.urls if not is_loopback(url)]
    if elsewhere and not owned:
        raise InputError(
            f"this load test would run against another machine: {', '.join(elsewhere)}",
            "it uses all resources of the cluster; add --i-own-this-cluster if you are allowed to do that",
        )
    if settings.credentials == "aws":
        raise InputError(
            "the load generator does not sign requests for AWS", "use a user and password of the domain (OSN_USER)"
        )
    return LoadTarget(settings)


@dataclass(frozen=True)
class SearchedIndex:
    """What workers need to know of an index to build requests, read once."""

    meta: IndexMeta
    """The record of the index."""
    plugin: bool
    """Whether the cluster has the neural-search plugin."""
    encoder: bytes | None = field(default=None, repr=False)
    """The query encoder that the cluster stores; None if this machine has the model's files."""


@dataclass(frozen=True)
class ModelChoice:
    """Models that the user names; None: the models of the index's record."""

    sparse: str | None = None
    """A folder or hub id of the sparse model."""
    dense: str | None = None
    """A folder or hub id of the dense model."""
    backend: Backend = "torch"
    """Encodes dense queries."""
    pq: str | None = None
    """The quantized model."""


@dataclass(frozen=True)
class Workload:
    """Everything a worker process needs; it is pickled and sent to each."""

    target: LoadTarget
    """The nodes that workers send to."""
    texts: tuple[str, ...]
    """The queries. They are sent in random order; none is repeated before all were sent."""
    variants: tuple[Variant, ...]
    """The engines with their options; an `Order` names one of them."""
    indexes: dict[str, SearchedIndex]
    """{index: its facts}, for all indexes that variants search."""
    index: str
    """The index of variants that do not name another."""
    models: ModelChoice = field(default_factory=ModelChoice)
    """Models that replace those of the indexes' records."""
    _opened: dict[str, Engines] = field(default_factory=dict, init=False, repr=False, compare=False)
    """{index: its engines}, with their loaded models."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def index_of(self, variant: Variant) -> str:
        return variant.index or self.index

    def engines_of(self, variant: Variant) -> Engines:
        return self.engines(self.index_of(variant))

    def engines(self, index: str) -> Engines:
        if index not in self._opened:
            facts, chosen = self.indexes[index], self.models
            models = IndexModels(
                index,
                facts.meta,
                sparse=chosen.sparse,
                dense=chosen.dense,
                quantized=chosen.pq,
                backend=chosen.backend,
                threads=1,
                stored=facts.encoder,
            )
            client = partial(connect, settings=self.target.settings)
            self._opened[index] = Engines(index, facts.meta, facts.plugin, models, connect=client)
        return self._opened[index]

    def path_of(self, variant: Variant) -> str:
        """Path and parameters of the variant's requests."""
        query = urlencode(parameters(variant), safe=",._*")
        return f"/{quote(self.index_of(variant), safe=',*-_')}/_search?{query}"

    @property
    def pipelines(self) -> dict[str, Body]:
        """{name: search pipeline} that the variants need on the cluster."""
        return dict(pipeline for variant in self.variants if (pipeline := pipeline_of(variant)) is not None)


def body_builders(workload: Workload, variants: Iterable[Variant] | None = None) -> dict[str, Callable[[str], Body]]:
    """{variant: query text → body} of `variants` (None: all); each model is loaded once and shared.

    Raises what `body_builder` raises.
    """
    variants = workload.variants if variants is None else variants
    return {variant.name: body_builder(variant, workload.engines_of(variant)) for variant in variants}


def encoders(workload: Workload) -> dict[str, Encode]:
    """{variant: position of a query → request body as bytes}."""
    return {name: _encode(build, workload.texts) for name, build in body_builders(workload).items()}


def _encode(build: Callable[[str], Body], texts: tuple[str, ...]) -> Encode:
    return lambda position: orjson.dumps(build(texts[position]))


def request_heads(workload: Workload, variant: Variant) -> dict[str, bytes]:
    """{authority: request line and headers, up to the value of Content-Length}; the length and the body follow."""
    heads = {}
    for address in workload.target.addresses:
        lines = [
            f"POST {address.prefix}{workload.path_of(variant)} HTTP/1.1",
            f"host: {address.authority}",
            "content-type: application/json",
            # OpenSearch shows this in its slow log and task list, so that operators see where a request comes from.
            f"x-opaque-id: {OPAQUE_ID}{variant.name}",
            *(f"{name}: {value}" for name, value in authorization(workload.target.settings).items()),
            "content-length: ",
        ]
        heads[address.authority] = "\r\n".join(lines).encode("latin-1")
    return heads


def poisson(rate: float, seconds: float, random_: random.Random) -> list[int]:
    """Arrival times in nanoseconds, up to `seconds`, of a Poisson process with `rate` arrivals a second.

    Gaps are exponential and independent, so several processes that share the rate are together one Poisson process of the
    whole rate.
    """
    times, at = [], 0.0
    while rate > 0:
        at += random_.expovariate(rate)
        if at >= seconds:
            break
        times.append(int(at * 1e9))
    return times


def prepare(
    client: OpenSearch,
    target: LoadTarget,
    index: str,
    variants: Sequence[Variant],
    texts: Sequence[str],
    models: ModelChoice | None = None,
) -> Workload:
    """The workload, with the facts of its indexes from the cluster. Its search pipelines are not stored yet.

    Raises ClusterError and ModelError as `open_engines` does, InputError if there are no queries.
    """
    if not texts:
        raise InputError("there are no queries")
    indexes = {}
    for name in dict.fromkeys([index, *(variant.index for variant in variants if variant.index)]):
        opened = open_engines(client, name, sparse=models.sparse if models else None)
        meta = opened.meta
        # Read here, since workers do not ask the cluster, and the endpoint that measures the generator could not answer.
        if meta.sparse:
            meta = meta.with_extra(**{SHARD_DOCUMENTS: opened.load_shard_documents()})
        sums = [variant for variant in variants if issubclass(variant.kind, Bm25Sparse)]
        if meta.sparse and (sums or any(issubclass(variant.kind, CascadeEngine) for variant in variants)):
            meta = meta.with_extra(**{SCALE: Bm25Sparse(opened).load_scale()})
        if meta.sparse and sums:
            meta = meta.with_extra(**{WORD_BY_WORD: Bm25Sparse(opened).load_word_by_word()})
        indexes[name] = SearchedIndex(meta, opened.plugin, opened.models.stored_encoder())
    return Workload(target, tuple(texts), tuple(variants), indexes, index, models or ModelChoice())


@contextmanager
def prepared(
    client: OpenSearch,
    target: LoadTarget,
    index: str,
    variants: Sequence[Variant],
    texts: Sequence[str],
    models: ModelChoice | None = None,
) -> Iterator[Workload]:
    """The workload of `prepare`; its search pipelines are stored until the block ends. Raises as `prepare`."""
    stored = []
    try:
        with translate_errors():
            workload = prepare(client, target, index, variants, texts, models)
            for name, body in workload.pipelines.items():
                client.transport.perform_request("PUT", f"/_search/pipeline/{name}", body=body)
                stored.append(name)
            yield workload
    finally:
        for name in stored:
            try:
                client.transport.perform_request("DELETE", f"/_search/pipeline/{name}")
            except Exception as error:  # the cluster may be gone; the first error matters more to the user
                log.debug("the search pipeline %s was left: %s", name, error)
