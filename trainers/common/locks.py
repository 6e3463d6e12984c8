"""One process at a time makes a thing that several need: the others wait, and find what is there of it.

Trainings that share a cache of teachers and negatives, and experiments whose arms several processes share, go through here.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

logger = logging.getLogger(__name__)


@contextmanager
def locked(made: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether this process alone is at `made` now; always if it waits.

    What is locked is a hidden file beside it, `.NAME.lock`, which goes with the lock. A process that ends, however it ends,
    holds nothing any more. Within another lock of the same file this would wait for itself.
    """
    made.parent.mkdir(parents=True, exist_ok=True)
    file = made.with_name(f".{made.name}.lock")
    while True:
        with file.open("w") as lock:
            if not _held(lock, made, wait):
                yield False
                return
            if _is_there(lock, file):
                try:
                    yield True
                finally:
                    file.unlink(missing_ok=True)
                return


def _held(lock: TextIO, made: Path, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if wait:
            logger.info("another process is at %s", made.name)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return wait
    return True


def _is_there(lock: TextIO, file: Path) -> bool:
    """Whether the open file is still the one of that name: whoever held it has removed it, and that keeps nobody out."""
    with suppress(FileNotFoundError):
        return os.fstat(lock.fileno()).st_ino == file.stat().st_ino
    return False
