"""The message for each way in which a connection fails.

The servers here are real listeners that refuse, hang, hang up or answer what OpenSearch would not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from cluster_servers import (
    Answer,
    closed_port,
    forbidden,
    hang_up,
    http_server,
    silent,
    speak_ssh,
    tcp_server,
    unreachable,
)

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_a_refused_connection_says_that_nothing_listens(refusal: Callable[..., ClusterError]) -> None:
    url = closed_port()
    error = refusal(url)
    assert f"nothing listens at {url}" in error.message
    assert "osn node start" in str(error.remedy)


def test_an_unknown_host_name_is_said_to_be_unknown(refusal: Callable[..., ClusterError]) -> None:
    error = refusal("http://no-such-host.invalid:9200")
    assert "host name of http://no-such-host.invalid:9200 is not known" in error.message


def test_a_server_that_never_answers_is_a_timeout_that_names_the_seconds(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(silent) as server:
        error = refusal(server.url, timeout=0.5)
        assert len(server.requests) == 1  # it may still be working on the first
    assert f"{server.url} did not answer to GET / within 0.5 s" in error.message
    assert "OSN_TIMEOUT" in str(error.remedy)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems queue or refuse what exceeds the backlog")
def test_a_port_whose_packets_are_dropped_is_a_timeout_of_the_connection(refusal: Callable[..., ClusterError]) -> None:
    with unreachable() as url:
        error = refusal(url, timeout=0.5)
    assert "within 0.5 s" in error.message
    assert url in error.message


def test_a_server_that_hangs_up_is_said_to_close_the_connection(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(hang_up) as server:
        assert f"{server.url} closed the connection without an answer" in refusal(server.url).message


def test_a_server_of_another_protocol_is_not_opensearch(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(speak_ssh) as server:
        error = refusal(server.url)
    assert "is not OpenSearch" in error.message
    assert "does not speak HTTP" in error.message


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        (Answer(200, b"<html>It works!</html>", {"Content-Type": "text/html"}), "not JSON"),
        (Answer(200, b"hello", {"Content-Type": "text/plain"}), "names no version"),
        (Answer.of_json({"status": "ok"}), "names no version"),
        (Answer.of_json({"version": {"number": "1.0"}}), "names no OpenSearch distribution"),
        (Answer.of_json(["a", "list"]), "names no version"),
        (Answer(404, b"not found", {"Content-Type": "text/plain"}), "HTTP 404"),
        (Answer(302, b"", {"Location": "/login"}), "redirect"),
        (Answer(500, b"<html>", {"Content-Type": "text/html"}), "HTTP 500"),
    ],
)
def test_an_http_server_of_something_else_is_not_opensearch(
    refusal: Callable[..., ClusterError], answer: Answer, evidence: str
) -> None:
    with http_server(lambda _: answer) as server:
        error = refusal(server.url)
    assert f"{server.url} is not OpenSearch" in error.message
    assert evidence in error.message


@pytest.mark.usefixtures("nodes_in_order")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("page", [b"<html>It works!</html>", b'{"status": "ok"}'])
def test_of_several_nodes_the_one_that_is_not_opensearch_is_named(asynchronous: bool, page: bytes) -> None:
    """Before, it was the first one, also if that was down."""
    answer = Answer(200, page, {"Content-Type": "text/html" if page[:1] == b"<" else "application/json"})
    with http_server(lambda _: answer) as server:
        settings = ConnectionSettings(urls=(closed_port(), server.url))
        with pytest.raises(ClusterError, match=f"{server.url} is not OpenSearch"):
            asyncio.run(connect_async(settings=settings)) if asynchronous else connect(settings=settings)


def test_elasticsearch_is_named_as_what_it_is(refusal: Callable[..., ClusterError]) -> None:
    answer = {"version": {"number": "8.13.0", "build_flavor": "default"}, "tagline": "You Know, for Search"}
    with http_server(lambda _: Answer.of_json(answer)) as server:
        assert "is Elasticsearch 8.13.0, not OpenSearch" in refusal(server.url).message


def test_401_without_credentials_asks_for_some(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        error = refusal(server.url)
    assert "requires authentication (401), and none was sent" in error.message
    assert "OSN_PASSWORD" in str(error.remedy)


def test_401_with_a_password_or_a_token_says_which_was_rejected(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        assert "rejected the user and password (401)" in refusal(server.url, user="a", password="b").message
        assert "rejected the token (401)" in refusal(server.url, token="b").message


def test_403_says_that_the_permission_is_missing_and_not_the_password(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: forbidden("indices:data/read/search")) as server:
        error = refusal(server.url, user="reader", password="b")
    assert "does not allow GET / to this user (403): no permissions for [indices:data/read/search]" in error.message
    assert "the credentials were accepted" in str(error.remedy)


def test_a_user_who_may_use_indices_only_can_connect() -> None:
    with http_server(lambda _: forbidden("cluster:monitor/main")) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), user="reader", password="b")).close()


def test_a_cluster_that_is_still_starting_is_said_to_be(refusal: Callable[..., ClusterError]) -> None:
    body = {
        "error": {
            "type": "cluster_block_exception",
            "reason": "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered]",
        }
    }
    with http_server(lambda _: Answer.of_json({**body, "status": 503}, 503)) as server:
        error = refusal(server.url)
    assert "SERVICE_UNAVAILABLE" in error.message
    assert "is the cluster still starting, or without a cluster manager?" in str(error.remedy)
