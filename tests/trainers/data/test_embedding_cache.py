"""Vectors of texts on disk: a disk without room."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opensearch_neural.models.directory import ModelInfo
from trainers.data.embedding_cache import dense_vectors
from trainers.data.texts import TextStore

TEXTS = TextStore((str(number), f"text {number}") for number in range(200))
MODEL = ModelInfo("model", Path("model"), "dense", "hash")


def cached(path: Path, encode: Any) -> Any:
    return dense_vectors(encode, TEXTS, path, model=MODEL, dimension=256)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve room")
def test_room_for_all_vectors_is_reserved_before_the_first_is_encoded(tmp_path: Path) -> None:
    """A disk that was full later ended the process by a signal, without a message."""
    reserved: list[bool] = []

    def encode(texts: Sequence[str]) -> Any:
        file = (tmp_path / "documents.partial.npy").stat()
        reserved.append(file.st_blocks * 512 >= file.st_size > 200 * 256 * 2)
        return np.ones((len(texts), 256), np.float32)

    assert cached(tmp_path / "documents", encode).shape == (200, 256)
    assert reserved == [True]


@pytest.mark.parametrize(("number", "goes_on"), [(errno.ENOSPC, False), (errno.EOPNOTSUPP, True)])
def test_a_disk_without_room_is_an_error_and_one_that_reserves_none_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    encode = lambda texts: np.ones((len(texts), 256), np.float32)  # noqa: E731
    if goes_on:
        assert len(cached(tmp_path / "documents", encode)) == 200
    else:
        with pytest.raises(OSError, match=r"No space left on device: .*documents\.partial\.npy"):
            cached(tmp_path / "documents", encode)
        assert not (tmp_path / "documents.partial.npy").exists()
