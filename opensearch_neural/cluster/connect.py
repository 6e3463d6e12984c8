"""Connect to an OpenSearch cluster: addresses, credentials, TLS, AWS signing, timeouts.

    from opensearch_neural.cluster.connect import connect

    client = connect()                                  # OSN_URL, OSN_USER, OSN_PASSWORD, … from the environment
    client = connect("https://search.example.org:9200")
    client = await connect_async()

A credential comes from the environment, a netrc file or a prompt, never from a command-line value, and is in no
message, log line or repr. Environment: OSN_URL (several: separated by commas), OSN_USER, OSN_PASSWORD, OSN_TOKEN,
OSN_NETRC, OSN_CA, OSN_VERIFY, OSN_TIMEOUT, OSN_RETRIES, OSN_AWS_REGION, OSN_AWS_SERVICE.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import logging
import netrc
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from opensearch_neural.cluster.capabilities import Capabilities, probe, quick_capabilities
from opensearch_neural.cluster.errors import (
    SET_CREDENTIALS,
    Attempt,
    Credentials,
    not_opensearch,
    reason_of,
    translate_errors,
)
from opensearch_neural.errors import ClusterError, InputError, MissingExtra

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch, OpenSearch

__all__ = [
    "Capabilities",
    "ConnectionSettings",
    "authorization",
    "connect",
    "connect_async",
    "connection_options",
    "is_loopback",
    "probe",
    "quick_capabilities",
    "ssl_context",
    "translate_errors",
]

logger = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:9200"  # where `osn node start` listens
AWS_SERVICES = ("es", "aoss")  # managed domains and serverless collections

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class ConnectionSettings:
    """How to reach a cluster. Passwords and tokens are kept out of the repr.

    Attributes:
        urls: one or several nodes of one cluster, `http(s)://host[:port][/prefix]`. Without a port: 9200 for http,
            443 for https, as in opensearch-py. A `user:password@` in a URL is moved to `user` and `password`.
        token: sent as `Authorization: Bearer …`.
        ca: PEM file (or folder) of the authorities to trust instead of the system's.
        verify: False connects without checking the server's certificate.
        aws_region: signs requests with AWS Signature Version 4 when set.
        aws_service: "es" for managed domains, "aoss" for serverless collections.
        timeout: seconds that one request may take.
        retries: how often a request is repeated, on the next node if there are several, after a broken connection or
            the statuses 502, 503 and 504. A request that timed out is not repeated: it may still be running.
        connections: open connections kept to each node; as many requests can run at once.

    Raises:
        InputError: for values that cannot work, or credentials of two kinds.
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    verify: bool = True
    aws_region: str | None = None
    aws_service: str = "es"
    timeout: float = 30.0
    retries: int = 3
    connections: int = 32

    def __post_init__(self) -> None:
        urls = _several(self.urls)
        if not urls:
            raise InputError("no URL of a cluster was given", f"for instance {DEFAULT_URL}")
        parsed = [_parse_url(url) for url in urls]
        self._set("urls", tuple(clean for clean, _, _ in parsed))
        self._take_url_credentials({(user, password) for _, user, password in parsed if user is not None})
        if self.ca is not None:
            self._set("ca", Path(self.ca).expanduser())
        self._validate()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen

    def _take_url_credentials(self, found: set[tuple[str | None, str | None]]) -> None:
        if not found:
            return
        if len(found) > 1:
            raise InputError(
                "the URLs hold different users or passwords", f"one cluster has one user: {SET_CREDENTIALS}"
            )
        if self.user or self.password or self.token:
            raise InputError(
                "credentials are given twice: in the URL and outside it", "take the user and password out of the URL"
            )
        logger.warning(
            "a URL with a user and password shows them to whoever sees the command line or the environment; %s",
            SET_CREDENTIALS,
        )
        ((user, password),) = found
        self._set("user", user)
        self._set("password", password)

    def _validate(self) -> None:
        if self.password is not None and not self.user:
            raise InputError("there is a password but no user", "set OSN_USER as well, or give --user")
        if self.user and self.password is None:
            raise InputError(
                f"there is no password for the user {self.user!r}",
                "set OSN_PASSWORD, name a netrc file that has it in OSN_NETRC, or give --ask-password",
            )
        if self.user and ":" in self.user:
            raise InputError(f"a user name cannot hold a colon: {self.user!r}")
        if self.token is not None and (not self.token or not re.fullmatch(r"[\x21-\x7e]+", self.token)):
            raise InputError(
                "the token is empty or holds blanks, line ends or characters outside ASCII",
                "OSN_TOKEN is the token alone, without the word Bearer",
            )
        kinds = [
            name
            for name, given in [
                ("a user and password", self.user),
                ("a token", self.token),
                ("AWS signing", self.aws_region),
            ]
            if given
        ]
        if len(kinds) > 1:
            raise InputError(f"credentials of two kinds are given: {' and '.join(kinds)}", "keep one of them")
        if self.aws_service not in AWS_SERVICES:
            raise InputError(
                f"{self.aws_service!r} is not an AWS service of OpenSearch",
                "es is for managed domains, aoss for serverless collections",
            )
        if not self.timeout > 0:
            raise InputError(f"the timeout is {self.timeout:g} s, and must be above 0")
        if self.retries < 0:
            raise InputError(f"the number of retries is {self.retries}, and must be 0 or more")
        if self.connections < 1:
            raise InputError(f"the number of connections is {self.connections}, and must be 1 or more")
        if self.ca is not None and not self.ca.exists():
            raise InputError(f"the file of certificate authorities is missing: {self.ca}", "--ca or OSN_CA names it")

    @property
    def credentials(self) -> Credentials:
        """Which kind of credentials is sent."""
        if self.user:
            return "password"
        if self.token:
            return "token"
        return "aws" if self.aws_region else "none"

    @classmethod
    def from_env(cls, **overrides: Any) -> ConnectionSettings:
        """The settings of the environment, with `overrides` (those that are not None) in their place.

        Credentials come from the first of: an override, the URL, OSN_TOKEN or OSN_USER and OSN_PASSWORD, and, where
        none of these is set, the file that OSN_NETRC or NETRC names, or ~/.netrc, if it has an entry for the host.

        Raises:
            InputError: naming the variable that cannot be read.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        values: dict[str, Any] = {}
        if urls := [url for url in re.split(r"[\s,]+", os.environ.get("OSN_URL", "")) if url]:
            values["urls"] = tuple(urls)
        for name, variable in {
            "ca": "OSN_CA",
            "aws_region": "OSN_AWS_REGION",
            "aws_service": "OSN_AWS_SERVICE",
        }.items():
            if value := os.environ.get(variable):
                values[name] = value
        for name, variable, kind in (("timeout", "OSN_TIMEOUT", float), ("retries", "OSN_RETRIES", int)):
            if value := os.environ.get(variable):
                values[name] = _number(variable, value, kind)
        if value := os.environ.get("OSN_VERIFY"):
            values["verify"] = _truth("OSN_VERIFY", value)
        values.update(given)
        if "aws_service" in values and "aws_region" not in values:
            values["aws_region"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if not values["aws_region"]:
                raise InputError("an AWS service is named without a region", "set OSN_AWS_REGION, or give --aws-region")
        _credentials_of_environment(values, given)
        return cls(**values)


def _credentials_of_environment(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Fill in user, password and token from the environment or a netrc file, unless the caller gave credentials."""
    in_given_urls = any("@" in url for url in _several(given.get("urls", ())))
    if in_given_urls or any(given.get(name) for name in ("password", "token", "aws_region")):
        return
    found = {name: os.environ.get(f"OSN_{name.upper()}") or None for name in ("user", "password", "token")}
    if named := given.get("user"):
        # A user named by the caller does not go with the password of another one, nor with a token.
        found = {"user": named, "password": found["password"] if found["user"] in (None, named) else None}
    urls = _several(values.get("urls", DEFAULT_URL))
    elsewhere = values.get("aws_region") or found.get("token") or any("@" in url for url in urls)
    if not found.get("password") and not elsewhere and (entry := _netrc_entry(urls, found["user"])):
        found["user"], found["password"] = entry
    values.update({name: value for name, value in found.items() if value})


