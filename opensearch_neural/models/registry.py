"""Which model wrote an index, found again on this machine by its hash.

An index records its models by name and hash, not by path: paths differ from machine to machine. Ingest leaves a link
`<home>/models/<hash>` to the directory it used, and searching follows it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from opensearch_neural.errors import ModelError
from opensearch_neural.home import home
from opensearch_neural.models.directory import DOCUMENT_FILES, installed_or_cached

MODEL_OPTIONS = {"sparse": "--sparse", "dense": "--dense", "quantized": "--pq", "generative": "--tome"}
"""{kind of model: the option that names one}"""


def models_folder() -> Path:
    return home() / "models"


def link_of(hash: str) -> Path:
    """Where the link for a hash stands. Hashes come from indexes and files of others, so they are held to be hashes.

    Raises ModelError for one that could name another place.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", hash):
        raise ModelError(
            f"{hash[:80]!r} is no hash of a model", "the record that names it was damaged, or made to lead elsewhere"
        )
    return models_folder() / hash


def remember(hash: str, path: Path) -> None:
    """Leave a link from the hash to the directory. A folder that cannot be written to is no error: a name still serves.

    Raises ModelError as `link_of` does.
    """
    link = link_of(hash)
    target = path.resolve()
    if link.resolve() == target:
        return
    with contextlib.suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        beside = link.with_name(f".{hash}.{os.getpid()}")
        beside.symlink_to(target, target_is_directory=True)
        beside.replace(link)


def find(hash: str, name: str, kind: str, *, files: Sequence[str] = DOCUMENT_FILES) -> Path:
    """The directory of the model with this hash, else one that was fetched or installed under its recorded name before.

    files: glob patterns of the files that one that was fetched must have.

    Name and hash come from an index or a file of others. So nothing is fetched and no other folder is read by that name:
    whoever trusts it gives it to the command (`--sparse NAME`). The caller compares the hash of what it then loads.

    Raises ModelError if this machine knows no such model, and as `link_of` does.
    """
    link = link_of(hash)
    if link.is_dir():
        return link.resolve()
    # A lexical model is made of a corpus, and has no name by which it could be found anywhere else.
    if not name.startswith("lexical") and (folder := installed_or_cached(name, files=files)):
        return folder
    did = "that these URLs were made for" if kind == "generative" else "that wrote the index"
    raise ModelError(
        f"the {kind} model {did}, {name} ({hash}), is not on this machine",
        f"copy its directory here and name it with {MODEL_OPTIONS[kind]} DIR, or name its hub id if you trust that",
    )
