"""A failed request, without its credentials, for error messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opensearch_neural.errors import ClusterError

Credentials = Literal["none", "password", "token", "aws", "certificate"]

SET_CREDENTIALS = (
    "set OSN_USER and OSN_PASSWORD (or OSN_TOKEN), name a netrc file in OSN_NETRC, or enter the password "
    "with --ask-password"
)


@dataclass(frozen=True)
class Attempt:
    """A failed request, without its credentials."""

    url: str
    """scheme://host:port/prefix, without credentials."""
    method: str
    path: str
    timeout: float
    """Seconds."""
    credentials: Credentials


def not_opensearch(url: str, evidence: str) -> ClusterError:
    return ClusterError(
        f"{url} is not OpenSearch: {evidence}",
        "check the host, the port and the path of the URL; OpenSearch listens on 9200 by default",
    )
