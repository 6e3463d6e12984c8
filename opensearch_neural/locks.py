"""Lock files: one process at a time. The kernel releases the lock, however the process ends."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)
TRIES = 1000
"""How often a folder for a lock is made; other processes may remove it meanwhile."""


def acquire(file: Path, busy: Callable[[], object] | None) -> TextIO | None:
    """Lock `file` and return it open; closing it releases the lock. On Windows, and on a file system without locks, nothing
    is locked.

    If another process holds the lock, this calls `busy` and waits; if `busy` is None, it returns None at once. Raises
    OSError if the file cannot be written.
    """
    tries = 0
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.open("w")
        except FileNotFoundError:
            # The folder was removed between the two lines; or it cannot be made, as in a working folder that is gone.
            if (tries := tries + 1) == TRIES:
                raise
            continue
        if sys.platform == "win32":
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy is None:
                lock.close()
                return None
            busy()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            logger.debug("%s: this file system has no locks", file)
            return lock
        # A holder may have removed the file, or its folder: a lock on a removed file excludes nobody.
        with suppress(FileNotFoundError):
            if os.fstat(lock.fileno()).st_ino == file.stat().st_ino:
                return lock
        lock.close()


@contextmanager
def locked(made: Path, *, wait: bool = True, done: Path | None = None) -> Iterator[bool]:
    """Waits until no other process holds the lock of `made`, holds it, and yields True: one process makes a file that
    several need, while the others wait and then use it. wait=False: yields False at once if another process holds it.

    done: a file that is written last; if it exists, nothing is locked and nothing need be writable. The lock is a hidden
    file beside `made`, `.NAME.lock`, deleted at the end. Don't nest locks of the same file: the inner waits forever.
    """
    if done is not None and done.exists():
        yield True
        return
    file = made.with_name(f".{made.name}.lock")
    lock = acquire(file, (lambda: logger.info("another process is at %s", made.name)) if wait else None)
    if lock is None:
        yield False
        return
    with lock:
        try:
            yield True
        finally:
            file.unlink(missing_ok=True)


def hold(file: IO[Any], *, wait: bool = False) -> None:
    """Lock an open file until it is closed, or its process ends: `is_held` sees it. wait: until no other holds it."""
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_held(path: Path) -> bool:
    """Whether a process holds the file; True also if that cannot be known."""
    if sys.platform == "win32":
        return True
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
