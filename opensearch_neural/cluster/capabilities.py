"""The capabilities of a cluster, and what its version and plugins say of them; `probe.py` finds them by trying."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed, reason_of, translate_errors
from opensearch_neural.cluster.patience import may_pass_later

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# (name, class name): a plugin that was loaded from the class path has no name of its own.
KNN = ("opensearch-knn", "org.opensearch.knn.plugin.KNNPlugin")
NEURAL_SEARCH = ("opensearch-neural-search", "org.opensearch.neuralsearch.plugin.NeuralSearch")

TIMEOUT_SECONDS = 5.0
"""Seconds for one request that may remain without an answer, as those to a cluster with a hung node."""

Body = dict[str, Any]


@dataclass(frozen=True)
class NodeResources:
    """Memory and disk of one node, in bytes."""

    name: str
    """The node's name, unique in its cluster."""
    roles: tuple[str, ...]
    """As OpenSearch names them: data, ingest, cluster_manager, …"""
    heap_used: int
    """Bytes of the Java heap in use, garbage included."""
    heap_max: int
    """The most bytes that the Java heap may have."""
    disk_available: int
    """Free bytes of the disks that hold its data."""
    disk_total: int
    """All bytes of these disks."""


@dataclass
class Capabilities:
    """The capabilities of a cluster. A feature is True, False or None (unknown); `notes` says why it is False or None.

    Other attributes are unknown too if the cluster did not tell them in time, and `notes` says so."""

    version: str = ""
    """As the server reports it, else that of its oldest node; "" if neither tells it (serverless collections)."""
    distribution: str = ""
    """ "opensearch"; "" if the server does not report it."""
    cluster_name: str = ""
    """As `cluster.name` sets it; "" if the server does not report it."""
    plugins: dict[str, str] | None = None
    """{name: version} of the plugins that every data node has; None if this user may not list them."""
    bm25: bool | None = None
    """Full-text queries."""
    rank_features: bool | None = None
    """The field type, and linear `rank_feature` clauses that score exactly Σ boost × weight."""
    neural_sparse: bool | None = None
    """The query with raw `query_tokens`, which gives the same scores in one clause."""
    two_phase: bool | None = None
    """`neural_sparse_two_phase_processor` in a search pipeline."""
    rescore: bool | None = None
    """A rescore query that replaces the score."""
    painless: bool | None = None
    """Scripts over binary doc values."""
    knn_lucene: bool | None = None
    """`knn_vector` fields of the engine Lucene."""
    knn_faiss: bool | None = None
    """`knn_vector` fields of the engine faiss."""
    hybrid: bool | None = None
    """Hybrid queries with `normalization-processor`."""
    rrf: bool | None = None
    """Hybrid queries with `score-ranker-processor`."""
    sparse_vector: bool | None = None
    """The field type for approximate sparse search (3.3 and later)."""
    max_clause_count: int | None = None
    """Clauses that a bool query may have (`indices.query.bool.max_clause_count`); None if unknown."""
    health: str | None = None
    """green, yellow or red; None if this user may not ask."""
    data_nodes: int | None = None
    """The number of data nodes; None if this user may not ask."""
    nodes: list[NodeResources] | None = None
    """Memory and disk of each node; None if this user may not read statistics."""
    notes: dict[str, str] = field(default_factory=dict)
    """{feature or other attribute: why it is False or unknown}"""

    @property
    def usable(self) -> bool:
        """Whether BM25 and neural-sparse retrieval work here, with or without a plugin."""
        return bool(self.bm25 and self.rank_features)

    @property
    def version_number(self) -> tuple[int, int]:
        """(major, minor); (0, 0) if the version is unknown."""
        return _release(self.version)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "usable": self.usable}


_quick: weakref.WeakKeyDictionary[OpenSearch, Capabilities] = weakref.WeakKeyDictionary()
_quick_lock = threading.Lock()


def quick_capabilities(client: OpenSearch) -> Capabilities:
    """The capabilities that version and plugins imply: three requests without a write, once for each client, or
    again where one remained without an answer in time.

    Good enough to choose between a query's forms with and without the plugin. A feature that they do not decide is None;
    plugin features are None if this user may not list plugins, or if neither they nor the server tell the release.

    Raises:
        ClusterError: if the cluster cannot be reached.
    """
    with _quick_lock:
        capabilities = _quick.get(client)
    if capabilities is None:
        with translate_errors():
            capabilities = ask(client, TIMEOUT_SECONDS)
        _expect(capabilities)
        if not capabilities.notes:  # what the cluster did not tell now, it may tell later
            with _quick_lock:
                _quick[client] = capabilities
    return capabilities


