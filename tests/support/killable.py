"""An ingest in a process that can be killed at any moment, and that leaves a trace of every document it encodes.

Forked from a server that has everything imported already, so that a kill costs milliseconds and not an interpreter's
start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fork_server import METHOD

from ingest.job import Job, run_job

context = multiprocessing.get_context(METHOD)


def _run(url: str, job: Job, home: str, folder: str, ready: Any) -> None:
    from opensearch_neural.cluster.connect import connect
    from opensearch_neural.models.sparse import lexical

    os.environ["OSN_HOME"] = home
    os.chdir(folder)
    encode = lexical.LexicalEncoder.encode_documents

    def counted(self: Any, texts: Any, **options: Any) -> Any:
        # One write with O_APPEND, which a kill leaves whole.
        trace = os.open("encoded", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(trace, f"{len(texts)}\n".encode())
        os.close(trace)
        return encode(self, texts, **options)

    lexical.LexicalEncoder.encode_documents = counted  # type: ignore[method-assign]
    ready.set()
    run_job(connect(url), job, show_progress=False)


def begin(url: str, job: Job, home: Path, folder: Path) -> BaseProcess:
    """Starts the ingest; returns when it is about to do its first request."""
    ready = context.Event()
    process = context.Process(target=_run, args=(url, job, str(home), str(folder), ready))
    process.start()
    assert ready.wait(60)
    return process


def kill_after(process: BaseProcess, seconds: float) -> bool:
    """SIGKILL after some seconds; whether it came in time."""
    process.join(seconds)
    if process.exitcode is None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    if process.exitcode == -signal.SIGKILL:
        return True
    assert process.exitcode == 0, "the ingest failed by itself"
    return False


def finish(process: BaseProcess, seconds: float = 120) -> float:
    """Waits until it ends by itself, successfully; returns how long that took."""
    began = time.monotonic()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0
    return time.monotonic() - began


def encoded(folder: Path) -> int:
    """Documents handed to the encoder so far, in this folder."""
    trace = folder / "encoded"
    return sum(map(int, trace.read_text().split())) if trace.exists() else 0
