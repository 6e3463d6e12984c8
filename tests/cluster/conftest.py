"""What the tests of connecting share: authorities, and a connection that is refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cluster_servers import (
    server_context,
)

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError


@pytest.fixture(params=["sync", "async"])
def refusal(request: pytest.FixtureRequest) -> Callable[..., ClusterError]:
    """Connect with either client, and return the error it ends with."""

    def connect_and_fail(url: str, **settings: Any) -> ClusterError:
        given = ConnectionSettings(urls=(url,), **{"timeout": 3.0, **settings})
        with pytest.raises(ClusterError) as caught:
            if request.param == "sync":
                connect(settings=given)
            else:
                asyncio.run(connect_async(settings=given))
        return caught.value

    return connect_and_fail


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    return server_context(authority.issue_cert("127.0.0.1", "localhost"))


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def nodes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """opensearch-py asks the nodes in the order in which they are given, and not in any."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
