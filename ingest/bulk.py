"""Write documents through the `_bulk` API, retrying what may succeed later.

opensearch-py's own helpers retry status 429 alone (`streaming_bulk`) or nothing (`parallel_bulk`); an ingest that must not
lose a document also has to survive lost connections, restarting nodes and shards that are not there yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from opensearch_neural.cluster.errors import reason_of, translate
from opensearch_neural.cluster.patience import RetryPolicy, may_pass_later, patience
from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Action:
    """One document to index: its id and its source as JSON bytes (vectors included)."""

    id: str
    source: bytes

    def head(self) -> bytes:
        return b'{"index":{"_id":' + orjson.dumps(self.id) + b"}}\n"

    def size(self) -> int:
        """Bytes in a request."""
        return len(self.head()) + len(self.source) + 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that OpenSearch will not take: the position of its action, the status and the reason it gave."""

    position: int
    status: int
    reason: str


@dataclass
class Outcome:
    created: int = 0
    updated: int = 0
    failures: list[Failure] = field(default_factory=list)
    retries: int = 0


class Stopped(Exception):
    """The writer was told to stop while it waited to try again."""


def chunks(actions: Sequence[Action], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds [start, end) of runs of actions of at most `most_bytes` each; a larger action stands alone."""
    start, size = 0, 0
    for position, action in enumerate(actions):
        if position > start and size + action.size() > most_bytes:
            yield start, position
            start, size = position, 0
        size += action.size()
    if start < len(actions):
        yield start, len(actions)


class BulkWriter:
    """Writes actions to one index. Safe to call from several threads at once.

    Args:
        chunk_bytes: the most bytes of one request. OpenSearch refuses requests over 100 MB; 5 to 15 MB serve best.
        stop: an event that ends the waiting between attempts.
    """

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        *,
        policy: RetryPolicy | None = None,
        chunk_bytes: int = 8 << 20,
        request_timeout: float = 120.0,
        stop: threading.Event | None = None,
    ) -> None:
        self.client = client
        self.index = index
        self.policy = policy or RetryPolicy()
        self.chunk_bytes = chunk_bytes
        self.request_timeout = request_timeout
        self.stop = stop or threading.Event()

    def write(self, actions: Sequence[Action]) -> Outcome:
        """Index all actions; returns what became of them.

        A document that OpenSearch refuses for good is returned as a Failure, with its position in `actions`.

        Raises:
            ClusterError: the cluster did not take the documents within the policy's attempts, or refuses all writes
                (permissions, a missing index). Nothing is known to be lost: writing the same actions again is safe.
            Stopped: `stop` was set between attempts.
        """
        outcome = Outcome()
        for start, end in chunks(actions, self.chunk_bytes):
            self._write_chunk(actions, list(range(start, end)), outcome)
        return outcome

    def _write_chunk(self, actions: Sequence[Action], positions: list[int], outcome: Outcome) -> None:
        deadline = time.monotonic() + self.policy.patience
        attempt = 0
        while True:
            status, answer = self._send([actions[position] for position in positions])
            if status == 413 and len(positions) > 1:
                # Larger than the cluster's http.max_content_length: halves may pass.
                middle = len(positions) // 2
                self._write_chunk(actions, positions[:middle], outcome)
                self._write_chunk(actions, positions[middle:], outcome)
                return
            if status == 413:
                reason = "the document is larger than the cluster's http.max_content_length"
                outcome.failures.append(Failure(positions[0], 413, reason))
                return
            if status == 200:
                again, reason = self._sort_items(answer["items"], positions, outcome)
                if not again:
                    return
                if len(again) < len(positions):
                    deadline = time.monotonic() + self.policy.patience
                positions = again
            else:
                reason = answer
            attempt += 1
            wait = self.policy.wait(attempt)
            if time.monotonic() + wait > deadline:
                raise ClusterError(
                    f"OpenSearch did not take {len(positions)} documents for {self.index!r}, "
                    f"tried {attempt} times in {self.policy.patience:.0f} s: {reason}",
                    "look at the cluster's health and disk; the same command again continues where this one stopped",
                )
            outcome.retries += 1
            log.warning("trying %d documents again in %.1f s (%s)", len(positions), wait, reason)
            if self.stop.wait(wait):
                raise Stopped

    def _send(self, actions: Sequence[Action]) -> tuple[int, Any]:
        """(200, the parsed answer), (413, …), or (a status that may pass, reason); status 0 where no answer came.

        Raises ClusterError for every other status.
        """
        from opensearchpy.exceptions import ConnectionError as LostConnection
        from opensearchpy.exceptions import SerializationError, TransportError

        lines = bytearray()
        for action in actions:
            lines += action.head() + action.source + b"\n"
        try:
            with patience(0):  # the policy's attempts are the only ones
                answer = self.client.transport.perform_request(
                    "POST",
                    f"/{self.index}/_bulk",
                    params={
                        "request_timeout": self.request_timeout,
                        # For a shard that is not there: waiting is better done here, where it can be interrupted.
                        "timeout": "10s",
                        "require_alias": "false",
                    },
                    headers={"content-type": "application/x-ndjson"},
                    body=bytes(lines),
                )
        except LostConnection as error:  # timeouts included
            return 0, f"connection lost: {type(error.info).__name__ if error.info else error.error}"
        except SerializationError:
            # Cut short on its way, or a proxy's own page.
            return 0, "the answer is not JSON"
        except TransportError as error:
            status = int(error.status_code)
            if may_pass_later(status) or status == 413:
                return status, f"status {status}: {reason_of(error)[1]}"
            raise translate(error) or ClusterError(str(error)) from error
        if not isinstance(answer, dict) or len(answer.get("items", ())) != len(actions):
            return 0, "the answer does not list the documents that were sent"
        return 200, answer

    def _sort_items(
        self, items: Sequence[dict[str, Any]], positions: list[int], outcome: Outcome
    ) -> tuple[list[int], str]:
        """Count what was written, keep what failed for good; returns the positions to try again, and why."""
        again, reason = [], ""
        for position, item in zip(positions, items, strict=True):
            result = item["index"]
            status = result["status"]
            if status in (200, 201):
                outcome.created += status == 201
                outcome.updated += status == 200
            elif may_pass_later(status):
                again.append(position)
                reason = f"status {status}: {_reason(result)}"
            elif status in (403, 404):
                # A write block, missing permissions, a deleted index: no document would pass.
                raise ClusterError(
                    f"OpenSearch refuses to write to {self.index!r}: {_reason(result)}",
                    "remove the block or restore the index; the same command again continues",
                )
            else:
                outcome.failures.append(Failure(position, status, _reason(result)))
        return again, reason


def _reason(result: dict[str, Any]) -> str:
    error = result.get("error", {})
    parts = [str(error.get("reason", error))]
    cause = error.get("caused_by")
    while isinstance(cause, dict):
        parts.append(str(cause.get("reason")))
        cause = cause.get("caused_by")
    return ": ".join(dict.fromkeys(parts))
