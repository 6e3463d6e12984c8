"""Where requests go, and who may be put under load."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from opensearch_neural.cluster.addresses import is_loopback
from opensearch_neural.cluster.authentication import authorization, ssl_context
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError


class Address(NamedTuple):
    """One node: what a socket connects to, and what a request line needs."""

    host: str
    port: int
    tls: bool
    prefix: str  # of every path, for a cluster behind a proxy
    authority: str  # the value of the Host header


@dataclass(frozen=True)
class Target:
    """The nodes that requests go to, in turn. It goes to worker processes, so it is plain data.

    timeout: seconds within which a request must be answered; one that is not counts as failed.
    """

    settings: ConnectionSettings = field(repr=False)

    @property
    def timeout(self) -> float:
        return self.settings.timeout

    @property
    def addresses(self) -> list[Address]:
        found = []
        for url in self.settings.urls:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 9200)
            found.append(Address(str(parts.hostname), port, parts.scheme == "https", parts.path, parts.netloc))
        return found

    @property
    def headers(self) -> dict[str, str]:
        """Of every request, credentials included."""
        return authorization(self.settings)

    def tls(self) -> ssl.SSLContext | None:
        return ssl_context(self.settings) if any(address.tls for address in self.addresses) else None


def allowed_target(settings: ConnectionSettings, *, owned: bool) -> Target:
    """The target, if it may be put under load: this machine, or a cluster that the user says is theirs.

    Raises InputError for another machine without that word, and for AWS signing, which would be measured with it.
    """
    elsewhere = [url for url in settings.urls if not is_loopback(url)]
    if elsewhere and not owned:
        raise InputError(
            f"a load test would go to another machine: {', '.join(elsewhere)}",
            "it takes all that the cluster has; say --i-own-this-cluster if you may do that to it",
        )
    if settings.credentials == "aws":
        raise InputError(
            "the load generator does not sign requests for AWS", "use a user and password of the domain (OSN_USER)"
        )
    return Target(settings)
