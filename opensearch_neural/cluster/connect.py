"""Connect to an OpenSearch cluster.

from opensearch_neural import connect, connect_async

client = connect()                                  # OSN_URL, OSN_USER, OSN_PASSWORD, … from the environment
client = connect("https://search.example.org:9200")
client = await connect_async()
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opensearch_neural.cluster.addresses import as_urls
from opensearch_neural.cluster.authentication import authorization, aws_signer, ssl_context, warn_of_risks
from opensearch_neural.cluster.credentials import Credentials
from opensearch_neural.cluster.errors import reason_of, translate_errors
from opensearch_neural.cluster.network_errors import Attempt, not_opensearch
from opensearch_neural.cluster.patience import CONNECT_SECONDS, patience, transport_class
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, MissingExtra

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch, OpenSearch

logger = logging.getLogger(__name__)


def connect(
    url: str | Iterable[str] | None = None, *, settings: ConnectionSettings | None = None, check: bool = True
) -> OpenSearch:
    """A client of the cluster at `url`, or of the cluster that `settings` or the environment name.

    Args:
        check: send one request first, so that a wrong address, password or certificate fails here and not in the
            middle of the work.

    Raises:
        InputError: for settings that cannot work.
        ClusterError: if `check` finds no OpenSearch, or OpenSearch refuses the credentials.
        MissingExtra: for AWS signing without boto3.
    """
    settings = _settings(url, settings)
    from opensearchpy import OpenSearch

    client = OpenSearch(**_client_arguments(settings, asynchronous=False))
    if check:
        try:
            with patience(0), _first_answer(client, settings):  # waiting would only delay the message
                _identify(client.info(), _asked(client))
        except BaseException:
            client.close()
            raise
    return client


async def connect_async(
    url: str | Iterable[str] | None = None, *, settings: ConnectionSettings | None = None, check: bool = True
) -> AsyncOpenSearch:
    """As `connect`, with an asynchronous client.

    Raises:
        MissingExtra: without aiohttp, in addition to what `connect` raises.
    """
    settings = _settings(url, settings)
    try:
        from opensearchpy import AsyncOpenSearch
    except ImportError:
        raise MissingExtra("the asynchronous client", "async") from None

    client = AsyncOpenSearch(**_client_arguments(settings, asynchronous=True))
    if check:
        try:
            with patience(0), _first_answer(client, settings):
                _identify(await client.info(), _asked(client))
        except BaseException:
            await client.close()
            raise
    return client


def _settings(url: str | Iterable[str] | None, settings: ConnectionSettings | None) -> ConnectionSettings:
    urls = None if url is None else as_urls(url)
    if settings is None:
        return ConnectionSettings.from_env(urls=urls)
    return settings if urls is None else replace(settings, urls=urls)


def _client_arguments(settings: ConnectionSettings, *, asynchronous: bool) -> dict[str, Any]:
    warn_of_risks(settings)
    arguments: dict[str, Any] = {
        "hosts": [_host(url) for url in settings.urls],
        "connection_class": _connection_class(asynchronous, signed=settings.credentials == "aws"),
        "osn_credentials": settings.credentials,
        "headers": authorization(settings),
        "timeout": settings.timeout,
        "transport_class": transport_class(asynchronous=asynchronous),
        "osn_patience": settings.patience,
        "max_retries": len(settings.urls) - 1,  # try each node once
        "retry_on_timeout": False,
        "pool_maxsize": settings.connections,
    }
    if any(url.startswith("https:") for url in settings.urls):
        arguments["ssl_context"] = ssl_context(settings)
    if settings.credentials == "aws":
        arguments["http_auth"] = aws_signer(settings, asynchronous=asynchronous)
    return arguments


def _host(url: str) -> dict[str, Any]:
    """opensearch-py would cut a prefix at a semicolon."""
    parts = urlsplit(url)
    host: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "use_ssl": parts.scheme == "https"}
    if parts.path:
        host["url_prefix"] = parts.path
    return host


@functools.cache
def _connection_class(asynchronous: bool, signed: bool) -> Any:
    """opensearch-py's connection, whose exceptions also hold the failed request, and which does not log failures."""
    if not asynchronous:
        from opensearchpy import Urllib3HttpConnection

        return _synchronous(Urllib3HttpConnection)
    from opensearchpy import AIOHttpConnection, AsyncHttpConnection

    # Only AsyncHttpConnection can sign, and only AIOHttpConnection reads the body of an error.
    return _asynchronous(AsyncHttpConnection if signed else AIOHttpConnection)


class _Described:
    """A part of a connection class: it can describe a failed request in its exception.

    opensearch-py logs each failure as a warning with a traceback. Without a logging configuration Python prints it to
    stderr, although the exception says the same.
    """

    def __init__(self, *args: Any, osn_credentials: Credentials = "none", **kwargs: Any) -> None:
        self.osn_credentials = osn_credentials
        super().__init__(*args, **kwargs)

    def describe(self: Any, error: Any, method: str, path: str, timeout: float | None) -> None:
        error.osn_connection = self
        error.osn_attempt = Attempt(
            url=self.host + self.url_prefix,
            method=method,
            path=path,
            timeout=timeout or self.timeout,
            credentials=self.osn_credentials,
        )

    def log_request_fail(self, method: str, full_url: str, *args: Any, **kwargs: Any) -> None:
        logger.debug("%s %s failed", method, full_url)


