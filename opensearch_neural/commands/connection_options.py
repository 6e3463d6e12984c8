"""The options of a command that connects to a cluster."""

from __future__ import annotations

import functools
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
        click.option(
            "--url", "osn_urls", multiple=True, metavar="URL", help="Address of a node (OSN_URL); repeatable."
        ),
        click.option(
            "--user", "osn_user", metavar="NAME", help="User (OSN_USER); the password: OSN_PASSWORD or netrc."
        ),
        click.option("--ask-password", "osn_ask", is_flag=True, help="Ask for the password."),
        click.option("--ca", "osn_ca", metavar="FILE", help="PEM file of the authorities to trust (OSN_CA)."),
        click.option(
            "--client-cert",
            "osn_client_cert",
            metavar="FILE",
            help="PEM file of a client certificate (OSN_CLIENT_CERT).",
        ),
        click.option(
            "--client-key", "osn_client_key", metavar="FILE", help="Its key, if in another file (OSN_CLIENT_KEY)."
        ),
        click.option("--insecure", "osn_insecure", is_flag=True, help="Do not check TLS certificates."),
        click.option(
            "--aws-region", "osn_aws_region", metavar="REGION", help="Sign requests for AWS (OSN_AWS_REGION)."
        ),
        click.option(
            "--aws-service",
            "osn_aws_service",
            type=click.Choice(AWS_SERVICES),
            help="es: managed domains (default), aoss: serverless (OSN_AWS_SERVICE).",
        ),
        click.option("--timeout", "osn_timeout", type=float, help="Seconds for one request (OSN_TIMEOUT; default 30)."),
    ]

    @functools.wraps(command)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with translate_errors():
            return command(*args, **kwargs)

    gathered = options_of(_connection, "connection", *(under("Connection", option) for option in options))(translated)
    return cast(Command, gathered)


def _connection(*, osn_ask: bool, osn_insecure: bool, **options: Any) -> ConnectionSettings:
    """The settings of the environment, replaced by the options that the user gave."""
    settings = {name.removeprefix("osn_"): value for name, value in options.items()}
    if osn_ask:
        settings["user"], settings["password"] = ask_password(settings["user"])
    if osn_insecure:
        settings["verify"] = False
    return ConnectionSettings.from_env(**{**settings, "urls": settings["urls"] or None})
