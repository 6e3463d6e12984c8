"""Vectors of texts on disk: a disk without room."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from opensearch_neural.models.directory import ModelInfo
from trainers.data.embedding_cache import dense_vectors
from trainers.data.texts import TextStore

TEXTS = TextStore((str(number), f"text {number}") for number in range(200))
MODEL = ModelInfo("model", Path("model"), "dense", "hash")


def test_a_disk_without_room_is_an_error_before_anything_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full later ended the process by a signal, without a message."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"No space left on device: .*documents\.partial\.npy"):
        dense_vectors(
            lambda _: pytest.fail("there is no room"), TEXTS, tmp_path / "documents", model=MODEL, dimension=256
        )
    assert not (tmp_path / "documents.partial.npy").exists()
