"""What went wrong between here and OpenSearch, in words that say what to do.

opensearch-py raises one exception class for a refused connection, an unknown host and a server that hangs up, and its
text is a Python repr. `translate` tells these apart by the exceptions underneath and by what the server answered.
No message holds a credential: what is shown of a request is an `Attempt`, which never had one.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from opensearch_neural.cluster.patience import CONNECT_SECONDS
from opensearch_neural.errors import ClusterError

Credentials = Literal["none", "password", "token", "aws", "certificate"]

SET_CREDENTIALS = (
    "set OSN_USER and OSN_PASSWORD (or OSN_TOKEN), name a netrc file in OSN_NETRC, or have the password asked for "
    "with --ask-password"
)
TLS_HANDSHAKE_SECONDS = 3.0

Cause = TypeVar("Cause", bound=BaseException)


@dataclass(frozen=True)
class Attempt:
    """The request that failed, as far as it may be shown."""

    url: str  # scheme://host:port/prefix, without credentials
    method: str
    path: str
    timeout: float  # seconds
    credentials: Credentials


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the exceptions of opensearch-py into `ClusterError`, as a context manager or as a decorator.

    Raises:
        ClusterError: for every opensearch-py exception raised inside. Other exceptions pass unchanged.
    """
    try:
        yield
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


def translate(error: BaseException) -> ClusterError | None:
    """The `ClusterError` that says what an opensearch-py exception means; None for any other exception."""
    if "opensearchpy" not in sys.modules:  # nothing of it was imported, so nothing of it was raised
        return None
    from opensearchpy import exceptions
    from opensearchpy.helpers import BulkIndexError

    attempt: Attempt | None = getattr(error, "osn_attempt", None)
    if isinstance(error, exceptions.ConnectionError):
        return _translate_network(error, attempt)
    if isinstance(error, BulkIndexError):
        return _translate_bulk(error.errors)
    if isinstance(error, exceptions.SerializationError):
        return not_opensearch(attempt.url if attempt else "the server", "its answer is not JSON")
    if isinstance(error, exceptions.TransportError):
        return _translate_status(error, attempt)
    if isinstance(error, exceptions.OpenSearchException):
        return ClusterError(str(error))
    return None


def not_opensearch(url: str, evidence: str) -> ClusterError:
    return ClusterError(
        f"what answers at {url} is not OpenSearch: {evidence}",
        "check the host, the port and the path of the URL; OpenSearch listens on 9200 unless told otherwise",
    )


def reason_of(error: BaseException) -> tuple[str, str]:
    """(type, reason) that OpenSearch gave in an error response, the innermost cause first; ("", text) without one."""
    info: Any = getattr(error, "info", None)
    text = str(getattr(error, "error", "") or error)
    if not isinstance(info, dict):
        try:
            # opensearch-py's signing asynchronous connection leaves the body of an error unparsed.
            info = json.loads(text)
        except ValueError:
            return "", text
    if not isinstance(info, dict):
        return "", text
    body = info.get("error")
    if isinstance(body, dict):
        found = body
        if body.get("root_cause"):
            found = body["root_cause"][0]
        cause = body.get("caused_by")
        if found.get("reason") in (None, "") and isinstance(cause, dict):
            found = cause
        deepest = found.get("caused_by")
        while isinstance(deepest, dict):
            found, deepest = deepest, deepest.get("caused_by")
        return str(found.get("type") or ""), str(found.get("reason") or text)
    message = body or info.get("message") or info.get("Message")
    return "", str(message or text)


