"""Reading and writing small files so that errors name the file and nothing is ever half-written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError, ModelError, OsnError

LONGEST = 190
"""Most bytes of the text that `file_stem` returns."""
MOST_UNPACKED = 512_000_000
"""Most bytes that `unpacked_json` accepts."""


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary path, with the last name of `path`, at which the block makes a file or a folder.

    When the block ends, it is moved to `path`, so that readers see the old file or the whole new one. After an error it is
    deleted. A link stays, and what it points to is replaced. A device or a pipe, such as /dev/stdout, is written to. Raises
    OSError if `path` is a folder that is not empty.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with tempfile.TemporaryDirectory() as temporary:
            beside = Path(temporary) / path.name
            yield beside
            with beside.open("rb") as content, path.open("wb") as stream:
                shutil.copyfileobj(content, stream)
        return
    if path.is_symlink():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as temporary:
        beside = Path(temporary) / path.name
        yield beside
        share(beside)
        beside.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write `text` as the file `path`; a reader sees the old file or the new one."""
    with replaced(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A path at which the block makes a folder. It is moved to `out` when the block ends, and deleted after an error.

    Raises InputError if `out` exists.
    """
    if out.exists():
        raise InputError(f"{out} exists already", "name a new folder, or remove this one")
    with replaced(out) as written:
        yield written


def expanded(path: str | Path) -> Path:
    """`path`, with `~` or `~name` replaced by that user's home folder. Raises InputError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: there is no home folder of that user", "write the full path") from None


def file_stem(name: str) -> str:
    """`name` as the beginning of a file's name, which has at most 255 bytes with what is added. A name of more than LONGEST
    bytes is cut, and a digest tells it apart from others with the same beginning."""
    content = name.encode("utf-8", "surrogatepass")
    if len(content) <= LONGEST:
        return name
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[: LONGEST - 13].decode('utf-8', 'ignore')}-{digest}"


def share(path: Path) -> None:
    """Give a file, or all files in a folder, the permissions that the umask gives any new file.

    mkstemp and safetensors' `save_file` make files that only their user can read. Others read models too, such as a search
    service with its own account.
    """
    umask = os.umask(0)
    os.umask(umask)
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            file.chmod(0o666 & ~umask)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """`value` as JSON, written by `write_text`."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # A file name need not be UTF-8: Python's surrogates for its bytes are written as JSON escapes.
    write_text(path, text.encode("utf-8", "backslashreplace").decode() + "\n")


def write_json_lines(path: Path, records: Iterable[Any]) -> int:
    """Write `records` as lines of JSON, one at a time; returns their number. A reader sees the old file or the new one."""
    count = 0
    with replaced(path) as beside, beside.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def parse_json(text: str, where: str | Path, error: type[OsnError] = InputError) -> Any:
    """The JSON value in a text. Raises `error`, which names `where` and, if known, the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        raise error(f"{where}, line {wrong.lineno}: not valid JSON ({wrong.msg})") from None
    except ValueError as wrong:  # an integer of thousands of digits
        raise error(f"{where}: not valid JSON ({wrong})") from None
    except RecursionError:
        raise error(f"{where}: not valid JSON (nested too deeply)") from None


def read_json(path: Path, error: type[OsnError] = ModelError) -> Any:
    """The JSON value in `path`. Raises `error` if the file is missing, or is not JSON (with the line)."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as reason:
        raise error(f"{path} cannot be read: {reason}") from None
    return parse_json(text, path, error)


def read_json_object(path: Path, error: type[OsnError] = ModelError, *, missing_ok: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; with `missing_ok`, {} without such a file. Raises `error` as `read_json` does, and for
    another JSON value."""
    value = {} if missing_ok and not path.exists() else read_json(path, error)
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def packed_json(value: Any) -> bytes:
    """Compress a JSON value with gzip; equal values give equal bytes."""
    stream = zlib.compressobj(wbits=31)
    return stream.compress(json.dumps(value).encode()) + stream.flush()


def unpacked_json(content: bytes) -> Any:
    """The value that `packed_json` packed. Raises ValueError if the content is damaged or too large."""
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(content, MOST_UNPACKED)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError("it is cut off, or too large")
    return json.loads(text)
