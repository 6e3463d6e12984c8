"""Addresses of a cluster's nodes: `http(s)://host[:port][/prefix]`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from opensearch_neural.errors import InputError

DEFAULT_URL = "http://127.0.0.1:9200"  # where `osn node start` listens


def as_urls(urls: str | Iterable[str]) -> tuple[str, ...]:
    return (urls,) if isinstance(urls, str) else tuple(urls)


def parse_url(url: str) -> tuple[str, str | None, str | None]:
    """(URL without credentials and with a port, user, password).

    A URL without a port means 9200 for http and 443 for https, as in opensearch-py.
    Raises InputError if it is not a URL of a cluster. The message hides everything before an @, and all of a URL whose port
    is no number, since that may be a password.
    """
    scheme = f"{url.split('://', 1)[0]}://" if "://" in url else ""
    _, at, tail = url.rpartition("@")
    shown = f"{scheme}***@{tail}" if at else url
    expected = f"a URL is http://HOST:PORT or https://HOST:PORT, for instance {DEFAULT_URL}"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        shown = shown if at else f"{scheme}***"
        raise InputError(f"not a URL of a cluster: {shown!r}", expected) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"not a URL of a cluster: {shown!r}", expected)
    # An @ in the path is one behind a password with a slash, of which the rest would be printed as host and path.
    if re.search(r"[\s\x00-\x1f\ud800-\udfff]", parts.netloc.rpartition("@")[2] + parts.path) or "@" in parts.path:
        raise InputError(f"not a URL of a cluster: {shown!r}", expected)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if parts.scheme == "https" else 9200)
    try:
        user = unquote(parts.username, errors="strict") if parts.username else None
        password = unquote(parts.password, errors="strict") if parts.password is not None else None
    except UnicodeDecodeError:
        raise InputError(f"the user or password in {shown!r} is not in UTF-8", "write each byte of it as %XX") from None
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}", user, password


def is_loopback(url: str) -> bool:
    """Whether a URL points to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