# ---------------------------------------------------------------------------------------------------------- network


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that it wraps. urllib3 and aiohttp each keep the cause in a place of their own."""
    queue: list[BaseException] = [error]
    seen: set[int] = set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = [*current.args, current.__cause__]
        wrapped += [getattr(current, name, None) for name in ("reason", "os_error", "certificate_error")]
        queue += [cause for cause in wrapped if isinstance(cause, BaseException)]


def _first(error: BaseException, kind: type[Cause]) -> Cause | None:
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _address(error: BaseException, attempt: Attempt | None) -> str:
    if attempt is not None:
        return attempt.url
    for cause in _causes(error):
        # urllib3 2.x renamed `pool` to `conn` and warns about the old name.
        pool = getattr(cause, "conn", None) or vars(cause).get("pool") or cause
        host, port = getattr(pool, "host", None), getattr(pool, "port", None)
        if host and port:
            return f"{host}:{port}"
    return "the cluster"


def _translate_network(error: BaseException, attempt: Attempt | None) -> ClusterError:
    from opensearchpy import exceptions

    where = _address(error, attempt)
    certificates = [cause for cause in _causes(error) if isinstance(cause, ssl.SSLCertVerificationError)]
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
    if isinstance(error, exceptions.ConnectionTimeout) or _first(error, TimeoutError):
        return _translate_timeout(error, where, attempt)
    if attempt is not None and attempt.url.startswith("http://") and _speaks_tls(attempt.url):
        return _plain_http_to_tls(attempt.url)
    if _is_other_protocol(error):
        return not_opensearch(where, "it does not speak HTTP")
    if any(type(cause).__name__ == "TooManyRedirects" for cause in _causes(error)):
        return not_opensearch(where, "it redirects without end")
    if _first(error, ConnectionError) or "disconnected" in str(error).lower():
        return _closed(where)
    if unreachable := _first(error, OSError):
        return ClusterError(
            f"{where} cannot be reached: {unreachable.strerror or unreachable}",
            "check the address, the network and the firewall",
        )
    return ClusterError(f"the request to {where} failed: {getattr(error, 'error', error)}")


def _is_other_protocol(error: BaseException) -> bool:
    if _first(error, http.client.RemoteDisconnected):  # a BadStatusLine too, of no line at all
        return False
    names = {type(cause).__name__ for cause in _causes(error)}
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


def _translate_timeout(error: BaseException, where: str, attempt: Attempt | None) -> ClusterError:
    seconds = f" within {attempt.timeout:g} s" if attempt else ""
    # urllib3 and aiohttp both have an exception class for "no connection yet", under different names.
    connecting = any(
        type(cause).__name__ in ("ConnectTimeoutError", "ConnectionTimeoutError") for cause in _causes(error)
    )
    if connecting:
        seconds = f" within {min(attempt.timeout, CONNECT_SECONDS):g} s" if attempt else ""
        return ClusterError(
            f"no connection to {where}{seconds}", "check the address and whether a firewall drops the packets"
        )
    request = f" to {attempt.method} {attempt.path}" if attempt else ""
    return ClusterError(
        f"{where} did not answer{request}{seconds}",
        "a longer time: --timeout or OSN_TIMEOUT; if it never answers, look at the node's log, heap and disk "
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
            f"{where} does not speak TLS",
            f"is it plain HTTP? then use {re.sub('^https:', 'http:', where)}",
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


def _plain_http_to_tls(url: str) -> ClusterError:
    return ClusterError(f"{url} speaks TLS, and was addressed in plain HTTP", f"use {re.sub('^http:', 'https:', url)}")


def _speaks_tls(url: str) -> bool:
    """Whether a TLS handshake at that address gets an answer in TLS; asked only after plain HTTP has failed there."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: the question is only which protocol is spoken
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


# ----------------------------------------------------------------------------------------------------------- status


