"""TLS in both directions, and requests that are signed for AWS."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import trustme
from cluster_servers import (
    OPENSEARCH,
    Answer,
    Request,
    http_server,
    says_opensearch,
    server_context,
)

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError, MissingExtra

pytestmark = pytest.mark.usefixtures("clean_environment")


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
