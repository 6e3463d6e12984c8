"""Files that are never half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opensearch_neural.errors import ModelError
from opensearch_neural.files import (
    LONGEST,
    file_stem,
    read_json_object,
    replaced,
    write_json,
    write_json_lines,
    write_text,
)


def test_a_long_name_is_cut_for_a_file_and_told_apart_from_others() -> None:
    assert file_stem("docs") == "docs" and file_stem("x" * LONGEST) == "x" * LONGEST
    names = {"é" * 127, "é" * 126 + "x", "x" * (LONGEST + 1), "\ud800" * 200}
    stems = {file_stem(name) for name in names}
    assert len(stems) == len(names)
    assert all(len(stem.encode()) <= LONGEST for stem in stems), "whole characters, and no more bytes"


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "vectors.npz"
    with replaced(file) as beside:
        beside.write_text("first")
        assert beside.suffix == ".npz" and not file.exists()
    with replaced(file) as beside:
        beside.write_text("second")
        assert file.read_text() == "first"
    assert file.read_text() == "second"
    assert list(file.parent.iterdir()) == [file]


def test_after_an_error_the_old_file_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for place in (tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(RuntimeError), replaced(place) as beside:
            beside.mkdir()
            (beside / "part").write_text("half")
            raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_lines_of_json_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    assert write_json_lines(file, ({"text": text} for text in ("é", "two\nlines"))) == 2
    assert file.read_text(encoding="utf-8") == '{"text": "é"}\n{"text": "two\\nlines"}\n'
    with pytest.raises(ZeroDivisionError):
        write_json_lines(file, (1 // number for number in (1, 0)))
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2 and list(tmp_path.iterdir()) == [file]


def test_a_folder_that_holds_something_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    with pytest.raises(OSError), replaced(tmp_path / "model") as beside:
        beside.mkdir()
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "www" / "report.html", tmp_path / "report.html"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, a report for /dev/null or /dev/stdout would otherwise take the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "new")
    assert pipe.is_fifo() and os.read(reader, 10) == b"new"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("content", ['{"a": ' + "1" * 5000 + "}", "[" * 100_000])
def test_json_that_python_does_not_read_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json: not valid JSON"):
        read_json_object(tmp_path / "config.json")


def test_the_name_of_a_file_that_is_not_utf_8_is_written_and_read_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / "made.json", {"folder": name, "text": "é 🙂"})
    assert read_json_object(tmp_path / "made.json") == {"folder": name, "text": "é 🙂"}
    assert "é 🙂" in (tmp_path / "made.json").read_text(encoding="utf-8")