def _several(urls: str | Iterable[str]) -> tuple[str, ...]:
    return (urls,) if isinstance(urls, str) else tuple(urls)


def _netrc_entry(urls: Iterable[str], user: str | None) -> tuple[str, str] | None:
    """(user, password) for the hosts of these URLs in a netrc file, or None.

    Only an entry for the very host counts. A `default` entry does not: it would send its password to any server.

    Raises:
        InputError: for a file that is not in netrc form, or that knows some of the hosts and not the others.
    """
    named = os.environ.get("OSN_NETRC") or os.environ.get("NETRC")
    path = Path(named).expanduser() if named else Path.home() / ".netrc"
    if not path.is_file():
        if os.environ.get("OSN_NETRC"):
            raise InputError(f"the netrc file is missing: {path}", "OSN_NETRC names it")
        return None
    try:
        hosts = netrc.netrc(str(path)).hosts
    except netrc.NetrcParseError as error:
        # Its message may quote the word that it did not expect, which may be a password.
        raise InputError(
            f"{path}, line {error.lineno}: not in netrc form",
            "each entry is: machine HOST login USER password PASSWORD",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {type(error).__name__}") from error
    found: dict[str, tuple[str, str] | None] = {}
    for url in urls:
        parts = urlsplit(_parse_url(url)[0])
        entry = hosts.get(f"{parts.hostname}:{parts.port}") or hosts.get(str(parts.hostname))
        matches = entry is not None and bool(entry[2]) and user in (None, entry[0])
        found[str(parts.hostname)] = (entry[0], entry[2] or "") if entry is not None and matches else None
    entries = {entry for entry in found.values() if entry is not None}
    if not entries:
        return None
    if len(entries) > 1 or None in found.values():
        missing = [host for host, entry in found.items() if entry is None]
        raise InputError(
            f"{path} has no entry for {', '.join(missing)}"
            if missing
            else f"{path} has different users for {', '.join(found)}",
            "the nodes of one cluster share one user: give each host the same entry",
        )
    if os.name == "posix" and path.stat().st_mode & 0o077:
        logger.warning("%s holds passwords and can be read by other users: chmod 600 %s", path, path)
    return entries.pop()


def _parse_url(url: str) -> tuple[str, str | None, str | None]:
    """(URL without credentials, user, password). No message of it shows what stands before an @."""
    _, at, tail = url.rpartition("@")
    shown = f"{url.split('://', 1)[0] + '://' if '://' in url else ''}***@{tail}" if at else url
    expected = f"a URL is http://HOST:PORT or https://HOST:PORT, for instance {DEFAULT_URL}"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise InputError(f"not a URL of a cluster: {shown!r}", expected) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"not a URL of a cluster: {shown!r}", expected)
    if re.search(r"[\s\x00-\x1f]", parts.netloc.rpartition("@")[2]):
        raise InputError(f"not a URL of a cluster: {shown!r}", expected)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if parts.scheme == "https" else 9200)
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}", user, password


