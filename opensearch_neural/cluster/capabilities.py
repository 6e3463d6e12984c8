"""The capabilities of a cluster, found by trying them on an index of a few documents.

A version or a plugin's name proves little: a service may switch a query type off, a plugin may lack its native libraries, a
role may forbid a feature. So `probe` creates an index `osn-probe-…`, writes two documents, sends each kind of query that
this library builds, compares the scores with expected ones worked out by hand, and deletes the index. It needs no
permissions beyond that index; a feature that it may not try is "unknown" (None), not "no".

By default it does not write a vector into a `faiss` field. If the k-NN plugin lacks its native libraries, OpenSearch accepts
the vector, but flushing the segment fails with a linkage error. A node installed in the ordinary way then ends its process,
and fails again whenever it recovers the index (seen on 2.19.1; github.com/opensearch-project/k-NN/issues/2808 is the same).
A diagnosis must not do that.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed, reason_of, translate_errors
from opensearch_neural.cluster.zones import demanded_copies

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

# (name, class name): a plugin that was loaded from the class path has no name of its own.
KNN = ("opensearch-knn", "org.opensearch.knn.plugin.KNNPlugin")
NEURAL_SEARCH = ("opensearch-neural-search", "org.opensearch.neuralsearch.plugin.NeuralSearch")
CLASSPATH_PLUGIN = "classpath plugin"

CLAUSE_STEPS = (1025, 4097, 16385, 65537)
TIMEOUT_SECONDS = 5.0

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
    """The capabilities of a cluster. A feature is True, False or None (unknown); `notes` says why it is False or None."""

    version: str = ""
    """As the server reports it; "" if it does not (serverless collections)."""
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
    """{feature: why it is False or None}"""

    @property
    def usable(self) -> bool:
        """Whether BM25 and neural-sparse retrieval work here, with or without a plugin."""
        return bool(self.bm25 and self.rank_features)

    @property
    def version_number(self) -> tuple[int, int]:
        """(major, minor); (0, 0) if the server does not report its version."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match.group(1)), int(match.group(2))) if match else (0, 0)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "usable": self.usable}


# ------------------------------------------------------------------------------------------------- without any write

_quick: weakref.WeakKeyDictionary[OpenSearch, Capabilities] = weakref.WeakKeyDictionary()
_quick_lock = threading.Lock()


def quick_capabilities(client: OpenSearch) -> Capabilities:
    """The capabilities that version and plugins imply: three requests without a write, once for each client.

    Good enough to choose between a query's forms with and without the plugin. A feature that they do not decide is None;
    plugin features are None if this user may not list plugins.

    Raises:
        ClusterError: if the cluster cannot be reached.
    """
    with _quick_lock:
        capabilities = _quick.get(client)
    if capabilities is None:
        with translate_errors():
            capabilities = _ask(client, TIMEOUT_SECONDS)
        _expect(capabilities)
        with _quick_lock:
            _quick[client] = capabilities
    return capabilities


def _ask(client: OpenSearch, timeout: float) -> Capabilities:
    """Version, plugins and clause limit."""
    capabilities = Capabilities()
    info = allowed(lambda: client.info(request_timeout=timeout))
    if isinstance(info, dict):
        version = info.get("version") or {}
        capabilities.version = str(version.get("number", ""))
        capabilities.distribution = str(version.get("distribution", ""))
        capabilities.cluster_name = str(info.get("cluster_name", ""))
    listed = allowed(lambda: client.nodes.info(metric="plugins", request_timeout=timeout))
    if isinstance(listed, dict) and listed.get("nodes"):
        capabilities.plugins = _common_plugins(list(listed["nodes"].values()))
    capabilities.max_clause_count = _clause_setting(client, timeout)
    return capabilities


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


