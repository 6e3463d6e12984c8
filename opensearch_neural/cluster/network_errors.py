"""Why no answer came: a refused connection, an unknown host, a certificate, another protocol, a timeout.

opensearch-py raises one exception class for most of these, and urllib3 and aiohttp store the cause in different attributes.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from opensearch_neural.cluster.credentials import Credentials
from opensearch_neural.cluster.patience import CONNECT_SECONDS, exception_chain
from opensearch_neural.errors import ClusterError

TLS_HANDSHAKE_SECONDS = 3.0

Cause = TypeVar("Cause", bound=BaseException)


@dataclass(frozen=True)
class Attempt:
    """A failed request, without its credentials."""

    url: str
    """scheme://host:port/prefix, without credentials."""
    method: str
    """GET, POST, …"""
    path: str
    """Behind `url`, with its parameters."""
    timeout: float
    """Seconds."""
    credentials: Credentials
    """Which kind of credentials was sent."""


def _first(error: BaseException, kind: type[Cause]) -> Cause | None:
    return next((cause for cause in exception_chain(error) if isinstance(cause, kind)), None)


def _address(error: BaseException, attempt: Attempt | None) -> str:
    if attempt is not None:
        return attempt.url
    for cause in exception_chain(error):
        # urllib3 2.x renamed `pool` to `conn` and warns about the old name.
        pool = getattr(cause, "conn", None) or vars(cause).get("pool") or cause
        host, port = getattr(pool, "host", None), getattr(pool, "port", None)
        if host and port:
            return f"{host}:{port}"
    return "the cluster"


def translate_network(error: BaseException, attempt: Attempt | None) -> ClusterError:
    from opensearchpy import exceptions

    where = _address(error, attempt)
    certificates = [cause for cause in exception_chain(error) if isinstance(cause, ssl.SSLCertVerificationError)]
    if certificates:
        # aiohttp's own exception is one as well, but without OpenSSL's code.
        coded = [certificate for certificate in certificates if getattr(certificate, "verify_code", 0)]
        return _translate_certificate((coded or certificates)[0], where)
    if (tls := _first(error, ssl.SSLError)) or isinstance(error, exceptions.SSLError):
        return _translate_tls(str(tls or error), where)
    if _first(error, ConnectionRefusedError):
        return ClusterError(
            f"nothing listens at {where}: the connection was refused",
            "start OpenSearch there (`osn node start` starts a local one), or name another address with --url or "
            "OSN_URL",
        )
    if _first(error, socket.gaierror):
        return ClusterError(
            f"the host name of {where} is not known",
            "check the spelling of the URL, the name server, and whether a VPN is needed",
        )
    if isinstance(error, exceptions.ConnectionTimeout) or _is_connecting(error) or _first(error, TimeoutError):
        return _translate_timeout(error, where, attempt)
    if attempt is not None and attempt.url.startswith("http://") and _speaks_tls(attempt.url):
        return plain_http_to_tls(attempt.url)
    if _is_other_protocol(error):
        return not_opensearch(where, "it does not speak HTTP")
    if any(type(cause).__name__ == "TooManyRedirects" for cause in exception_chain(error)):
        return not_opensearch(where, "it redirects without end")
    if _first(error, ConnectionError) or "disconnected" in str(error).lower():
        return _closed(where)
    if unreachable := _first(error, OSError):
        return ClusterError(
            f"{where} cannot be reached: {unreachable.strerror or unreachable}",
            "check the address, the network and the firewall",
        )
    return ClusterError(f"the request to {where} failed: {getattr(error, 'error', error)}")


def not_opensearch(url: str, evidence: str) -> ClusterError:
    return ClusterError(
        f"{url} is not OpenSearch: {evidence}",
        "check the host, the port and the path of the URL; OpenSearch listens on 9200 by default",
    )


def _is_other_protocol(error: BaseException) -> bool:
    if _first(error, http.client.RemoteDisconnected):  # a subclass of BadStatusLine, for no line at all
        return False
    names = {type(cause).__name__ for cause in exception_chain(error)}
    # aiohttp passes its BadStatusLine on as text in a ClientResponseError.
    return "BadStatusLine" in names or ("ClientResponseError" in names and "status line" in str(error))


