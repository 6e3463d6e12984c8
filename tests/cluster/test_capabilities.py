"""What `probe` says is compared with what the real cluster does; rights are taken away by a proxy in front of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from cluster_servers import OPENSEARCH, Answer, Request, closed_port, forbidden, forbidding_proxy, http_server
from osn_node import kill_node

from opensearch_neural import node
from opensearch_neural.cluster import capabilities
from opensearch_neural.cluster import probe as probe_module
from opensearch_neural.cluster.capabilities import KNN, NEURAL_SEARCH, Capabilities, quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.probe import probe
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

FEATURES = (
    "bm25",
    "rank_features",
    "neural_sparse",
    "two_phase",
    "rescore",
    "painless",
    "knn_lucene",
    "knn_faiss",
    "hybrid",
    "rrf",
    "sparse_vector",
)


def probe_indices(client: OpenSearch) -> set[str]:
    return set(client.indices.get(index="osn-probe-*", expand_wildcards="all"))


@pytest.fixture
def leaves_nothing(client: OpenSearch) -> Iterator[None]:
    """The test leaves no probe index behind. Indices of a probe that somebody else runs meanwhile go away by themselves."""
    yield
    deadline = time.monotonic() + 20
    left = probe_indices(client)
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left &= probe_indices(client)
    assert not left


@pytest.fixture
def restricted(cluster_url: str) -> Iterator[Callable[..., OpenSearch]]:
    """A client of the real cluster whose requests are refused where `forbid` says so."""
    open_proxies = []

    def through(forbid: Callable[[Request], Answer | None], seen: list[Request] | None = None) -> OpenSearch:
        proxy = forbidding_proxy(cluster_url, forbid, seen)
        open_proxies.append(proxy)
        return connect(proxy.__enter__())

    yield through
    for proxy in open_proxies:
        proxy.__exit__(None, None, None)


def test_probe_finds_what_the_cluster_has(client: OpenSearch, leaves_nothing: None) -> None:
    found = probe(client)
    assert found.version == client.info()["version"]["number"]
    assert found.usable
    assert (found.bm25, found.rank_features, found.rescore, found.painless) == (True,) * 4
    assert found.plugins is not None
    assert found.neural_sparse == found.hybrid == found.two_phase == (NEURAL_SEARCH[0] in found.plugins)
    assert found.knn_lucene == (KNN[0] in found.plugins)
    for feature in FEATURES:
        assert (getattr(found, feature) is True) == (feature not in found.notes)


def test_probe_reports_health_memory_disk_and_limits(client: OpenSearch) -> None:
    found = probe(client)
    health = client.cluster.health()
    settings = client.cluster.get_settings(include_defaults=True, flat_settings=True)
    assert found.health in ("green", "yellow", "red")
    assert found.data_nodes == health["number_of_data_nodes"]
    assert found.nodes is not None and len(found.nodes) == health["number_of_nodes"]
    for each in found.nodes:
        assert 0 < each.heap_used <= each.heap_max
        assert 0 < each.disk_available <= each.disk_total
    assert found.max_clause_count == int(settings["defaults"]["indices.query.bool.max_clause_count"])


def test_a_vector_is_not_written_to_a_faiss_field_unasked(
    restricted: Callable[..., OpenSearch], leaves_nothing: None
) -> None:
    """Where the native libraries are missing that ends the process of an ordinary node."""
    seen: list[Request] = []
    probe(restricted(lambda _: None, seen))
    created = [request for request in seen if request.method == "PUT" and b'"engine":"faiss"' in request.body]
    assert created
    for request in created:
        index = request.path.split("?")[0]
        assert not [other for other in seen if other.path.startswith(f"{index}/")]


def test_a_second_probe_finds_the_same(client: OpenSearch) -> None:
    first, second = probe(client), probe(client)
    assert [getattr(first, name) for name in FEATURES] == [getattr(second, name) for name in FEATURES]


def test_what_may_not_be_tried_is_unknown_and_not_no(
    restricted: Callable[..., OpenSearch], leaves_nothing: None
) -> None:
    found = probe(restricted(lambda request: forbidden("indices:admin/create") if request.method == "PUT" else None))
    assert [getattr(found, name) for name in FEATURES if name != "knn_faiss"] == [None] * (len(FEATURES) - 1)
    assert "indices:admin/create" in found.notes["rank_features"]
    assert not found.usable


def test_documents_that_may_not_be_written_leave_features_unknown_and_no_index(
    restricted: Callable[..., OpenSearch], leaves_nothing: None
) -> None:
    found = probe(
        restricted(lambda request: forbidden("indices:data/write/index") if "/_doc/" in request.path else None)
    )
    assert (found.bm25, found.rank_features, found.neural_sparse, found.knn_lucene) == (None,) * 4
    assert "indices:data/write/index" in found.notes["bm25"]


def test_rights_on_probe_indices_alone_are_enough_for_every_feature(
    client: OpenSearch, restricted: Callable[..., OpenSearch], leaves_nothing: None
) -> None:
    """No cluster-level request is needed, and the clause limit is found by being refused."""

    def forbid(request: Request) -> Answer | None:
        return None if request.path.startswith("/osn-probe-") else forbidden("cluster:monitor/main")

    full, found = probe(client), probe(restricted(forbid))
    for feature in FEATURES:
        if feature != "knn_faiss":  # decided by the plugin's statistics
            assert getattr(found, feature) == getattr(full, feature)
    assert found.max_clause_count == full.max_clause_count
    assert (found.version, found.plugins, found.nodes, found.health) == ("", None, None, None)
    assert found.usable


def test_a_feature_whose_scores_are_wrong_is_no(restricted: Callable[..., OpenSearch], leaves_nothing: None) -> None:
    """A query that is accepted and does something else is worse than one that is refused."""

    def rescored_as_if_nothing_was_asked(request: Request) -> Answer | None:
        if b'"rescore"' not in request.body:
            return None
        hits = [{"_id": "a", "_score": 6.0}, {"_id": "b", "_score": 3.0}]
        return Answer.of_json({"hits": {"hits": hits}})

    found = probe(restricted(rescored_as_if_nothing_was_asked))
    assert found.rescore is False
    assert "unexpected scores" in found.notes["rescore"]
    assert found.usable


def test_a_probe_that_is_interrupted_leaves_no_index(
    client: OpenSearch, monkeypatch: pytest.MonkeyPatch, leaves_nothing: None
) -> None:
    indices: list[str] = []

    def interrupt(_: Any, index: str) -> None:
        indices.append(index)
        assert client.indices.exists(index=index)
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_module, "_try_each_query", interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe(client)
    assert indices and not client.indices.exists(index=indices[0])


def test_a_cluster_that_stops_answering_is_waited_for_once(
    cluster_url: str, restricted: Callable[..., OpenSearch]
) -> None:
    searches: list[str] = []

    def hang(request: Request) -> Answer | None:
        if request.path.startswith("/osn-probe-") and "_search" in request.path:
            searches.append(request.path)
            time.sleep(4)
        return None

    found = probe(restricted(hang), timeout=1.0)
    assert len(searches) == 1
    assert found.bm25 is None
    assert "no answer in time" in found.notes["bm25"]
    assert "stopped answering" in found.notes["hybrid"]


def test_the_resources_of_a_cluster_with_a_hung_node_are_unknown_and_features_are_tried(
    restricted: Callable[..., OpenSearch], leaves_nothing: None
) -> None:
    """Before, the first of these requests without an answer in 5 s ended `osn doctor`, also with a longer --timeout."""
    seen: list[Request] = []

    def hang(request: Request) -> Answer | None:
        if request.path.startswith("/_nodes"):
            time.sleep(4)
        if request.path.startswith("/_plugins"):
            return Answer.of_json({}, 429)
        return Answer.of_json({}, 503) if request.path.startswith("/_cluster/settings") else None

    found = probe(restricted(hang, seen), timeout=3.0)
    assert (found.plugins, found.nodes) == (None, None)
    assert found.notes["plugins"] == found.notes["nodes"] == "no answer in time"
    assert found.usable
    assert found.max_clause_count is not None and "max_clause_count" not in found.notes, "it was found by a refusal"
    assert [request for request in seen if request.path == "/_cluster/health?local=true"], "without a manager, too"


def test_probing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ClusterError, match="nothing listens"):
        probe(connect(closed_port(), check=False))


# --------------------------------------------------------------------------------------------------------------- quick


def test_quick_capabilities_agree_with_what_trying_finds(client: OpenSearch) -> None:
    quick, tried = quick_capabilities(client), probe(client)
    assert (quick.version, quick.plugins, quick.max_clause_count) == (
        tried.version,
        tried.plugins,
        tried.max_clause_count,
    )
    for feature in FEATURES:
        if getattr(quick, feature) is not None:
            assert getattr(quick, feature) == getattr(tried, feature)
    assert quick.neural_sparse is not None


def test_quick_capabilities_only_read_and_ask_once_for_a_client(restricted: Callable[..., OpenSearch]) -> None:
    seen: list[Request] = []
    client = restricted(lambda _: None, seen)
    first = quick_capabilities(client)
    asked = len(seen)
    assert {request.method for request in seen} == {"GET"}
    assert quick_capabilities(client) is first
    assert len(seen) == asked


def test_what_a_cluster_does_not_tell_in_time_is_unknown_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, `open_engines` and `osn search` ended before their first search."""
    monkeypatch.setattr(capabilities, "TIMEOUT_SECONDS", 1.0)
    hung = True

    def answer(request: Request) -> Answer:
        if request.path.startswith("/_nodes"):
            time.sleep(2 * hung)
            return Answer.of_json({"nodes": {"a": {"version": "2.19.1", "plugins": []}}})
        if request.path.startswith("/_cluster/settings"):
            return Answer.of_json({}, 503 if hung else 200)
        return Answer.of_json(OPENSEARCH)

    with http_server(answer) as server:
        client = connect(settings=ConnectionSettings(urls=(server.url,), patience=0))
        found = quick_capabilities(client)
        assert (found.version, found.plugins, found.usable) == ("2.19.1", None, True)
        assert found.notes.keys() == {"plugins", "max_clause_count"}
        hung = False
        assert quick_capabilities(client).plugins == {}


