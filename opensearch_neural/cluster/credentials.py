"""Where a user, password or token comes from: the environment, a netrc file or a prompt; never a command-line value.

Environment: OSN_USER, OSN_PASSWORD, OSN_TOKEN, OSN_NETRC. No message, log line or repr holds a password or token.
"""

from __future__ import annotations

import logging
import netrc
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from opensearch_neural.cluster.addresses import DEFAULT_URL, as_urls, parse_url
from opensearch_neural.errors import InputError
from opensearch_neural.files import expanded

logger = logging.getLogger(__name__)

Credentials = Literal["none", "password", "token", "aws", "certificate"]
"""Which kind is sent."""

SET_CREDENTIALS = (
    "set OSN_USER and OSN_PASSWORD (or OSN_TOKEN), name a netrc file in OSN_NETRC, or enter the password "
    "with --ask-password"
)


def credentials_of_environment(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set user, password and token in `values` from the environment or a netrc file, unless `overrides` has credentials.

    Raises InputError as `netrc_entry` does.
    """
    in_urls = any("@" in url for url in as_urls(overrides.get("urls", ())))
    if in_urls or any(overrides.get(name) for name in ("password", "token", "aws_region")):
        return
    credentials = {name: os.environ.get(f"OSN_{name.upper()}") or None for name in ("user", "password", "token")}
    if user := overrides.get("user"):
        # A user named by the caller must not be combined with another user's password, nor with a token.
        password = credentials["password"] if credentials["user"] in (None, user) else None
        credentials = {"user": user, "password": password}
    urls = as_urls(values.get("urls", DEFAULT_URL))
    elsewhere = values.get("aws_region") or credentials.get("token") or any("@" in url for url in urls)
    if not credentials.get("password") and not elsewhere and (entry := netrc_entry(urls, credentials["user"])):
        credentials["user"], credentials["password"] = entry
    values.update({name: value for name, value in credentials.items() if value})


def netrc_entry(urls: Iterable[str], user: str | None) -> tuple[str, str] | None:
    """(user, password) for the hosts of these URLs in the file that OSN_NETRC or NETRC names, or ~/.netrc; else None.

    Only an entry for exactly this host counts. A `default` entry does not: its password would go to any server.
    Raises InputError for a file that is not in netrc form, or that has entries for only some of the hosts.
    """
    path = _netrc_file()
    if path is None:
        return None
    try:
        hosts = netrc.netrc(str(path)).hosts
    except netrc.NetrcParseError as error:
        # The error's message may quote the unexpected word, which may be a password.
        raise InputError(
            f"{path}, line {error.lineno}: not in netrc form",
            "each entry is: machine HOST login USER password PASSWORD",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {type(error).__name__}") from error
    by_host: dict[str, tuple[str, str] | None] = {}
    for url in urls:
        parts = urlsplit(parse_url(url)[0])
        entry = hosts.get(f"{parts.hostname}:{parts.port}") or hosts.get(str(parts.hostname))
        matches = entry is not None and bool(entry[2]) and user in (None, entry[0])
        by_host[str(parts.hostname)] = (entry[0], entry[2] or "") if entry is not None and matches else None
    entries = {entry for entry in by_host.values() if entry is not None}
    if not entries:
        return None
    if len(entries) > 1 or None in by_host.values():
        missing = [host for host, entry in by_host.items() if entry is None]
        raise InputError(
            f"{path} has no entry for {', '.join(missing)}"
            if missing
            else f"{path} has different users for {', '.join(by_host)}",
            "the nodes of one cluster share one user: give each host the same entry",
        )
    if os.name == "posix" and path.stat().st_mode & 0o077:
        logger.warning("%s holds passwords and can be read by other users: chmod 600 %s", path, path)
    return entries.pop()


def _netrc_file() -> Path | None:
    file = os.environ.get("OSN_NETRC") or os.environ.get("NETRC")
    # A service that gave up root's rights may have no home folder, or one that it may not look into.
    with suppress(OSError, RuntimeError):
        path = expanded(file) if file else Path.home() / ".netrc"
        if path.is_file():
            return path
    if os.environ.get("OSN_NETRC"):
        raise InputError(f"the netrc file is missing, or its folder may not be read: {file}", "OSN_NETRC names it")
    return None


def ask_password(user: str | None) -> tuple[str, str]:
    """(user, password) from a prompt on the terminal; asks for the user only if neither the caller nor OSN_USER names one.

    Raises InputError if there is no terminal.
    """
    import click

    if not sys.stdin.isatty():
        raise InputError(
            "there is no terminal to ask for the password", "set OSN_PASSWORD, or name a netrc file in OSN_NETRC"
        )
    user = user or os.environ.get("OSN_USER") or click.prompt("User", err=True)
    return str(user), click.prompt(f"Password of {user}", hide_input=True, err=True)
