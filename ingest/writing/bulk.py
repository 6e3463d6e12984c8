"""Write documents through the `_bulk` API, and retry requests that may succeed later.

opensearch-py's own helpers retry only status 429 (`streaming_bulk`) or nothing (`parallel_bulk`). An ingest that must not
lose a document must also survive lost connections, restarting nodes and shards that are not assigned yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.cluster.errors import reason_of, translate
from opensearch_neural.cluster.patience import RetryPolicy, may_pass_later, patience
from opensearch_neural.errors import ClusterError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

ATTEMPTS_OF_ONE = 4
"""Attempts after which the document may be at fault instead of the cluster."""
MOST_SUSPECTS = 16
"""If more documents fail at once, the documents are not suspected."""
REQUEST_TIMEOUT = 120.0
"""Seconds that one request may take."""
DROPPED = "an ingest pipeline of the cluster drops it"
NEIGHBOURS, NEIGHBOUR_BYTES = 64, 1 << 16
"""How many accepted documents are remembered for comparison, and the most bytes of each."""


@dataclass(frozen=True, slots=True)
class Action:
    """One document to index."""

    id: str
    """The `_id` of the document."""
    source: bytes
    """JSON, vectors included."""

    def head(self, condition: tuple[int, int] | None = None) -> bytes:
        """The line before the document. condition: the sequence number and primary term that it must still have."""
        if condition is None:
            return b'{"index":{"_id":' + orjson.dumps(self.id) + b"}}\n"
        unchanged = {"if_seq_no": condition[0], "if_primary_term": condition[1]}
        return orjson.dumps({"index": {"_id": self.id, **unchanged}}) + b"\n"

    def size(self) -> int:
        """Bytes in a request."""
        return len(self.head()) + len(self.source) + 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that OpenSearch refuses."""

    position: int
    """The position of its action among those that were written."""
    status: int
    """The HTTP status of its item in the answer."""
    reason: str
    """OpenSearch's reasons on one line."""


@dataclass
class Outcome:
    """The result of writing actions."""

    created: int = 0
    """Documents that the index did not have."""
    updated: int = 0
    """Documents that replaced another version."""
    failures: list[Failure] = field(default_factory=list)
    """Documents that OpenSearch refused."""
    retries: int = 0
    """Requests that were sent again."""


class Stopped(Exception):
    """The writer was stopped while it waited for the next attempt."""