def _number(variable: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number of seconds"
        raise InputError(f"{variable} is {value!r}, and must be {wanted}") from None


def _truth(variable: str, value: str) -> bool:
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise InputError(f"{variable} is {value!r}, and must be true or false")


# ---------------------------------------------------------------------------------------------------------- connect


def connect(
    url: str | Iterable[str] | None = None, *, settings: ConnectionSettings | None = None, check: bool = True
) -> OpenSearch:
    """A client of the cluster at `url`, or of the one that `settings` or the environment name.

    Args:
        check: ask the server once who it is, so that a wrong address, password or certificate is met here and not in
            the middle of the work. Costs one request.

    Raises:
        InputError: for settings that cannot work.
        ClusterError: when `check` finds no OpenSearch there, or it refuses the credentials.
        MissingExtra: for AWS signing without boto3.
    """
    settings = _settings(url, settings)
    from opensearchpy import OpenSearch

    client = OpenSearch(**_client_arguments(settings, asynchronous=False))
    if check:
        transport = client.transport
        transport.max_retries = len(settings.urls) - 1  # each node once: repeating a refusal only delays the message
        try:
            with translate_errors():
                _check(client.info, settings)
        except BaseException:
            client.close()
            raise
        transport.max_retries = settings.retries
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
        client.transport.max_retries = len(settings.urls) - 1
        try:
            with translate_errors():
                await _check_async(client, settings)
        except BaseException:
            await client.close()
            raise
        client.transport.max_retries = settings.retries
    return client


def _settings(url: str | Iterable[str] | None, settings: ConnectionSettings | None) -> ConnectionSettings:
    urls = None if url is None else _several(url)
    if settings is None:
        return ConnectionSettings.from_env(urls=urls)
    return settings if urls is None else replace(settings, urls=urls)


def _client_arguments(settings: ConnectionSettings, *, asynchronous: bool) -> dict[str, Any]:
    _warn(settings)
    arguments: dict[str, Any] = {
        "hosts": [_host(url) for url in settings.urls],
        "connection_class": _connection_class(asynchronous, signed=settings.credentials == "aws"),
        "osn_credentials": settings.credentials,
        "headers": authorization(settings),
        "timeout": settings.timeout,
        "max_retries": settings.retries,
        "retry_on_timeout": False,
        "pool_maxsize": settings.connections,
    }
    if any(url.startswith("https:") for url in settings.urls):
        arguments["ssl_context"] = ssl_context(settings)
    if settings.credentials == "aws":
        arguments["http_auth"] = _aws_signer(settings, asynchronous)
    return arguments


def _host(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    host: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "use_ssl": parts.scheme == "https"}
    if parts.path:
        host["url_prefix"] = parts.path
    return host


def _warn(settings: ConnectionSettings) -> None:
    if not settings.verify and any(url.startswith("https:") for url in settings.urls):
        logger.warning(
            "TLS certificates are not checked (--insecure or OSN_VERIFY): whoever sits in between can read and change "
            "everything, the credentials included"
        )
    open_urls = [url for url in settings.urls if url.startswith("http:") and not is_loopback(url)]
    if open_urls and settings.credentials in ("password", "token"):
        logger.warning("credentials are sent in clear text to %s: use https", ", ".join(open_urls))


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def authorization(settings: ConnectionSettings) -> dict[str, str]:
    """The header that carries the credentials; empty without any, and with AWS signing, which differs by request.

    A header of our own: opensearch-py encodes a user and password as Latin-1, and not every password is.
    """
    if settings.credentials == "password":
        pair = f"{settings.user}:{settings.password}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    if settings.credentials == "token":
        return {"authorization": f"Bearer {settings.token}"}
    return {}


def ssl_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """How TLS is checked under these settings. Raises InputError where `ca` cannot be read."""
    ca = settings.ca
    try:
        if ca is None:
            context = ssl.create_default_context()
            import certifi

            context.load_verify_locations(certifi.where())  # Python on macOS and Windows may bring no authorities
        elif ca.is_dir():
            context = ssl.create_default_context(capath=str(ca))
        else:
            context = ssl.create_default_context(cafile=str(ca))
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{ca} cannot be read as certificates of authorities: {error}", "it must be a file in PEM form"
        ) from error
    if not settings.verify:
        import urllib3

        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # said once by `_warn`, not per request
    return context


