"""The folder of `osn`'s own files: the local node's parts, models built from a corpus, ingest journals."""

from __future__ import annotations

import os
from pathlib import Path

from opensearch_neural.errors import InputError
from opensearch_neural.files import expanded


def home() -> Path:
    """`$OSN_HOME`, or `osn` under the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`).

    Raises InputError if none of them is named and the user has no home folder.
    """
    if folder := os.environ.get("OSN_HOME"):
        return expanded(folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "osn"
    except RuntimeError:
        raise InputError("this user has no home folder", "set OSN_HOME to a folder for the files of osn") from None
