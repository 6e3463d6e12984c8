"""Chunks of one work never get into the file of another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural.errors import InputError
from trainers.data.resumable_chunks import Chunk, write_in_chunks


def write(output: Path, setting: str, work: Any, shard: tuple[int, int] = (1, 1)) -> bool:
    return write_in_chunks(output, "numbers", {"setting": setting}, 2, work, unit="chunks", shard=shard)


def numbered(setting: str) -> Any:
    def work(number: int) -> Chunk:
        return [{"number": number, "by": setting}], {"lines": 1}

    return work


def test_a_shard_that_fails_at_once_leaves_the_chunks_of_another_with_what_made_them(tmp_path: Path) -> None:
    output = tmp_path / "numbers.jsonl"

    def failing(_: int) -> Chunk:
        raise MemoryError

    def while_another_fails(number: int) -> Chunk:
        with pytest.raises(MemoryError):
            write(output, "a", failing, shard=(1, 2))
        return numbered("a")(number)

    assert not write(output, "a", while_another_fails, shard=(2, 2)), "chunk 0 is missing"
    with pytest.raises(InputError, match="'a' there, 'b' now"):
        write(output, "b", numbered("b"))


def test_chunks_that_could_not_all_be_removed_are_not_taken_for_those_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "numbers.jsonl"
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert write(output, "a", numbered("a"))
    assert not list((tmp_path / ".numbers.jsonl.parts").glob("*.jsonl"))
    output.unlink()
    with pytest.raises(InputError, match="'a' there, 'b' now"):
        write(output, "b", numbered("b"))
