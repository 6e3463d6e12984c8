"""Reading and writing small files so that errors name the file and nothing is ever half-written."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError, ModelError, OsnError

MOST_UNPACKED = 512_000_000


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A place beside `path`, of the same name, for a file or a folder to be made at.

    It becomes `path` when the block ends, so that a reader sees the old file or the whole new one; after an error it goes.
    A folder that is there and holds something is not replaced: OSError.
    """
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
    """A folder that is not there yet, to be made and filled. It becomes `out` when the block ends, after an error it goes.

    Raises InputError if `out` is there already.
    """
    if out.exists():
        raise InputError(f"{out} is there already", "name a folder that is not, or remove it")
    with replaced(out) as written:
        yield written


def expanded(path: str | Path) -> Path:
    """`path` with the home folder of a user in the place of `~` or `~name`. Raises InputError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: there is no home folder of that user", "write the whole path") from None


def share(path: Path) -> None:
    """Give a file, or all files in a folder, the permissions that the umask gives any new file.

    Those of mkstemp and of safetensors' `save_file` are private to the user. A model is read by others, such as a search
    service under an account of its own.
    """
    umask = os.umask(0)
    os.umask(umask)
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            file.chmod(0o666 & ~umask)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """`value` as JSON, written by `write_text`."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # The name of a file need not be UTF-8: what Python puts in its place is written as JSON escapes it.
    write_text(path, text.encode("utf-8", "backslashreplace").decode() + "\n")


def parse_json(text: str, where: str | Path, error: type[OsnError] = InputError) -> Any:
    """The JSON value in a text. Raises `error`, with the line where that is known, naming the text `where`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        raise error(f"{where}, line {wrong.lineno}: not valid JSON ({wrong.msg})") from None
    except ValueError as wrong:  # an integer of thousands of digits
        raise error(f"{where}: not valid JSON ({wrong})") from None
    except RecursionError:
        raise error(f"{where}: not valid JSON (nested too deeply)") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises ModelError, with the line, if the file is missing, is no JSON, or holds something else than an object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    value = parse_json(text, path, ModelError)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def packed_json(value: Any) -> bytes:
    """Pack a JSON value by gzip; equal values give equal bytes."""
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
