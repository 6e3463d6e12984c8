"""How long a request that fails for a passing reason is tried again: one policy for everything that `connect` returns.

opensearch-py repeats a failed request three times at once, which is too short for a node that restarts and too often for
one that is overloaded. Here each node is asked once, then again after growing, random waits, until the patience is over.

    client = connect(settings=ConnectionSettings(patience=5))     # seconds; the default
    with patience(300):                                           # in this thread or task
        client.indices.create(index="docs", body=body)

What has a policy of its own for its requests, as the bulk writer has, sends them under `patience(0)`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
"""The most seconds that a connection may take to be there, however long its answer may take."""

_patience: ContextVar[float | None] = ContextVar("patience", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Have this patience for the requests of this thread or task, whatever their client's settings say."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def may_pass_later(status: int) -> bool:
    """Whether the status of a request, or of one item in it, says "not now" rather than "not this".

    All of 5xx do: a full disk or a closing shard answers 500, proxies have numbers of their own, and a document that
    OpenSearch will never take gets a 400.
    """
    return status in (408, 429) or status >= 500


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter: attempt n waits a random time up to base · 2ⁿ seconds, at most `cap`."""

    patience: float = 300.0
    """Seconds after which a request that still fails is given up; long enough for a node to be restarted."""
    base: float = 0.5
    cap: float = 30.0
    item_patience: float = 30.0
    """Seconds after which a document that fails while its neighbours pass is given up alone."""

    def wait(self, attempt: int) -> float:
        return random.uniform(0, min(self.cap, self.base * 2 ** min(attempt, 16)))


def _passes(error: Any) -> bool:
    """Whether a request that failed so may be sent again at once or soon.

    Not one that timed out: it may still be running. Not a certificate or a host name that is wrong: they stay so.
    """
    from opensearchpy import exceptions

    if isinstance(error, exceptions.ConnectionTimeout | exceptions.SSLError):
        return False
    if isinstance(error, exceptions.ConnectionError):
        cause: BaseException | None = error.info if isinstance(error.info, BaseException) else None
        while cause is not None:
            if isinstance(cause, socket.gaierror):
                return False
            reason = getattr(cause, "reason", None)
            cause = reason if isinstance(reason, BaseException) else cause.__cause__
        return True
    return error.status_code in (429, 502, 503, 504)


class _Attempts:
    """The attempts at one request."""

    def __init__(self, seconds: float) -> None:
        seconds = seconds if (own := _patience.get()) is None else own
        self.policy = RetryPolicy(seconds)
        self.deadline = time.monotonic() + seconds
        self.number = 0

    def wait_after(self, error: Any, request: str) -> float | None:
        """Seconds to wait before the next attempt; None if there is none."""
        self.number += 1
        wait = self.policy.wait(self.number)
        if time.monotonic() + wait > self.deadline or not _passes(error):
            return None
        logger.info("trying %s again in %.1f s (%s)", request, wait, error.status_code)
        return wait


@functools.cache
def transport_class(*, asynchronous: bool) -> type:
    """opensearch-py's transport with `osn_patience`, the seconds for which a request is tried again."""
    from opensearchpy import Transport
    from opensearchpy.exceptions import TransportError

    if not asynchronous:

        class PatientTransport(Transport):
            def __init__(self, *args: Any, osn_patience: float, **kwargs: Any) -> None:
                self.osn_patience = osn_patience
                super().__init__(*args, **kwargs)

            def perform_request(self, method: str, url: str, params: Any = None, *args: Any, **kwargs: Any) -> Any:
                attempts = _Attempts(self.osn_patience)
                while True:
                    try:
                        # A copy: opensearch-py takes its own parameters out.
                        return super().perform_request(method, url, dict(params or {}), *args, **kwargs)
                    except TransportError as error:
                        wait = attempts.wait_after(error, f"{method} {url}")
                        if wait is None:
                            raise
                    time.sleep(wait)

        return PatientTransport

    from opensearchpy import AsyncTransport

    class PatientAsyncTransport(AsyncTransport):
        def __init__(self, *args: Any, osn_patience: float, **kwargs: Any) -> None:
            self.osn_patience = osn_patience
            super().__init__(*args, **kwargs)

        async def perform_request(self, method: str, url: str, params: Any = None, *args: Any, **kwargs: Any) -> Any:
            attempts = _Attempts(self.osn_patience)
            while True:
                try:
                    return await super().perform_request(method, url, dict(params or {}), *args, **kwargs)
                except TransportError as error:
                    wait = attempts.wait_after(error, f"{method} {url}")
                    if wait is None:
                        raise
                await asyncio.sleep(wait)

    return PatientAsyncTransport