def _aws_signer(settings: ConnectionSettings, asynchronous: bool) -> Callable[..., dict[str, str]]:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise MissingExtra("signing requests for AWS", "aws") from None
    from opensearchpy import AWSV4SignerAsyncAuth, Urllib3AWSV4SignerAuth

    try:
        credentials = boto3.Session().get_credentials()
    except BotoCoreError as error:
        raise ClusterError(f"the AWS credentials cannot be read: {error}", "check AWS_PROFILE and ~/.aws") from error
    if credentials is None:
        raise ClusterError(
            "there are no AWS credentials to sign requests with",
            "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws sso login`",
        )
    if not asynchronous:
        return Urllib3AWSV4SignerAuth(credentials, settings.aws_region, settings.aws_service)
    sign = AWSV4SignerAsyncAuth(credentials, str(settings.aws_region), settings.aws_service)

    def sign_without_headers(method: str, url: str, body: Any = None, headers: Any = None) -> dict[str, str]:
        # opensearch-py hands over all headers here, `connection` among them, which proxies may drop; a signature over
        # a dropped header does not hold. The synchronous signer signs host and x-amz-* only, and so does this.
        return sign(method, url, body)

    return sign_without_headers


@functools.cache
def _connection_class(asynchronous: bool, signed: bool) -> type:
    """opensearch-py's connection, made to say in its exceptions which request failed, and to leave the log alone.

    opensearch-py logs each failure as a warning with a traceback, which Python prints to stderr where no logging is
    configured, although the exception that follows says the same.
    """
    from opensearchpy import TransportError

    base: type = _base_connection(asynchronous, signed)

    class Described(base):
        def __init__(self, *args: Any, osn_credentials: Credentials = "none", **kwargs: Any) -> None:
            self.osn_credentials = osn_credentials
            super().__init__(*args, **kwargs)

        def describe(self, error: Any, method: str, path: str, timeout: float | None) -> None:
            error.osn_attempt = Attempt(
                url=self.host + self.url_prefix,
                method=method,
                path=path,
                timeout=timeout or self.timeout,
                credentials=self.osn_credentials,
            )

        def log_request_fail(self, method: str, full_url: str, *args: Any, **kwargs: Any) -> None:
            logger.debug("%s %s failed", method, full_url)

    class Connection(Described):
        def perform_request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().perform_request(method, url, *args, **kwargs)
            except TransportError as error:
                self.describe(error, method, url, kwargs.get("timeout"))
                raise

    class AsyncConnection(Described):
        async def perform_request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().perform_request(method, url, *args, **kwargs)
            except TransportError as error:
                self.describe(error, method, url, kwargs.get("timeout"))
                raise

    return AsyncConnection if asynchronous else Connection


