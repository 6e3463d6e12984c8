"""Settings, credentials, TLS, signing, and the message for each way in which a connection fails.

The servers here are real listeners that refuse, hang, hang up or answer what OpenSearch would not.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import json
import logging
import os
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import click
import pytest
import trustme
from click.testing import CliRunner
from cluster_servers import (
    Answer,
    Request,
    closed_port,
    forbidden,
    hang_up,
    http_server,
    silent,
    speak_ssh,
    tcp_server,
    unreachable,
)
from opensearchpy.exceptions import TransportError

from opensearch_neural.cluster.addresses import DEFAULT_URL
from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.patience import patience
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError, MissingExtra

SECRET = "s3cret/pa:ss@wörd"
OPENSEARCH = {
    "name": "node",
    "version": {"distribution": "opensearch", "number": "2.19.1"},
    "tagline": "The OpenSearch Project: https://opensearch.org/",
}


@pytest.fixture(autouse=True)
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


def says_opensearch(_: Request) -> Answer:
    return Answer.of_json(OPENSEARCH)


# --------------------------------------------------------------------------------------------------------- settings


def test_without_any_setting_the_local_node_is_meant() -> None:
    assert ConnectionSettings.from_env().urls == (DEFAULT_URL,)


def test_every_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    for name, value in {
        "URL": "https://a.example:9200, https://b.example:9200",
        "USER": "reader",
        "PASSWORD": SECRET,
        "CA": str(ca),
        "VERIFY": "no",
        "TIMEOUT": "2.5",
        "PATIENCE": "7",
    }.items():
        monkeypatch.setenv(f"OSN_{name}", value)
    assert ConnectionSettings.from_env() == ConnectionSettings(
        urls=("https://a.example:9200", "https://b.example:9200"),
        user="reader",
        password=SECRET,
        ca=ca,
        verify=False,
        timeout=2.5,
        patience=7.0,
    )


def test_an_override_takes_the_place_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_URL", "http://a.example:9200")
    monkeypatch.setenv("OSN_TIMEOUT", "9")
    settings = ConnectionSettings.from_env(urls="http://b.example:9200", timeout=None)
    assert (settings.urls, settings.timeout) == (("http://b.example:9200",), 9.0)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://localhost", "http://localhost:9200"),
        ("https://search.example", "https://search.example:443"),
        ("https://search.example/prefix/", "https://search.example:443/prefix"),
        ("http://[::1]:9201", "http://[::1]:9201"),
    ],
)
def test_the_port_that_a_url_leaves_out_is_that_of_opensearch_py(url: str, meant: str) -> None:
    assert ConnectionSettings(urls=(url,)).urls == (meant,)


@pytest.mark.parametrize(
    "url", ["localhost:9200", "ftp://a:1", "http://", "http://a:port", "http://a:9200/?q=1", "http://a b:9200", ""]
)
def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(InputError, match="not a URL") as caught:
        ConnectionSettings(urls=(url,))
    assert repr(url) in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OSN_TIMEOUT", "soon", "number of seconds"),
        ("OSN_TIMEOUT", "0", "above 0"),
        ("OSN_TIMEOUT", "nan", "above 0"),
        ("OSN_PATIENCE", "long", "number of seconds"),
        ("OSN_PATIENCE", "-1", "0 or more"),
        ("OSN_VERIFY", "maybe", "true or false"),
        ("OSN_CA", "/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("OSN_AWS_SERVICE", "aoss", "without a region"),
        ("OSN_PASSWORD", "alone", "no user"),
        ("OSN_USER", "alone", "no password"),
        ("OSN_TOKEN", "two words", "token"),
    ],
)
def test_a_variable_that_cannot_be_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=expected):
        ConnectionSettings.from_env()


def test_credentials_of_two_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="two kinds"):
        ConnectionSettings(user="reader", password="x", token="y")
    with pytest.raises(InputError, match="two kinds"):
        ConnectionSettings(token="y", aws_region="eu-west-1")


def test_a_user_of_the_caller_does_not_get_the_password_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_USER", "admin")
    monkeypatch.setenv("OSN_PASSWORD", "of-admin")
    with pytest.raises(InputError, match="no password for the user 'reader'"):
        ConnectionSettings.from_env(user="reader")
    assert ConnectionSettings.from_env(user="admin").password == "of-admin"


# ------------------------------------------------------------------------------------------------------------ secrets


def test_credentials_in_a_url_are_taken_out_of_it_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = ConnectionSettings(urls=(f"http://reader:{quote(SECRET, safe='')}@search.example:9200",))
    assert settings.urls == ("http://search.example:9200",)
    assert (settings.user, settings.password) == ("reader", SECRET)
    assert "OSN_PASSWORD" in caplog.text
    assert SECRET not in caplog.text + repr(settings)


def test_a_url_of_the_caller_with_credentials_replaces_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSN_USER", "admin")
    monkeypatch.setenv("OSN_PASSWORD", "of-admin")
    settings = ConnectionSettings.from_env(urls="http://reader:pw@search.example:9200")
    assert (settings.user, settings.password) == ("reader", "pw")


@pytest.mark.parametrize(
    "url",
    [
        "http://reader:s3cret@host:port",
        "http://reader:s3cret/x@host:9200",
        "http://reader:s3cret#x@host:9200",
        "reader:s3cret@host:9200",
        "http://reader:s3cret@host:9200/?q=1",
    ],
)
def test_a_url_that_is_refused_does_not_show_its_password(url: str) -> None:
    with pytest.raises(InputError) as caught:
        ConnectionSettings(urls=(url,))
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("credentials", [{"user": "reader", "password": SECRET}, {"token": "s3cret-token"}])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_secret_is_in_a_repr_a_log_line_or_an_error(
    credentials: dict[str, str], asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = ConnectionSettings(urls=("http://127.0.0.1:1",), **credentials)
    shown = [repr(settings), str(settings)]
    with http_server(lambda _: Answer.of_json({"error": "Unauthorized"}, 401)) as server:
        settings = dataclasses.replace(settings, urls=(server.url,))
        with pytest.raises(ClusterError) as caught:
            if asynchronous:
                asyncio.run(connect_async(settings=settings))
            else:
                connect(settings=settings)
        sent = server.requests[0].headers["authorization"]
    shown += ["".join(traceback.format_exception(caught.value)), caplog.text]
    client = connect(settings=settings, check=False)
    shown += [repr(client), str(client)]
    for secret in (SECRET, "s3cret", sent, sent.split()[1]):
        assert secret not in "\n".join(shown)


def test_a_password_outside_latin_1_arrives_as_utf_8() -> None:
    with http_server(says_opensearch) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), user="réader", password="пароль")).close()
        kind, sent = server.requests[0].headers["authorization"].split()
    assert (kind, base64.b64decode(sent).decode()) == ("Basic", "réader:пароль")


@pytest.mark.parametrize("name", ["OSN_USER", "OSN_PASSWORD"])
def test_a_user_or_password_that_is_not_utf_8_is_named_and_not_shown(name: str) -> None:
    credentials = {"OSN_USER": "reader", "OSN_PASSWORD": "pw", name: b"latin-1-\xe9".decode("utf-8", "surrogateescape")}
    osn = [sys.executable, "-m", "opensearch_neural.cli", "doctor", "--url", "http://127.0.0.1:1"]
    environment = {**os.environ, "PYTHONUTF8": "1", **credentials}
    done = subprocess.run(osn, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the {'user name' if name == 'OSN_USER' else 'password'} is not in UTF-8")
    assert "latin-1" not in done.stderr


def test_a_url_whose_password_is_not_utf_8_is_refused_without_showing_it() -> None:
    with pytest.raises(InputError, match="is not in UTF-8") as caught:
        ConnectionSettings(urls=("https://reader:s3cret%e9@search.example",))
    assert "s3cret" not in str(caught.value)


def test_a_token_arrives_as_a_bearer_token() -> None:
    with http_server(says_opensearch) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), token="abc.def")).close()
        assert server.requests[0].headers["authorization"] == "Bearer abc.def"


def test_credentials_over_plain_http_to_another_machine_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    credentials = {"user": "reader", "password": "x"}
    connect(settings=ConnectionSettings(urls=("http://127.0.0.1:9200",), **credentials), check=False).close()
    assert "clear text" not in caplog.text
    connect(settings=ConnectionSettings(urls=("http://search.example:9200",), **credentials), check=False).close()
    assert "clear text to http://search.example:9200" in caplog.text


# -------------------------------------------------------------------------------------------------------------- netrc


def netrc_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_credentials_can_come_from_a_netrc_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSN_URL", "https://search.example")
    netrc_file(
        tmp_path / ".netrc",
        "machine other.example login o password p\nmachine search.example login reader password pw\n",
    )
    settings = ConnectionSettings.from_env()
    assert (settings.user, settings.password) == ("reader", "pw")
    monkeypatch.setenv(
        "OSN_NETRC", str(netrc_file(tmp_path / "mine", "machine search.example login me password mine\n"))
    )
    settings = ConnectionSettings.from_env()
    assert (settings.user, settings.password) == ("me", "mine")


def test_the_default_entry_of_a_netrc_file_is_not_sent_to_whatever_host(tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "default login reader password pw\n")
    assert ConnectionSettings.from_env().credentials == "none"


def test_a_netrc_entry_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader password pw\n")
    monkeypatch.setenv("OSN_USER", "admin")
    with pytest.raises(InputError, match="no password for the user 'admin'"):
        ConnectionSettings.from_env()


def test_a_netrc_file_that_knows_only_some_hosts_sends_its_password_to_none(tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "machine a.example login reader password s3cret\n")
    with pytest.raises(InputError, match=r"no entry for b\.example") as caught:
        ConnectionSettings.from_env(urls=("http://a.example", "http://b.example"))
    assert "s3cret" not in str(caught.value)


def test_a_broken_netrc_file_is_named_with_its_line_and_without_its_words(tmp_path: Path) -> None:
    path = netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader\n  secretword s3cret\n")
    with pytest.raises(InputError, match=f"{path}, line 2") as caught:
        ConnectionSettings.from_env()
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "secretword" not in "".join(traceback.format_exception(caught.value))


def test_a_netrc_file_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader password pw\n")
    path.chmod(0o644)
    ConnectionSettings.from_env()
    assert "chmod 600" in caplog.text


def test_a_netrc_file_that_is_named_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_NETRC", "/nowhere/netrc")
    with pytest.raises(InputError, match="/nowhere/netrc"):
        ConnectionSettings.from_env()


# --------------------------------------------------------------------------------------------- what can go wrong on the way


def test_a_refused_connection_says_that_nothing_listens(refusal: Callable[..., ClusterError]) -> None:
    url = closed_port()
    error = refusal(url)
    assert f"nothing listens at {url}" in error.message
    assert "osn node start" in str(error.remedy)


def test_an_unknown_host_name_is_said_to_be_unknown(refusal: Callable[..., ClusterError]) -> None:
    error = refusal("http://no-such-host.invalid:9200")
    assert "host name of http://no-such-host.invalid:9200 is not known" in error.message


def test_a_server_that_never_answers_is_a_timeout_that_names_the_seconds(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(silent) as server:
        error = refusal(server.url, timeout=0.5)
        assert len(server.requests) == 1  # it may still be working on the first
    assert f"{server.url} did not answer to GET / within 0.5 s" in error.message
    assert "OSN_TIMEOUT" in str(error.remedy)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems queue or refuse what exceeds the backlog")
def test_a_port_whose_packets_are_dropped_is_a_timeout_of_the_connection(refusal: Callable[..., ClusterError]) -> None:
    with unreachable() as url:
        error = refusal(url, timeout=0.5)
    assert "within 0.5 s" in error.message
    assert url in error.message


def test_a_server_that_hangs_up_is_said_to_close_the_connection(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(hang_up) as server:
        assert f"{server.url} closed the connection without an answer" in refusal(server.url).message


def test_a_server_of_another_protocol_is_not_opensearch(refusal: Callable[..., ClusterError]) -> None:
    with tcp_server(speak_ssh) as server:
        error = refusal(server.url)
    assert "is not OpenSearch" in error.message
    assert "does not speak HTTP" in error.message


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        (Answer(200, b"<html>It works!</html>", {"Content-Type": "text/html"}), "not JSON"),
        (Answer(200, b"hello", {"Content-Type": "text/plain"}), "names no version"),
        (Answer.of_json({"status": "ok"}), "names no version"),
        (Answer.of_json({"version": {"number": "1.0"}}), "names no OpenSearch distribution"),
        (Answer.of_json(["a", "list"]), "names no version"),
        (Answer(404, b"not found", {"Content-Type": "text/plain"}), "HTTP 404"),
        (Answer(302, b"", {"Location": "/login"}), "redirect"),
        (Answer(500, b"<html>", {"Content-Type": "text/html"}), "HTTP 500"),
    ],
)
def test_an_http_server_of_something_else_is_not_opensearch(
    refusal: Callable[..., ClusterError], answer: Answer, evidence: str
) -> None:
    with http_server(lambda _: answer) as server:
        error = refusal(server.url)
    assert f"what answers at {server.url} is not OpenSearch" in error.message
    assert evidence in error.message


def test_elasticsearch_is_named_as_what_it_is(refusal: Callable[..., ClusterError]) -> None:
    answer = {"version": {"number": "8.13.0", "build_flavor": "default"}, "tagline": "You Know, for Search"}
    with http_server(lambda _: Answer.of_json(answer)) as server:
        assert "is Elasticsearch 8.13.0, not OpenSearch" in refusal(server.url).message


def test_401_without_credentials_asks_for_some(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        error = refusal(server.url)
    assert "requires authentication (401), and none was sent" in error.message
    assert "OSN_PASSWORD" in str(error.remedy)


def test_401_with_a_password_or_a_token_says_which_was_rejected(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: Answer(401, b"Unauthorized", {"Content-Type": "text/plain"})) as server:
        assert "rejected the user and password (401)" in refusal(server.url, user="a", password="b").message
        assert "rejected the token (401)" in refusal(server.url, token="b").message


def test_403_says_that_the_permission_is_missing_and_not_the_password(refusal: Callable[..., ClusterError]) -> None:
    with http_server(lambda _: forbidden("indices:data/read/search")) as server:
        error = refusal(server.url, user="reader", password="b")
    assert "does not allow GET / to this user (403): no permissions for [indices:data/read/search]" in error.message
    assert "the credentials were accepted" in str(error.remedy)


def test_a_user_who_may_use_indices_only_can_connect() -> None:
    with http_server(lambda _: forbidden("cluster:monitor/main")) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), user="reader", password="b")).close()


def test_a_cluster_that_is_still_starting_is_said_to_be(refusal: Callable[..., ClusterError]) -> None:
    body = {
        "error": {
            "type": "cluster_block_exception",
            "reason": "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered]",
        }
    }
    with http_server(lambda _: Answer.of_json({**body, "status": 503}, 503)) as server:
        assert "SERVICE_UNAVAILABLE" in refusal(server.url).message


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    return server_context(authority.issue_cert("127.0.0.1", "localhost"))


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def self_signed(folder: Path) -> ssl.SSLContext:
    """A certificate that is its own authority, as `openssl req -x509` makes it."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "self-signed.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "self-signed.pem", folder / "key.pem")
    return context


