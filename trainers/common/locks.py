"""Locks: one process makes a file that several need, while the others wait and then use it.

Used by trainings that share a cache of teacher scores, vectors and negatives, and by experiments whose arms run in several
processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opensearch_neural.locks import acquire

logger = logging.getLogger(__name__)


@contextmanager
def locked(made: Path, *, wait: bool = True, done: Path | None = None) -> Iterator[bool]:
    """Waits until no other process holds the lock of `made`, holds it, and yields True. wait=False: yields False at once
    if another process holds it.

    done: a file that is written last; if it exists, nothing is locked and nothing need be writable. The lock is a hidden
    file beside `made`, `.NAME.lock`, deleted at the end. Don't nest locks of the same file: the inner waits forever.
    """
    if done is not None and done.exists():
        yield True
        return
    file = made.with_name(f".{made.name}.lock")
    held = acquire(file, (lambda: logger.info("another process is at %s", made.name)) if wait else None)
    if held is None:
        yield False
        return
    with held:
        try:
            yield True
        finally:
            file.unlink(missing_ok=True)