def _base_connection(asynchronous: bool, signed: bool) -> Any:
    if not asynchronous:
        from opensearchpy import Urllib3HttpConnection

        return Urllib3HttpConnection
    from opensearchpy import AIOHttpConnection, AsyncHttpConnection

    # Only the first of the two can sign, and only the second reads the body of an error.
    return AsyncHttpConnection if signed else AIOHttpConnection


# ------------------------------------------------------------------------------------------------------------ check


def _check(info: Callable[[], Any], settings: ConnectionSettings) -> None:
    from opensearchpy.exceptions import SerializationError, TransportError

    try:
        answer = info()
    except SerializationError:
        raise not_opensearch(settings.urls[0], "its answer is not JSON") from None
    except TransportError as error:
        if _is_opensearch_all_the_same(error, settings):
            return
        raise
    _identify(answer, settings.urls[0])


async def _check_async(client: AsyncOpenSearch, settings: ConnectionSettings) -> None:
    from opensearchpy.exceptions import SerializationError, TransportError

    try:
        answer = await client.info()
    except SerializationError:
        raise not_opensearch(settings.urls[0], "its answer is not JSON") from None
    except TransportError as error:
        if _is_opensearch_all_the_same(error, settings):
            return
        raise
    _identify(answer, settings.urls[0])


