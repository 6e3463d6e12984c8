"""A lease on the cluster: two ingests of one index do not interleave, whichever machine or $OSN_HOME they run from.

A lease is a document of the index `osn-leases`. One scripted update takes or renews it, so that the cluster decides by its
own clock. The lease of a killed process expires; on the same machine (Linux) other processes see at once that its holder is
gone.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.patience import patience
from opensearch_neural.errors import ClusterError
from opensearch_neural.index.hidden_index import make_hidden_index

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

LEASES = "osn-leases"
SECONDS = 60.0
"""How long a lease lasts without renewal."""
SETTLING = 30.0
"""Seconds to wait if a lease cannot be taken although nobody holds it."""
RENEWALS = 4
"""How often a lease is renewed within SECONDS."""

_HERE: set[str] = set()
"""The owner ids of the leases that this process holds."""

_TAKE = """
if (ctx._source.owner == null || ctx._source.owner == params.holder.owner || ctx._source.until < ctx._now
    || ctx._source.owner == params.gone) {
  ctx._source.putAll(params.holder); ctx._source.until = ctx._now + params.milliseconds;
} else { ctx.op = 'none' }
"""
_GIVE_BACK = "if (ctx._source.owner == params.owner) { ctx.op = 'delete' } else { ctx.op = 'none' }"


class Lease:
    """The right to write an index or alias, while the context is open.

        with Lease(client, "index:docs") as lease:
            ...
            lease.check()

    If the user may not write to `osn-leases`, or the cluster forbids scripts, a warning says that nothing prevents a second
    ingest.
    """

    def __init__(self, client: OpenSearch, name: str, *, seconds: float = SECONDS) -> None:
        self.client = client
        self.name = name
        self.seconds = seconds
        self._holder: dict[str, Any] = {
            "owner": uuid.uuid4().hex,
            "host": platform.node(),
            "machine": _machine(),
            "pid": os.getpid(),
            "process_start": _process_start(os.getpid()),
        }
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Raises ClusterError if another process holds the lease."""
        _HERE.add(self._holder["owner"])
        try:
            acquired = self._acquire()
        except BaseException:
            _HERE.discard(self._holder["owner"])
            raise
        if acquired:
            self._thread = threading.Thread(target=self._keep, name="osn-lease", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opensearchpy.exceptions import OpenSearchException

        self._ended.set()
        _HERE.discard(self._holder["owner"])
        if self._thread is None:
            return
        try:
            # The ingest may end because the cluster does not answer: do not wait for the cluster here again.
            with patience(0):
                self._give_back()
        except OpenSearchException as failed:
            log.debug("the lease on %s was not given back and will expire: %s", self.name, failed)

    def check(self) -> None:
        """Raise ClusterError if another process has taken the lease, because it was not renewed in time."""
        if self._lost.is_set():
            raise ClusterError(
                f"another ingest has taken over {self.name.partition(':')[2]!r}, because this one did not renew its lease "
                f"for {self.seconds:.0f} s",
                "wait until that ingest ends, then run the same command again to continue",
            )

    def _acquire(self) -> bool:
        """Whether this process has the lease now; False if the cluster does not allow leases."""
        from opensearchpy.exceptions import AuthorizationException, RequestError

        try:
            make_hidden_index(self.client, LEASES, {"dynamic": False})
            if self._take():
                return True
            other = self._holder_or_none()
            if other is None:
                return True
            if _is_gone(other) and self._take(gone=other["owner"]):
                return True
            here = self._holder["machine"]  # unknown without /proc: then this machine is treated like any other
            if (not here or other.get("machine") != here) and self._wait_for(other):
                return True
        except (AuthorizationException, RequestError) as error:
            log.warning("no lease on %s, so nothing prevents a second ingest: %s", self.name, error.error)
            return False
        raise ClusterError(
            f"process {other['pid']} on {other['host']} is writing {self.name.partition(':')[2]!r} now",
            f"wait for it, or stop it; the lease of a killed process ends after {self.seconds:.0f} s",
        )

    def _holder_or_none(self) -> dict[str, Any] | None:
        """The holder of the lease; None once it is ours.

        There may be no holder although the lease could not be taken: it was just given back, or the cluster is recovering
        from a full disk. Raises ClusterError if this lasts.
        """
        deadline = time.monotonic() + SETTLING
        while not (other := self._other()):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the lease on {self.name.partition(':')[2]!r} cannot be taken, and nobody holds it",
                    f"check the index {LEASES!r}: its shard may have failed; run the same command again to continue",
                )
            time.sleep(0.5)
            if self._take():
                return None
        return other

    def _wait_for(self, other: dict[str, Any]) -> bool:
        """Take the lease of a process on another machine, if that process does not renew it."""
        deadline = time.monotonic() + self.seconds + 2
        while time.monotonic() < deadline:
            time.sleep(self.seconds / RENEWALS / 2)
            if self._take():
                return True
            now = self._other()
            if now and (now["owner"], now["until"]) != (other["owner"], other["until"]):
                return False
        return self._take()

    def _keep(self) -> None:
        from opensearchpy.exceptions import OpenSearchException

        while not self._ended.wait(self.seconds / RENEWALS):
            try:
                if not self._take():
                    self._lost.set()
                    return
            except OpenSearchException as error:  # while the cluster does not answer, nobody else can take it
                log.debug("the lease of %s was not renewed: %s", self.name, error)

    def _take(self, *, gone: str | None = None) -> bool:
        from opensearchpy.exceptions import ConflictError

        params = {"holder": self._holder, "milliseconds": int(self.seconds * 1000), "gone": gone}
        script = {"source": _TAKE, "params": params}
        try:
            answer = self._update({"scripted_upsert": True, "script": script, "upsert": {}})
        except ConflictError:  # other processes were faster at every retry
            return False
        return bool(answer["result"] != "noop")

    def _give_back(self) -> None:
        self._update({"script": {"source": _GIVE_BACK, "params": {"owner": self._holder["owner"]}}}, seconds=3)

    def _update(self, body: dict[str, Any], *, seconds: float = 10) -> Any:
        return self.client.update(
            index=LEASES, id=self.name, body=body, params={"retry_on_conflict": 5, "request_timeout": seconds}
        )

    def _other(self) -> dict[str, Any] | None:
        answer = self.client.get(index=LEASES, id=self.name, params={"ignore": 404})
        source: dict[str, Any] | None = answer.get("_source")
        return source


def held(client: OpenSearch, name: str) -> bool:
    """Whether a process holds the lease and is not known to have ended."""
    lease = Lease(client, name)
    if not client.indices.exists(index=LEASES):
        return False
    other = lease._other()
    if not other or _is_gone(other):
        return False
    if lease._take():
        lease._give_back()
        return False
    return True


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether a holder on this machine is known to have ended."""
    if not _machine() or holder.get("machine") != _machine():
        return False
    if holder["pid"] == os.getpid() and holder["owner"] not in _HERE:
        return True  # this process could not give it back, since the disk was full
    started = _process_start(holder["pid"])
    return started is None or started != holder.get("process_start")


def _machine() -> str:
    """Identifies this machine since its boot, and the name space of its process ids; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """The start time of a process, in the kernel's unit; None if no process has this id, or if it is a zombie.

    A process whose first thread has ended looks like a zombie, but runs as long as another of its threads does.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ended = fields[0] in "ZX" and all(task.name == str(pid) for task in Path(f"/proc/{pid}/task").iterdir())
        return None if ended else fields[19]
    except (OSError, IndexError):
        return None
