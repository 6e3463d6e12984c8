"""The options of a command that connects to a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import click

from opensearch_neural.cluster.credentials import ask_password
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import AWS_SERVICES, ConnectionSettings
from opensearch_neural.commands.headings import under
from opensearch_neural.commands.option_groups import Command, options_of


def connection_options(command: Command) -> Command:
    """Add the options that name a cluster to a click command, which gets them as `connection: ConnectionSettings`.

    Exceptions of opensearch-py that leave the command become `ClusterError`.
    """
    options = [
        _option("url", "Address of a node (OSN_URL); repeatable.", metavar="URL", multiple=True),
        _option("user", "User (OSN_USER); the password: OSN_PASSWORD or netrc.", metavar="NAME"),
        _option("ask-password", "Ask for the password.", is_flag=True),
        _option("ca", "PEM file of the authorities to trust (OSN_CA).", metavar="FILE"),
        _option("client-cert", "PEM file of a client certificate (OSN_CLIENT_CERT).", metavar="FILE"),
        _option("client-key", "Its key, if in another file (OSN_CLIENT_KEY).", metavar="FILE"),
        _option("insecure", "Do not check TLS certificates.", is_flag=True),
        _option("aws-region", "Sign requests for AWS (OSN_AWS_REGION).", metavar="REGION"),
        _option(
            "aws-service",
            "es: managed domains (default), aoss: serverless (OSN_AWS_SERVICE).",
            type=click.Choice(AWS_SERVICES),
        ),
        _option("timeout", "Seconds for one request (OSN_TIMEOUT; default 30).", type=float),
    ]

    @functools.wraps(command)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with translate_errors():
            return command(*args, **kwargs)

    return cast(Command, options_of(_connection, "connection", *options)(translated))


def _option(name: str, help: str, **attributes: Any) -> Callable[[Any], Any]:
    """The option --NAME. Its value is named osn_NAME, so that a command can have an option of its own with that name."""
    return under("Connection", click.option(f"--{name}", f"osn_{name.replace('-', '_')}", help=help, **attributes))


def _connection(
    *, osn_url: tuple[str, ...], osn_ask_password: bool, osn_insecure: bool, **options: Any
) -> ConnectionSettings:
    """The settings of the environment, replaced by the options that the user gave."""
    settings = {name.removeprefix("osn_"): value for name, value in options.items()}
    if osn_ask_password:
        settings["user"], settings["password"] = ask_password(settings["user"])
    return ConnectionSettings.from_env(**settings, urls=osn_url or None, verify=False if osn_insecure else None)