def _synchronous(base: Any) -> Any:
    """opensearch-py's class `base`, which describes failures, and waits CONNECT_SECONDS at most to be connected."""
    from opensearchpy import TransportError
    from urllib3 import Timeout

    class DescribedConnection(_Described, base):
        def perform_request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            seconds = kwargs.pop("timeout", None) or self.timeout
            limits = Timeout(connect=min(seconds, CONNECT_SECONDS), read=seconds)
            try:
                return super().perform_request(method, url, *args, timeout=limits, **kwargs)
            except TransportError as error:
                self.describe(error, method, url, seconds)
                raise

    return DescribedConnection


def _asynchronous(base: Any) -> Any:
    """As `_synchronous`, for asynchronous connections."""
    from aiohttp import ClientTimeout, ServerTimeoutError
    from opensearchpy import TransportError
    from opensearchpy.exceptions import ConnectionError

    class AsyncConnection(_Described, base):
        async def perform_request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().perform_request(method, url, *args, **kwargs)
            except TransportError as error:
                if not isinstance(error.info, ServerTimeoutError):
                    self.describe(error, method, url, kwargs.get("timeout"))
                    raise
                # Nothing was sent, so the next node may be asked. The synchronous connection says it so, too.
                unconnected = ConnectionError("N/A", error.error, error.info)
                self.describe(unconnected, method, url, kwargs.get("timeout"))
                raise unconnected from error

        async def _create_aiohttp_session(self) -> None:
            await super()._create_aiohttp_session()
            request = self.session.request

            def limited(*args: Any, timeout: Any, **kwargs: Any) -> Any:
                # A little more for the whole, so that it is the connection that ends if it does not come about.
                limits = ClientTimeout(
                    total=1.01 * timeout.total,
                    sock_connect=min(timeout.total, CONNECT_SECONDS),
                    ceil_threshold=float("inf"),  # else longer limits end at whole seconds, both at the same one
                )
                return request(*args, timeout=limits, **kwargs)

            self.session.request = limited

    return AsyncConnection


# ------------------------------------------------------------------------------------------------------------ check


@contextmanager
def _first_answer(client: OpenSearch | AsyncOpenSearch, settings: ConnectionSettings) -> Iterator[None]:
    """Inside, errors of the first request are translated. Errors from an OpenSearch that is usable anyway are ignored."""
    from opensearchpy.exceptions import SerializationError, TransportError

    client.transport.retry_on_timeout = (
        True  # the next node may be asked: `GET /` does nothing that could be done twice
    )
    with translate_errors():
        try:
            yield
        except SerializationError:
            raise not_opensearch(_asked(client), "its answer is not JSON") from None
        except TransportError as error:
            if not _is_opensearch_all_the_same(error, settings):
                raise
        finally:
            client.transport.retry_on_timeout = False


def _asked(client: OpenSearch | AsyncOpenSearch) -> str:
    """The URL of the node that the last request went to."""
    transport: Any = client.transport
    return str(transport.osn_asked.host + transport.osn_asked.url_prefix)


def _is_opensearch_all_the_same(error: Any, settings: ConnectionSettings) -> bool:
    """Whether an error answer to `GET /` comes from an OpenSearch that is usable anyway. Raises ClusterError if it is from
    something else."""
    status = error.status_code
    kind, reason = reason_of(error)
    if status == 403 and "cluster:monitor/main" in reason:
        return True  # authenticated, with permissions only on its indexes
    if status == 404 and settings.aws_service == "aoss":
        return True  # serverless collections do not serve `GET /`
    known = status in (400, 401, 403, 413, 429, 502, 503, 504)
    if isinstance(status, int) and not known and not kind:
        evidence = f"it answers GET / with HTTP {status}{', a redirect' if 300 <= status < 400 else ''}"
        attempt: Attempt | None = getattr(error, "osn_attempt", None)
        raise not_opensearch(attempt.url if attempt else settings.urls[0], evidence)
    return False


def _identify(answer: Any, url: str) -> None:
    """Raise ClusterError if the answer to `GET /` does not come from OpenSearch."""
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict):
        raise not_opensearch(url, "its answer to GET / names no version")
    tagline = str(answer.get("tagline", ""))
    if version.get("distribution") == "opensearch" or "opensearch" in tagline.lower():
        return
    if "for Search" in tagline or "build_flavor" in version:
        raise ClusterError(
            f"{url} is Elasticsearch {version.get('number', '')}, not OpenSearch",
            "osn works with OpenSearch 2 and 3; `osn node start` starts a local one",
        )
    raise not_opensearch(url, "its answer to GET / names no OpenSearch distribution")
