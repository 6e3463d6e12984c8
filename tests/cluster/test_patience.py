"""How long a request is tried again."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_patience_is_that_of_the_client_unless_a_caller_has_another(asynchronous: bool) -> None:
    """Before, a request was repeated three times within milliseconds, whatever the caller did about it."""

    def ask(settings: ConnectionSettings) -> None:
        if not asynchronous:
            connect(settings=settings, check=False).info()
            return

        async def run() -> None:
            async with await connect_async(settings=settings, check=False) as client:
                await client.info()

        asyncio.run(run())

    with http_server(lambda _: Answer.of_json({}, 503)) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=30)
        with pytest.raises(TransportError), patience(0):
            ask(settings)
        assert len(server.requests) == 1
        began = time.monotonic()
        with pytest.raises(TransportError), patience(2):
            ask(settings)
        assert 2 <= len(server.requests) - 1 < 20
        assert time.monotonic() - began < 3
    answers = iter([*([Answer.of_json({}, 429)] * 3), Answer.of_json(OPENSEARCH)])
    with http_server(lambda _: next(answers)) as server:
        ask(ConnectionSettings(urls=(server.url,), patience=60))
        assert len(server.requests) == 4


def test_what_will_not_pass_is_not_waited_for(tls: ssl.SSLContext) -> None:
    settings = {"patience": 60.0, "timeout": 0.5}
    began = time.monotonic()
    with http_server(says_opensearch, tls) as server, tcp_server(silent) as mute:
        for url in ("http://no-such-host.invalid:9200", server.url, mute.url):
            client = connect(settings=ConnectionSettings(urls=(url,), **settings), check=False)
            with pytest.raises(TransportError):
                client.info()
    assert time.monotonic() - began < 10


def test_a_connection_that_does_not_come_about_is_given_up_before_an_answer_would_be() -> None:
    with unreachable() as url:
        settings = ConnectionSettings(urls=(url,), timeout=120, patience=0)
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"no connection to .* within 10 s"):
            connect(settings=settings)
        assert 9 < time.monotonic() - began < 20


def test_many_threads_share_a_client_without_losing_connections(caplog: pytest.LogCaptureFixture) -> None:
    from concurrent.futures import ThreadPoolExecutor

    caplog.set_level(logging.WARNING)
    with http_server(says_opensearch) as server, connect(server.url) as client, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: client.info(), range(64))) == [OPENSEARCH] * 64
    assert "pool is full" not in caplog.text
