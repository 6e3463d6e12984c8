"""The options of a command that connects."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cluster_servers import (
    OPENSEARCH,
    Answer,
    forbidden,
    http_server,
    says_opensearch,
)

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import ClusterError, InputError

pytestmark = pytest.mark.usefixtures("clean_environment")


@click.command()
@connection_options
@click.option("--index")
def command(connection: ConnectionSettings, index: str) -> None:
    connect(settings=connection).search(index=index, body={})


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(command, arguments, env=environment, standalone_mode=False)


def test_a_command_gets_its_connection_from_options_and_environment() -> None:
    with http_server(says_opensearch) as server:
        result = run("--url", server.url, "--index", "docs", OSN_USER="reader", OSN_PASSWORD="pw")
        assert result.exception is None
    assert [request.path for request in server.requests] == ["/", "/docs/_search"]
    assert server.requests[1].headers["authorization"] == f"Basic {base64.b64encode(b'reader:pw').decode()}"


def test_an_error_inside_a_command_is_translated() -> None:
    answers = iter([Answer.of_json(OPENSEARCH), forbidden("indices:data/read/search")])
    with http_server(lambda _: next(answers)) as server:
        result = run("--url", server.url, "--index", "docs")
    assert isinstance(result.exception, ClusterError)
    assert "does not allow POST /docs/_search" in result.exception.message


def test_no_option_takes_a_password_or_a_token() -> None:
    names = [name for parameter in command.params for name in parameter.opts]
    assert "--url" in names
    assert not {"--password", "--token", "--secret"} & set(names)


def test_asking_for_a_password_without_a_terminal_names_the_other_ways() -> None:
    result = run("--ask-password", "--index", "docs")
    assert isinstance(result.exception, InputError)
    assert "OSN_PASSWORD" in str(result.exception.remedy)


def type_at_prompt(prompt: str, typed: str, *arguments: str) -> str:
    """Run a command in a pseudo-terminal, type something at a prompt, and return all that the terminal showed."""
    # `pty.spawn` in a process of its own: it makes the terminal the controlling one, where getpass reads.
    spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        shown = b""
        while prompt.encode() not in shown:
            read = process.stdout.read(1024)
            assert read, f"no prompt {prompt!r} in {shown!r}"
            shown += read
        process.stdin.write(typed.encode())
        while read := process.stdout.read(1024):
            shown += read
    return shown.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of POSIX")
@pytest.mark.timeout(60)
def test_a_password_that_is_asked_for_is_sent_and_not_shown() -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        osn = [sys.executable, "-m", "opensearch_neural.cli", "doctor", "--url", server.url]
        shown = type_at_prompt("Password of reader", "typed-s3cret\n", *osn, "--user", "reader", "--ask-password")
    assert server.requests[0].headers["authorization"] == f"Basic {base64.b64encode(b'reader:typed-s3cret').decode()}"
    assert "rejected the user and password" in shown
    assert "typed-s3cret" not in shown


def test_a_client_certificate_is_named_by_options_or_the_environment() -> None:
    for result in (
        run("--client-cert", "absent.pem", "--index", "docs"),
        run("--index", "docs", OSN_CLIENT_CERT="absent.pem"),
    ):
        assert isinstance(result.exception, InputError)
        assert "the file of the client certificate is missing: absent.pem" in result.exception.message