def _clause_setting(client: OpenSearch, timeout: float) -> int | None:
    answer = allowed(
        lambda: client.cluster.get_settings(
            include_defaults=True, filter_path="*.indices.query.bool.max_clause_count", request_timeout=timeout
        )
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
    capabilities.knn_lucene = knn
    capabilities.knn_faiss = None if knn else False
    capabilities.neural_sparse = neural and release >= (2, 14)  # raw query_tokens came with 2.14
    capabilities.two_phase = neural and release >= (2, 15)
    capabilities.hybrid = neural and release >= (2, 10)
    capabilities.rrf = neural and release >= (2, 19)
    capabilities.sparse_vector = neural and release >= (3, 3)


# ------------------------------------------------------------------------------------------------------- by trying it


def probe(client: OpenSearch, *, timeout: float = TIMEOUT_SECONDS, try_faiss: bool = False) -> Capabilities:
    """Try each feature on a temporary index, to find what this cluster really has.

    Args:
        timeout: seconds for one request; on a working cluster all requests together take two or three seconds.
        try_faiss: also write a vector into a `faiss` field. Only for clusters that may lose a node (see the module).
            The trial index keeps its translog in memory, so that a node that crashes restarts without the vector.

    Raises:
        ClusterError: if the cluster cannot be reached. Errors of a single trial are in `notes` instead.
    """
    with translate_errors():
        capabilities = _ask(client, timeout)
        _ask_resources(client, capabilities, timeout)
        trial = _Trial(client, capabilities, timeout)
        _try_queries(trial)
        _try_lucene(trial)
        _try_sparse_vector(trial)
        _find_faiss(trial, try_faiss)
    return capabilities


def _ask_resources(client: OpenSearch, capabilities: Capabilities, timeout: float) -> None:
    health = allowed(lambda: client.cluster.health(request_timeout=timeout))
    if isinstance(health, dict):
        capabilities.health = health.get("status")
        capabilities.data_nodes = health.get("number_of_data_nodes")
    stats = allowed(lambda: client.nodes.stats(metric="jvm,fs", request_timeout=timeout))
    if isinstance(stats, dict) and stats.get("nodes"):
        capabilities.nodes = [
            NodeResources(
                name=str(node.get("name", "")),
                roles=tuple(node.get("roles", ())),
                heap_used=_number(node, "jvm", "mem", "heap_used_in_bytes"),
                heap_max=_number(node, "jvm", "mem", "heap_max_in_bytes"),
                disk_available=_number(node, "fs", "total", "available_in_bytes"),
                disk_total=_number(node, "fs", "total", "total_in_bytes"),
            )
            for node in stats["nodes"].values()
        ]


def _number(tree: Any, *path: str) -> int:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return int(tree or 0)


class _Undecided(Exception):
    """A trial without a result: not allowed, no shard, or no answer."""


@dataclass
class _Trial:
    client: OpenSearch
    """A client of the cluster that is tried."""
    found: Capabilities
    """What is known so far; each trial adds to it."""
    timeout: float
    """Seconds for one request."""
    silence: str = ""
    """Why no more requests are sent: after one request without an answer, the others would only wait too."""

    def decide(self, feature: str, attempt: Callable[[], bool | str]) -> bool | None:
        """Run one trial and keep its outcome: True, or False or None with a reason. attempt: a str means False, with this
        reason.

        OpenSearch answers 400 to what it does not know, so only 400 means False; any other error means None.
        """
        from opensearchpy.exceptions import TransportError

        outcome: bool | None = True
        reason = ""
        try:
            if self.silence:
                raise _Undecided(self.silence)
            answer = attempt()
            if answer is not True:
                outcome, reason = False, str(answer)
        except _Undecided as error:
            outcome, reason = None, str(error)
        except TransportError as error:
            outcome, reason = (False, _short(error)) if error.status_code == 400 else (None, self.why(error))
        self.settle(feature, outcome, reason)
        return outcome

    def settle(self, feature: str, outcome: bool | None, reason: str) -> None:
        setattr(self.found, feature, outcome)
        if reason:
            self.found.notes[feature] = reason
        else:
            self.found.notes.pop(feature, None)

    def why(self, error: Any) -> str:
        """The reason in an error. After an error without an answer, no more requests are sent."""
        if not isinstance(error.status_code, int):
            self.silence = f"the cluster stopped answering: {_short(error)}"
        return _short(error)

    @contextmanager
    def index(self, properties: Body, settings: Body | None = None) -> Iterator[str]:
        """A temporary index, deleted at the end in any case.

        Raises:
            TransportError: with status 400 if OpenSearch does not know a field type or setting.
            _Undecided: if it may not be created, or gets no shard.
        """
        from opensearchpy.exceptions import TransportError

        name = f"osn-probe-{uuid.uuid4().hex[:12]}"
        body = {
            # Hidden: no template of the cluster applies to it, and searches over all indexes skip it.
            "settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0, "hidden": True, **(settings or {})}},
            "mappings": {"properties": properties},
        }
        refused = False
        try:
            try:
                created = self.create(name, body)
            except TransportError as error:
                refused = isinstance(error.status_code, int)
                if error.status_code == 400:
                    raise
                raise _Undecided(f"an index osn-probe-… could not be created: {self.why(error)}") from error
            if not created.get("shards_acknowledged", True):
                raise _Undecided("the index osn-probe-… got no shard: is the disk nearly full, or a data node missing?")
            yield name
        finally:
            if not refused:
                self.delete(name)

    def create(self, name: str, body: Body) -> Body:
        """Create an index. It has replicas only if the cluster demands a copy in each zone."""
        from opensearchpy.exceptions import TransportError

        times = {"timeout": f"{self.timeout:g}s", "request_timeout": self.timeout + 1}
        try:
            return self.client.indices.create(index=name, body=body, **times)
        except TransportError as error:
            zones = demanded_copies(error)
            if zones is None:
                raise
            body["settings"]["index"]["number_of_replicas"] = zones - 1
            return self.client.indices.create(index=name, body=body, **times)

    def delete(self, name: str) -> None:
        from opensearchpy.exceptions import NotFoundError, TransportError

        try:
            self.client.indices.delete(index=name, request_timeout=self.timeout + 1)
        except NotFoundError:
            pass
        except TransportError as error:
            logger.warning("the index %s could not be deleted and stays behind: %s", name, self.why(error))

    def write(self, index: str, document: Body, *, id: str, refresh: bool = True) -> None:
        from opensearchpy.exceptions import TransportError

        try:
            self.client.index(
                index=index,
                id=id,
                body=document,
                refresh="true" if refresh else "false",
                timeout=f"{self.timeout:g}s",
                request_timeout=self.timeout,
            )
        except TransportError as error:
            if error.status_code == 400:
                raise
            raise _Undecided(f"a document could not be written into osn-probe-…: {self.why(error)}") from error

    def scores(self, index: str, body: Body) -> dict[str, float]:
        """{id: score} of a search, in its order."""
        answer = self.client.search(index=index, body=body, request_timeout=self.timeout)
        return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def _short(error: Any) -> str:
    kind, reason = reason_of(error)
    if not kind and not isinstance(error.status_code, int):
        from opensearchpy.exceptions import ConnectionTimeout

        return "no answer in time" if isinstance(error, ConnectionTimeout) else str(error.error)
    reason = " ".join(reason.split()).split(", please check", 1)[0].split(" please check", 1)[0]
    return reason if len(reason) <= 200 else reason[:197] + "…"


def _compare(scores: dict[str, float], expected: dict[str, float]) -> bool | str:
    """True if documents, order and scores are the same (scores to 1%: rank_features keep 9 bits)."""
    same = list(scores) == list(expected) and all(
        abs(scores[id] - score) <= 0.01 * abs(score) for id, score in expected.items()
    )
    return same or f"unexpected scores: {scores} instead of {expected}"


# Weights that fit exactly into 9 significant bits.
_DOCUMENTS = {
    "a": {"text": "rainbow after rain", "sparse": {"rain": 2.0, "bow": 0.5}, "pq": "yAE="},  # bytes 200, 1
    "b": {"text": "rain in spain", "sparse": {"rain": 1.0, "spain": 4.0}, "pq": "BQI="},  # bytes 5, 2
}
_TOKENS = {"rain": 3.0, "spain": 0.5}
_SPARSE_SCORES = {"a": 6.0, "b": 5.0}
_PLUGIN = {"neural_sparse": {"sparse": {"query_tokens": _TOKENS}}}


def _clauses(tokens: dict[str, float]) -> Body:
    return {
        "bool": {
            "should": [
                {"rank_feature": {"field": f"sparse.{token}", "linear": {}, "boost": weight}}
                for token, weight in tokens.items()
            ]
        }
    }


def _try_queries(trial: _Trial) -> None:
    """Try all features that use text, rank_features and binary fields, in one index."""
    from opensearchpy.exceptions import TransportError

    features = ("bm25", "rank_features", "neural_sparse", "two_phase", "rescore", "painless", "hybrid", "rrf")
    properties = {
        "text": {"type": "text"},
        "sparse": {"type": "rank_features"},
        "pq": {"type": "binary", "doc_values": True},
    }
    outcome: bool | None
    try:
        with trial.index(properties) as index:
            for id, document in _DOCUMENTS.items():
                trial.write(index, document, id=id)
            _try_each_query(trial, index)
        return
    except _Undecided as error:
        outcome, reason = None, str(error)
    except TransportError as error:  # 400: OpenSearch does not know these fields
        outcome, reason = False, _short(error)
    for feature in features:
        trial.settle(feature, outcome, reason)


def _try_each_query(trial: _Trial, index: str) -> None:
    def scores(query: Body, **rest: Any) -> dict[str, float]:
        return trial.scores(index, {"query": query, **rest})

    def bm25() -> bool | str:
        hits = scores({"match": {"text": "rainbow"}})
        return (list(hits) == ["a"] and hits["a"] > 0) or f"unexpected hits: {hits}"

    def rescore() -> bool | str:
        # The first phase puts "a" first, the second replaces its score and puts "b" first.
        second = {"score_mode": "total", "query_weight": 0.0, "rescore_query_weight": 1.0}
        window = {"window_size": 10, "query": {"rescore_query": _clauses({"spain": 2.0, "bow": 1.0}), **second}}
        return _compare(scores(_clauses({"rain": 3.0}), rescore=window), {"b": 8.0, "a": 0.5})

    def painless() -> bool | str:
        source = "params.table[doc['pq'].value.bytes[0] & 255] + (doc['pq'].value.bytes[1] & 255)"
        table = [float(code) for code in range(256)]
        script = {"lang": "painless", "source": source, "params": {"table": table}}
        return _compare(
            scores({"script_score": {"query": {"match_all": {}}, "script": script}}), {"a": 201.0, "b": 7.0}
        )

    def two_phase() -> bool | str:
        # The body contains the pipeline: storing a pipeline would need permissions on the cluster.
        pipeline = {"request_processors": [{"neural_sparse_two_phase_processor": {"enabled": True}}]}
        return _compare(scores(_PLUGIN, search_pipeline=pipeline), _SPARSE_SCORES)

    def combined(processor: Body) -> Callable[[], bool | str]:
        def run() -> bool | str:
            query = {"hybrid": {"queries": [{"match": {"text": "rainbow"}}, _clauses({"spain": 1.0})]}}
            hits = scores(query, search_pipeline={"phase_results_processors": [processor]})
            return sorted(hits) == ["a", "b"] or f"unexpected hits: {hits}"

        return run

    normalization = {"normalization": {"technique": "min_max"}, "combination": {"technique": "arithmetic_mean"}}
    trial.decide("bm25", bm25)
    trial.decide("rank_features", lambda: _compare(scores(_clauses(_TOKENS)), _SPARSE_SCORES))
    trial.decide("neural_sparse", lambda: _compare(scores(_PLUGIN), _SPARSE_SCORES))
    trial.decide("two_phase", two_phase)
    trial.decide("rescore", rescore)
    trial.decide("painless", painless)
    trial.decide("hybrid", combined({"normalization-processor": normalization}))
    trial.decide("rrf", combined({"score-ranker-processor": {"combination": {"technique": "rrf"}}}))
    if trial.found.max_clause_count is None:
        trial.found.max_clause_count = _count_clauses(trial, index)


def _count_clauses(trial: _Trial, index: str) -> int | None:
    """The clause limit if this user may not read the setting: OpenSearch names it when it refuses a query."""
    from opensearchpy.exceptions import TransportError

    for clauses in CLAUSE_STEPS:
        terms = [{"term": {"text": str(number)}} for number in range(clauses)]
        try:
            trial.scores(index, {"query": {"bool": {"should": terms}}})
        except TransportError as error:
            limit = re.search(r"maxClauseCount is set to (\d+)", _short(error))
            return int(limit.group(1)) if limit else None
    return None


def _try_lucene(trial: _Trial) -> None:
    def attempt() -> bool | str:
        with trial.index({"v": _vector("lucene")}, {"knn": True}) as index:
            trial.write(index, {"v": [1.0, 2.0]}, id="a", refresh=False)
            trial.write(index, {"v": [3.0, 1.0]}, id="b")
            hits = trial.scores(index, {"query": {"knn": {"v": {"vector": [3.0, 1.0], "k": 2}}}})
            return list(hits) == ["b", "a"] or f"unexpected hits: {hits}"

    trial.decide("knn_lucene", attempt)


def _vector(engine: str) -> Body:
    return {"type": "knn_vector", "dimension": 2, "method": {"name": "hnsw", "engine": engine, "space_type": "l2"}}


def _try_sparse_vector(trial: _Trial) -> None:
    def attempt() -> bool | str:
        mapping = {"type": "sparse_vector", "method": {"name": "seismic"}}
        with trial.index({"v": mapping}, {"sparse": True}) as index:
            trial.write(index, {"v": {"1000": 2.0}}, id="a")
            hits = trial.scores(index, {"query": {"neural_sparse": {"v": {"query_tokens": {"1000": 3.0}}}}})
            return list(hits) == ["a"] or f"unexpected hits: {hits}"

    trial.decide("sparse_vector", attempt)


# --------------------------------------------------------------------------------------------------------------- faiss


FAISS_TRIAL = {
    "knn": True,
    "refresh_interval": "-1",
    # The vector reaches the disk only with its segment, so a node that crashes restarts without it.
    "translog": {"durability": "async", "sync_interval": "60s"},
}


def _find_faiss(trial: _Trial, try_it: bool) -> None:
    """Check harmless evidence first: the mapping, the plugin's statistics, how it was loaded. Then try, if allowed."""

    def mapping() -> bool | str:
        with trial.index({"v": _vector("faiss")}, {"knn": True}):
            return True

    if trial.decide("knn_faiss", mapping) is False:
        return
    if _is_initialized(trial):
        trial.settle("knn_faiss", True, "")
        return
    if try_it:
        trial.decide("knn_faiss", lambda: _write_faiss_vector(trial))
        return
    if _is_from_class_path(trial):
        trial.settle("knn_faiss", False, "the k-NN plugin was loaded from the class path, without native libraries")
        return
    trial.settle(
        "knn_faiss",
        None,
        "no node has loaded the native libraries yet, and a trial would stop a node that lacks them; `--try-faiss` tries",
    )


def _is_initialized(trial: _Trial) -> bool:
    """Whether a node reports that it has loaded the faiss library, which it does when it first builds or reads a graph."""
    answer = allowed(
        lambda: trial.client.transport.perform_request(
            "GET", "/_plugins/_knn/stats/faiss_initialized", params={"request_timeout": trial.timeout}
        )
    )
    nodes = answer.get("nodes") if isinstance(answer, dict) else None
    return any(node.get("faiss_initialized") is True for node in (nodes or {}).values())


def _is_from_class_path(trial: _Trial) -> bool:
    """Whether a program with an embedded node loaded the plugin: then the plugin has no folder with native libraries."""
    listed = allowed(lambda: trial.client.nodes.info(metric="plugins,jvm", request_timeout=trial.timeout))
    nodes = listed.get("nodes", {}).values() if isinstance(listed, dict) else ()
    for node in nodes:
        arguments = " ".join(node.get("jvm", {}).get("input_arguments", []))
        for plugin in node.get("plugins", []):
            loaded = plugin.get("classname") == KNN[1] and plugin.get("description") == CLASSPATH_PLUGIN
            if loaded and "-Djava.library.path" not in arguments:
                return True
    return False


def _write_faiss_vector(trial: _Trial) -> bool | str:
    from opensearchpy.exceptions import ConnectionError, RequestError

    # From 3.0 on, small segments get a graph only with this setting; before 2.18 the setting is unknown.
    eager = {**FAISS_TRIAL, "knn.advanced.approximate_threshold": 0}
    with ExitStack() as stack:
        try:
            index = stack.enter_context(trial.index({"v": _vector("faiss")}, eager))
        except RequestError:
            index = stack.enter_context(trial.index({"v": _vector("faiss")}, FAISS_TRIAL))
        trial.write(index, {"v": [1.0, 2.0]}, id="a", refresh=False)
        try:
            # Flushing the segment builds the graph, which needs the library.
            trial.client.indices.refresh(index=index, request_timeout=trial.timeout)
        except ConnectionError as error:
            return f"the node could not build a faiss graph ({_short(error)}): its native libraries are missing"
        hits = trial.scores(index, {"query": {"knn": {"v": {"vector": [1.0, 2.0], "k": 1}}}})
        return list(hits) == ["a"] or f"unexpected hits: {hits}"
