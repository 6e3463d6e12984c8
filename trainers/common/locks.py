"""One process at a time makes a thing that several need: the others wait, and find what is there of it.

Trainings that share a cache of teachers, vectors and negatives, and experiments whose arms several processes share, go
through here.
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
    """Yields True once no other process is at `made`, and keeps others out; with wait=False it may yield False at once.

    done: a file that is written last; where it is there, nothing is locked, and nothing need be writable. What is locked is
    a hidden file beside `made`, `.NAME.lock`, which goes with the lock. Within another lock of the same file this would wait
    for itself.
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