def test_a_user_who_may_not_list_plugins_gets_the_plugin_free_forms(restricted: Callable[..., OpenSearch]) -> None:
    found = quick_capabilities(
        restricted(lambda request: forbidden("cluster:monitor/nodes/info") if "_nodes" in request.path else None)
    )
    assert found.plugins is None
    assert not found.neural_sparse
    assert found.usable


@pytest.mark.parametrize("told", [True, False])
def test_a_user_who_may_not_ask_for_the_release_gets_that_of_the_nodes(
    client: OpenSearch, restricted: Callable[..., OpenSearch], told: bool
) -> None:
    """Before, it counted as older than any: no plugin feature was there. If nodes do not tell it either, nobody knows."""

    def forbid(request: Request) -> Answer | None:
        if request.path == "/":
            return forbidden("cluster:monitor/main")
        if request.path == "/_nodes/plugins" and not told:
            nodes = client.nodes.info(metric="plugins")["nodes"].values()
            return Answer.of_json({"nodes": {"a": {**next(iter(nodes)), "version": ""}}})
        return None

    full, found = quick_capabilities(client), quick_capabilities(restricted(forbid))
    for feature in ("neural_sparse", "two_phase", "hybrid", "rrf"):
        assert getattr(found, feature) == (getattr(full, feature) if told else None)
    assert found.version == (full.version if told else "")
    assert found.knn_lucene == full.knn_lucene