def _closed(where: str) -> ClusterError:
    reason = "is the node starting or stopping, or a proxy in between?"
    if where.startswith("https:"):
        reason += " does the server want a client certificate (--client-cert or OSN_CLIENT_CERT)?"
    return ClusterError(
        f"{where} closed the connection without an answer",
        f"{reason} its log says more (`osn node logs` for the local node)",
    )


def _is_connecting(error: BaseException) -> bool:
    """Whether the time ran out before there was a connection, for which urllib3 and aiohttp have exception classes."""
    classes = ("ConnectTimeoutError", "ConnectionTimeoutError", "ServerTimeoutError")  # the last: aiohttp before 3.10
    return any(type(cause).__name__ in classes for cause in exception_chain(error))


def _translate_timeout(error: BaseException, where: str, attempt: Attempt | None) -> ClusterError:
    seconds = f" within {attempt.timeout:g} s" if attempt else ""
    if _is_connecting(error):
        seconds = f" within {min(attempt.timeout, CONNECT_SECONDS):g} s" if attempt else ""
        return ClusterError(
            f"no connection to {where}{seconds}", "check the address and whether a firewall drops the packets"
        )
    request = f" to {attempt.method} {attempt.path}" if attempt else ""
    return ClusterError(
        f"{where} did not answer{request}{seconds}",
        "allow more time with --timeout or OSN_TIMEOUT; if it never answers, look at the node's log, heap and disk "
        "(`osn doctor`)",
    )


# OpenSSL's X509_V_ERR_* codes.
_EXPIRED, _NOT_YET_VALID = 10, 9
_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _NO_LOCAL_ISSUER, _NO_LEAF_SIGNATURE = 18, 19, 20, 21
_HOST_MISMATCH, _IP_MISMATCH = 62, 64


def _translate_certificate(error: ssl.SSLCertVerificationError, where: str) -> ClusterError:
    why = getattr(error, "verify_message", "") or str(error)
    code = getattr(error, "verify_code", 0)
    if code in (_HOST_MISMATCH, _IP_MISMATCH):
        return ClusterError(
            f"the certificate of {where} is for another host: {why}",
            "use the host name that the certificate names, or have one issued for this address",
        )
    if code in (_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _NO_LOCAL_ISSUER, _NO_LEAF_SIGNATURE):
        kind = "self-signed" if code in (_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN) else "from an unknown authority"
        return ClusterError(
            f"the certificate of {where} is {kind}: {why}",
            "name the file of the authority that issued it with --ca or OSN_CA; for a trial on your own machine only, "
            "--insecure connects without checking",
        )
    if code in (_EXPIRED, _NOT_YET_VALID):
        return ClusterError(
            f"the certificate of {where} is not valid now: {why}",
            "renew the certificate on the server, and check the clock of this machine",
        )
    return ClusterError(
        f"the certificate of {where} is not trusted: {why}",
        "name the file of the authority that issued it with --ca or OSN_CA",
    )


def _translate_tls(text: str, where: str) -> ClusterError:
    detail = re.search(r"\[SSL: ([A-Z0-9_]+)\]", text)
    name = detail.group(1) if detail else text
    if name in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
        "UNKNOWN_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
    ):
        return ClusterError(
            f"{where} does not speak TLS", f"is it plain HTTP? then use {re.sub('^https:', 'http:', where)}"
        )
    if "CERTIFICATE_REQUIRED" in name or "HANDSHAKE_FAILURE" in name or "BAD_CERTIFICATE" in name:
        return ClusterError(
            f"{where} refused the TLS handshake: {name}",
            "it may want a client certificate that it trusts: --client-cert and --client-key, or OSN_CLIENT_CERT and "
            "OSN_CLIENT_KEY",
        )
    if "EOF occurred" in name:
        return _closed(where)
    return ClusterError(f"the TLS handshake with {where} failed: {name}", "check that this is the port of the HTTP API")


def plain_http_to_tls(url: str) -> ClusterError:
    return ClusterError(f"{url} speaks TLS, but the request was plain HTTP", f"use {re.sub('^http:', 'https:', url)}")


def _speaks_tls(url: str) -> bool:
    """Whether a TLS handshake at this address gets an answer in TLS. Used only after plain HTTP has failed there."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # safe: nothing is sent, only the protocol is tested
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 9200), timeout=TLS_HANDSHAKE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=parts.hostname),
        ):
            return True
    except ssl.SSLError as error:
        # An alert is an answer in TLS too, for instance when the server insists on a client certificate.
        return "ALERT" in str(error)
    except OSError:
        return False
