"""What the tests of connecting share: an environment without settings, authorities, and a connection that is refused."""

from __future__ import annotations

import asyncio
import os
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


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting and no netrc file of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("OSN_", "AWS_")) or name == "NETRC":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


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
