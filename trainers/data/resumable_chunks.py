"""Long work in chunks: if it is killed at any moment and run again, it continues and ends in the same file.

Every chunk is written to a temporary file and renamed; at the end all are joined under a header that says what made them:

    {"osn": "negatives", "format": 1, "data": "…", "retriever": "bm25s", …, "counts": {"queries": 809, …}}
    {"query_id": …}
    …
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.files import read_json_object, replaced, write_json, write_json_lines
from opensearch_neural.locks import locked
from opensearch_neural.progress import Progress
from trainers.data.formats import read_header

logger = logging.getLogger(__name__)

FORMAT = 1

Chunk = tuple[Iterable[Mapping[str, Any]], Mapping[str, int]]
"""The lines of one chunk, and its counts by name."""


def write_in_chunks(
    output: Path,
    kind: str,
    made_by: Mapping[str, Any],
    chunks: int,
    work: Callable[[int], Chunk],
    *,
    unit: str,
    shard: tuple[int, int] = (1, 1),
) -> bool:
    """Write the lines of chunks 0, …, chunks − 1 to `output`, in this order, below a header with the sum of their counts.

    made_by: everything that determines the lines. Work begun with equal values is continued, finished work is reused; with
    other values, InputError names the fields that differ. `work` is called for the missing chunks.

    shard: (i, n) does every n-th chunk, beginning with the i-th. Shards in one folder run in parallel; the last to end
    joins the chunks, the others return False.
    """
    header = {"osn": kind, "format": FORMAT, **made_by}
    if output.exists():
        refuse_other(output, read_header(output, kind), header)
        logger.info("%s is complete already", output)
        return True
    parts = output.with_name(f".{output.name}.parts")
    _claim(parts, header)
    own = list(range(shard[0] - 1, chunks, shard[1]))
    done = {number for number in own if _part(parts, number).exists()}
    if done:
        logger.info("%s: continuing after %d of %d chunks", output, len(done), len(own))
    for number in progress(own, unit=unit, skip=done):
        try:
            lines, counts = work(number)
        except BaseException:
            _forget(parts)
            raise
        _claim(parts, header)  # Another shard may have failed at once, and removed the header.
        write_json_lines(_part(parts, number), [dict(counts), *lines])
    files = [_part(parts, number) for number in range(chunks)]
    if missing := sum(not file.exists() for file in files):
        logger.info("%s: shard %d of %d is done; %d chunks of other shards are missing", output, *shard, missing)
        return False
    with locked(output.with_name(f"{output.name}.join")):  # another shard may be joining, too
        if not output.exists():
            _join(output, header, files)
        for file in files:  # The header last: without it nothing says what made a chunk.
            file.unlink(missing_ok=True)
        shutil.rmtree(parts, ignore_errors=True)
    return True


def _part(parts: Path, number: int) -> Path:
    return parts / f"{number:08d}.jsonl"


def _claim(parts: Path, header: Mapping[str, Any]) -> None:
    """Note what makes the chunks in `parts`. Raises InputError if they are of other settings or data."""
    noted = parts / "header.json"
    if noted.exists():
        refuse_other(parts, read_json_object(noted), header)
    else:
        write_json(noted, header)


def _forget(parts: Path) -> None:
    """Remove the header if no chunk is done: work that fails at once must not block work with other settings."""
    if not any(parts.glob("*.jsonl")):
        (parts / "header.json").unlink(missing_ok=True)
        with suppress(OSError):  # Another shard has begun.
            parts.rmdir()


def _join(output: Path, header: Mapping[str, Any], parts: list[Path]) -> None:
    counts: Counter[str] = Counter()
    for part in parts:
        with part.open(encoding="utf-8") as file:
            # update(), because + drops counts of 0.
            counts.update(json.loads(file.readline()))
    with replaced(output) as beside, beside.open("wb") as target:
        target.write((json.dumps({**header, "counts": counts}, ensure_ascii=False) + "\n").encode())
        for part in parts:
            with part.open("rb") as file:
                file.readline()
                shutil.copyfileobj(file, target)
        target.flush()
        os.fsync(target.fileno())


def summary(output: Path, kind: str) -> str:
    """The counts in the header of `output`, as one line."""
    counts = read_header(output, kind)["counts"]
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def refuse_other(place: Path, written: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises InputError if the header `written` differs from `expected`; names every field that differs."""
    differing = [
        f"{field}: {written.get(field)!r} there, {value!r} now"
        for field, value in expected.items()
        if written.get(field) != value
    ]
    if differing:
        raise InputError(
            f"{place} was made with other settings or data ({'; '.join(differing)})", "remove it, or write elsewhere"
        )


def progress(numbers: list[int], *, unit: str, skip: Collection[int] = ()) -> Iterator[int]:
    """Yields `numbers` except those in `skip`; shows a bar on a terminal, elsewhere a line every ten seconds."""
    with Progress("done", total=len(numbers), unit=unit) as shown:
        shown.update(sum(number in skip for number in numbers), skipped=True)
        for number in numbers:
            if number not in skip:
                yield number
                shown.update(1)
