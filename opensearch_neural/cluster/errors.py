"""Errors of requests to OpenSearch, translated into messages that say what to do.

opensearch-py raises one exception class for a refused connection, an unknown host and a server that hangs up, and its
text is a Python repr. `translate` tells these apart by the underlying exceptions and by the server's answer.
No message contains credentials: messages show a request as an `Attempt`, which has none.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opensearch_neural.cluster.credentials import SET_CREDENTIALS
from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.cluster.network_errors import Attempt, not_opensearch, plain_http_to_tls, translate_network
from opensearch_neural.errors import ClusterError, TooManyClauses


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the exceptions of opensearch-py into `ClusterError`, as a context manager or as a decorator. Others pass."""
    try:
        yield
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


def translate(error: BaseException) -> ClusterError | None:
    """The `ClusterError` that says what an opensearch-py exception means; None for any other exception."""
    if "opensearchpy" not in sys.modules:  # never imported, so it raised nothing
        return None
    from opensearchpy import exceptions

    attempt: Attempt | None = getattr(error, "osn_attempt", None)
    if isinstance(error, exceptions.ConnectionError):
        return translate_network(error, attempt)
    if isinstance(error, exceptions.SerializationError):
        return not_opensearch(attempt.url if attempt else "the server", "its answer is not JSON")
    if isinstance(error, exceptions.TransportError):
        return _translate_status(error, attempt)
    if isinstance(error, exceptions.OpenSearchException):
        return ClusterError(str(error))
    return None


def allowed(request: Callable[[], Any]) -> Any:
    """The answer; None if the user may not ask, or the service lacks the request. Raises opensearch-py's other errors."""
    from opensearchpy.exceptions import ConnectionError, TransportError

    try:
        return request()
    except ConnectionError:
        raise
    except TransportError as error:
        if error.status_code in (400, 403, 404, 405):
            return None
        raise


def reason_of(error: BaseException) -> tuple[str, str]:
    """(type of the innermost cause, all causes on one line) of OpenSearch's error response; ("", text) if the response names
    no cause. Of a proxy's page the text is its title."""
    info: Any = getattr(error, "info", None)
    text = str(getattr(error, "error", "") or error)
    if text.lstrip().startswith("<"):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        page = " ".join(html.unescape(title[1]).split()) if title else ""
        return "", f"a page that is not OpenSearch's, but of a proxy before it{page and f': {page}'}"
    if not isinstance(info, dict):
        try:
            # opensearch-py's signing asynchronous connection leaves the body of an error unparsed.
            info = json.loads(text)
        except ValueError:
            return "", text
    if not isinstance(info, dict):
        return "", text
    body = info.get("error") or _first_failure(info)
    if isinstance(body, dict):
        innermost = body
        if body.get("root_cause"):
            innermost = body["root_cause"][0]
        cause = body.get("caused_by")
        if innermost.get("reason") in (None, "") and isinstance(cause, dict):
            innermost = cause
        cause = innermost.get("caused_by")
        while isinstance(cause, dict):
            innermost, cause = cause, cause.get("caused_by")
        return str(innermost.get("type") or ""), reasons_on_one_line(body) or text
    message = body or info.get("message") or info.get("Message")
    return "", str(message or text)


def _first_failure(info: dict[str, Any]) -> Any:
    """The cause of the first failure in the answer to a request for many documents, such as `_delete_by_query`."""
    failures = info.get("failures")
    first = failures[0] if isinstance(failures, list) and failures else None
    return first.get("cause") if isinstance(first, dict) else None


# ----------------------------------------------------------------------------------------------------------- status


def _translate_status(error: Any, attempt: Attempt | None) -> ClusterError:
    status = error.status_code
    kind, reason = reason_of(error)
    where = attempt.url if attempt else "OpenSearch"
    request = f"{attempt.method} {attempt.path}" if attempt else "the request"
    if status == 400 and re.search(r"HTTPS? request .*HTTPS", str(error.error), re.IGNORECASE) and attempt is not None:
        return plain_http_to_tls(attempt.url)  # the answer of nginx and Go
    if status == 401:
        return _translate_unauthenticated(where, attempt)
    # 503: the cluster is starting, or without a manager; nobody set that block.
    if status != 503 and kind in ("cluster_block_exception", "index_create_block_exception"):
        return _translate_block(where, request, kind, reason)
    if status == 403 and kind in ("", "security_exception"):
        return _translate_forbidden(where, request, reason, attempt)
    if kind == "index_not_found_exception":
        return ClusterError(
            f"{where}: {reason}", "check the spelling; `osn ingest --index NAME` creates and fills an index"
        )
    if kind == "index_closed_exception":  # its reason is the word "closed"
        return ClusterError(f"{where} refused {request}: the index is closed", "open it first (POST INDEX/_open)")
    if kind == "resource_already_exists_exception":
        return ClusterError(f"{where}: {reason}", "choose another name, or delete the index first")
    if "maxClauseCount" in reason or kind == "too_many_clauses":
        return TooManyClauses(
            f"{where} refused {request}: {reason}",
            "the query has more clauses than OpenSearch allows: shorten it, or raise "
            "indices.query.bool.max_clause_count on the cluster",
        )
    if window := re.search(r"index\.max_(result|rescore|inner_result)_window", reason):
        return ClusterError(
            f"{where} refused {request} ({status}): {reason}",
            f"ask for fewer hits (--size, --limit, a measure with a smaller cut-off, --window), or raise {window[0]} in the "
            "index's settings",
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


def _translate_block(where: str, request: str, kind: str, reason: str) -> ClusterError:
    """The error for a block that applies to every user."""
    blocked = f"{where} is blocked for {request}: {reason}"
    if kind == "index_create_block_exception":
        return ClusterError(
            blocked,
            "no index can be created there: free disk space (`osn doctor` shows it), or take the block back with the "
            "cluster setting cluster.blocks.create_index: null",
        )
    if "read-only-allow-delete" in reason or "read-only / allow delete" in reason:
        return ClusterError(
            blocked,
            "a block of this kind is set when the disk fills up: free space (`osn doctor` shows it), then take the "
            "block back with the index setting index.blocks.read_only_allow_delete: null",
        )
    return ClusterError(blocked, "somebody set this block: look at the settings index.blocks.* and cluster.blocks.*")


def _translate_unauthenticated(where: str, attempt: Attempt | None) -> ClusterError:
    credentials = attempt.credentials if attempt else None
    if credentials == "password":
        return ClusterError(f"{where} rejected the user and password (401)", f"check both: {SET_CREDENTIALS}")
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
        return ClusterError(f"{where} does not allow {request} without credentials (403): {reason}", SET_CREDENTIALS)
    return ClusterError(
        f"{where} does not allow {request} to this user (403): {reason}",
        "the credentials were accepted, the permission is missing: have a role with it mapped to this user",
    )