def ask(client: OpenSearch, timeout: float) -> Capabilities:
    """Version, plugins and clause limit."""
    capabilities = Capabilities()
    info = told(capabilities, "version", lambda: client.info(request_timeout=timeout))
    if isinstance(info, dict):
        version = info.get("version") or {}
        capabilities.version = str(version.get("number", ""))
        capabilities.distribution = str(version.get("distribution", ""))
        capabilities.cluster_name = str(info.get("cluster_name", ""))
    listed = told(capabilities, "plugins", lambda: client.nodes.info(metric="plugins", request_timeout=timeout))
    if isinstance(listed, dict) and listed.get("nodes"):
        nodes = list(listed["nodes"].values())
        capabilities.plugins = _common_plugins(nodes)
        if not capabilities.version:
            capabilities.version = min((str(node.get("version", "")) for node in nodes), key=_release)
    capabilities.max_clause_count = _clause_setting(client, capabilities, timeout)
    return capabilities


def told(capabilities: Capabilities, attribute: str, request: Callable[[], Any]) -> Any:
    """As `errors.allowed`; None too, with a note, without an answer in time, or if the cluster cannot answer now."""
    from opensearchpy.exceptions import ConnectionTimeout, TransportError

    try:
        return allowed(request)
    except TransportError as error:
        busy = isinstance(error.status_code, int) and may_pass_later(error.status_code)
        if not (busy or isinstance(error, ConnectionTimeout)):
            raise
        capabilities.notes[attribute] = short_reason(error)
        return None


def short_reason(error: Any) -> str:
    """The reason in an error of opensearch-py, in 200 characters."""
    kind, reason = reason_of(error)
    if not kind and not isinstance(error.status_code, int):
        from opensearchpy.exceptions import ConnectionTimeout

        return "no answer in time" if isinstance(error, ConnectionTimeout) else str(error.error)
    reason = " ".join(reason.split()).split(", please check", 1)[0].split(" please check", 1)[0]
    return reason if len(reason) <= 200 else reason[:197] + "…"


def _release(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _common_plugins(nodes: list[Body]) -> dict[str, str]:
    """name → version of the plugins that every data node has."""
    holding = [node for node in nodes if "data" in node.get("roles", ["data"])] or nodes
    known = {class_name: name for name, class_name in (KNN, NEURAL_SEARCH)}
    by_node = []
    for node in holding:
        plugins = {}
        for plugin in node.get("plugins", []):
            name = known.get(plugin.get("classname"), plugin.get("name", ""))
            version = plugin.get("version", "")
            plugins[name] = plugin.get("opensearch_version", "") if version == "NA" else version
        by_node.append(plugins)
    return {name: by_node[0][name] for name in sorted(set.intersection(*(set(plugins) for plugins in by_node)))}


def _clause_setting(client: OpenSearch, capabilities: Capabilities, timeout: float) -> int | None:
    answer = told(
        capabilities,
        "max_clause_count",
        lambda: client.cluster.get_settings(
            include_defaults=True, filter_path="*.indices.query.bool.max_clause_count", request_timeout=timeout
        ),
    )
    for level in ("transient", "persistent", "defaults"):
        value: Any = answer
        for name in (level, "indices", "query", "bool", "max_clause_count"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return int(value)
    return None


def _expect(capabilities: Capabilities) -> None:
    """Fill in the features that follow from version and plugins."""
    if capabilities.distribution == "opensearch":
        # Modules of every distribution.
        capabilities.bm25 = capabilities.rank_features = capabilities.rescore = capabilities.painless = True
    if capabilities.plugins is None:
        return
    knn, neural = KNN[0] in capabilities.plugins, NEURAL_SEARCH[0] in capabilities.plugins
    release = capabilities.version_number

    def since(*first: int) -> bool | None:
        return (release >= first if release > (0, 0) else None) if neural else False

    capabilities.knn_lucene = knn
    capabilities.knn_faiss = None if knn else False
    capabilities.neural_sparse = since(2, 14)  # raw query_tokens came with 2.14
    capabilities.two_phase = since(2, 15)
    capabilities.hybrid = since(2, 10)
    capabilities.rrf = since(2, 19)
    capabilities.sparse_vector = since(3, 3)