def chunks(actions: Sequence[Action], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds [start, end) of runs of actions with at most `most_bytes` each; a larger action is alone in its run."""
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
        alias: an alias of the index to write through. If the index is deleted meanwhile, the next request then does not
            create it again with mappings that OpenSearch guesses.
        chunk_bytes: the most bytes of one request. OpenSearch refuses requests over 100 MB; 5 to 15 MB work best.
        stop: an event that ends the waiting between attempts.
    """

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        *,
        alias: str | None = None,
        policy: RetryPolicy | None = None,
        chunk_bytes: int = 8 << 20,
        stop: threading.Event | None = None,
    ) -> None:
        self.client = client
        self.index = index
        self.alias = alias
        self.policy = policy or RetryPolicy()
        self.chunk_bytes = chunk_bytes
        self.stop = stop or threading.Event()
        self._accepted: deque[_Accepted] = deque(maxlen=NEIGHBOURS)
        self._lock = threading.Lock()
        self._poisoned = False

    def write(self, actions: Sequence[Action]) -> Outcome:
        """Index all actions; returns the outcome.

        A document that OpenSearch refuses permanently is returned as a Failure, with its position in `actions`.

        Raises:
            ClusterError: the cluster did not accept the documents within the policy's attempts, or refuses all writes
                (permissions, a missing index). Writing the same actions again is safe.
            Stopped: `stop` was set between attempts.
        """
        outcome = Outcome()
        for start, end in chunks(actions, self.chunk_bytes):
            self._write_chunk(actions, list(range(start, end)), outcome)
        return outcome

    def _write_chunk(
        self, actions: Sequence[Action], positions: list[int], outcome: Outcome, since: float | None = None
    ) -> None:
        """Index these positions of the actions. since: the time of the first attempt; None: there was none."""
        began = time.monotonic() if since is None else since
        deadline = began + self.policy.patience
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
            whole = status != 200
            if not whole:
                raced: list[int] = []
                again, status, reason = self._sort_items(answer["items"], actions, positions, outcome, raced)
                if raced:
                    more, raced_status, raced_reason = self._write_raced(actions, raced, outcome)
                    if more:
                        answers = [(raced_status, raced_reason), *([(status, reason)] if again else [])]
                        again = sorted([*again, *more])
                        status, reason = deciding(answers)
                if not again:
                    return
                if len(again) < len(positions):
                    deadline = time.monotonic() + self.policy.patience
                positions = again
            else:
                reason = answer
            attempt += 1
            suspicious = attempt >= ATTEMPTS_OF_ONE and status >= 400
            if suspicious and len(positions) <= MOST_SUSPECTS and time.monotonic() - began > self._item_patience:
                positions = self._without_poison(actions, positions, outcome)
                if not positions:
                    return
            self._pause(attempt, deadline, positions, reason, outcome)
            if len(positions) > 1 and (
                status == 429
                or (suspicious and status == 500 and whole)
                or (suspicious and not whole and len(positions) > MOST_SUSPECTS)
            ):
                # The request is too large, or holds documents that never succeed: halves may pass. Halving adds no time: the
                # first half has only what is left. It returns once the cluster has answered for each of its documents; as
                # after every such progress, the second half then has the whole patience again.
                middle = len(positions) // 2
                self._write_chunk(actions, positions[:middle], outcome, began)
                self._write_chunk(actions, positions[middle:], outcome)
                return

    def _pause(self, attempt: int, deadline: float, positions: list[int], reason: str, outcome: Outcome) -> None:
        """Wait before the next attempt. Raises ClusterError past the deadline, Stopped if `stop` is set."""
        wait = self.policy.wait(attempt)
        if time.monotonic() + wait > deadline:
            raise ClusterError(
                f"OpenSearch did not accept {len(positions)} documents for {self.index!r}, "
                f"tried {attempt} times in {self.policy.patience:.0f} s: {reason}",
                "check the cluster's health and disk, then run the same command again to continue",
            )
        outcome.retries += 1
        log.warning("trying %d documents again in %.1f s (%s)", len(positions), wait, reason)
        if self.stop.wait(wait):
            raise Stopped

    @property
    def _item_patience(self) -> float:
        """Seconds until documents are suspected; 0 after a document was at fault, since similar ones will follow."""
        return 0.0 if self._poisoned else min(self.policy.item_patience, self.policy.patience / 4)

    def _without_poison(self, actions: Sequence[Action], positions: list[int], outcome: Outcome) -> list[int]:
        """The positions without the documents at fault, which are added to the failures.

        A document is at fault if it fails although a neighbour on the same shard passes before and after it. (A full disk or
        a missing shard would refuse both.)
        """
        left = []
        for position in positions:
            neighbour = self._neighbour(actions[position].id)
            if neighbour is None or not self._passes(neighbour):
                left.append(position)
            elif failed := self._failure(actions[position], position, outcome):
                if self._passes(neighbour):
                    outcome.failures.append(failed)
                    self._poisoned = True
                else:
                    left.append(position)
        return left

    def _failure(self, action: Action, position: int, outcome: Outcome) -> Failure | None:
        """Try the document alone: why it is refused; None if it was written."""
        status, answer = self._send([action])
        if status != 200:
            return Failure(position, status, str(answer))
        result = answer["items"][0]["index"]
        if is_dropped(result):
            return Failure(position, result["status"], DROPPED)
        if result["status"] in (200, 201):
            outcome.created += result["status"] == 201
            outcome.updated += result["status"] == 200
            return None
        return Failure(position, result["status"], refusal_reason(result))

    def _neighbour(self, id: str) -> _Accepted | None:
        """A recently accepted document on the shard of this id; None if there is none."""
        with self._lock:
            accepted = list(self._accepted)
        shard = self._shard(id) if accepted else None
        if shard is None:
            return None
        return next((each for each in reversed(accepted) if self._shard(each.action.id) == shard), None)

    def _shard(self, id: str) -> int | None:
        """The number of an id's shard; None if no node has that shard, if the index no longer exists, or if the cluster
        cannot answer now."""
        from opensearchpy.exceptions import ConnectionError as LostConnection
        from opensearchpy.exceptions import SerializationError, TransportError

        try:
            with patience(0):  # as in `_send`
                answer = self.client.search_shards(index=self.index, params={"routing": id, "ignore": 404})
        except (LostConnection, SerializationError):
            return None
        except TransportError as error:
            if may_pass_later(int(error.status_code)):
                return None
            raise
        (copies,) = answer.get("shards", [[]])  # empty for a shard that is not assigned
        return int(copies[0]["shard"]) if copies else None

    def _passes(self, neighbour: _Accepted) -> bool:
        """Whether an accepted document is accepted again; False also if it was changed since."""
        status, answer = self._send([neighbour.action], condition=(neighbour.seq_no, neighbour.primary_term))
        if status != 200:
            return False
        result = answer["items"][0]["index"]
        if result["status"] != 200 or is_dropped(result):
            return False
        neighbour.seq_no, neighbour.primary_term = result["_seq_no"], result["_primary_term"]
        return True

    def _send(self, actions: Sequence[Action], condition: tuple[int, int] | None = None) -> tuple[int, Any]:
        """(200, the parsed answer), (413, reason), or (a status that may pass later, reason); status 0 without an answer.

        Raises ClusterError for every other status.
        """
        from opensearchpy.exceptions import ConnectionError as LostConnection
        from opensearchpy.exceptions import SerializationError, TransportError

        lines = bytearray()
        for action in actions:
            lines += action.head(condition) + action.source + b"\n"
        try:
            with patience(0):  # the policy's attempts are the only ones
                answer = self.client.transport.perform_request(
                    "POST",
                    f"/{quote(self.alias or self.index, safe='')}/_bulk",
                    params={
                        "request_timeout": REQUEST_TIMEOUT,
                        # For a missing shard: this process waits instead, so that waiting can be interrupted.
                        "timeout": "10s",
                        "require_alias": "true" if self.alias else "false",
                    },
                    headers={"content-type": "application/x-ndjson"},
                    body=bytes(lines),
                )
        except LostConnection as error:  # timeouts included
            return 0, f"connection lost: {type(error.info).__name__ if error.info else error.error}"
        except SerializationError:
            # The answer was cut off, or is a proxy's page.
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
        self,
        items: Sequence[dict[str, Any]],
        actions: Sequence[Action],
        positions: list[int],
        outcome: Outcome,
        raced: list[int] | None = None,
    ) -> tuple[list[int], int, str]:
        """Count written documents and record failures; returns (the positions to try again, a status, its reason).

        raced: the positions of documents that `may_be_a_race` are added to it. None: they are failures.
        """
        again, last, reason = [], 200, ""
        for position, item in zip(positions, items, strict=True):
            result = item["index"]
            status = result["status"]
            if is_dropped(result):
                outcome.failures.append(Failure(position, status, DROPPED))
            elif status in (200, 201):
                outcome.created += status == 201
                outcome.updated += status == 200
                self._remember(actions[position], result)
            elif may_pass_later(status):
                again.append(position)
                last = status
                reason = f"status {status}: {refusal_reason(result)}"
            elif status == 404 and self.alias is not None:
                raise ClusterError(
                    f"the index {self.index!r} was deleted or replaced while it was being written",
                    "run the same command again to start over",
                )
            elif status in (403, 404) or result["error"].get("type") == "index_closed_exception":
                # A write block, missing permissions, a deleted or closed index: no document would pass.
                raise ClusterError(
                    f"OpenSearch refuses to write to {self.index!r}: {refusal_reason(result)}",
                    "remove the block, or restore or open the index; run the same command again to continue",
                )
            elif raced is not None and may_be_a_race(result):
                raced.append(position)
            else:
                outcome.failures.append(Failure(position, status, refusal_reason(result)))
        return again, last, reason

    def _write_raced(self, actions: Sequence[Action], raced: list[int], outcome: Outcome) -> tuple[list[int], int, str]:
        """Send documents once more whose new fields another shard or request may have mapped meanwhile; returns as
        `_sort_items` does."""
        status, answer = self._send([actions[position] for position in raced])
        if status != 200:
            return raced, status, answer
        return self._sort_items(answer["items"], actions, raced, outcome)

    def _remember(self, action: Action, result: dict[str, Any]) -> None:
        if len(action.source) <= NEIGHBOUR_BYTES:
            with self._lock:
                self._accepted.append(_Accepted(action, result["_seq_no"], result["_primary_term"]))


