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
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.capabilities import (
    KNN,
    TIMEOUT_SECONDS,
    Body,
    Capabilities,
    NodeResources,
    ask,
    short_reason,
    told,
)
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.zones import demanded_copies

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

CLASSPATH_PLUGIN = "classpath plugin"
CLAUSE_STEPS = (1025, 4097, 16385, 65537)


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
        capabilities = ask(client, timeout)
        _ask_resources(client, capabilities, timeout)
        trial = _Trial(client, capabilities, timeout)
        _try_queries(trial)
        _try_lucene(trial)
        _try_sparse_vector(trial)
        _find_faiss(trial, try_faiss)
    return capabilities


def _ask_resources(client: OpenSearch, capabilities: Capabilities, timeout: float) -> None:
    # Of the node's own state, which it has without a cluster manager, too.
    health = told(capabilities, "health", lambda: client.cluster.health(local="true", request_timeout=timeout))
    if isinstance(health, dict):
        capabilities.health = health.get("status")
        capabilities.data_nodes = health.get("number_of_data_nodes")
    stats = told(capabilities, "nodes", lambda: client.nodes.stats(metric="jvm,fs", request_timeout=timeout))
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
            outcome, reason = (False, short_reason(error)) if error.status_code == 400 else (None, self.why(error))
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
            self.silence = f"the cluster stopped answering: {short_reason(error)}"
        return short_reason(error)

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
        outcome, reason = False, short_reason(error)
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
        if trial.found.max_clause_count is not None:
            trial.found.notes.pop("max_clause_count", None)


def _count_clauses(trial: _Trial, index: str) -> int | None:
    """The clause limit if this user may not read the setting: OpenSearch names it when it refuses a query."""
    from opensearchpy.exceptions import TransportError

    for clauses in CLAUSE_STEPS:
        terms = [{"term": {"text": str(number)}} for number in range(clauses)]
        try:
            trial.scores(index, {"query": {"bool": {"should": terms}}})
        except TransportError as error:
            limit = re.search(r"maxClauseCount is set to (\d+)", short_reason(error))
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

    if trial.decide("knn_faiss", mapping) is False or trial.silence:
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
    answer = told(
        trial.found,
        "knn_faiss",
        lambda: trial.client.transport.perform_request(
            "GET", "/_plugins/_knn/stats/faiss_initialized", params={"request_timeout": trial.timeout}
        ),
    )
    nodes = answer.get("nodes") if isinstance(answer, dict) else None
    return any(node.get("faiss_initialized") is True for node in (nodes or {}).values())


def _is_from_class_path(trial: _Trial) -> bool:
    """Whether a program with an embedded node loaded the plugin: then the plugin has no folder with native libraries."""
    listed = told(
        trial.found,
        "knn_faiss",
        lambda: trial.client.nodes.info(metric="plugins,jvm", request_timeout=trial.timeout),
    )
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
            return f"the node could not build a faiss graph ({short_reason(error)}): its native libraries are missing"
        hits = trial.scores(index, {"query": {"knn": {"v": {"vector": [1.0, 2.0], "k": 1}}}})
        return list(hits) == ["a"] or f"unexpected hits: {hits}"
