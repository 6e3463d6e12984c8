"""Corpora in Hugging Face's `datasets` library: saved to disk, or fetched by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opensearch_neural.corpus.documents import Document, FieldNames, OnReject, document_of_row, first_line
from opensearch_neural.errors import InputError, MissingExtra

SAVED = frozenset({"dataset_info.json", "dataset_dict.json"})
"""The folder of a data set that was saved to disk contains one of these files."""

_EXPECTED = "expected hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"


def read_data_set(name: str, names: FieldNames, on_reject: OnReject) -> Iterator[Document]:
    """Rows of a data set: saved to disk, or loaded by `datasets.load_dataset` under this name.

    Raises InputError for a missing data set or split, and if reading its rows fails.
    """
    label = f"hf:{name}"
    rows = iter(_load(name, label))
    number = 0
    while True:
        number += 1
        try:
            row = next(rows, None)
        except Exception as error:  # the library and its dependencies raise dozens of kinds
            raise InputError(
                f"{label}, row {number}: the data set breaks off: {first_line(error)}",
                "try again, or download it first: how many rows follow cannot be known",
            ) from None
        if row is None:
            return
        document = document_of_row(row, names, label, number, on_reject)
        if document is not None:
            yield document


def _load(name: str, label: str) -> Any:
    """The rows of one split."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("reading Hugging Face data sets", "corpora") from None
    folder, config, split = _parts(name)
    try:
        if Path(folder).is_dir() and any((Path(folder) / marker).exists() for marker in SAVED):
            loaded: Any = datasets.load_from_disk(folder)
        else:
            loaded = datasets.load_dataset(folder, config, streaming=True)
    except Exception as error:
        way_out = f"{_EXPECTED} with a hub name or a saved data set"
        raise InputError(
            f"{label}: cannot be loaded: {first_line(error)}",
            "name a file of your own without hf:" if Path(folder).is_file() else way_out,
        ) from None
    if hasattr(loaded, "keys"):
        splits = list(loaded.keys())
        if split is None and len(splits) == 1:
            split = splits[0]
        if split not in splits:
            problem = "has several splits" if split is None else f"has no split {split!r}"
            raise InputError(f"{label} {problem}: {', '.join(splits)}", f"write hf:{folder}:{splits[0]}")
        return loaded[split]
    if split is not None and str(getattr(loaded, "split", split)) not in (split, "None"):
        raise InputError(f"{label} has no split {split!r}; it is the split {loaded.split}", f"write hf:{folder}")
    return loaded


def _parts(name: str) -> tuple[str, str | None, str | None]:
    """(name or folder, config, split) of NAME, NAME:SPLIT or NAME:CONFIG:SPLIT."""
    if not name.strip():
        raise InputError("hf: names no data set", _EXPECTED)
    if os.path.exists(name):  # noqa: PTH110 (Path would refuse some names that are not paths)
        return name, None, None
    parts = name.split(":")
    if len(parts) > 3:
        raise InputError(f"hf:{name}: too many colons", _EXPECTED)
    if len(parts) == 3:
        return parts[0], parts[1] or None, parts[2] or None
    return parts[0], None, parts[1] if len(parts) == 2 else None