def test_of_nodes_with_different_releases_the_oldest_decides() -> None:
    versions = ("2.19.1", "2.9.0", "3.1.0")

    def answer(request: Request) -> Answer:
        if not request.path.startswith("/_nodes"):
            return forbidden("cluster:monitor/main")
        return Answer.of_json({"nodes": {each: {"version": each, "plugins": []} for each in versions}})

    with http_server(answer) as server:
        assert quick_capabilities(connect(server.url)).version == "2.9.0"


def test_a_plugin_counts_only_where_every_data_node_has_it() -> None:
    knn = {"name": "opensearch-knn", "version": "2.19.1.0"}
    nodes: list[dict[str, Any]] = [
        {"roles": ["data"], "plugins": [knn, {"name": "opensearch-ml", "version": "2.19.1.0"}]},
        {"roles": ["data", "ingest"], "plugins": [knn]},
        {"roles": ["cluster_manager"], "plugins": []},
    ]
    assert capabilities._common_plugins(nodes) == {"opensearch-knn": "2.19.1.0"}


@pytest.mark.parametrize(("version", "number"), [("2.19.1", (2, 19)), ("3.0.0-beta1", (3, 0)), ("", (0, 0))])
def test_a_version_is_read_as_numbers(version: str, number: tuple[int, int]) -> None:
    assert Capabilities(version=version).version_number == number


# --------------------------------------------------------------------------------------------------------------- faiss


@pytest.fixture(scope="module")
def expendable_node() -> Iterator[node.ClusterState]:
    """A local node that a test may break. Its k-NN plugin comes without native libraries."""
    name = f"osn-tests-faiss-{os.getpid()}"
    try:
        yield node.start(name=name, port=0, heap="512m", attached=True)
    finally:
        node.stop(name, purge=True)


@pytest.mark.cluster
@pytest.mark.timeout(240)  # what hangs here would hang for good
def test_trying_faiss_where_its_libraries_are_missing_says_no_and_leaves_a_working_node(
    expendable_node: node.ClusterState,
) -> None:
    client = connect(expendable_node.url)
    for _ in range(2):
        found = probe(client, timeout=3.0, try_faiss=True)
        assert found.knn_faiss is False
        assert "native libraries are missing" in found.notes["knn_faiss"]
        assert found.usable and found.knn_lucene
        assert not probe_indices(client)
    assert client.cluster.health()["status"] == "green"
    client.index(index="after", id="1", body={"text": "written"}, refresh="true", request_timeout=10)
    assert client.count(index="after")["count"] == 1
    client.indices.delete(index="after", request_timeout=10)


@pytest.mark.cluster
def test_a_node_that_dies_of_the_faiss_trial_starts_again_without_the_vector(
    expendable_node: node.ClusterState,
) -> None:
    """Its translog would bring the vector back, and the node would die of it again, at every start."""
    client = connect(expendable_node.url)
    mapping = {"properties": {"v": probe_module._vector("faiss")}}
    settings = {"number_of_shards": 1, "number_of_replicas": 0, **probe_module.FAISS_TRIAL}
    client.indices.create(index="trial", body={"settings": {"index": settings}, "mappings": mapping})
    client.index(index="trial", id="1", body={"v": [1.0, 2.0]}, request_timeout=10)
    kill_node(1, expendable_node.name)
    again = node.start(name=expendable_node.name, attached=True, timeout=90)
    client = connect(again.url)
    assert client.cluster.health()["status"] == "green"
    assert client.count(index="trial")["count"] == 0