@dataclass
class _Accepted:
    """An accepted document, with the sequence number and primary term that it had then."""

    action: Action
    """The document as it was sent."""
    seq_no: int
    """OpenSearch's `_seq_no` of this version."""
    primary_term: int
    """OpenSearch's `_primary_term` of this version."""


def is_dropped(result: Mapping[str, Any]) -> bool:
    """Whether an ingest pipeline has dropped a document that was to be indexed: OpenSearch answers with status 200."""
    return bool(result.get("result") == "noop")


def deciding(answers: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Of answers (status, reason) to parts of a request, the one by which it is sent again.

    429 asks for smaller requests, and the status 0 of a lost connection says least."""
    return max(answers, key=lambda answer: (answer[0] == 429, answer[0]))


def may_be_a_race(result: Mapping[str, Any]) -> bool:
    """Whether a document may have been refused only because another one introduced a field of it at the same time.

    OpenSearch maps a new field by its first value. Two shards may meet two first values at once, for instance 2026-03-14 and
    2026-03-14T15:09:26Z; the mapping of one is then refused with its document. Once the field is mapped, it takes both.
    A limit, such as that of the fields of an index, stays one.
    """
    error = result["error"]
    refused = result["status"] == 400 and error.get("type") == "illegal_argument_exception"
    return bool(refused and not str(error.get("reason")).startswith("Limit of"))


def refusal_reason(result: Mapping[str, Any]) -> str:
    """Why OpenSearch refused a document, with all causes: the outermost may only say "failed to parse".

    result: an item of a bulk response, or an error response"""
    error = result.get("error")
    return reasons_on_one_line(error) or str(error)
