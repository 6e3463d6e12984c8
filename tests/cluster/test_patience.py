"""How long a request is tried again."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster_servers import (
    OPENSEARCH,
    Answer,
    closed_port,
    http_server,
    says_opensearch,
    silent,
    tcp_server,
    unreachable,
)
from opensearchpy.exceptions import TransportError

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.patience import patience
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError

pytestmark = pytest.mark.usefixtures("clean_environment")
BOTH_CLIENTS = pytest.mark.parametrize("asynchronous", [False, True])


def ask(settings: ConnectionSettings, *, asynchronous: bool, times: int = 1) -> list[Any]:
    """The answers of one client to `GET /`, asked so many times."""
    if not asynchronous:
        with connect(settings=settings, check=False) as client:
            return [client.info() for _ in range(times)]

    async def run() -> list[Any]:
        async with await connect_async(settings=settings, check=False) as client:
            return [await client.info() for _ in range(times)]

    return asyncio.run(run())


def _outcome(request: Callable[[], Any]) -> Any:
    """The answer; None after an error of the transport."""
    try:
        return request()
    except TransportError:
        return None


async def _outcome_async(request: Callable[[], Any]) -> Any:
    try:
        return await request()
    except TransportError:
        return None


def test_a_request_is_repeated_after_503_and_not_after_400() -> None:
    answers = iter(
        [Answer.of_json({}, 503), Answer.of_json({}, 503), Answer.of_json(OPENSEARCH), Answer.of_json({}, 400)]
    )
    with http_server(lambda _: next(answers)) as server:
        settings = ConnectionSettings(urls=(server.url,))
        with connect(settings=settings, check=False) as client:
            assert client.info() == OPENSEARCH
            assert len(server.requests) == 3
            with pytest.raises(ClusterError, match=r"refused GET / \(400\)"), translate_errors():
                client.info()
            assert len(server.requests) == 4


def test_the_next_node_is_asked_when_one_is_down() -> None:
    with http_server(says_opensearch) as server:
        with connect(settings=ConnectionSettings(urls=(closed_port(), server.url), patience=0)) as client:
            for _ in range(4):
                assert client.info() == OPENSEARCH
        assert connect([closed_port(), server.url]).info() == OPENSEARCH


def test_checking_the_connection_asks_each_node_once() -> None:
    with http_server(lambda _: Answer.of_json({}, 503)) as server:
        with pytest.raises(ClusterError, match="503"):
            connect(settings=ConnectionSettings(urls=(server.url,), patience=60))
        assert len(server.requests) == 1


@BOTH_CLIENTS
def test_patience_is_that_of_the_client_unless_a_caller_has_another(asynchronous: bool) -> None:
    """Before, a request was repeated three times within milliseconds, whatever the caller did about it."""
    with http_server(lambda _: Answer.of_json({}, 503)) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=30)
        with pytest.raises(TransportError), patience(0):
            ask(settings, asynchronous=asynchronous)
        assert len(server.requests) == 1
        began = time.monotonic()
        with pytest.raises(TransportError), patience(2):
            ask(settings, asynchronous=asynchronous)
        assert 2 <= len(server.requests) - 1 < 20
        assert time.monotonic() - began < 3
    answers = iter([*([Answer.of_json({}, 429)] * 3), Answer.of_json(OPENSEARCH)])
    with http_server(lambda _: next(answers)) as server:
        ask(ConnectionSettings(urls=(server.url,), patience=60), asynchronous=asynchronous)
        assert len(server.requests) == 4


@BOTH_CLIENTS
def test_a_connection_that_is_closed_before_tls_has_begun_is_tried_again(asynchronous: bool) -> None:
    """As by a proxy that passes TLS on to nodes which are starting. Before, a synchronous client gave up at once."""

    def close(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    with tcp_server(close) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(TransportError):
            ask(ConnectionSettings(urls=(url,), patience=2), asynchronous=asynchronous)
        assert len(server.requests) > 1


@BOTH_CLIENTS
def test_what_will_not_pass_is_not_waited_for(asynchronous: bool, tls: ssl.SSLContext) -> None:
    settings = {"patience": 60.0, "timeout": 0.5}
    began = time.monotonic()
    with http_server(says_opensearch, tls) as server, tcp_server(silent) as mute:
        for url in ("http://no-such-host.invalid:9200", server.url, mute.url):
            with pytest.raises(TransportError):
                ask(ConnectionSettings(urls=(url,), **settings), asynchronous=asynchronous)
    assert time.monotonic() - began < 10


@BOTH_CLIENTS
def test_a_connection_that_does_not_come_about_is_given_up_before_an_answer_would_be(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("connect", "network_errors"):
        monkeypatch.setattr(f"opensearch_neural.cluster.{module}.CONNECT_SECONDS", 2.0)
    with unreachable() as url:
        settings = ConnectionSettings(urls=(url,), timeout=120, patience=0)
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"no connection to .* within 2 s"), translate_errors():
            ask(settings, asynchronous=asynchronous)
        assert 1 < time.monotonic() - began < 10


@BOTH_CLIENTS
def test_the_next_node_is_asked_when_the_packets_to_one_are_dropped(asynchronous: bool) -> None:
    """Before, an asynchronous client asked no other node, and the same one again with every second request."""
    with unreachable() as url, http_server(says_opensearch) as server:
        settings = ConnectionSettings(
            urls=(url, server.url), timeout=2, patience=0
        )  # the other answers later under load
        assert ask(settings, asynchronous=asynchronous, times=4) == [OPENSEARCH] * 4


@BOTH_CLIENTS
@pytest.mark.usefixtures("nodes_in_order")
def test_a_node_that_timed_out_is_left_out_and_its_request_not_sent_again(asynchronous: bool) -> None:
    """Before, every second request to two nodes timed out."""
    with tcp_server(silent) as mute, http_server(says_opensearch) as server:
        settings = ConnectionSettings(urls=(mute.url, server.url), timeout=2, patience=60)

        def ask_four_times() -> list[Any]:
            with connect(settings=settings, check=False) as client:
                return [_outcome(client.info) for _ in range(4)]

        async def ask_four_times_async() -> list[Any]:
            async with await connect_async(settings=settings, check=False) as client:
                return [await _outcome_async(client.info) for _ in range(4)]

        answers = asyncio.run(ask_four_times_async()) if asynchronous else ask_four_times()
        assert answers == [None, OPENSEARCH, OPENSEARCH, OPENSEARCH]
        assert len(mute.requests) == 1 and len(server.requests) == 3


@BOTH_CLIENTS
@pytest.mark.usefixtures("nodes_in_order")
def test_connecting_asks_the_next_node_when_one_does_not_answer(asynchronous: bool) -> None:
    with tcp_server(silent) as mute, http_server(says_opensearch) as server:
        settings = ConnectionSettings(urls=(mute.url, server.url), timeout=2)

        async def connect_and_close() -> None:
            await (await connect_async(settings=settings)).close()

        asyncio.run(connect_and_close()) if asynchronous else connect(settings=settings).close()
        assert len(mute.requests) == len(server.requests) == 1


def test_many_threads_share_a_client_without_losing_connections(caplog: pytest.LogCaptureFixture) -> None:
    from concurrent.futures import ThreadPoolExecutor

    caplog.set_level(logging.WARNING)
    with http_server(says_opensearch) as server, connect(server.url) as client, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: client.info(), range(64))) == [OPENSEARCH] * 64
    assert "pool is full" not in caplog.text