def _is_opensearch_all_the_same(error: Any, settings: ConnectionSettings) -> bool:
    """Whether an error answer to `GET /` comes from an OpenSearch that can be worked with.

    Raises:
        ClusterError: when it comes from something that is not OpenSearch.
    """
    status = error.status_code
    kind, reason = reason_of(error)
    if status == 403 and "cluster:monitor/main" in reason:
        return True  # authenticated, and allowed its indices only
    if status == 404 and settings.aws_service == "aoss":
        return True  # serverless collections do not serve `GET /`
    attempt: Attempt | None = getattr(error, "osn_attempt", None)
    known = status in (400, 401, 403, 413, 429, 502, 503, 504)
    if isinstance(status, int) and not known and not kind:
        evidence = f"it answers GET / with HTTP {status}{', a redirect' if 300 <= status < 400 else ''}"
        raise not_opensearch(attempt.url if attempt else settings.urls[0], evidence)
    return False


def _identify(answer: Any, url: str) -> None:
    """
    Raises:
        ClusterError: when the answer to `GET /` is not that of an OpenSearch.
    """
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict):
        raise not_opensearch(url, "its answer to GET / names no version")
    tagline = str(answer.get("tagline", ""))
    if version.get("distribution") == "opensearch" or "opensearch" in tagline.lower():
        return
    if "for Search" in tagline or "build_flavor" in version:
        raise ClusterError(
            f"what answers at {url} is Elasticsearch {version.get('number', '')}, not OpenSearch",
            "osn works with OpenSearch 2 and 3; `osn node start` starts a local one",
        )
    raise not_opensearch(url, "its answer to GET / names no OpenSearch distribution")


# --------------------------------------------------------------------------------------------------- command options


def connection_options(command: Command) -> Command:
    """Add the options that name a cluster to a click command, which gets them as `connection: ConnectionSettings`.

    Exceptions of opensearch-py that the command lets through become `ClusterError`.
    """
    import click

    options = [
        click.option(
            "--url", "osn_urls", multiple=True, metavar="URL", help="Address of a node (OSN_URL); repeatable."
        ),
        click.option(
            "--user", "osn_user", metavar="NAME", help="User (OSN_USER); the password: OSN_PASSWORD or netrc."
        ),
        click.option("--ask-password", "osn_ask", is_flag=True, help="Ask for the password."),
        click.option("--ca", "osn_ca", metavar="FILE", help="PEM file of the authorities to trust (OSN_CA)."),
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
    def with_connection(
        *args: Any,
        osn_urls: tuple[str, ...],
        osn_user: str | None,
        osn_ask: bool,
        osn_ca: str | None,
        osn_insecure: bool,
        osn_aws_region: str | None,
        osn_aws_service: str | None,
        osn_timeout: float | None,
        **kwargs: Any,
    ) -> Any:
        user, password = _ask_password(osn_user) if osn_ask else (osn_user, None)
        connection = ConnectionSettings.from_env(
            urls=osn_urls or None,
            user=user,
            password=password,
            ca=osn_ca,
            verify=False if osn_insecure else None,
            aws_region=osn_aws_region,
            aws_service=osn_aws_service,
            timeout=osn_timeout,
        )
        with translate_errors():
            return command(*args, connection=connection, **kwargs)

    decorated: Any = with_connection
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _ask_password(user: str | None) -> tuple[str, str]:
    import click

    if not sys.stdin.isatty():
        raise InputError(
            "there is no terminal to ask for the password on", "set OSN_PASSWORD, or name a netrc file in OSN_NETRC"
        )
    user = user or os.environ.get("OSN_USER") or click.prompt("User", err=True)
    return str(user), click.prompt(f"Password of {user}", hide_input=True, err=True)
