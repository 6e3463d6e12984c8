"""Lock files: one process at a time. The kernel releases the lock, however the process ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

if sys.platform != "win32":
    import fcntl


def acquire(file: Path, busy: Callable[[], object] | None) -> TextIO | None:
    """Lock `file` and return it open; closing it releases the lock. On Windows nothing is locked.

    If another process holds the lock, this calls `busy` and waits; if `busy` is None, it returns None at once. Raises
    OSError if the file cannot be written.
    """
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            held = file.open("w")
        except FileNotFoundError:
            # The folder was removed between the two lines.
            continue
        if sys.platform == "win32":
            return held
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy is None:
                held.close()
                return None
            busy()
            fcntl.flock(held, fcntl.LOCK_EX)
        # A holder may have removed the file, or its folder: a lock on a removed file excludes nobody.
        with suppress(FileNotFoundError):
            if os.fstat(held.fileno()).st_ino == file.stat().st_ino:
                return held
        held.close()