def test_a_certificate_of_a_named_authority_is_accepted(tls: ssl.SSLContext, ca: Path) -> None:
    with http_server(says_opensearch, tls) as server:
        settings = ConnectionSettings(urls=(server.url,), ca=ca)
        with connect(settings=settings) as client:
            assert client.info() == OPENSEARCH

        async def ask() -> Any:
            async with await connect_async(settings=settings) as client:
                return await client.info()

        assert asyncio.run(ask()) == OPENSEARCH


def test_a_certificate_of_an_unknown_authority_names_the_option_for_it(
    refusal: Callable[..., ClusterError], tls: ssl.SSLContext
) -> None:
    with http_server(says_opensearch, tls) as server:
        error = refusal(server.url)
        assert not server.requests  # nothing is sent to a server that is not trusted
    assert f"the certificate of {server.url} is from an unknown authority" in error.message
    assert "--ca" in str(error.remedy)


def test_a_self_signed_certificate_is_said_to_be_self_signed(
    refusal: Callable[..., ClusterError], tmp_path: Path
) -> None:
    with http_server(says_opensearch, self_signed(tmp_path)) as server:
        error = refusal(server.url)
        assert f"the certificate of {server.url} is self-signed" in error.message
        assert "OSN_CA" in str(error.remedy)
        connect(settings=ConnectionSettings(urls=(server.url,), ca=tmp_path / "self-signed.pem")).close()


