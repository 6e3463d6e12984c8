"""Finds the model that wrote an index on this machine, by its hash.

An index records its models by name and hash, not by path, since paths differ between machines. Ingest makes a link
`<home>/models/<hash>` to the directory that it used, and searching follows it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.home import home
from opensearch_neural.models.directory import DOCUMENT_FILES, installed_or_cached

MODEL_OPTIONS = {"sparse": "--sparse", "dense": "--dense", "quantized": "--pq", "generative": "--tome"}
"""{kind of model: the option that names the model}"""


class NotOnThisMachine(ModelError):
    """The model that an index or a file names is not on this machine."""


def models_folder() -> Path:
    return home() / "models"


def link_of(hash: str) -> Path:
    """The path of the link for a hash.

    Hashes come from indexes and files of other people: raises ModelError for a text that could name another place.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", hash):
        raise ModelError(f"{hash[:80]!r} is no hash of a model", "the record that names it is damaged or forged")
    return models_folder() / hash


def linked(hash: str) -> Path | None:
    """The directory to which the link for a hash leads; None if there is none, or none that this user may look for.

    Raises ModelError as `link_of` does.
    """
    # A service that gave up root's rights may have no home folder, or one that it may not look into.
    with contextlib.suppress(OSError, InputError):
        link = link_of(hash)
        return link.resolve() if link.is_dir() else None
    return None


def remember(hash: str, path: Path) -> None:
    """Make a link from the hash to the directory. If it cannot be written, nothing is raised: the model's name still works.

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
    """The directory of the model with this hash, else a model that was fetched or installed before under this name.

    files: glob patterns of the files that a fetched model must have

    Name and hash may come from other people's indexes or files. So nothing is fetched by that name and no other folder is
    read: users who trust it give it to the command (`--sparse NAME`). The caller compares the hash of the loaded model.

    Raises NotOnThisMachine if it is not here, and ModelError as `link_of` does.
    """
    if (folder := linked(hash)) is not None:
        return folder
    # A lexical model is made from a corpus; its name finds nothing elsewhere.
    if not name.startswith("lexical") and (folder := installed_or_cached(name, files=files)):
        return folder
    did = "that these URLs were made for" if kind == "generative" else "that wrote the index"
    raise NotOnThisMachine(
        f"the {kind} model {did}, {name} ({hash}), is not on this machine",
        f"copy its directory here and name it with {MODEL_OPTIONS[kind]} DIR, or name its hub id if you trust that",
    )
