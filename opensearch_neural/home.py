"""The folder of `osn`'s own files: the local node's parts, models built from a corpus, ingest journals."""

from __future__ import annotations

import os
from pathlib import Path

from opensearch_neural.files import expanded


def home() -> Path:
    """`$OSN_HOME`, or `osn` under the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    if named := os.environ.get("OSN_HOME"):
        return expanded(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "osn"