def test_a_certificate_for_another_host_is_said_to_be(
    refusal: Callable[..., ClusterError], authority: trustme.CA, ca: Path
) -> None:
    other = server_context(authority.issue_cert("search.example"))
    with http_server(says_opensearch, other) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            assert f"the certificate of {url} is for another host" in refusal(url, ca=ca).message


def test_an_expired_certificate_is_said_to_be(
    refusal: Callable[..., ClusterError], authority: trustme.CA, ca: Path
) -> None:
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    expired = authority.issue_cert("127.0.0.1", not_before=yesterday - timedelta(days=1), not_after=yesterday)
    with http_server(says_opensearch, server_context(expired)) as server:
        assert f"the certificate of {server.url} is not valid now" in refusal(server.url, ca=ca).message


def test_an_authority_that_did_not_issue_the_certificate_does_not_help(
    refusal: Callable[..., ClusterError], tls: ssl.SSLContext, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    with http_server(says_opensearch, tls) as server:
        assert "unknown authority" in refusal(server.url, ca=other).message


def test_insecure_connects_and_warns(tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> None:
    with http_server(says_opensearch, tls) as server:
        settings = ConnectionSettings(urls=(server.url,), verify=False)
        connect(settings=settings).close()
        assert "certificates are not checked" in caplog.text
        caplog.clear()
        asyncio.run(open_and_close(settings))
        assert "certificates are not checked" in caplog.text


async def open_and_close(settings: ConnectionSettings) -> None:
    await (await connect_async(settings=settings)).close()


def test_plain_http_to_a_tls_port_names_the_https_url(
    refusal: Callable[..., ClusterError], tls: ssl.SSLContext
) -> None:
    with http_server(says_opensearch, tls) as server:
        error = refusal(server.url.replace("https:", "http:"))
    assert "speaks TLS" in error.message
    assert error.remedy == f"use {server.url}"


def test_plain_http_to_a_tls_port_that_answers_in_http_names_the_https_url(
    refusal: Callable[..., ClusterError],
) -> None:
    page = b"<html><center>The plain HTTP request was sent to HTTPS port</center></html>"
    with http_server(lambda _: Answer(400, page, {"Content-Type": "text/html"})) as server:
        assert refusal(server.url).remedy == f"use {server.url.replace('http:', 'https:')}"


def test_tls_to_a_plain_port_names_the_http_url(refusal: Callable[..., ClusterError]) -> None:
    with http_server(says_opensearch) as server:
        error = refusal(server.url.replace("http:", "https:"))
    assert "does not speak TLS" in error.message
    assert server.url in str(error.remedy)


def test_a_server_that_wants_a_client_certificate_is_said_to(
    refusal: Callable[..., ClusterError], authority: trustme.CA, ca: Path
) -> None:
    context = server_context(authority.issue_cert("127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    with http_server(says_opensearch, context) as server:
        assert "certificate" in str(refusal(server.url, ca=ca).remedy).lower()


@pytest.mark.parametrize("apart", [True, False])
def test_a_client_certificate_is_sent_to_a_server_that_wants_one(
    authority: trustme.CA, ca: Path, tmp_path: Path, apart: bool
) -> None:
    context = server_context(authority.issue_cert("127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    client, certificate, key = authority.issue_cert("reader"), tmp_path / "client.pem", tmp_path / "client.key"
    if apart:
        client.cert_chain_pems[0].write_to_path(certificate)
        client.private_key_pem.write_to_path(key)
    else:
        client.private_key_and_cert_chain_pem.write_to_path(certificate)
    files = {"client_cert": certificate, "client_key": key if apart else None}
    with http_server(says_opensearch, context) as server:
        settings = ConnectionSettings(urls=(server.url,), ca=ca, **files)
        assert settings.credentials == "certificate"
        assert connect(settings=settings).info() == OPENSEARCH
        options = [f"--{name.replace('_', '-')}={path}" for name, path in files.items() if path]
        assert run("--url", server.url, f"--ca={ca}", *options, "--index", "docs").exception is None


def test_a_client_certificate_that_cannot_be_used_is_named(authority: trustme.CA, tmp_path: Path) -> None:
    certificate, other = tmp_path / "client.pem", tmp_path / "other.key"
    authority.issue_cert("reader").cert_chain_pems[0].write_to_path(certificate)
    authority.issue_cert("other").private_key_pem.write_to_path(other)
    url = ("https://127.0.0.1:1",)
    with pytest.raises(InputError, match=r"client\.pem and .*other\.key cannot be read as a client certificate"):
        connect(settings=ConnectionSettings(urls=url, client_cert=certificate, client_key=other), check=False)
    with pytest.raises(InputError, match="the file of the client certificate is missing"):
        ConnectionSettings(urls=url, client_cert=tmp_path / "absent")
    with pytest.raises(InputError, match="a client key but no client certificate"):
        ConnectionSettings(urls=url, client_key=other)


def test_a_client_key_that_needs_a_password_is_refused_and_not_asked_for(tmp_path: Path, authority: trustme.CA) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    client = authority.issue_cert("reader")
    client.cert_chain_pems[0].write_to_path(certificate)
    command = ["openssl", "pkey", "-aes128", "-passout", "pass:secret", "-out", str(key)]
    subprocess.run(command, input=client.private_key_pem.bytes(), check=True, capture_output=True)
    with pytest.raises(InputError, match="cannot be read as a client certificate"):
        settings = ConnectionSettings(urls=("https://127.0.0.1:1",), client_cert=certificate, client_key=key)
        connect(settings=settings, check=False)


def test_a_file_of_authorities_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate\n")
    with pytest.raises(InputError, match=r"ca\.pem cannot be read"):
        connect(settings=ConnectionSettings(urls=("https://127.0.0.1:1",), ca=path), check=False)


# ------------------------------------------------------------------------------------------------------------- retries


def test_a_request_is_repeated_after_503_and_not_after_400() -> None:
    answers = iter(
        [Answer.of_json({}, 503), Answer.of_json({}, 503), Answer.of_json(OPENSEARCH), Answer.of_json({}, 400)]
    )
    with http_server(lambda _: next(answers)) as server:
        settings = ConnectionSettings(urls=(server.url,))
        with connect(settings=settings, check=False) as client:
            assert client.info() == OPENSEARCH
            assert len(server.requests) == 3
            with pytest.raises(ClusterError, match=r"refused GET / \(400\)"), translate_errors():
                client.info()
            assert len(server.requests) == 4


def test_the_next_node_is_asked_when_one_is_down() -> None:
    with http_server(says_opensearch) as server:
        with connect(settings=ConnectionSettings(urls=(closed_port(), server.url), patience=0)) as client:
            for _ in range(4):
                assert client.info() == OPENSEARCH
        assert connect([closed_port(), server.url]).info() == OPENSEARCH


def test_checking_the_connection_asks_each_node_once() -> None:
    with http_server(lambda _: Answer.of_json({}, 503)) as server:
        with pytest.raises(ClusterError, match="503"):
            connect(settings=ConnectionSettings(urls=(server.url,), patience=60))
        assert len(server.requests) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_patience_is_that_of_the_client_unless_a_caller_has_another(asynchronous: bool) -> None:
    """Before, a request was repeated three times within milliseconds, whatever the caller did about it."""

    def ask(settings: ConnectionSettings) -> None:
        if not asynchronous:
            connect(settings=settings, check=False).info()
            return

        async def run() -> None:
            async with await connect_async(settings=settings, check=False) as client:
                await client.info()

        asyncio.run(run())

    with http_server(lambda _: Answer.of_json({}, 503)) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=30)
        with pytest.raises(TransportError), patience(0):
            ask(settings)
        assert len(server.requests) == 1
        began = time.monotonic()
        with pytest.raises(TransportError), patience(2):
            ask(settings)
        assert 2 <= len(server.requests) - 1 < 20
        assert time.monotonic() - began < 3
    answers = iter([*([Answer.of_json({}, 429)] * 3), Answer.of_json(OPENSEARCH)])
    with http_server(lambda _: next(answers)) as server:
        ask(ConnectionSettings(urls=(server.url,), patience=60))
        assert len(server.requests) == 4


def test_what_will_not_pass_is_not_waited_for(tls: ssl.SSLContext) -> None:
    settings = {"patience": 60.0, "timeout": 0.5}
    began = time.monotonic()
    with http_server(says_opensearch, tls) as server, tcp_server(silent) as mute:
        for url in ("http://no-such-host.invalid:9200", server.url, mute.url):
            client = connect(settings=ConnectionSettings(urls=(url,), **settings), check=False)
            with pytest.raises(TransportError):
                client.info()
    assert time.monotonic() - began < 10


def test_a_connection_that_does_not_come_about_is_given_up_before_an_answer_would_be() -> None:
    with unreachable() as url:
        settings = ConnectionSettings(urls=(url,), timeout=120, patience=0)
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"no connection to .* within 10 s"):
            connect(settings=settings)
        assert 9 < time.monotonic() - began < 20


def test_many_threads_share_a_client_without_losing_connections(caplog: pytest.LogCaptureFixture) -> None:
    from concurrent.futures import ThreadPoolExecutor

    caplog.set_level(logging.WARNING)
    with http_server(says_opensearch) as server, connect(server.url) as client, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: client.info(), range(64))) == [OPENSEARCH] * 64
    assert "pool is full" not in caplog.text


# ---------------------------------------------------------------------------------------------------- what a status means


@pytest.mark.parametrize(
    ("status", "kind", "reason", "expected"),
    [
        (404, "index_not_found_exception", "no such index [docs]", "no such index [docs]"),
        (400, "too_many_clauses", "maxClauseCount is set to 1024", "max_clause_count"),
        (403, "cluster_block_exception", "index [docs] blocked by: [read-only / allow delete]", "disk fills up"),
        (
            403,
            "index_create_block_exception",
            "blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];",
            "cluster.blocks.create_index: null",
        ),
        (403, "cluster_block_exception", "index [docs] blocked by: [FORBIDDEN/8/index write (api)]", "set this block"),
        (403, "some_other_exception", "not on a Sunday", "refused POST /docs/_search (403): not on a Sunday"),
        (413, "", "", "http.max_content_length"),
        (429, "circuit_breaking_exception", "[parent] Data too large", "overloaded"),
        (400, "mapper_parsing_exception", "failed to parse field [v]", "failed to parse field [v]"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_status_is_told_with_the_reason_of_the_server(
    status: int, kind: str, reason: str, expected: str, asynchronous: bool
) -> None:
    cause = {"type": kind, "reason": reason}
    answer = Answer.of_json({"error": {"root_cause": [cause], **cause}, "status": status}, status)

    async def ask_async(settings: ConnectionSettings) -> None:
        client = await connect_async(settings=settings, check=False)
        try:
            with translate_errors():
                await client.search(index="docs", body={})
        finally:
            await client.close()

    @translate_errors()
    def ask(settings: ConnectionSettings) -> None:
        with connect(settings=settings, check=False) as client:
            client.search(index="docs", body={})

    with http_server(lambda _: answer) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=0)
        with pytest.raises(ClusterError) as caught:
            asyncio.run(ask_async(settings)) if asynchronous else ask(settings)
    assert expected in str(caught.value)
    assert "OSN_USER" not in str(caught.value), "no credentials would help"
    assert server.url in caught.value.message


def test_documents_that_a_bulk_request_did_not_write_are_counted_and_the_first_is_named() -> None:
    from opensearchpy import helpers

    failed = {"index": {"_index": "docs", "_id": "7", "status": 400, "error": {"type": "x", "reason": "bad weight"}}}
    with http_server(lambda _: Answer.of_json({"errors": True, "items": [failed]})) as server:
        client = connect(server.url, check=False)
        with pytest.raises(ClusterError, match=r"1 documents? .*'7' \(400\): bad weight"), translate_errors():
            helpers.bulk(client, [{"_index": "docs", "_id": "7", "x": 1}])


def test_other_exceptions_pass_through_translation_unchanged() -> None:
    with pytest.raises(KeyError), translate_errors():
        raise KeyError("mine")
    with pytest.raises(InputError, match="mine"), translate_errors():
        raise InputError("mine")


def test_an_error_of_a_client_made_elsewhere_is_translated_too() -> None:
    from opensearchpy import OpenSearch

    url = closed_port()
    with pytest.raises(ClusterError, match=f"nothing listens at {url.removeprefix('http://')}"), translate_errors():
        OpenSearch(url, max_retries=0).info()


# ----------------------------------------------------------------------------------------------------------------- AWS


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> str:
    """Keys as in the examples of the AWS documentation."""
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token")
    return secret


def signature(request: Request, secret: str, region: str, service: str) -> str:
    """The signature that AWS would work out for a request as it arrived.

    Signature Version 4: https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
    """

    def keyed(key: bytes, text: str) -> bytes:
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    signed = request.headers["authorization"].split("SignedHeaders=")[1].split(",")[0]
    path, _, query = request.path.partition("?")
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    canonical = "\n".join(
        [
            request.method,
            quote(path, safe="/-_.~"),  # encoded twice, as for every service but S3
            "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs),
            *(f"{name}:{request.headers[name].strip()}" for name in signed.split(";")),
            "",
            signed,
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    stamp = request.headers["x-amz-date"]
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = keyed(key, part)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("service", ["es", "aoss"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_signed_request_carries_the_signature_that_aws_works_out(
    aws_keys: str, service: str, asynchronous: bool
) -> None:
    body = {"query": {"match": {"text": "naïve"}}}

    async def search(settings: ConnectionSettings) -> None:
        async with await connect_async(settings=settings) as client:
            await client.search(index="docs,more", body=body, routing="a", size=3)

    with http_server(says_opensearch) as server:
        settings = ConnectionSettings(urls=(server.url,), aws_region="eu-west-1", aws_service=service)
        if asynchronous:
            asyncio.run(search(settings))
        else:
            with connect(settings=settings) as client:
                client.search(index="docs,more", body=body, routing="a", size=3)
    assert [request.method for request in server.requests] == ["GET", "POST"]
    for request in server.requests:
        authorization = request.headers["authorization"]
        assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        assert f"/eu-west-1/{service}/aws4_request" in authorization
        assert request.headers["x-amz-security-token"] == "session-token"
        assert request.headers["x-amz-content-sha256"] == hashlib.sha256(request.body).hexdigest()  # aoss insists
        assert authorization.endswith(f"Signature={signature(request, aws_keys, 'eu-west-1', service)}")
        assert aws_keys not in repr(request) + repr(settings)
    assert json.loads(server.requests[1].body) == body


def test_a_proxy_may_drop_hop_by_hop_headers_of_a_signed_request(aws_keys: str) -> None:
    with http_server(says_opensearch) as server:
        settings = ConnectionSettings(urls=(server.url,), aws_region="eu-west-1")
        asyncio.run(open_and_close(settings))
        connect(settings=settings).close()
    for request in server.requests:
        assert (
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
            in request.headers["authorization"]
        )


def test_a_serverless_collection_that_does_not_serve_the_root_can_be_connected_to(aws_keys: str) -> None:
    with http_server(lambda _: Answer(404, b"")) as server:
        settings = ConnectionSettings(urls=(server.url,), aws_region="eu-west-1", aws_service="aoss")
        connect(settings=settings).close()
        asyncio.run(open_and_close(settings))
        with pytest.raises(ClusterError, match="HTTP 404"):
            connect(settings=dataclasses.replace(settings, aws_service="es"))


def test_a_signature_that_aws_refuses_is_told_with_what_to_check(
    refusal: Callable[..., ClusterError], aws_keys: str
) -> None:
    answer = Answer.of_json({"message": "The security token included in the request is expired"}, 403)
    with http_server(lambda _: answer) as server:
        error = refusal(server.url, aws_region="eu-west-1")
    assert "refused the signed GET / (403): The security token included in the request is expired" in error.message
    assert "sts get-caller-identity" in str(error.remedy)


def test_signing_without_keys_says_where_keys_come_from() -> None:
    with pytest.raises(ClusterError, match="no AWS credentials") as caught:
        connect(settings=ConnectionSettings(aws_region="eu-west-1"))
    assert "AWS_PROFILE" in str(caught.value.remedy)


def test_an_aws_profile_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ClusterError, match="nobody"):
        connect(settings=ConnectionSettings(aws_region="eu-west-1"))


def test_signing_without_boto3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"\[aws\]"):
        connect(settings=ConnectionSettings(aws_region="eu-west-1"))


def test_the_region_of_the_aws_environment_is_taken_where_only_the_service_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSN_AWS_SERVICE", "aoss")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    settings = ConnectionSettings.from_env()
    assert (settings.credentials, settings.aws_region, settings.aws_service) == ("aws", "us-east-2", "aoss")


# ------------------------------------------------------------------------------------------------------------- options


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


def test_an_asynchronous_client_without_aiohttp_names_the_extra() -> None:
    code = """
import asyncio, sys
sys.modules["aiohttp"] = None
from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.errors import MissingExtra
connect(check=False).close()
try:
    asyncio.run(connect_async(check=False))
except MissingExtra as error:
    sys.exit("[async]" not in str(error))
sys.exit(1)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_module_is_imported_without_opensearch_py() -> None:
    code = "import sys, opensearch_neural.cluster.connect; sys.exit('opensearchpy' in sys.modules or 'click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
