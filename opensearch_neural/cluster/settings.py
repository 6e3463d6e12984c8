"""How to reach a cluster: addresses, credentials, TLS, AWS signing, timeouts.

Environment: OSN_URL (several URLs are separated by commas), OSN_CA, OSN_VERIFY, OSN_CLIENT_CERT, OSN_CLIENT_KEY,
OSN_TIMEOUT, OSN_PATIENCE, OSN_AWS_REGION, OSN_AWS_SERVICE, and the credentials (credentials.py).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opensearch_neural.cluster.addresses import DEFAULT_URL, as_urls, parse_url
from opensearch_neural.cluster.credentials import SET_CREDENTIALS, Credentials, credentials_of_environment
from opensearch_neural.errors import InputError
from opensearch_neural.files import expanded

logger = logging.getLogger(__name__)

MOST_SECONDS = 86_400
"""A day. Python and the system cannot wait for any number of seconds."""
AWS_SERVICES = ("es", "aoss")  # managed domains and serverless collections


@dataclass(frozen=True)
class ConnectionSettings:
    """How to reach a cluster. Passwords and tokens are kept out of the repr.

    Raises InputError for values that cannot work, or credentials of two kinds.
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    """Nodes of one cluster. A `user:password@` in a URL is moved to `user` and `password`."""
    user: str | None = None
    """None: no basic authentication."""
    password: str | None = field(default=None, repr=False)
    """Of basic authentication, with `user`."""
    token: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer …`."""
    ca: Path | None = None
    """PEM file (or folder) of the authorities to trust instead of the system's."""
    verify: bool = True
    """False connects without checking the server's certificate."""
    client_cert: Path | None = None
    """PEM file of the client's certificate, for clusters that ask for one."""
    client_key: Path | None = None
    """PEM file of its private key, without a password; None if `client_cert` holds it too."""
    aws_region: str | None = None
    """Signs requests with AWS Signature Version 4 if set."""
    aws_service: str = "es"
    """"es" for managed domains, "aoss" for serverless collections."""
    timeout: float = 30.0
    """Seconds that one request may take."""
    patience: float = 5.0
    """Seconds for which a request is tried again, on each node in turn and after growing waits, if the connection breaks
    or the status is 429, 502, 503 or 504. A request that timed out is not sent again: it may still be running."""
    connections: int = 32
    """Open connections kept to each node; as many requests can run at once."""

    def __post_init__(self) -> None:
        urls = as_urls(self.urls)
        if not urls:
            raise InputError("no URL of a cluster was given", f"for instance {DEFAULT_URL}")
        parsed = [parse_url(url) for url in urls]
        self._set("urls", tuple(clean for clean, _, _ in parsed))
        self._take_url_credentials({(user, password) for _, user, password in parsed if user is not None})
        for name in ("ca", "client_cert", "client_key"):
            if (path := getattr(self, name)) is not None:
                self._set(name, expanded(path))
        self._validate()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen

    def _take_url_credentials(self, in_urls: set[tuple[str | None, str | None]]) -> None:
        if not in_urls:
            return
        if len(in_urls) > 1:
            raise InputError(
                "the URLs hold different users or passwords", f"one cluster has one user: {SET_CREDENTIALS}"
            )
        if self.user or self.password or self.token:
            raise InputError(
                "credentials are given twice: in the URL and outside it", "take the user and password out of the URL"
            )
        logger.warning(
            "a URL with a user and password shows them to whoever sees the command line or the environment; %s",
            SET_CREDENTIALS,
        )
        ((user, password),) = in_urls
        self._set("user", user)
        self._set("password", password)

    def _validate(self) -> None:
        if self.password is not None and not self.user:
            raise InputError("there is a password but no user", "set OSN_USER as well, or give --user")
        if self.user and self.password is None:
            raise InputError(
                f"there is no password for the user {self.user!r}",
                "set OSN_PASSWORD, name a netrc file that has it in OSN_NETRC, or give --ask-password",
            )
        for name, value in (("user name", self.user), ("password", self.password)):
            # Python reads bytes of the environment that are not UTF-8 as lone surrogates.
            if value is not None and re.search(r"[\ud800-\udfff]", value):
                raise InputError(
                    f"the {name} is not in UTF-8", "set OSN_USER and OSN_PASSWORD in UTF-8, or give --ask-password"
                )
        if self.user and ":" in self.user:
            raise InputError(f"a user name cannot hold a colon: {self.user!r}")
        if self.token is not None and (not self.token or not re.fullmatch(r"[\x21-\x7e]+", self.token)):
            raise InputError(
                "the token is empty or holds blanks, line ends or characters outside ASCII",
                "OSN_TOKEN is the token alone, without the word Bearer",
            )
        kinds = {"a user and password": self.user, "a token": self.token, "AWS signing": self.aws_region}
        used = [kind for kind, value in kinds.items() if value]
        if len(used) > 1:
            raise InputError(f"credentials of two kinds are given: {' and '.join(used)}", "keep one of them")
        if self.aws_service not in AWS_SERVICES:
            raise InputError(
                f"{self.aws_service!r} is not an AWS service of OpenSearch",
                "es is for managed domains, aoss for serverless collections",
            )
        if not 0 < self.timeout <= MOST_SECONDS:
            raise InputError(f"the timeout is {self.timeout:g} s, and must be above 0 and at most {MOST_SECONDS:,}")
        if not 0 <= self.patience <= MOST_SECONDS:
            raise InputError(f"the patience is {self.patience:g} s, and must be from 0 to {MOST_SECONDS:,}")
        if self.connections < 1:
            raise InputError(f"the number of connections is {self.connections}, and must be 1 or more")
        if self.client_key is not None and self.client_cert is None:
            raise InputError("there is a client key but no client certificate", "--client-cert or OSN_CLIENT_CERT")
        for name, what in (
            ("ca", "certificate authorities"),
            ("client_cert", "the client certificate"),
            ("client_key", "the client's key"),
        ):
            path: Path | None = getattr(self, name)
            if path is not None and not path.exists():
                option = name.replace("_", "-")
                raise InputError(f"the file of {what} is missing: {path}", f"--{option} or OSN_{name.upper()} names it")

    @property
    def credentials(self) -> Credentials:
        """Which kind of credentials is sent."""
        if self.user:
            return "password"
        if self.token:
            return "token"
        if self.aws_region:
            return "aws"
        return "certificate" if self.client_cert else "none"

    @classmethod
    def from_env(cls, **overrides: Any) -> ConnectionSettings:
        """The settings of the environment, replaced by those `overrides` that are not None.

        Credentials come from the first source that has any: an override, the URL, OSN_TOKEN or OSN_USER and OSN_PASSWORD,
        a netrc file with an entry for the host. Raises InputError, naming the variable that cannot be read.
        """
        overrides = {name: value for name, value in overrides.items() if value is not None}
        values: dict[str, Any] = {}
        if urls := os.environ.get("OSN_URL", "").strip(", \t\r\n"):
            # Only before a URL: a password may hold a comma.
            values["urls"] = tuple(re.split(r"(?i)[\s,]+(?=https?://)", urls))
        for name in ("ca", "client_cert", "client_key", "aws_region", "aws_service", "timeout", "patience", "verify"):
            if value := os.environ.get(variable := f"OSN_{name.upper()}"):
                values[name] = _READ[name](variable, value) if name in _READ else value
        values.update(overrides)
        if "aws_service" in values and "aws_region" not in values:
            values["aws_region"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if not values["aws_region"]:
                raise InputError("an AWS service is named without a region", "set OSN_AWS_REGION, or give --aws-region")
        credentials_of_environment(values, overrides)
        return cls(**values)


def _seconds(variable: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{variable} is {value!r}, and must be a number of seconds") from None


def _truth(variable: str, value: str) -> bool:
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise InputError(f"{variable} is {value!r}, and must be true or false")


_READ: dict[str, Callable[[str, str], Any]] = {"timeout": _seconds, "patience": _seconds, "verify": _truth}
"""{setting that is no text: function of its variable and the text}"""