def _translate_status(error: Any, attempt: Attempt | None) -> ClusterError:
    status = error.status_code
    kind, reason = reason_of(error)
    where = attempt.url if attempt else "OpenSearch"
    request = f"{attempt.method} {attempt.path}" if attempt else "the request"
    if status == 400 and re.search(r"HTTPS? request .*HTTPS", reason, re.IGNORECASE) and attempt is not None:
        return _plain_http_to_tls(attempt.url)  # what nginx and Go answer
    if status == 401:
        return _translate_unauthenticated(where, attempt)
    if kind == "cluster_block_exception":
        return ClusterError(
            f"{where} is blocked for {request}: {reason}",
            "a block of this kind is set when the disk fills up: free space (`osn doctor` shows it), then take the "
            "block back with the index setting index.blocks.read_only_allow_delete: null",
        )
    if status == 403:
        return _translate_forbidden(where, request, reason, attempt)
    if kind == "index_not_found_exception":
        return ClusterError(
            f"{where}: {reason}", "check the spelling; `osn ingest --index NAME` creates and fills an index"
        )
    if kind == "resource_already_exists_exception":
        return ClusterError(f"{where}: {reason}", "choose another name, or delete the index first")
    if "maxClauseCount" in reason or kind == "too_many_clauses":
        return ClusterError(
            f"{where} refused {request}: {reason}",
            "the query has more tokens than one query may have clauses: shorten it, or raise "
            "indices.query.bool.max_clause_count on the cluster",
        )
    if status == 413:
        return ClusterError(
            f"{where} refused {request}: the request is too large ({reason})",
            "send smaller batches, or raise http.max_content_length on the cluster",
        )
    if status == 429:
        return ClusterError(
            f"{where} is overloaded and refused {request}: {reason}",
            "try again with fewer requests at once; `osn doctor` shows heap and disk",
        )
    if status in (502, 503, 504):
        return ClusterError(
            f"{where} cannot serve {request} now ({status}): {reason}",
            "is the cluster still starting, or without a cluster manager? `osn doctor` shows its health",
        )
    return ClusterError(f"{where} refused {request} ({status}): {reason}")


def _translate_unauthenticated(where: str, attempt: Attempt | None) -> ClusterError:
    credentials = attempt.credentials if attempt else None
    if credentials == "password":
        return ClusterError(
            f"{where} rejected the user and password (401)",
            f"check both: {SET_CREDENTIALS}",
        )
    if credentials == "token":
        return ClusterError(f"{where} rejected the token (401)", "it may have expired: set a fresh one in OSN_TOKEN")
    if credentials == "aws":
        return ClusterError(
            f"{where} rejected the signed request (401)",
            "a cluster with a user database of its own wants OSN_USER and OSN_PASSWORD and no AWS region",
        )
    if credentials == "certificate":
        return ClusterError(
            f"{where} does not know the client certificate (401)",
            f"have its name mapped to a user of the cluster, or {SET_CREDENTIALS}",
        )
    return ClusterError(f"{where} requires authentication (401), and none was sent", SET_CREDENTIALS)


def _translate_forbidden(where: str, request: str, reason: str, attempt: Attempt | None) -> ClusterError:
    if attempt is not None and attempt.credentials == "aws":
        return ClusterError(
            f"{where} refused the signed {request} (403): {reason}",
            "check that the AWS credentials are current (`aws sts get-caller-identity`), that region and service "
            "(es or aoss) are those of the domain, and that its access policy names this identity",
        )
    if attempt is not None and attempt.credentials == "none":
        return ClusterError(
            f"{where} does not allow {request} to somebody without credentials (403): {reason}", SET_CREDENTIALS
        )
    return ClusterError(
        f"{where} does not allow {request} to this user (403): {reason}",
        "the credentials were accepted, the permission is missing: have a role with it mapped to this user",
    )


def _translate_bulk(errors: list[Any]) -> ClusterError:
    first = errors[0] if errors else {}
    item: dict[str, Any] = next(iter(first.values()), {}) if isinstance(first, dict) else {}
    cause = item.get("error")
    reason = cause.get("reason") if isinstance(cause, dict) else cause
    return ClusterError(
        f"{len(errors)} documents were not written; the first is {item.get('_id')!r} ({item.get('status')}): {reason}"
    )
