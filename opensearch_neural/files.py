"""Reading and writing small files so that errors name the file and nothing is ever half-written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError, ModelError


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place, so that a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        share(Path(beside))
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that is not there yet, to be made and filled. It becomes `out` when the block ends, after an error it goes.

    Raises InputError if `out` is there already.
    """
    if out.exists():
        raise InputError(f"{out} is there already", "name a folder that is not, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        written = Path(temporary) / "model"
        yield written
        share(written)
        written.rename(out)


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
    write_text(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises ModelError, with the line, if the file is missing, is no JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
