"""How a client identifies itself, and how it checks the server: headers, AWS signatures, TLS."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opensearch_neural.cluster.addresses import is_loopback
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError, MissingExtra

logger = logging.getLogger(__name__)


def authorization(settings: ConnectionSettings) -> dict[str, str]:
    """The header with the credentials; empty without credentials, and with AWS signing, which signs each request.

    opensearch-py would encode user and password as Latin-1, which not every password fits; this header uses UTF-8.
    """
    if settings.credentials == "password":
        pair = f"{settings.user}:{settings.password}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    if settings.credentials == "token":
        return {"authorization": f"Bearer {settings.token}"}
    return {}


def ssl_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """The TLS context for these settings, with the client's own certificate. Raises InputError for a bad file."""
    ca = settings.ca
    try:
        if ca is None:
            context = ssl.create_default_context()
            import certifi

            context.load_verify_locations(certifi.where())  # Python on macOS and Windows may have no authorities
        elif ca.is_dir():
            context = ssl.create_default_context(capath=str(ca))
        else:
            context = ssl.create_default_context(cafile=str(ca))
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{ca} cannot be read as certificates of authorities: {error}", "it must be a file in PEM form"
        ) from error
    if settings.client_cert is not None:
        _load_client_certificate(context, settings.client_cert, settings.client_key)
    if not settings.verify:
        import urllib3

        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(
            urllib3.exceptions.InsecureRequestWarning
        )  # `warn_of_risks` warns once instead of at each request
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    try:
        # Without a password OpenSSL would ask for one on the terminal, if there is any.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InputError(
            f"{certificate}{f' and {key}' if key else ''} cannot be read as a client certificate and its key: {error}",
            "both must be in PEM form, belong together, and the key must not need a password",
        ) from error


def aws_signer(settings: ConnectionSettings, *, asynchronous: bool) -> Callable[..., dict[str, str]]:
    """The function that signs each request of a client for AWS. Raises ClusterError without AWS credentials."""
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
        # opensearch-py passes all headers here, including `connection`, which proxies may drop; then the signature would be
        # invalid. The synchronous signer signs only host and x-amz-*, and so does this.
        return sign(method, url, body)

    return sign_without_headers


def warn_of_risks(settings: ConnectionSettings) -> None:
    """Warn if certificates are not checked, and if credentials are sent in clear text."""
    if not settings.verify and any(url.startswith("https:") for url in settings.urls):
        logger.warning(
            "TLS certificates are not checked (--insecure or OSN_VERIFY): whoever sits in between can read and change "
            "everything, the credentials included"
        )
    open_urls = [url for url in settings.urls if url.startswith("http:") and not is_loopback(url)]
    if open_urls and settings.credentials in ("password", "token"):
        logger.warning("credentials are sent in clear text to %s: use https", ", ".join(open_urls))
