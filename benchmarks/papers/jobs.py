"""Trainings of a benchmark, each done once: by one of the processes that work in a folder, and for all arms that need it."""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


def shared(jobs: Mapping[Path, Callable[[], T]]) -> list[T]:
    """The results of `jobs` {what it makes: job}, in their order; processes that are given the same do different ones.

    A job that another process is at is called when that has ended, well or not: it must find what is there of its work. Jobs
    may share others, but not in a ring. What is locked is a hidden file beside what is made, `.NAME.lock`.
    """
    found: dict[Path, T] = {}
    for wait in (False, True):
        for made, job in jobs.items():
            if made in found:
                continue
            made.parent.mkdir(parents=True, exist_ok=True)
            with _locked(made.with_name(f".{made.name}.lock"), wait=wait) as held:
                if held:
                    found[made] = job()
    return [found[made] for made in jobs]


@contextmanager
def _locked(file: Path, *, wait: bool) -> Iterator[bool]:
    """Whether this process holds the lock; always if it waits."""
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield False
                return
            logger.info("another process is at %s", file.stem.removeprefix("."))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield True


def share_stage(trained: Path, output: Path) -> None:
    """What was trained at `trained` as `output` too, which would be trained alike; stopped in the middle, `output` is not
    there."""
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = output.with_name(f".{output.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(trained, beside)
        beside.rename(output)
